//! Time slicing: a job that has held its devices for long makes room for a peer that will not need them for
//! long.
//!
//! Running the job that will finish sooner keeps the mean wait short (Schrage, 1968, for the shortest
//! remaining time). Remaining times are unknown, but run times of training jobs are heavy-tailed (Jeon et
//! al., ATC'19; Hu et al., SC'21), so a job that has run for long will probably run as long again; Tiresias
//! (Gu et al., NSDI'19) relies on that alone. A time limit bounds this: a job close to its limit is nearly
//! done. Here the waiting job's estimated remaining time (`estimate.rs`) is compared with what the running
//! job has had. A victim has saved since it was placed, so it loses little and each of its turns makes
//! progress.
//!
//! A victim goes behind the job it made room for in the order of the queue (`order.rs`): a job whose turn
//! would come first anyway is not stopped. So a job that has waited long for its turn keeps it, and waiting
//! is not spread over all long jobs but falls on those with the most time left: then few wait long, as under
//! the shortest remaining time.
//!
//! A gang of several nodes makes room only for a job that takes at least a quarter as many devices: it can't
//! resume until enough devices are free together, which takes longer the larger it is, and the use of its
//! remaining devices in the meantime is unknown.
//!
//! Invariants: a job is stopped only for one of its own queue, of no lower priority, whose expected run time
//! is less than half of what the victim has had, and whose turn is earlier, whatever the queue's order. The
//! remaining time of a job that has exceeded its estimate is at least what it has had, unless its limit is
//! near, in which case it comes first. So two jobs never stop each other in turn without each having run four
//! times longer than before.

use std::time::Duration;

use gangline_base::{GangShape, JobId, JobSpec, Timestamp};

use crate::RequeueReason;
use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::Job;
use crate::queueing::{QueueIndex, aged, least_left};

/// A running job makes room for a waiting one once it has had its devices for this many times the waiting
/// job's expected time.
const OUTRUN_FACTOR: u32 = 2;
/// The total run time expected of a job that has exceeded its estimate, as a multiple of what it has had.
const TAIL_FACTOR: u32 = 2;
/// A gang of several nodes makes room only for a job that takes at least 1/`GANG_PART` of its devices.
/// Simulated on ITP's trace (`bench scheduler`): without this, large gangs wait 6.8 h rather than 4 at load
/// 0.9; with 1 or 2 the p99 at 1.1 is 33 to 39 h where this gives 32.
const GANG_PART: u32 = 4;

impl Engine {
    /// Returns how much longer a waiting job is expected to hold devices.
    pub(crate) fn expected_yet(&self, job: &Job) -> Duration {
        left(&job.spec, self.estimates.expect(&job.spec), job.ran)
    }

    /// Returns how long a job must have held its devices to be stopped for this job.
    pub(crate) fn outrun_by(&self, job: &Job) -> Duration {
        let restart = self.configuration.preemption.restart;
        let standstill = restart.save + restart.requeue + restart.restore;
        self.expected_yet(job).saturating_add(standstill).saturating_mul(OUTRUN_FACTOR)
    }

    /// Returns when a job of the same queue and priority has run long enough to be stopped for a waiting job.
    pub(crate) fn shares_from(&self, leaf: QueueIndex, job: &Job) -> Option<Timestamp> {
        if !self.configuration.preemption.share_time {
            return None;
        }
        let (since, _) = self.queues.running_of(leaf, job.spec.priority).next()?;
        Some(since + self.outrun_by(job))
    }

    /// Returns the jobs that may be stopped for a waiting job because they have held their devices for long.
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

    /// Returns when the next running job will be behind a waiting job in the order, among those that are not
    /// yet.
    pub(crate) fn outruns_next(&self, now: Timestamp, leaf: QueueIndex, job: &Job) -> Option<Timestamp> {
        let outrun_by = self.outrun_by(job);
        let comes = |(since, least, job): (Timestamp, Duration, &Job)| {
            is_behind(job, least, least).then(|| since + least.max(outrun_by))
        };
        self.behind(leaf, job).filter_map(comes).filter(|from| *from > now).min()
    }

    /// Returns running jobs that could come behind a waiting job and aren't too large to make room for it,
    /// each with its start and the least remaining time at which it comes behind.
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

    /// Returns the turn of a requeued job: by its remaining time, if it made room for a peer.
    pub(crate) fn turn_again(&self, job: &Job, reason: RequeueReason) -> Timestamp {
        let shares_time = self.configuration.preemption.share_time;
        // A job that moves elsewhere has a claim there and keeps its turn.
        if !shares_time || job.claim.is_some() || !matches!(reason, RequeueReason::Preempted { .. }) {
            return job.turn;
        }
        self.configuration.order.turn(job.submitted_at, &job.spec, self.expected_yet(job))
    }
}

/// Returns the remaining time of a job with this expected run time: a job that exceeds it is expected to run
/// as long again, and no job runs beyond its limit except to repeat work lost to a fault.
fn left(spec: &JobSpec, expected: Duration, ran: Duration) -> Duration {
    let in_all = expected.max(ran.saturating_mul(TAIL_FACTOR));
    let limit = spec.time_limit.filter(|limit| *limit > ran);
    limit.map_or(in_all, |limit| in_all.min(limit)).saturating_sub(ran)
}

/// Reports whether the gang has one node, or at most `devices` devices.
fn is_at_most(devices: u32, gang: &GangShape) -> bool {
    gang.nodes.get() == 1 || gang.devices() <= devices
}

/// Reports whether a job that has run for `ran` has at least `least` left, without consulting its estimate,
/// which could only add more.
fn is_behind(job: &Job, ran: Duration, least: Duration) -> bool {
    left(&job.spec, Duration::ZERO, ran) >= least
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
