//! Eviction of stragglers: a job leaves a node on which one of its ranks is slower than its peers, since the whole gang waits for that rank
//! in each step.
//!
//! That costs a save and a restart, so it is the job's wish (`recovery.evict_stragglers`), and three things must hold: it has saved
//! since it was placed, so that little is done twice and it never moves without having come on; other nodes have room for it now, spares
//! among them; and nodes can be suspect here, for the node becomes so, which is why the job and others take other nodes first. What is
//! slow is found by comparing ranks over the same steps (`gangline_telemetry::stragglers`).

use gangline_base::{FaultCategory, JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::Job;
use crate::spares::Applicant;

impl Engine {
    /// Notes that a job leaves a node for its slowness, if it is to.
    pub(crate) fn evict_straggler(&mut self, now: Timestamp, id: JobId, node: NodeId) {
        if !self.jobs.get(&id).is_some_and(|job| self.may_evict(now, job, node)) {
            return;
        }
        self.cluster.count_fault(now, node, FaultCategory::Hardware);
        self.attend(id, |job| {
            if let Some(attempt) = job.attempt_mut() {
                attempt.straggler = Some(node);
            }
        });
    }

    fn may_evict(&self, now: Timestamp, job: &Job, node: NodeId) -> bool {
        let Some(attempt) = job.attempt().filter(|attempt| attempt.is_running() && attempt.stop.is_none()) else {
            return false;
        };
        let applicant = Applicant { is_recovering: true, ..job.applicant() };
        job.spec.recovery.evicts_stragglers
            && has_advanced(job)
            && self.cluster.health_policy().is_some()
            && self.could_move(now, (job, &applicant), attempt, Some(node))
    }
}
