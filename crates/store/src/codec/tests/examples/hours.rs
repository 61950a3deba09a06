//! Examples of GPU-hours by period, and of what was used of them.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{GpuSeconds, QueueName};
use gangline_orchestration::{HourQuota, HoursUsed, Period};

use super::{Examples, queue_name};

impl Examples {
    pub(super) fn gpu_hours(&mut self) -> BTreeMap<QueueName, HourQuota> {
        (0..if self.has_network { self.below(2) } else { 0 })
            .map(|_| {
                let per = [Period::Day, Period::Week, Period::Month][usize::try_from(self.below(3)).expect("few")];
                (queue_name(), HourQuota { limit: GpuSeconds::of(self.number(), Duration::from_secs(1)), per })
            })
            .collect()
    }

    pub(super) fn hours_used(&mut self) -> Vec<(QueueName, HoursUsed)> {
        (0..if self.has_network { self.below(2) } else { 0 })
            .map(|_| {
                let used = GpuSeconds::of(self.number(), Duration::from_nanos(self.large() >> 8));
                (queue_name(), HoursUsed { from: self.time(), used, at: self.time() })
            })
            .collect()
    }
}
