//! Measured speeds of jobs, as stored on disk.

use std::time::Duration;

use gangline_base::{AttemptNumber, Step, Timestamp};
use gangline_orchestration::Pace;
use serde::{Deserialize, Serialize};

use super::history::nanos;

#[derive(Default, Serialize, Deserialize)]
pub(super) struct PaceV1 {
    /// Number of nodes, steps, and the nanoseconds they took.
    widths: Vec<(u32, u64, u64)>,
    since: Option<(AttemptNumber, Step, Timestamp)>,
}

impl PaceV1 {
    pub(super) fn is_empty(&self) -> bool {
        self.widths.is_empty() && self.since.is_none()
    }
}

impl From<&Pace> for PaceV1 {
    fn from(pace: &Pace) -> Self {
        let widths = pace.widths.iter().map(|(width, (steps, took))| (*width, *steps, nanos(*took))).collect();
        PaceV1 { widths, since: pace.since }
    }
}

impl From<PaceV1> for Pace {
    fn from(pace: PaceV1) -> Self {
        let widths = pace.widths.into_iter();
        let widths = widths.map(|(width, steps, took)| (width, (steps, Duration::from_nanos(took)))).collect();
        Pace { widths, since: pace.since }
    }
}
