//! Nodes that go at a known time: a drain with a deadline, or a cloud's spot notice.
//!
//! What runs there works on for as long as it safely can: it is asked to save and stop when its grace still fits before the
//! deadline, and waits again, which is the same save-first stop as a preemption's (`victims.rs`). Clouds give 30 s (Google)
//! to 120 s (AWS) of notice; with less than the grace it is asked at once.

use gangline_base::{JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job};

impl Engine {
    /// Notes when a node goes, or that it stays, and when to look at the jobs there.
    pub(crate) fn leave_by(&mut self, node: NodeId, deadline: Option<Timestamp>) {
        let Some(deadline) = deadline else {
            self.leaving.remove(&node);
            return;
        };
        self.leaving.insert(node, deadline);
        self.watch_leaving(node);
    }

    /// Sets timers for the jobs on a node that goes.
    pub(crate) fn watch_leaving(&mut self, node: NodeId) {
        let Some(deadline) = self.leaving.get(&node).copied() else { return };
        let is_there = |job: &&Job| job.attempt().is_some_and(|attempt| attempt.share_index(node).is_some());
        let timers = self.jobs.values().filter(is_there).map(|job| (stop_before(job, deadline), job.id));
        let timers: Vec<(Timestamp, JobId)> = timers.collect();
        self.timers.extend(timers);
    }

    /// When a node goes, if that is known.
    #[must_use]
    pub fn leaves_at(&self, node: NodeId) -> Option<Timestamp> {
        self.leaving.get(&node).copied()
    }

    /// The node for whose sake a running job has to stop now.
    pub(crate) fn leaving_node(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<NodeId> {
        if self.leaving.is_empty() {
            return None;
        }
        let is_due = |node: &NodeId| self.leaves_at(*node).is_some_and(|deadline| stop_before(job, deadline) <= now);
        attempt.shares.iter().map(|share| share.node).find(is_due)
    }
}

/// The last moment at which a job that is asked to save and stop is surely gone by the deadline.
fn stop_before(job: &Job, deadline: Timestamp) -> Timestamp {
    let since_epoch = deadline.since(Timestamp::EPOCH);
    Timestamp::EPOCH + since_epoch.saturating_sub(job.spec.checkpoint.grace)
}
