//! What the service keeps in memory of a live attempt. None of it is stored: a restart begins without it.

use std::collections::BTreeMap;

use gangline_base::{JobId, NodeName, Timestamp};

use super::reports::Pace;
use super::slowness::Stretch;

/// The runtime of each job's live attempt. It is made when something of it is first known, and forgotten when
/// the attempt is over.
#[derive(Default)]
pub(super) struct Runtimes(BTreeMap<JobId, AttemptRuntime>);

/// A live attempt.
#[derive(Default)]
pub(super) struct AttemptRuntime {
    pub(super) pace: Pace,
    pub(super) stretch: Option<Stretch>,
    /// The node of a straggler that was found in two consecutive stretches.
    pub(super) evicted: Option<String>,
    /// Why the gang isn't started yet.
    pub(super) wait: Option<String>,
    /// How often the start of the gang failed.
    pub(super) failed_starts: u32,
    /// Nodes with processes that can't be killed: since when, and whether that was reported.
    pub(super) remains: BTreeMap<NodeName, (Timestamp, bool)>,
}

impl Runtimes {
    /// Returns the runtime of the job's attempt.
    pub(super) fn of(&mut self, job: JobId) -> &mut AttemptRuntime {
        self.0.entry(job).or_default()
    }

    /// Forgets the attempt of a job, which is over.
    pub(super) fn forget(&mut self, job: JobId) {
        self.0.remove(&job);
    }

    /// Takes the nodes that jobs should leave because of a straggler.
    pub(super) fn take_evicted(&mut self) -> Vec<(JobId, String)> {
        let evicted = self.0.iter_mut().filter_map(|(job, runtime)| Some((*job, runtime.evicted.take()?)));
        evicted.collect()
    }
}
