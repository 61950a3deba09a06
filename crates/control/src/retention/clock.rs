//! The time by which things are old. A clock that is set a year ahead, or is wrong at a start, must not make a year's logs due at
//! once. So this time is never ahead of the system's, and gains on it no faster than the plane has been seen to run.

use std::time::Duration;

use gangline_base::Timestamp;

/// It makes up for time that it doesn't believe in by so much of the time that passes, besides that time itself.
const GAIN: u32 = 1;

/// Goes with the system's clock, but where that is ahead (the plane was off, or the clock was set) at most twice as fast as the
/// monotonic one: a week's standstill is made up for in a week, and somebody who set a clock wrongly has as long to notice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CautiousClock {
    shown: Timestamp,
    elapsed: Duration,
}

impl CautiousClock {
    /// A clock that showed `last` when it was seen last; `elapsed` is the stopwatch's now.
    pub(crate) fn new(last: Timestamp, elapsed: Duration) -> CautiousClock {
        CautiousClock { shown: last, elapsed }
    }

    /// The time when the system's clock shows `wall` and the stopwatch `elapsed`.
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

    /// What is shown each day from the first on, by the system's clock then.
    fn check(walls: &[u64], expected: &[u64]) {
        let mut clock = CautiousClock::new(day(100), Duration::ZERO);
        let shown = (1..).zip(walls).map(|(passed, wall)| clock.at(day(*wall), DAY * passed));
        assert_eq!(shown.collect::<Vec<_>>(), expected.iter().map(|days| day(*days)).collect::<Vec<_>>());
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_not_believed_and_one_that_goes_on_is() {
        check(&[101, 102, 103], &[101, 102, 103]);
        // A year ahead: each day counts double, no more; and once that is corrected all is as it was.
        check(&[466, 467, 468, 104, 105], &[102, 104, 106, 104, 105]);
        // The plane was off for ten days: made up for in ten.
        let walls: Vec<u64> = (111..=123).collect();
        let shown: Vec<u64> = (1..=13).map(|passed| (100 + 2 * passed).min(110 + passed)).collect();
        check(&walls, &shown);
        // Set back: never ahead of it.
        check(&[90, 91, 92], &[90, 91, 92]);
    }

    #[test]
    fn no_time_passes_unless_the_stopwatch_says_so() {
        let mut clock = CautiousClock::new(day(100), DAY);
        assert_eq!([clock.at(day(500), DAY), clock.at(day(500), DAY / 2)], [day(100), day(100)]);
    }
}
