//! The clock for the age of data. A system clock that is set a year ahead, or is wrong at a start, must not
//! make a year's logs due at once. So this clock is never ahead of the system's, and approaches it no faster
//! than the control plane has been seen to run.

use std::time::Duration;

use gangline_base::Timestamp;

/// Time that the clock catches up per unit of elapsed time, in addition to that unit.
const GAIN: u32 = 1;

/// Follows the system's clock. Where that is ahead (the control plane was off, or the clock was set), this
/// one runs at most twice as fast as the monotonic clock: it makes up for a week off in a week, and leaves a
/// user as long to notice a wrong clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CautiousClock {
    shown: Timestamp,
    elapsed: Duration,
}

impl CautiousClock {
    /// Returns a clock that last showed `last`; `elapsed` is the current monotonic time.
    pub(crate) fn new(last: Timestamp, elapsed: Duration) -> CautiousClock {
        CautiousClock { shown: last, elapsed }
    }

    /// Returns the time when the system's clock shows `wall` and the monotonic clock `elapsed`.
    pub(crate) fn at(&mut self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let passed = elapsed.saturating_sub(self.elapsed);
        self.elapsed = self.elapsed.max(elapsed);
        self.shown = wall.min(self.shown + passed.saturating_mul(1 + GAIN));
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn day(days: u64) -> Timestamp {
        Timestamp::EPOCH + DAY * u32::try_from(days).expect("few days")
    }

    /// Checks the time shown on each day from the first on, for the system's time on that day.
    fn check(walls: &[u64], expected: &[u64]) {
        let mut clock = CautiousClock::new(day(100), Duration::ZERO);
        let shown = (1..).zip(walls).map(|(passed, wall)| clock.at(day(*wall), DAY * passed));
        assert_eq!(shown.collect::<Vec<_>>(), expected.iter().map(|days| day(*days)).collect::<Vec<_>>());
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_not_believed_and_one_that_goes_on_is() {
        check(&[101, 102, 103], &[101, 102, 103]);
        // A year ahead: each day counts at most double. After the correction the clock follows the system's
        // again.
        check(&[466, 467, 468, 104, 105], &[102, 104, 106, 104, 105]);
        // Off for ten days: made up for in ten.
        let walls: Vec<u64> = (111..=123).collect();
        let shown: Vec<u64> = (1..=13).map(|passed| (100 + 2 * passed).min(110 + passed)).collect();
        check(&walls, &shown);
        // Set back: never ahead of the system's clock.
        check(&[90, 91, 92], &[90, 91, 92]);
    }

    #[test]
    fn no_time_passes_unless_the_stopwatch_says_so() {
        let mut clock = CautiousClock::new(day(100), DAY);
        assert_eq!([clock.at(day(500), DAY), clock.at(day(500), DAY / 2)], [day(100), day(100)]);
    }
}
