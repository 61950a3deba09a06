//! Moments as the product prints them: RFC 3339 in UTC.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

/// The moment of a text such as `2026-11-22T18:38:08.452904Z`.
///
/// # Errors
/// When it is none, or before 1970.
pub(crate) fn parse(text: &str) -> Result<SystemTime> {
    let nanos = since_1970(text).with_context(|| format!("understand {text:?} as a time in UTC"))?;
    Ok(SystemTime::UNIX_EPOCH + nanos)
}

/// From `from` to `to`; zero if it is the other way round by a clock's whim.
pub(crate) fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

fn since_1970(text: &str) -> Option<Duration> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = three(date, '-')?;
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hours, minutes, seconds] = three(whole, ':')?;
    let nanos: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let of_day = (hours * 60 + minutes) * 60 + seconds;
    Some(Duration::from_secs(days(year, month, day)? * 86_400 + of_day) + Duration::from_nanos(nanos))
}

fn three(text: &str, between: char) -> Option<[u64; 3]> {
    let parts: Vec<u64> = text.split(between).map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

/// Days from 1970-01-01. Years are counted from March, so that a leap day is a year's last.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month < 3 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // From 0000-03-01 to 1970-01-01 there are 719,468 days.
    (year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_date_says() {
        let seconds = |text: &str| between(SystemTime::UNIX_EPOCH, parse(text).unwrap()).as_secs_f64();
        assert_eq!(seconds("1970-01-01T00:00:00Z"), 0.0);
        assert_eq!(seconds("2024-02-29T12:00:01.5Z"), 1_709_208_001.5);
        assert_eq!(seconds("2026-11-22T18:38:08.25Z"), 1_795_372_688.25);
    }

    #[test]
    fn what_is_no_moment_in_utc_is_refused() {
        for text in ["", "2026-11-22", "2026-13-22T18:38:08Z", "2026-11-22T18:38:08+01:00", "1969-12-31T00:00:00Z"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
