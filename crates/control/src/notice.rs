//! Deadlines of a cloud's termination notices. Supervisors find notices and pass them on verbatim
//! (`execution/src/supervisor/notice.rs`).

use std::time::Duration;

use gangline_base::Timestamp;
use jiff::fmt::rfc2822;

/// Google's notice has no time: an instance has 30 s.
const UNSAID: Duration = Duration::from_secs(30);
/// The longest notice that is believed.
const LEFT_MAX: Duration = Duration::from_hours(24);

/// Returns the time at which a notice says the machine will go.
pub(crate) fn leaves_at(text: &str, seen_at: Timestamp) -> Timestamp {
    let text = text.trim();
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let azure = json.as_ref().and_then(|json| json["Events"].as_array()).into_iter().flatten();
    let azure = azure.filter_map(|event| moment(event["NotBefore"].as_str()?)).min();
    let aws = json.as_ref().and_then(|json| moment(json["time"].as_str()?));
    let seconds = text.parse().ok().map(|seconds| seen_at + Duration::from_secs(seconds));
    let at = azure.or(aws).or(seconds).or_else(|| moment(text)).unwrap_or(seen_at + UNSAID);
    at.max(seen_at).min(seen_at + LEFT_MAX)
}

/// Parses a time in RFC 3339 or RFC 2822.
fn moment(text: &str) -> Option<Timestamp> {
    let at: jiff::Timestamp = text.parse().ok().or_else(|| Some(rfc2822::parse(text).ok()?.timestamp()))?;
    u64::try_from(at.as_nanosecond()).ok().map(Timestamp::from_unix_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clouds_notice_is_read() {
        let seen_at = Timestamp::from_unix_nanos(1_474_309_700_000_000_000); // 2016-09-19T18:28:20Z
        let left = |text: &str| leaves_at(text, seen_at).since(seen_at).as_secs();
        assert_eq!(left(r#"{"action":"terminate","time":"2016-09-19T18:30:20Z"}"#), 120);
        let event = |time: &str| format!(r#"{{"Events":[{{"EventType":"Preempt","NotBefore":"{time}"}}]}}"#);
        assert_eq!(left(&event("Mon, 19 Sep 2016 18:29:50 GMT")), 90);
        assert_eq!(left(&event("")), 30, "it has begun, or nobody says");
        assert_eq!(left("TRUE"), 30);
        assert_eq!(left("45\n"), 45);
        assert_eq!(left("2016-09-19T18:28:30Z"), 10);
        assert_eq!(left("2016-09-19T00:00:00Z"), 0, "it is due");
        assert_eq!(left("99999999999999"), 24 * 3_600);
    }
}
