//! Departure: nodes that go away at a known time, because of a drain with a deadline or a cloud's spot
//! notice.
//!
//! A job there works for as long as it safely can: it is asked to save and stop when its grace period still
//! fits before the deadline, and is requeued. This is the same save-first stop as a preemption's
//! (`victims.rs`). Clouds give 30 s (Google) to 120 s (AWS) of notice; with less than the grace period left,
//! the job is asked at once.

use gangline_base::{JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job};

impl Engine {
    /// Records when a node goes away, or that it stays, and when to reconsider its jobs.
    pub(crate) fn leave_by(&mut self, node: NodeId, deadline: Option<Timestamp>) {
        let Some(deadline) = deadline else {
            self.leaving.remove(&node);
            return;
        };
        self.leaving.insert(node, deadline);
        self.watch_leaving(node);
    }

    /// Sets timers for the jobs on a departing node.
    pub(crate) fn watch_leaving(&mut self, node: NodeId) {
        let Some(deadline) = self.leaving.get(&node).copied() else { return };
        let is_there = |job: &&Job| job.attempt().is_some_and(|attempt| attempt.share_index(node).is_some());
        let timers = self.jobs.values().filter(is_there).map(|job| (stop_before(job, deadline), job.id));
        let timers: Vec<(Timestamp, JobId)> = timers.collect();
        self.timers.extend(timers);
    }

    /// Returns when a node goes away, if known.
    #[must_use]
    pub fn leaves_at(&self, node: NodeId) -> Option<Timestamp> {
        self.leaving.get(&node).copied()
    }

    /// Returns the departing node because of which a running job has to stop now.
    pub(crate) fn leaving_node(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<NodeId> {
        if self.leaving.is_empty() {
            return None;
        }
        let is_due = |node: &NodeId| self.leaves_at(*node).is_some_and(|deadline| stop_before(job, deadline) <= now);
        attempt.shares.iter().map(|share| share.node).find(is_due)
    }
}

/// Returns the last time at which a job can be asked to save and stop and still be gone by the deadline.
fn stop_before(job: &Job, deadline: Timestamp) -> Timestamp {
    let since_epoch = deadline.since(Timestamp::EPOCH);
    Timestamp::EPOCH + since_epoch.saturating_sub(job.spec.checkpoint.grace)
}
