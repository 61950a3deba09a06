//! Who is first among jobs of one priority in one queue.
//!
//! Under [`QueueOrder::ShortestExpected`] a job's *turn* is when it came, and [`PATIENCE`] times its expected run time
//! (`estimate.rs`) later, but at most [`AGE_MAX`]; a gang's time is divided by the root of its nodes,
//! since it can't use what is free here and there. The earlier turn goes first. So short jobs pass long ones, but a job of
//! an hour is passed only by what came within the next ten, and nothing at all is passed by what came two months after it: none starves. The key is
//! fixed while a job waits, so lines stay sorted, and it says in one sentence why a job is where it is.
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

/// How many times its expected run time a job may be passed by shorter ones that came later.
const PATIENCE: u32 = 10;
/// The longest that a job may be passed by ones that came later: sixty days.
const AGE_MAX: Duration = Duration::from_hours(24 * 60);

impl Engine {
    /// When the turn of a job is that came at `came` and is expected to take so long.
    pub(crate) fn turn_of(&self, came: Timestamp, spec: &JobSpec, expected: Duration) -> Timestamp {
        match self.queues.configuration().order {
            QueueOrder::Fifo => came,
            QueueOrder::ShortestExpected => came + patience(expected, spec.gang.nodes.get()),
        }
    }
}

fn patience(expected: Duration, nodes: u32) -> Duration {
    (expected.saturating_mul(PATIENCE) / nodes.isqrt()).min(AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_jobs_and_large_gangs_come_sooner_and_none_later_than_two_months() {
        let hour = Duration::from_hours(1);
        assert_eq!(patience(hour, 1), hour * 10);
        assert_eq!(patience(hour, 25), hour * 2);
        assert_eq!(patience(hour * 200, 1), AGE_MAX);
        assert_eq!(patience(Duration::MAX, 1), AGE_MAX);
    }
}
