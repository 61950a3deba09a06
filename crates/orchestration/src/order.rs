//! Who is first among jobs of one priority in one queue.
//!
//! Under [`QueueOrder::ShortestExpected`] a job's *turn* is when it came, and [`PATIENCE`] times its expected run time
//! (`estimate.rs`) later, but at most [`AGE_MAX`]; a gang's time is divided by its nodes, since it can't use what is free
//! here and there. The earlier turn goes first. So short jobs pass long ones, but a job of an hour is passed only by what
//! came within the next thirty, and nothing at all is passed by what came two months after it: none starves. The key is
//! fixed when the job comes, so lines stay sorted, and it says in one sentence why a job is where it is.
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
const PATIENCE: u32 = 30;
/// The longest that a job may be passed by ones that came later: sixty days.
const AGE_MAX: Duration = Duration::from_hours(24 * 60);

impl Engine {
    /// When the turn of a job is that comes now.
    pub(crate) fn turn_of(&self, now: Timestamp, spec: &JobSpec) -> Timestamp {
        match self.queues.configuration().order {
            QueueOrder::Fifo => now,
            QueueOrder::ShortestExpected => now + patience(self.estimates.expect(spec), spec.gang.nodes.get()),
        }
    }
}

fn patience(expected: Duration, nodes: u32) -> Duration {
    (expected.saturating_mul(PATIENCE) / nodes).min(AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_jobs_and_large_gangs_come_sooner_and_none_later_than_two_months() {
        let hour = Duration::from_hours(1);
        assert_eq!(patience(hour, 1), hour * 30);
        assert_eq!(patience(hour, 15), hour * 2);
        assert_eq!(patience(hour * 100, 1), AGE_MAX);
        assert_eq!(patience(Duration::MAX, 1), AGE_MAX);
    }
}
