//! The service's time: durations follow the monotonic clock, dates the system's clock. However the system's
//! clock is set, time limits, backoffs and leases last as long as they should, and no time precedes one in
//! the journal.

use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use tracing::warn;

/// The steady clock approaches the system's clock by at most 1/SLEW of the elapsed time, so no duration is
/// off by more.
const SLEW: u32 = 20;
/// The smallest difference from the system's clock that is logged.
const DIFFERENCE_TOLD: Duration = Duration::from_secs(10);
/// The shortest sleep of the machine that is told apart from slowness: the kernel gives its uptime in whole
/// seconds.
const SLEEP_MIN: Duration = Duration::from_secs(2);

/// A clock that starts at the system's time, or at the journal's last time if that is later. It follows the
/// monotonic clock, and slowly approaches the system's clock after that was set.
#[derive(Debug)]
pub(super) struct SteadyClock {
    now: Timestamp,
    elapsed: Duration,
    is_told: bool,
}

impl SteadyClock {
    /// Creates a clock that shows `now`.
    pub(super) fn new(now: Timestamp) -> SteadyClock {
        SteadyClock { now, elapsed: Duration::ZERO, is_told: false }
    }

    /// Returns the steady time when the system's clock shows `wall` and `elapsed` has passed since the start.
    pub(super) fn at(&mut self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let passed = elapsed.saturating_sub(self.elapsed);
        self.elapsed = self.elapsed.max(elapsed);
        let by_itself = self.now + passed;
        let (behind, ahead) = (wall.since(by_itself), by_itself.since(wall));
        let step = passed / SLEW;
        self.now = self.now + (passed + step.min(behind)).saturating_sub(step.min(ahead));
        self.tell(behind.max(ahead));
        self.now
    }

    fn tell(&mut self, difference: Duration) {
        let is_large = difference >= DIFFERENCE_TOLD;
        if is_large && !self.is_told {
            let seconds = difference.as_secs();
            warn!(
                seconds,
                "the system's clock was set; the control plane's follows it slowly, so that no time limit is cut short"
            );
        }
        self.is_told = is_large;
    }
}

/// Measures how long this process has run, including the machine's sleep.
#[derive(Debug)]
pub(super) struct Stopwatch {
    started: Instant,
    up_at_start: Duration,
    slept: Duration,
}

impl Stopwatch {
    /// Starts the stopwatch.
    pub(super) fn start() -> Stopwatch {
        Stopwatch { started: Instant::now(), up_at_start: up(), slept: Duration::ZERO }
    }

    /// Returns the time since the start.
    pub(super) fn elapsed(&mut self) -> Duration {
        // The monotonic clock stands still while the machine sleeps; its uptime does not.
        let awake = self.started.elapsed();
        let slept = up().saturating_sub(self.up_at_start).saturating_sub(awake + self.slept);
        if slept >= SLEEP_MIN {
            self.slept += slept;
        }
        awake + self.slept
    }
}

/// Returns the machine's uptime in whole seconds.
fn up() -> Duration {
    Duration::from_secs(u64::try_from(rustix::system::sysinfo().uptime).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    /// Checks the shown milliseconds since the start at 1,000,000 s, second by second, with the system's
    /// clock off by `off`.
    fn check(off: impl Fn(u64) -> i64, expected: &[u64]) {
        let mut clock = SteadyClock::new(at(1_000_000));
        let shown = |second: u64| {
            let wall = at((1_000_000 + second).checked_add_signed(off(second)).expect("after 1970"));
            let shown = clock.at(wall, Duration::from_secs(second)).since(at(1_000_000));
            u64::try_from(shown.as_millis()).expect("a short time")
        };
        let shown: Vec<u64> = (1..=6).map(shown).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_clock_that_is_set_neither_freezes_time_nor_makes_it_jump() {
        check(|_| 0, &[1_000, 2_000, 3_000, 4_000, 5_000, 6_000]);
        check(|second| if second > 2 { -3_600 } else { 0 }, &[1_000, 2_000, 2_950, 3_900, 4_850, 5_800]);
        check(|second| if second > 2 { 3_600 } else { 0 }, &[1_000, 2_000, 3_050, 4_100, 5_150, 6_200]);
        check(|second| if (2..4).contains(&second) { 3_600 } else { 0 }, &[1_000, 2_050, 3_100, 4_050, 5_000, 6_000]);
    }

    #[test]
    fn a_journal_that_is_ahead_of_the_clock_freezes_nothing() {
        let mut clock = SteadyClock::new(at(2_000));
        let shown: Vec<u64> = [100, 200, 300]
            .map(|second| clock.at(at(1_000 + second), Duration::from_secs(second)))
            .map(|now| now.since(at(2_000)).as_secs())
            .to_vec();
        assert_eq!(shown, [95, 190, 285]);
    }

    #[test]
    fn the_steady_time_meets_the_systems_again_and_stays_with_it() {
        let mut clock = SteadyClock::new(at(1_000));
        let mut last = Timestamp::EPOCH;
        for second in 1..300 {
            last = clock.at(at(1_010 + second), Duration::from_secs(second));
        }
        assert_eq!(last, at(1_309), "ten seconds are made up for in two hundred");
    }

    #[test]
    fn no_time_passes_twice_or_backwards() {
        let mut clock = SteadyClock::new(at(1_000));
        let first = clock.at(at(1_000), Duration::from_secs(5));
        assert_eq!(clock.at(at(900), Duration::from_secs(5)), first);
        assert_eq!(clock.at(at(900), Duration::from_secs(4)), first);
    }

    #[test]
    fn a_stopwatch_goes_on() {
        let mut watch = Stopwatch::start();
        let first = watch.elapsed();
        assert!(watch.elapsed() >= first && first < Duration::from_mins(1));
    }
}
