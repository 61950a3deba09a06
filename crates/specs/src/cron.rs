//! Times that come again, as cron has them: five fields (minute, hour, day of the month, month, day of the week), lists,
//! ranges, steps and names (crontab(5)), and `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. In UTC.

use croner::parser::{CronParser, Seconds, Year};
use gangline_base::Timestamp;
use jiff::tz::TimeZone;

/// The longest pattern, in bytes.
const BYTES_MAX: usize = 256;

/// A pattern of times.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    pattern: croner::Cron,
}

impl Cron {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A sentence about what is wrong, which continues after the pattern.
    pub fn parse(text: &str) -> Result<Cron, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("has {} bytes, over the limit of {BYTES_MAX}", text.len()));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let pattern = parser.parse(text.trim()).map_err(|error| complaint(&error.to_string()))?;
        Ok(Cron { text: text.trim().to_owned(), pattern })
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first time after `now`; none if there is none, as of a 30th of February.
    #[must_use]
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let now = jiff::Timestamp::from_nanosecond(i128::from(now.unix_nanos())).ok()?.to_zoned(TimeZone::UTC);
        let next = self.pattern.find_next_occurrence(&now, false).ok()?;
        u64::try_from(next.timestamp().as_nanosecond()).ok().map(Timestamp::from_unix_nanos)
    }
}

/// Returns the parser's sentence, such as "Invalid pattern: Pattern must have 5 fields.", as the end of one.
fn complaint(sentence: &str) -> String {
    let what = sentence.rsplit(": ").next().unwrap_or(sentence).trim_end_matches('.');
    let mut letters = what.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase()).into_iter();
    format!("is no time that comes again: {}", first.chain(letters).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().expect("a time");
        Timestamp::from_unix_nanos(u64::try_from(time.as_nanosecond()).expect("after 1970"))
    }

    #[test]
    fn the_next_time_is_the_first_that_all_fields_allow() {
        let cases = [
            ("0 3 * * *", "2026-11-26T02:59:59.9Z", "2026-11-26T03:00:00Z"),
            ("0 3 * * *", "2026-11-26T03:00:00Z", "2026-11-27T03:00:00Z"),
            ("*/15 * * * *", "2026-12-31T23:50:00Z", "2027-01-01T00:00:00Z"),
            ("30 8 * * mon-fri", "2026-11-27T09:00:00Z", "2026-11-30T08:30:00Z"),
            ("0 0 29 2 *", "2026-11-26T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 1,15 jan *", "2026-11-26T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@weekly", "2026-11-26T00:00:00Z", "2026-11-29T00:00:00Z"),
            // Both days are named: either counts (crontab(5)).
            ("0 0 13 * fri", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"),
        ];
        for (pattern, now, next) in cases {
            let cron = Cron::parse(pattern).expect("a pattern");
            assert_eq!((cron.next_after(at(now)), cron.text()), (Some(at(next)), pattern), "{pattern} after {now}");
        }
    }

    #[test]
    fn a_wrong_pattern_is_refused_and_a_day_that_never_comes_has_no_time() {
        for wrong in ["", "0 3 * *", "60 3 * * *", "0 3 * * * *", "0 25 * * *", "x * * * *", "5-1 * * * *"] {
            let message = Cron::parse(wrong).expect_err(wrong);
            assert!(message.starts_with("is no time that comes again: "), "{message}");
            assert!(!message.ends_with('.') && !message.contains('\n'), "{message}");
        }
        assert!(Cron::parse(&"1,".repeat(200)).expect_err("too long").contains("over the limit"));
        let never = Cron::parse("0 0 30 2 *");
        assert_eq!(never.ok().and_then(|cron| cron.next_after(at("2026-11-26T00:00:00Z"))), None);
    }
}
