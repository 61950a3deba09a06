//! What the launcher's own system says of an allocation that it ended: whether an administrator cancelled it, its time was over,
//! or others needed the nodes. A supervisor only knows that it was told to end.
//!
//! The job is requeued at once, with a pause in which the answer comes. One that somebody cancelled, or that ran into the time
//! limit without saving anything, is held: it would be submitted again against the will of who cancelled it, or run as far and
//! no further for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeId, Submitter, Timestamp};
use gangline_execution::launcher::AllocationEnd;
use gangline_execution::protocol::Outcome;
use gangline_orchestration::{Event, JobChange};

use super::actor::Actor;
use super::batch::Batch;

/// How long after an attempt's end the answer counts. Slurm knows jobs that are over for five minutes (MinJobAge).
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Who holds a job, as the journal has it.
const HOLDER: &str = "slurm";

/// Attempts that ended because their supervisors were told to, by the folders of their gangs.
pub(super) type EndedAllocations = BTreeMap<PathBuf, EndedAllocation>;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedAllocation {
    job: JobId,
    at: Timestamp,
    has_saved: bool,
}

impl Actor {
    /// Remembers an attempt whose supervisor was told to end, before the engine takes it.
    pub(super) fn note_termination(
        &mut self,
        now: Timestamp,
        (job, attempt, node): (JobId, AttemptNumber, NodeId),
        outcome: &Outcome,
    ) {
        if *outcome != Outcome::Terminated {
            return;
        }
        let live = self.engine.job(job);
        let at_start = live.and_then(|job| job.attempt()).and_then(|attempt| attempt.checkpoint_at_start);
        let has_saved = live.is_some_and(|job| job.checkpoint > at_start);
        let share = self.share_folder(job, attempt, &self.node_name(node));
        if let Some(gang) = share.parent().map(Path::to_path_buf) {
            self.ended_allocations.retain(|_, ended| now.since(ended.at) < ANSWER_MAX);
            self.ended_allocations.insert(gang, EndedAllocation { job, at: now, has_saved });
        }
    }

    /// Follows what the launcher's system says of how allocations ended.
    pub(super) fn take_allocation_ends(
        &mut self,
        now: Timestamp,
        ends: Vec<(PathBuf, AllocationEnd)>,
        batch: &mut Batch,
    ) {
        for (gang, end) in ends {
            let Some(EndedAllocation { job, has_saved, .. }) = self.ended_allocations.remove(&gang) else { continue };
            let (is_held, told) = match end {
                AllocationEnd::Cancelled => (true, "somebody cancelled its Slurm job (scancel)"),
                AllocationEnd::TimeLimit if has_saved => (false, "its Slurm job reached the time limit"),
                AllocationEnd::TimeLimit => (true, "its Slurm job reached the time limit, and it had saved nothing"),
                AllocationEnd::Preempted => (false, "Slurm preempted its job"),
                AllocationEnd::NodeFailed => (false, "a node of its Slurm job failed"),
            };
            let hold = Event::ChangeRequested { job, changes: vec![JobChange::Hold], by: Submitter(HOLDER.to_owned()) };
            // It may have started again, or ended, if Slurm took long to say.
            let is_held = is_held && self.apply(now, hold, batch).is_ok();
            let held = if is_held { "; it is held: gangline release lets it go on" } else { "" };
            if let Some(record) = self.records.get_mut(&job) {
                record.note(now, format!("{told}{held}"));
                self.rows.jobs.insert(job);
            }
        }
    }
}
