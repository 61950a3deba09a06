//! Calendar days, used to date prices: no clock and no time zone.

use std::fmt;
use std::str::FromStr;

/// A calendar day, stored as days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    since_epoch: i64,
}

/// The error for text that is not a valid day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a day: write it as 2026-11-22")]
pub struct InvalidDay {
    /// The rejected text.
    pub text: String,
}

impl Day {
    /// Returns the days from `earlier` to this day; negative if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Day) -> i64 {
        self.since_epoch - earlier.since_epoch
    }

    /// Returns the days since 1970-01-01.
    #[must_use]
    pub const fn days_since_epoch(self) -> i64 {
        self.since_epoch
    }

    /// Returns the first day of its month, and of the next one.
    #[must_use]
    pub fn month(self) -> (Day, Day) {
        let (year, month, day) = self.parts();
        let first = self.since_epoch - day;
        (Day { since_epoch: first }, Day { since_epoch: first + month_days(year, month) })
    }

    /// Returns the year, the month and the day, the last two counted from 0.
    fn parts(self) -> (i64, usize, i64) {
        let mut year = 1970 + self.since_epoch.div_euclid(366).max(0);
        while days_before(year + 1) <= self.since_epoch {
            year += 1;
        }
        let mut left = self.since_epoch - days_before(year);
        let mut month = 0;
        while month < 11 && left >= month_days(year, month) {
            left -= month_days(year, month);
            month += 1;
        }
        (year, month, left)
    }

    /// Builds a day from the days since 1970-01-01, as a caller with a clock computes them.
    #[must_use]
    pub const fn from_days_since_epoch(days: i64) -> Self {
        Day { since_epoch: days }
    }
}

/// Days in each month of a non-leap year.
const MONTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
/// Years that the parser accepts.
const YEARS: std::ops::RangeInclusive<i64> = 1970..=9999;

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the number of days in a month; January is month 0.
const fn month_days(year: i64, month: usize) -> i64 {
    MONTHS[month] + if month == 1 && is_leap(year) { 1 } else { 0 }
}

/// Returns the days from 1970-01-01 to the start of `year`: 365 a year plus one for each leap year.
const fn days_before(year: i64) -> i64 {
    let past = year - 1;
    let leaps = past / 4 - past / 100 + past / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    365 * (year - 1970) + leaps
}

impl FromStr for Day {
    type Err = InvalidDay;

    /// Parses `2026-11-22`.
    fn from_str(text: &str) -> Result<Self, InvalidDay> {
        let refused = || InvalidDay { text: text.chars().take(32).collect() };
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts.as_slice() else { return Err(refused()) };
        let is_number = |part: &str, digits| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(year, 4) || !is_number(month, 2) || !is_number(day, 2) {
            return Err(refused());
        }
        let year: i64 = year.parse().map_err(|_| refused())?;
        let month: usize = month.parse().map_err(|_| refused())?;
        let day: i64 = day.parse().map_err(|_| refused())?;
        if !YEARS.contains(&year) || !(1..=12).contains(&month) || day < 1 || day > month_days(year, month - 1) {
            return Err(refused());
        }
        let months: i64 = (0..month - 1).map(|month| month_days(year, month)).sum();
        Ok(Day { since_epoch: days_before(year) + months + day - 1 })
    }
}

impl fmt::Display for Day {
    /// Writes `2026-11-22`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.parts();
        write!(f, "{year:04}-{:02}-{:02}", month + 1, day + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Day {
        text.parse().unwrap()
    }

    #[test]
    fn days_are_counted_over_months_and_leap_years() {
        assert_eq!(day("1970-01-01"), Day::from_days_since_epoch(0));
        assert_eq!(day("2000-03-01").since(day("2000-02-28")), 2);
        assert_eq!(day("2100-03-01").since(day("2100-02-28")), 1);
        assert_eq!(day("2026-11-22").since(day("2026-08-24")), 90);
        assert_eq!(day("2026-11-22"), Day::from_days_since_epoch(20_779));
    }

    #[test]
    fn what_is_read_is_shown_again() {
        for days in (0..60_000).step_by(17) {
            let written = Day::from_days_since_epoch(days);
            assert_eq!(day(&written.to_string()), written);
        }
        assert_eq!(day("2024-02-29").to_string(), "2024-02-29");
        assert_eq!(day("2024-12-31").to_string(), "2024-12-31");
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for text in [
            "",
            "2026-11",
            "2026-13-01",
            "2026-02-29",
            "2026-00-01",
            "2026-01-00",
            "26-11-22",
            "2026-1-1",
            "+026-11-22",
        ] {
            assert!(text.parse::<Day>().is_err(), "{text}");
        }
    }
}
