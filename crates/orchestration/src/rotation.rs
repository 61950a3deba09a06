//! Time sharing: a job that has had its devices for long makes room for an equal that will not need them for long.
//!
//! Who will be done soon should not wait for who will not: that is what keeps waits short on average (Schrage, 1968, for
//! the shortest remaining time). Nobody knows remaining times, but run times of training jobs are heavy-tailed (Jeon et
//! al., ATC'19; Hu et al., SC'21), so what has run for long will probably run for long yet; Tiresias (Gu et al., NSDI'19)
//! rests on that alone. Here what the waiting job is expected to take (`estimate.rs`) is weighed against what the running
//! one has had. A victim has saved since it was placed, so that it loses little and each turn of a job brings it forward.
//!
//! Invariants: a job is stopped only for one of its own queue, of no lower priority, that is expected to take less than
//! half of what it has had itself. The expected time of a job that has run is at least twice that, so two jobs never stop
//! each other in turn without each having run four times longer than before: the number of times a job is stopped grows
//! like the logarithm of its length.

use std::time::Duration;

use gangline_base::{JobId, Priority, Timestamp};

use crate::RequeueReason;
use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::Job;
use crate::queue::{QueueIndex, Queues};

/// A job that has had its devices for so many times what a waiting one is expected to take makes room for it.
const OUTRUN_FACTOR: u32 = 2;
/// A job that has run for so long is expected to take so many times that in all.
const TAIL_FACTOR: u32 = 2;

impl Engine {
    /// How long a job is expected to hold its devices in all its attempts.
    pub(crate) fn expected_in_all(&self, job: &Job) -> Duration {
        self.estimates.expect(&job.spec).max(job.ran.saturating_mul(TAIL_FACTOR))
    }

    /// How long somebody must have held its devices to be stopped for this job.
    pub(crate) fn outrun_by(&self, job: &Job) -> Duration {
        let restart = self.queues.configuration().preemption.restart;
        let standstill = restart.save + restart.requeue + restart.restore;
        self.expected_in_all(job).saturating_add(standstill).saturating_mul(OUTRUN_FACTOR)
    }

    /// When somebody in its queue has run for long enough to be stopped for a waiting job: those of its priority are asked.
    pub(crate) fn shares_from(&self, leaf: QueueIndex, job: &Job) -> Option<Timestamp> {
        if !self.queues.configuration().preemption.share_time {
            return None;
        }
        let (since, _) = self.queues.running_of(leaf, job.spec.priority).next()?;
        Some(since + self.outrun_by(job))
    }

    /// Those who may be stopped for a waiting job because they have had their devices for long.
    pub(crate) fn outrun<'a>(
        &'a self,
        now: Timestamp,
        leaf: QueueIndex,
        job: &Job,
    ) -> impl Iterator<Item = JobId> + use<'a> {
        let outrun_by = self.outrun_by(job);
        let outrun = self.queues.running_of(leaf, job.spec.priority);
        let outrun = outrun.take_while(move |(since, _)| now.since(*since) >= outrun_by).map(|(_, job)| job);
        outrun.filter(|job| self.jobs.get(job).is_some_and(has_advanced))
    }

    /// The turn of a job that is queued again: later if it made room for an equal, for it has turned out to be long.
    pub(crate) fn turn_again(&self, job: &Job, reason: RequeueReason) -> Timestamp {
        let shares_time = self.queues.configuration().preemption.share_time;
        // One that goes on elsewhere has a claim there, and its place as well.
        if !shares_time || job.claim.is_some() || !matches!(reason, RequeueReason::Preempted { .. }) {
            return job.turn;
        }
        self.turn_of(job.submitted_at, &job.spec, self.expected_in_all(job)).max(job.turn)
    }
}

impl Queues {
    /// What runs in a leaf.
    pub(crate) fn running(&self, leaf: QueueIndex) -> impl Iterator<Item = JobId> + '_ {
        self.queues[leaf.0].running.values().flatten().map(|(_, job)| *job)
    }

    /// What runs in a leaf of lower priority.
    pub(crate) fn running_below(&self, leaf: QueueIndex, priority: Priority) -> impl Iterator<Item = JobId> + '_ {
        self.queues[leaf.0].running.range(..priority).flat_map(|(_, alike)| alike).map(|(_, job)| *job)
    }

    /// What runs in a leaf of one priority, and since when it would have if it had never stopped: the longest first.
    pub(crate) fn running_of(
        &self,
        leaf: QueueIndex,
        priority: Priority,
    ) -> impl Iterator<Item = (Timestamp, JobId)> + use<'_> {
        self.queues[leaf.0].running.get(&priority).into_iter().flatten().copied()
    }

    /// The leaves in and below a queue in which something runs.
    pub(crate) fn leaves_running(&self, queue: QueueIndex) -> Vec<QueueIndex> {
        let (mut open, mut leaves) = (vec![queue], Vec::new());
        while let Some(queue) = open.pop() {
            if !self.queues[queue.0].running.is_empty() {
                leaves.push(queue);
            }
            open.extend(self.children(queue));
        }
        leaves
    }
}

/// Since when a job would have held its devices that was placed at `placed_at`, had it never been without any.
pub(crate) fn without_pauses(placed_at: Timestamp, ran: Duration) -> Timestamp {
    let ran = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
    Timestamp::from_unix_nanos(placed_at.unix_nanos().saturating_sub(ran))
}
