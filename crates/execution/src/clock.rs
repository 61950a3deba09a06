//! A wall clock that never goes back, and the format of times in logs. Read only at the edges of this crate.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gangline_base::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// How often both clocks are read at the start.
const READINGS: usize = 8;

/// Wall time at the start of this process, advanced by the monotonic clock: an adjustment of the system clock
/// during a run can't make a rank's time negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Timestamp,
    reference: Instant,
}

impl Clock {
    /// Reads both clocks. A process may lose the processor between the two readings, for as long as others want it, and what it
    /// misses then would be this clock's error for good: a rank's end would seem to come before the stop that caused it. So the
    /// pair of readings counts that were closest together.
    pub(crate) fn start() -> Self {
        let pair = || {
            let before = Instant::now();
            let wall = SystemTime::now();
            (before.elapsed(), before, wall)
        };
        let pairs = std::iter::repeat_with(pair).take(READINGS - 1);
        let (took, before, wall) = pairs.fold(pair(), |best, pair| if pair.0 < best.0 { pair } else { best });
        let since_epoch = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Timestamp::EPOCH + since_epoch, reference: before + took / 2 }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.started + self.reference.elapsed()
    }

    /// Returns the monotonic instant of a time on this clock; times before the start become the start.
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        self.reference + at.since(self.started)
    }
}

/// Returns the reading of the machine's monotonic clock, which its processes share: `CLOCK_MONOTONIC`, as `time.monotonic()` of Python.
pub(crate) fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("the clock begins at 0")
}

/// Formats a time as `2026-11-21T09:30:00.123456Z`.
pub(crate) fn utc(at: Timestamp) -> String {
    let seconds = at.unix_nanos() / 1_000_000_000;
    let micros = at.unix_nanos() / 1_000 % 1_000_000;
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Returns year, month and day of a number of days since 1970-01-01 (Howard Hinnant's algorithm, for
/// non-negative days).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc_with_microseconds() {
        let check = |nanos: u64, text: &str| assert_eq!(utc(Timestamp::from_unix_nanos(nanos)), text);
        check(0, "1970-01-01T00:00:00.000000Z");
        check(951_782_400_000_000_000, "2000-02-29T00:00:00.000000Z");
        check(1_795_253_400_123_456_789, "2026-11-21T09:30:00.123456Z");
        check(4_102_444_799_999_999_999, "2099-12-31T23:59:59.999999Z");
    }

    /// With a single pair of readings, some clocks of this crowd are hundreds of milliseconds off.
    #[test]
    fn clocks_agree_though_their_processes_fight_for_the_processor() {
        let at = Instant::now() + Duration::from_secs(60);
        let edges = move || {
            let shown = (0..20_000).map(|_| Clock::start()).map(|clock| clock.started + (at - clock.reference));
            shown.fold((Timestamp::from_unix_nanos(u64::MAX), Timestamp::EPOCH), |(first, last), shown| {
                (first.min(shown), last.max(shown))
            })
        };
        let threads: Vec<_> = (0..32).map(|_| std::thread::spawn(edges)).collect();
        let edges: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let first = edges.iter().map(|(first, _)| *first).min().expect("there are threads");
        let apart = edges.iter().map(|(_, last)| last.since(first)).max().expect("there are threads");
        assert!(apart < Duration::from_millis(2), "{apart:?} apart");
    }

    #[test]
    fn the_clock_and_its_instants_agree() {
        let clock = Clock::start();
        let now = clock.now();
        assert!(clock.now() >= now);
        assert_eq!(clock.instant(Timestamp::EPOCH), clock.reference);
        assert!(clock.instant(now) <= Instant::now());
    }
}
