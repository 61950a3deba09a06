//! Parses points in the past on the command line: how long ago, or when.

use gangline_base::Timestamp;
use gangline_specs::jobfile::parse_duration;

use crate::output;

/// Parses a time before which nothing is shown: `2h` (ago), `2026-11-25`, `2026-11-25T08:30` (in this machine's time
/// zone) or `2026-11-25T08:30:00Z`.
pub(crate) fn since(text: &str) -> Result<Timestamp, String> {
    at(text, output::now(), &jiff::tz::TimeZone::system())
}

/// Parses the same, in UTC: bills have one time zone.
pub(crate) fn in_utc(text: &str) -> Result<Timestamp, String> {
    at(text, output::now(), &jiff::tz::TimeZone::UTC)
}

fn at(text: &str, now: Timestamp, zone: &jiff::tz::TimeZone) -> Result<Timestamp, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(now - ago);
    }
    let local = || {
        let date = || Some(text.parse::<jiff::civil::Date>().ok()?.at(0, 0, 0, 0));
        let civil = text.parse::<jiff::civil::DateTime>().ok().or_else(date)?;
        Some(civil.to_zoned(zone.clone()).ok()?.timestamp())
    };
    let at = text.parse::<jiff::Timestamp>().ok().or_else(local);
    let nanos = at.and_then(|at| u64::try_from(at.as_nanosecond()).ok());
    let wrong = || format!("\"{text}\" is no time: write how long ago, as 30m or 2d, or when, as 2026-11-25T08:30");
    nanos.map(Timestamp::from_unix_nanos).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_said_by_its_distance_or_by_its_date() {
        let now = Timestamp::from_unix_nanos(1_795_597_200_000_000_000); // 2026-11-25T09:00:00Z
        let ago = |text: &str| at(text, now, &jiff::tz::TimeZone::UTC).map(|then| now.since(then).as_secs());
        assert_eq!(ago("90s"), Ok(90));
        assert_eq!(ago("2d"), Ok(172_800));
        assert_eq!(ago("2026-11-25T08:30:00Z"), Ok(1_800));
        assert_eq!(ago("2026-11-25T08:30"), Ok(1_800));
        assert_eq!(ago("2026-11-25 08:30:00"), Ok(1_800));
        assert_eq!(ago("2026-11-25"), Ok(32_400));
        assert!(ago("yesterday").is_err_and(|said| said.contains("30m or 2d")));
    }
}
