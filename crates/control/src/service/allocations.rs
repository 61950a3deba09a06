//! What the launcher's own system says of the allocations of gangs: since when each has its nodes, which is booked, and how it
//! ended one: whether an administrator cancelled it, its time was over, or others needed the nodes. A supervisor only knows
//! that it was told to end.
//!
//! The job is requeued at once, with a pause in which the answer comes. One that somebody cancelled is held: it would be
//! submitted again against the will of who cancelled it. So is one that ran into the time limit a second time without getting
//! further or saving: it would do so for ever. Of a job that reports no steps nobody can tell how far it gets, so it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeId, Submitter, Timestamp};
use gangline_execution::launcher::{AllocationEnd, GangAllocation};
use gangline_execution::protocol::Outcome;
use gangline_orchestration::{Event, JobChange};
use gangline_store::model::AllocationRecord;

use super::actor::Actor;
use super::batch::Batch;
use crate::folders::attempt_folder;

/// How long after an attempt's end the answer counts. Slurm knows jobs that are over for five minutes (MinJobAge).
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// What a job's history says of a suspension.
const SUSPENDED: &str = "Slurm has suspended its job: its processes stand still, and their devices stay with it";
const RESUMED: &str = "Slurm has resumed its job";
/// Who holds a job, as the journal has it.
const HOLDER: &str = "slurm";

/// What is remembered of allocations that the launcher's system may have ended or suspended.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    /// Attempts that ended because their supervisors were told to, or that never started, by the folders of their gangs.
    unexplained: BTreeMap<PathBuf, EndedAllocation>,
    /// The highest step that each live job had reached when it last ran into that system's time limit.
    timed_out_at: BTreeMap<JobId, u64>,
    /// The folders of gangs whose processes that system has stopped for a while.
    suspended: BTreeSet<PathBuf>,
}

/// An attempt that the launcher's system may have ended.
#[derive(Clone, Copy, Debug)]
struct EndedAllocation {
    job: JobId,
    attempt: AttemptNumber,
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
        if *outcome == Outcome::Terminated {
            self.await_explanation(now, (job, attempt, &self.node_name(node)));
        }
    }

    /// Remembers an attempt of which the launcher's system may say that somebody ended it, before the engine takes its end.
    pub(super) fn await_explanation(&mut self, now: Timestamp, (job, attempt, node): (JobId, AttemptNumber, &str)) {
        let live = self.engine.job(job);
        let at_start = live.and_then(|job| job.attempt()).and_then(|attempt| attempt.checkpoint_at_start);
        let has_saved = live.is_some_and(|job| job.checkpoint > at_start);
        let share = self.share_folder(job, attempt, node);
        if let Some(gang) = share.parent().map(Path::to_path_buf) {
            let unexplained = &mut self.allocations.unexplained;
            unexplained.retain(|_, ended| now.since(ended.at) < ANSWER_MAX);
            unexplained.insert(gang, EndedAllocation { job, attempt, at: now, has_saved });
        }
    }

    /// Reports whether a job has got further than when it last ran into the time limit, as far as can be told.
    fn got_further(&mut self, job: JobId) -> bool {
        let reached = self.records.get(&job).map_or(0, |record| record.high_water_step);
        let timed_out_at = &mut self.allocations.timed_out_at;
        timed_out_at.retain(|job, _| self.engine.job(*job).is_some());
        let before = timed_out_at.insert(job, reached);
        reached == 0 || before.is_none_or(|before| reached > before)
    }

    /// Notes when the nodes of live attempts were allocated and released, which is booked, and when they were suspended.
    fn note_allocations(&mut self, now: Timestamp, allocations: &BTreeMap<PathBuf, GangAllocation>) {
        if allocations.is_empty() {
            return;
        }
        let Allocations { suspended, .. } = &mut self.allocations;
        suspended.retain(|gang| allocations.contains_key(gang));
        for (job, record) in &mut self.records {
            let live = record.last_attempt().filter(|last| last.ended_at.is_none() && last.awaits_allocation());
            let Some(number) = live.map(|last| last.number) else { continue };
            let gang = attempt_folder(&self.options.folder, *job, AttemptNumber(number));
            let Some(&GangAllocation { from: Some(from), to, is_suspended, .. }) = allocations.get(&gang) else {
                continue;
            };
            let has_changed = if is_suspended { suspended.insert(gang) } else { suspended.remove(&gang) };
            if has_changed {
                let told = if is_suspended { SUSPENDED } else { RESUMED };
                record.note(now, told.to_owned());
            }
            if record.follow_allocation(AllocationRecord { from: Some(from), to }) || has_changed {
                self.rows.jobs.insert(*job);
            }
        }
    }

    /// Follows what the launcher's system says of the allocations of gangs.
    pub(super) fn take_allocations(
        &mut self,
        now: Timestamp,
        allocations: Vec<(PathBuf, GangAllocation)>,
        batch: &mut Batch,
    ) {
        let ends = allocations.iter().filter_map(|(gang, allocation)| Some((gang.clone(), allocation.end?)));
        let ends: Vec<(PathBuf, AllocationEnd)> = ends.collect();
        self.note_allocations(now, &allocations.into_iter().collect());
        for (gang, end) in ends {
            let Some(EndedAllocation { job, attempt, has_saved, .. }) = self.allocations.unexplained.remove(&gang)
            else {
                continue;
            };
            let (is_held, told) = match end {
                AllocationEnd::Cancelled => (true, "somebody cancelled its Slurm job (scancel)"),
                AllocationEnd::TimeLimit if !has_saved && !self.got_further(job) => {
                    (true, "its Slurm job reached the time limit again, and it came no further than before")
                }
                AllocationEnd::TimeLimit => (false, "its Slurm job reached the time limit"),
                AllocationEnd::Preempted => (false, "Slurm preempted its job"),
                AllocationEnd::NodeFailed => (false, "a node of its Slurm job failed"),
            };
            let hold = Event::ChangeRequested { job, changes: vec![JobChange::Hold], by: Submitter(HOLDER.to_owned()) };
            // It may have started again, or ended, if Slurm took long to say.
            let is_held = is_held && self.apply(now, hold, batch).is_ok();
            let held = if is_held { "; it is held: gangline release lets it go on" } else { "" };
            if let Some(record) = self.records.get_mut(&job) {
                record.explain_end(attempt.0, told);
                record.note(now, format!("{told}{held}"));
                self.rows.jobs.insert(job);
            }
        }
    }
}
