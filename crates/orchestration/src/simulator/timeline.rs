//! A picture of a simulation: who held which node when, and how many waited. Bounded in size whatever the trace.

use std::time::Duration;

use gangline_base::Timestamp;

use super::policy::Place;
use super::workload::JobIndex;

/// Notes what the picture is made of, if there is to be one.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    is_on: bool,
}

impl Recorder {
    pub(crate) fn new(is_on: bool) -> Self {
        Recorder { is_on }
    }

    pub(crate) fn run(&mut self, _job: JobIndex, _now: Timestamp, _held: Duration, _place: &Place) {
        if !self.is_on {}
    }

    pub(crate) fn observe(&mut self, _now: Timestamp, _waiting: usize) {}
}
