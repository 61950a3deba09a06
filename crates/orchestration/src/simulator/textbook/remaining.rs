//! SRTF and SRSF: the shortest remaining time, or remaining time x accelerators, first; preemptive and clairvoyant.
//!
//! As in Muri's simulator (Zhao et al., SIGCOMM'22): at every event the runnable jobs are sorted stably, so equals keep
//! the order they had, and all that fit run; one that doesn't fit is passed by those behind it.

use super::Occupancy;
use super::preemptive::{Placing, settle};
use crate::simulator::policy::{Action, Happening, Policy, View};
use crate::simulator::workload::JobIndex;

/// What is shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Remaining time: SRTF.
    Time,
    /// Remaining time x accelerators: SRSF.
    Service,
}

/// The shortest remaining first.
#[derive(Debug)]
pub(crate) struct ShortestRemaining {
    measure: Measure,
    placing: Placing,
    occupancy: Occupancy,
    runnable: Vec<JobIndex>,
}

impl ShortestRemaining {
    pub(crate) fn new(measure: Measure, placing: Placing, capacity: &[u32], jobs: usize) -> Self {
        ShortestRemaining { measure, placing, occupancy: Occupancy::new(capacity, jobs), runnable: Vec::new() }
    }
}

impl Policy for ShortestRemaining {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        let mut has_finished = false;
        for happening in happenings {
            self.occupancy.note(*happening);
            match happening {
                Happening::Submitted(job) => self.runnable.push(*job),
                Happening::Finished(_) => has_finished = true,
                _ => {}
            }
        }
        if has_finished {
            let is_over = |job: &JobIndex| happenings.binary_search(&Happening::Finished(*job)).is_ok();
            self.runnable.retain(|job| !is_over(job));
        }
        match self.measure {
            Measure::Time => self.runnable.sort_by_cached_key(|job| view.remaining(*job)),
            Measure::Service => self.runnable.sort_by_cached_key(|job| view.remaining(*job) * view.gpus(*job)),
        }
        settle(self.placing, view, &mut self.occupancy, &self.runnable)
    }
}
