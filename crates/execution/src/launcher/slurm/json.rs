//! Common parts of the JSON of Slurm's programs. Its forms differ by version: 22.05 (`openapi/v0.0.38`) has
//! plain numbers and words; from 23.02 (`data_parser/v0.0.39`) on many numbers are objects `{"set",
//! "infinite", "number"}` and states are lists. Sources: the output of 22.05 itself, and the schemas of
//! v0.0.40 to v0.0.44 in SchedMD's OpenAPI clients.

use serde_json::Value;

use super::command::SLURM;
use crate::launcher::LaunchError;

/// The first version whose JSON has all that is needed.
const MAJOR_MIN: u64 = 22;

/// Parses a program's output, if its version is supported.
///
/// # Errors
/// [`LaunchError::NotUnderstood`] with what is wrong.
pub(super) fn parse(program: &'static str, output: &[u8]) -> Result<Value, LaunchError> {
    let document: Value = serde_json::from_slice(output).map_err(|error| {
        let shown: String = String::from_utf8_lossy(output).chars().take(80).collect();
        not_understood(program, format!("it isn't JSON ({error}): \"{}\"", shown.trim()))
    })?;
    let meta = &document["meta"];
    let slurm = if meta["Slurm"].is_object() { &meta["Slurm"] } else { &meta["slurm"] };
    let major = number(&slurm["version"]["major"]);
    let release = slurm["release"].as_str().unwrap_or("an unknown version");
    match major {
        Some(major) if major >= MAJOR_MIN => match error(&document) {
            None => Ok(document),
            Some(error) => Err(LaunchError::Unavailable { system: SLURM, message: format!("{program}: {error}") }),
        },
        _ => Err(not_understood(
            program,
            format!("its JSON is that of {release}; Gangline reads Slurm {MAJOR_MIN}.05 and later"),
        )),
    }
}

/// Returns the first error in a document. A program may report one and yet succeed with empty lists, as sinfo
/// does while slurmctld is away.
fn error(document: &Value) -> Option<String> {
    let first = document["errors"].as_array()?.first()?;
    let told = ["error", "description"].into_iter().filter_map(|name| first[name].as_str());
    let told: Vec<&str> = told.filter(|text| !text.is_empty()).collect();
    Some(if told.is_empty() { first.to_string() } else { told.join(": ") })
}

pub(super) fn not_understood(program: &'static str, message: String) -> LaunchError {
    LaunchError::NotUnderstood { program, message }
}

/// Returns the list under a name.
pub(super) fn list<'a>(program: &'static str, document: &'a Value, name: &str) -> Result<&'a [Value], LaunchError> {
    let list = document[name].as_array().map(Vec::as_slice);
    list.ok_or_else(|| not_understood(program, format!("it has no list \"{name}\"")))
}

/// Returns a number in any of its forms; none if it isn't set. An infinite number is the largest one.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            if fields.get("infinite").and_then(Value::as_bool) == Some(true) {
                return Some(u64::MAX);
            }
            let is_set = fields.get("set").and_then(Value::as_bool) != Some(false);
            fields.get("number").and_then(number).filter(|_| is_set)
        }
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

/// Returns a number as a `u32`.
pub(super) fn small(value: &Value) -> Option<u32> {
    number(value).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Returns one word or a list of them, in capitals: states and flags.
pub(super) fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(words).collect(),
        value => value.as_str().map(str::to_uppercase).into_iter().collect(),
    }
}

/// Returns a text; empty if there is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_read_in_all_their_forms() {
        let check = |value: Value, expected: Option<u64>| assert_eq!(number(&value), expected, "{value}");
        check(json!(8), Some(8));
        check(json!({"set": true, "infinite": false, "number": 8}), Some(8));
        check(json!({"set": false, "infinite": false, "number": 0}), None);
        check(json!({"set": true, "infinite": true, "number": 0}), Some(u64::MAX));
        check(json!("24"), Some(24));
        check(json!(-1), None);
        check(json!(null), None);
    }

    #[test]
    fn words_are_read_alone_and_in_lists() {
        assert_eq!(words(&json!("mixed")), ["MIXED"]);
        assert_eq!(words(&json!(["IDLE", "DRAIN"])), ["IDLE", "DRAIN"]);
        assert!(words(&json!(null)).is_empty());
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_what_is_wrong() {
        let check = |output: &str, expected: &str| {
            let refused = parse("squeue", output.as_bytes()).expect_err("it is refused").to_string();
            assert!(refused.contains(expected), "{refused}");
        };
        check("{\"meta\": {", "understand what squeue printed: it isn't JSON (EOF");
        check("slurm_load_jobs error", "\"slurm_load_jobs error\"");
        let old = r#"{"meta": {"Slurm": {"version": {"major": 21, "minor": 8}, "release": "21.08.8"}}, "jobs": []}"#;
        check(old, "that of 21.08.8; Gangline reads Slurm 22.05 and later");
        check("{\"jobs\": []}", "that of an unknown version");
        let away =
            r#"{"meta": {"Slurm": {"version": {"major": 22}}}, "errors": [{"error": "no contact"}], "nodes": []}"#;
        let away = parse("sinfo", away.as_bytes()).expect_err("it is empty").to_string();
        assert_eq!(away, "Slurm doesn't answer: sinfo: no contact");
        let new =
            r#"{"meta": {"slurm": {"version": {"major": "25", "minor": "11"}, "release": "25.11.2"}}, "jobs": []}"#;
        let new = parse("squeue", new.as_bytes()).expect("it is known");
        assert!(list("squeue", &new, "jobs").is_ok_and(<[Value]>::is_empty));
        let missing = list("squeue", &new, "nodes").expect_err("it has none").to_string();
        assert!(missing.ends_with("it has no list \"nodes\""), "{missing}");
    }
}
