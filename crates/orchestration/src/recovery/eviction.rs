//! Eviction of stragglers: a job leaves a node on which one of its ranks is slower than its peers, since the
//! whole gang waits for that rank in each step.
//!
//! Eviction costs a save and a restart, so jobs opt in (`recovery.evict_stragglers`), and three conditions
//! must hold: the job has saved since it was placed, so that little work is repeated and it never moves
//! without progress; other nodes, spares included, have room for it now; and a health policy is configured,
//! since the node becomes suspect so that all jobs prefer other nodes. Slowness is detected by comparing
//! ranks over the same steps (`accounting/src/attribution/straggler.rs`).

use gangline_base::{FaultCategory, JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::Job;

impl Engine {
    /// Records that a job leaves a node because a rank is slow there, if the conditions hold.
    pub(crate) fn evict_straggler(&mut self, now: Timestamp, id: JobId, node: NodeId) {
        if !self.jobs.get(&id).is_some_and(|job| self.may_evict(job)) || !self.could_move(now, id, true, Some(node)) {
            return;
        }
        self.cluster.count_fault(now, node, FaultCategory::Hardware);
        self.attend(id, |job| {
            if let Some(attempt) = job.attempt_mut() {
                attempt.straggler = Some(node);
            }
        });
    }

    fn may_evict(&self, job: &Job) -> bool {
        job.attempt().is_some_and(|attempt| attempt.is_running() && attempt.stop.is_none())
            && job.spec.recovery.evicts_stragglers
            && has_advanced(job)
            && self.cluster.health_policy().is_some()
    }
}
