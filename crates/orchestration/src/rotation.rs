//! Time sharing: a job that has had its devices for long makes room for an equal that will not need them for long.
//!
//! Who will be done soon should not wait for who will not: that is what keeps waits short on average (Schrage, 1968, for
//! the shortest remaining time). Nobody knows remaining times, but run times of training jobs are heavy-tailed (Jeon et
//! al., ATC'19; Hu et al., SC'21), so what has run for long will probably run for as long yet; Tiresias (Gu et al., NSDI'19)
//! rests on that alone. A time limit bounds it: what is close to its limit is nearly done. Here what the waiting job has left
//! by its estimate (`estimate.rs`) is weighed against what the running one has had. A victim has saved since it was placed,
//! so that it loses little and each turn of a job brings it forward.
//!
//! Who is stopped goes behind the one that it made room for, by the rule of the line (`order.rs`): nobody is stopped whose
//! turn would come first all the same. So a job that has waited long for its turn keeps it, and waiting is not spread over
//! all long jobs, a little to each, but is borne by those that have most left: then few wait long, as under the shortest
//! remaining time.
//!
//! A gang of several nodes makes room only for what takes at least a quarter as many devices: it stands still until as many are
//! together again, which takes the longer the more it needs, and what the rest of its devices would do meanwhile nobody knows.
//!
//! Invariants: a job is stopped only for one of its own queue, of no lower priority, that is expected to take less than
//! half of what it has had itself, and whose turn is earlier, whatever order the queue is in. What a job has left that runs
//! beyond its estimate is at least what it has had, unless its limit is near, and then it comes first: so two jobs never
//! stop each other in turn without each having run four times longer than before.

use std::time::Duration;

use gangline_base::{GangShape, JobId, JobSpec, Priority, Timestamp};

use crate::RequeueReason;
use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::Job;
use crate::order::{aged, least_left};
use crate::queue::{QueueIndex, Queues};

/// A job that has had its devices for so many times what a waiting one is expected to take makes room for it.
const OUTRUN_FACTOR: u32 = 2;
/// A job that has outlived its estimate is expected to take so many times what it has had in all.
const TAIL_FACTOR: u32 = 2;
/// A gang of several nodes makes room only for one that takes at least the inverse of this of its devices. Simulated on ITP's
/// trace (`bench scheduler`): without it large gangs wait 6.8 h rather than 4 at load 0.9; with 1 or 2 the p99 at 1.1 is 33 to
/// 39 h where this gives 32.
const GANG_PART: u32 = 4;

impl Engine {
    /// How long a waiting job is expected to hold devices from now on.
    pub(crate) fn expected_yet(&self, job: &Job) -> Duration {
        left(&job.spec, self.estimates.expect(&job.spec), job.ran)
    }

    /// How long somebody must have held its devices to be stopped for this job.
    pub(crate) fn outrun_by(&self, job: &Job) -> Duration {
        let restart = self.queues.configuration().preemption.restart;
        let standstill = restart.save + restart.requeue + restart.restore;
        self.expected_yet(job).saturating_add(standstill).saturating_mul(OUTRUN_FACTOR)
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
        let running = self.behind(leaf, job).take_while(move |(since, ..)| now.since(*since) >= outrun_by);
        running
            .filter(move |(since, least, job)| has_advanced(job) && is_behind(job, now.since(*since), *least))
            .map(|(.., job)| job.id)
    }

    /// When the next of those who run and are not behind a waiting job in line will be.
    pub(crate) fn outruns_next(&self, now: Timestamp, leaf: QueueIndex, job: &Job) -> Option<Timestamp> {
        let outrun_by = self.outrun_by(job);
        let comes = |(since, least, job): (Timestamp, Duration, &Job)| {
            is_behind(job, least, least).then(|| since + least.max(outrun_by))
        };
        self.behind(leaf, job).filter_map(comes).filter(|from| *from > now).min()
    }

    /// Who runs, could be behind a waiting job in line, and isn't too large to make room for it: since when, what it must have
    /// left to be behind, and the job.
    fn behind<'a>(
        &'a self,
        leaf: QueueIndex,
        job: &Job,
    ) -> impl Iterator<Item = (Timestamp, Duration, &'a Job)> + use<'a> {
        let turn = aged(job.submitted_at, &job.spec, self.expected_yet(job));
        let gang_max = job.spec.gang.devices().saturating_mul(GANG_PART);
        self.queues.running_of(leaf, job.spec.priority).filter_map(move |(since, id)| {
            let job = self.jobs.get(&id).filter(|job| is_at_most(gang_max, &job.spec.gang))?;
            Some((since, least_left(&job.spec, turn.since(job.submitted_at))?, job))
        })
    }

    /// The turn of a job that is queued again: by what it has left, if it made room for an equal.
    pub(crate) fn turn_again(&self, job: &Job, reason: RequeueReason) -> Timestamp {
        let shares_time = self.queues.configuration().preemption.share_time;
        // One that goes on elsewhere has a claim there, and its place as well.
        if !shares_time || job.claim.is_some() || !matches!(reason, RequeueReason::Preempted { .. }) {
            return job.turn;
        }
        self.turn_of(job.submitted_at, &job.spec, self.expected_yet(job))
    }
}

/// What is left of a job that was expected to take so long in all: what outlives that takes as long again, and nothing runs
/// beyond its limit, but to do again what a fault has cost it.
fn left(spec: &JobSpec, expected: Duration, ran: Duration) -> Duration {
    let in_all = expected.max(ran.saturating_mul(TAIL_FACTOR));
    let limit = spec.time_limit.filter(|limit| *limit > ran);
    limit.map_or(in_all, |limit| in_all.min(limit)).saturating_sub(ran)
}

/// Whether it runs on one node, or takes at most so many devices.
fn is_at_most(devices: u32, gang: &GangShape) -> bool {
    gang.nodes.get() == 1 || gang.devices() <= devices
}

/// Whether a job that has run for `ran` has at least so much left, by that alone: an estimate could only say more.
fn is_behind(job: &Job, ran: Duration, least: Duration) -> bool {
    left(&job.spec, Duration::ZERO, ran) >= least
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    const HOUR: Duration = Duration::from_hours(1);

    fn limited(hours: u32) -> JobSpec {
        JobSpec { time_limit: Some(HOUR * hours), ..fixture::job(fixture::gang(1, 8)) }
    }

    #[test]
    fn what_is_left_is_the_rest_of_the_estimate_or_as_much_again_within_the_limit() {
        assert_eq!(left(&limited(100), HOUR * 10, HOUR * 2), HOUR * 8);
        assert_eq!(left(&limited(100), HOUR * 10, HOUR * 9), HOUR * 9, "twice what it ran is more than was expected");
        assert_eq!(left(&limited(100), HOUR * 10, HOUR * 90), HOUR * 10, "not beyond the limit");
        assert_eq!(left(&limited(100), HOUR * 10, HOUR * 110), HOUR * 110, "faults took it beyond the limit");
    }

    #[test]
    fn who_waited_long_is_behind_only_after_running_long_and_never_close_to_its_limit() {
        let job = Job::submitted(JobId(1), limited(48).into(), Timestamp::EPOCH);
        let waited = HOUR * 60;
        let least = least_left(&job.spec, waited).expect("turns go on for half a year");
        assert!(!is_behind(&job, HOUR * 2, least), "its turn is before one 60 hours later");
        assert!(is_behind(&job, HOUR * 4, least));
        assert!(!is_behind(&job, HOUR * 46, least), "two hours are left of its limit");
    }
}
