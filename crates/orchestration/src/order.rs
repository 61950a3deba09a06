//! Who is first among jobs of one priority in one queue.
//!
//! Under [`QueueOrder::ShortestExpected`] a job's *turn* is when it came, and [`PATIENCE`] times what it is expected to run
//! yet (`estimate.rs`; `rotation.rs` for one that has run) later, but at most [`AGE_MAX`]; a gang's time is divided by the
//! root of its nodes, since it can't use what is free here and there. The earlier turn goes first. So short jobs pass long
//! ones, but a job of an hour is passed only by what came within the next nineteen, and nothing at all is passed by what
//! came half a year after it: none starves. The key is fixed while a job waits, so lines stay sorted, and it says in one sentence
//! why a job is where it is.
//!
//! What is left, not what is taken in all, is the shortest-remaining-time rule (Schrage 1968), under which waits are the
//! shortest on average and the few longest jobs bear them. That needs the longest told apart: a bound on their age
//! that is reached by every job of days makes them take turns as they came, and then many wait long.
//!
//! Shortest job first with aging is as old as operating systems (Kleinrock, Queueing Systems II, 1976); ordering by
//! learned run times is Helios' QSSF (Hu et al., SC'21), which has no aging. The bounded slowdown that the rule aims at is
//! Feitelson's (JSSPP 1997). Under [`QueueOrder::Fifo`] the turn is when the job came.

use std::time::Duration;

use gangline_base::{JobSpec, Timestamp};

use crate::engine::Engine;

/// Who is first among jobs of one priority in one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// The one that came first: what everybody expects until an administrator says otherwise.
    #[default]
    Fifo,
    /// The one that is expected to be shortest, by what jobs like it took; the longer a job waits, the fewer pass it.
    ShortestExpected,
}

impl QueueOrder {
    /// What administrators write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QueueOrder::Fifo => "fifo",
            QueueOrder::ShortestExpected => "shortest-expected",
        }
    }
}

/// How many times what it is expected to run a job may be passed by shorter ones that came later.
const PATIENCE: u32 = 19;
/// The longest that a job may be passed by ones that came later: half a year, which only jobs of nine and a half days and
/// more reach.
const AGE_MAX: Duration = Duration::from_hours(24 * 180);

impl Engine {
    /// When the turn of a job is that came at `came` and is expected to take so long.
    pub(crate) fn turn_of(&self, came: Timestamp, spec: &JobSpec, expected: Duration) -> Timestamp {
        match self.queues.configuration().order {
            QueueOrder::Fifo => came,
            QueueOrder::ShortestExpected => aged(came, spec, expected),
        }
    }
}

/// When the turn of a job is that came at `came` and has so long left, where the shortest goes first.
pub(crate) fn aged(came: Timestamp, spec: &JobSpec, left: Duration) -> Timestamp {
    came + patience(left, spec.gang.nodes.get())
}

/// The least that a job has left whose turn is later than so long after it came; none if no turn is.
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
