//! How often Slurm is queried. A query costs slurmctld three to four requests, which take locks of its scheduler, so sites with
//! many users of such programs suffer (slurm.schedmd.com/squeue.html, "Performance"). So queries are rare while nothing is
//! expected of them, and follow each other quickly only just after something has changed.

use std::time::{Duration, Instant};

use crate::launcher::SURVEY_INTERVAL;

/// Between two queries while no job waits or runs: with three requests each, at most 0.2 a second.
const IDLE: Duration = Duration::from_secs(15);
/// Between two queries while jobs wait or run: with four requests each, at most one a second.
const BUSY: Duration = Duration::from_secs(4);
/// After a change, the pause is this part of the time since then: queries thin out the longer nothing comes of it.
const PART: u32 = 4;

/// The time since something was asked of Slurm whose effect a query shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    changed_at: Option<Instant>,
}

impl Pace {
    /// Notes that something was asked of Slurm, or that somebody needs to know what became of a gang.
    pub(super) fn changed(&mut self) {
        self.changed_at = Some(Instant::now());
    }

    /// Returns the time from one query to the next.
    pub(super) fn interval(self, is_busy: bool) -> Duration {
        interval(self.changed_at.map(|at| at.elapsed()), is_busy)
    }
}

fn interval(since_change: Option<Duration>, is_busy: bool) -> Duration {
    let usual = if is_busy { BUSY } else { IDLE };
    since_change.map_or(usual, |since| (since / PART).clamp(SURVEY_INTERVAL, usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_follow_each_other_quickly_after_a_change_and_thin_out() {
        let seconds = Duration::from_secs;
        assert_eq!((interval(None, false), interval(None, true)), (IDLE, BUSY));
        assert_eq!(interval(Some(seconds(0)), false), SURVEY_INTERVAL);
        assert_eq!(interval(Some(seconds(8)), true), seconds(2));
        assert_eq!(interval(Some(seconds(30)), true), BUSY);
        assert_eq!(interval(Some(seconds(100)), false), IDLE);
    }

    /// The bounds that the two intervals are there for, by the requests that a query was counted to cost.
    #[test]
    fn an_idle_control_plane_asks_at_most_every_fifth_second_and_a_busy_one_once_a_second() {
        let a_second = |requests: f64, every: Duration| requests / every.as_secs_f64();
        assert!(a_second(3.0, IDLE) <= 0.2 && a_second(4.0, BUSY) <= 1.0);
    }
}
