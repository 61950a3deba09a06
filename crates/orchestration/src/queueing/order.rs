//! The order of jobs with the same priority in a queue.
//!
//! Under [`QueueOrder::ShortestExpected`] a job's *turn* is its submission time plus [`PATIENCE`] times its
//! expected remaining run time (`estimate.rs`; `time_slicing.rs` for a job that has run), but at most
//! [`AGE_MAX`] later; a gang's time is divided by the square root of its nodes, because it can't use
//! scattered free devices. The earlier turn goes first. So short jobs pass long ones, but a job of an hour is
//! passed only by jobs submitted within the next nineteen hours, and no job is passed by one submitted half a
//! year later: none starves. The key is fixed while a job waits, so queues stay sorted, and it explains a
//! job's position in one sentence.
//!
//! Using the remaining rather than the total run time gives the shortest-remaining-time rule (Schrage 1968),
//! which has the shortest mean wait and makes the few longest jobs wait most. It has to tell the longest jobs
//! apart: if an age bound applied to every job of several days, such jobs would be served in order of
//! arrival, and many would wait long.
//!
//! Shortest job first with aging is an old operating-systems rule (Kleinrock, Queueing Systems II, 1976);
//! ordering by learned run times is Helios' QSSF (Hu et al., SC'21), which has no aging. The bounded slowdown
//! that the rule aims at is Feitelson's (JSSPP 1997). Under [`QueueOrder::Fifo`] the turn is the submission
//! time.

use std::time::Duration;

use gangline_base::{JobSpec, Timestamp};

/// The order of jobs with the same priority in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// First come, first served: the default.
    #[default]
    Fifo,
    /// The job with the shortest expected run time, judged by similar past jobs; the longer a job waits, the
    /// fewer jobs pass it.
    ShortestExpected,
}

impl QueueOrder {
    /// Returns the name used in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QueueOrder::Fifo => "fifo",
            QueueOrder::ShortestExpected => "shortest-expected",
        }
    }

    /// Returns the turn of a job with this submission time and expected run time.
    pub(crate) fn turn(self, came: Timestamp, spec: &JobSpec, expected: Duration) -> Timestamp {
        match self {
            QueueOrder::Fifo => came,
            QueueOrder::ShortestExpected => aged(came, spec, expected),
        }
    }
}

/// How long, in multiples of its expected run time, a job may be passed by shorter jobs that came later.
const PATIENCE: u32 = 19;
/// The longest time that a job may be passed by later ones: half a year, which only jobs of nine and a half
/// days or more reach.
const AGE_MAX: Duration = Duration::from_hours(24 * 180);

/// Returns the turn under the shortest-expected order of a job that has `left` to run.
pub(crate) fn aged(came: Timestamp, spec: &JobSpec, left: Duration) -> Timestamp {
    came + patience(left, spec.gang.nodes.get())
}

/// Returns the least remaining time for which a job's turn is more than `passed` after its submission; none
/// if no turn is.
pub(crate) fn least_left(spec: &JobSpec, passed: Duration) -> Option<Duration> {
    let left = passed.saturating_mul(spec.gang.nodes.get().isqrt()) / PATIENCE;
    (passed < AGE_MAX).then(|| left + Duration::from_nanos(1))
}

fn patience(left: Duration, nodes: u32) -> Duration {
    (left.saturating_mul(PATIENCE) / nodes.isqrt()).min(AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_jobs_and_large_gangs_come_sooner_and_none_later_than_half_a_year() {
        let hour = Duration::from_hours(1);
        assert_eq!(patience(hour, 1), hour * 19);
        assert_eq!(patience(hour, 25), hour * 19 / 5);
        assert_eq!(patience(hour * 300, 1), AGE_MAX);
        assert_eq!(patience(Duration::MAX, 1), AGE_MAX);
    }

    #[test]
    fn what_is_left_at_least_follows_from_the_turn() {
        let spec = crate::fixture::job(crate::fixture::gang(4, 8));
        let hour = Duration::from_hours(1);
        let least = least_left(&spec, hour).expect("turns go on for half a year");
        assert!(patience(least, 4) >= hour && least <= hour * 2 / 19 + Duration::from_nanos(1));
        assert_eq!(least_left(&spec, AGE_MAX), None, "no turn is later");
    }
}
