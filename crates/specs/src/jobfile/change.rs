//! Changes of a waiting job: each value is written as in a job file.

use gangline_orchestration::JobChange;

use super::problem::Refusal;
use super::values::{self, DURATION_MAX};

/// The time limit that removes the limit.
const NO_LIMIT: &str = "none";

/// The keys that [`parse_change`] takes.
pub const CHANGES: [&str; 3] = ["queue", "priority", "time_limit"];

/// Parses a change of a waiting job: a key of the job file that can still be changed, and its new value.
///
/// # Errors
/// A sentence that names the key and what is wrong with it.
pub fn parse_change(key: &str, text: &str) -> Result<JobChange, String> {
    let change = match key {
        "queue" => values::queue(text).map(JobChange::Queue),
        "priority" => values::priority(text).map(JobChange::Priority),
        "time_limit" if text == NO_LIMIT => Ok(JobChange::TimeLimit(None)),
        "time_limit" => values::duration(text, DURATION_MAX).map(|limit| JobChange::TimeLimit(Some(limit))),
        _ => return Err(format!("\"{}\" can't be changed: known keys: {}", key.escape_debug(), CHANGES.join(", "))),
    };
    change.map_err(|Refusal { message, hint, .. }| match hint {
        Some(hint) => format!("\"{key}\" {message} ({hint})"),
        None => format!("\"{key}\" {message}"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gangline_base::Priority;

    use super::*;

    #[test]
    fn values_are_written_as_in_a_job_file() {
        assert_eq!(parse_change("priority", "high"), Ok(JobChange::Priority(Priority::HIGH)));
        assert_eq!(parse_change("time_limit", "2h"), Ok(JobChange::TimeLimit(Some(Duration::from_hours(2)))));
        assert_eq!(parse_change("time_limit", "none"), Ok(JobChange::TimeLimit(None)));
        assert!(matches!(parse_change("queue", "research"), Ok(JobChange::Queue(_))));
    }

    #[test]
    fn what_can_t_be_changed_is_named() {
        let refused = |key, text| parse_change(key, text).expect_err("it can't be changed so");
        assert_eq!(refused("envs", "A=1"), "\"envs\" can't be changed: known keys: queue, priority, time_limit");
        assert_eq!(refused("time_limit", "90"), "\"time_limit\" has no unit in \"90\" (write 90s, 90m, 90h or 90d)");
        assert!(refused("priority", "1001").starts_with("\"priority\" "), "{}", refused("priority", "1001"));
    }
}
