//! Where supervisors report.

use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_execution::protocol::{
    CheckpointReport, Diagnosis, Fault, FaultCause, NodeFinding, NodeState, Notice, Outcome, PROTOCOL_VERSION,
    PROTOCOL_VERSION_OLDEST, Rendezvous, Report,
};
use serde_json::{Value, json};

use crate::plane::{Plane, running, sample};

fn report(plane: &Plane) -> (gangline_execution::protocol::SupervisorSpec, Value) {
    plane.submit("a", 1);
    let spec = plane.launched();
    let report = serde_json::to_value(running(&spec)).expect("a report is JSON");
    (spec, report)
}

#[test]
fn only_an_attempts_own_token_reports_on_it() {
    let plane = Plane::start();
    let (spec, report) = report(&plane);
    let of = |job, attempt| plane.secrets.attempt_token(JobId(job), AttemptNumber(attempt), Epoch(spec.epoch));
    for token in [String::new(), "x".to_owned(), of(1, 2), of(2, 1), plane.bearer(), plane.secrets.user_token()] {
        assert_eq!(plane.report_with(&token, &report).refusal(), (401, "G0301".to_owned()));
    }
    let without = plane.send("POST", "/api/v1/supervisors/report", &[("content-type", "application/json")], b"{}");
    assert!([400, 401].contains(&without.status), "{without:?}");
    assert_eq!(plane.job("1").attempts[0].shares[0].state, "launching", "nothing was taken in");
    assert_eq!(plane.report_with(&spec.token, &report).status, 200);
    assert_eq!(
        plane.send("GET", "/api/v1/jobs", &[("authorization", &format!("Bearer {}", spec.token))], b"").status,
        401
    );
}

#[test]
fn another_protocol_version_is_refused_and_named() {
    let plane = Plane::start();
    let (spec, mut report) = report(&plane);
    let newer = PROTOCOL_VERSION + 1;
    for unknown in [0, newer] {
        report["version"] = json!(unknown);
        assert_eq!(plane.report_with(&spec.token, &report).refusal(), (400, "G0310".to_owned()));
    }
    assert!(plane.report_with(&spec.token, &report).text.contains(&format!("version {newer}")));
    assert_eq!(plane.job("1").attempts[0].shares[0].state, "launching");
}

/// A supervisor that the release before started understands orders of its own version only.
#[test]
fn a_report_of_the_release_before_is_answered_in_its_own_version() {
    let plane = Plane::start();
    let (spec, mut report) = report(&plane);
    for version in PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION {
        report["version"] = json!(version);
        let answer = plane.report_with(&spec.token, &report);
        let orders: Value = serde_json::from_str(&answer.text).expect("orders are JSON");
        assert_eq!((answer.status, &orders["version"], &orders["stop"]), (200, &json!(version), &Value::Null));
    }
}

#[test]
fn a_report_that_makes_no_sense_is_refused_and_hurts_nobody() {
    let plane = Plane::start();
    let (spec, report) = report(&plane);
    for (key, value) in
        [("state", json!({"is": "dancing"})), ("job", json!(-1)), ("samples", json!("many")), ("ranks", json!(null))]
    {
        let mut bad = report.clone();
        bad[key] = value;
        assert_eq!(plane.report_with(&spec.token, &bad).refusal(), (400, "G0306".to_owned()), "{key}");
    }
    assert_eq!(plane.report_with(&spec.token, &report).status, 200);
}

#[test]
fn a_report_may_hold_fields_that_are_not_known_yet() {
    let plane = Plane::start();
    let (spec, mut report) = report(&plane);
    report["temperature"] = json!(60);
    assert_eq!(plane.report_with(&spec.token, &report).status, 200);
}

/// A report in which everything is there that a report can have.
fn full_report(spec: &gangline_execution::protocol::SupervisorSpec) -> Report {
    let text = || "something".to_owned();
    let running = running(spec);
    let diagnosis = Diagnosis {
        category: text(),
        subcategory: text(),
        confidence: 0.5,
        summary: text(),
        advice: text(),
        rank: Some(0),
        is_consequence: false,
        evidence: vec![text()],
    };
    let fault = Fault {
        rank: Some(0),
        cause: FaultCause::Start { message: text() },
        noticed_at: running.sent_at,
        last_sign_of_life: running.sent_at,
        last_lines: vec![text()],
        diagnosis: Some(Box::new(diagnosis)),
    };
    let at = running.sent_at;
    let mut report = Report {
        state: NodeState::Ended { at, outcome: Outcome::DoNotRestart { fault } },
        checkpoint: Some(CheckpointReport { step: 3, bytes: 5, at }),
        rendezvous: Some(Rendezvous { address: text(), port: 1 }),
        notice: Some(Notice { text: text(), seen_at: at }),
        findings: vec![NodeFinding { place: text(), measured: text() }],
        samples: vec![sample(1)],
        ..running
    };
    report.usage.0.insert("compute".to_owned(), 1);
    report
}

/// The same value with one text or list of it blown up, for each of them; with the place.
fn blown_up(value: &Value, place: &str) -> Vec<(String, Value)> {
    const TEXT_BYTES: usize = 900_000;
    const ITEMS: usize = 4_000;
    let inner: Vec<(String, Value)> = match value {
        Value::String(_) => vec![(place.to_owned(), json!("\u{1}".repeat(TEXT_BYTES / 6)))],
        Value::Array(items) => items.first().map_or_else(Vec::new, |first| {
            let many = vec![first.clone(); ITEMS];
            let each = blown_up(first, &format!("{place}[]")).into_iter().map(|(place, item)| (place, json!([item])));
            each.chain([(format!("{place}[]"), Value::Array(many))]).collect()
        }),
        Value::Object(fields) => {
            let with = |key: &String, blown: Value| {
                let mut copy = fields.clone();
                copy.insert(key.clone(), blown);
                Value::Object(copy)
            };
            let each = |(key, field): (&String, &Value)| -> Vec<(String, Value)> {
                let blown = blown_up(field, &format!("{place}.{key}"));
                blown.into_iter().map(|(place, blown)| (place, with(key, blown))).collect()
            };
            let longer = (0..ITEMS).map(|number| (format!("unknown-{number}"), json!(1))).collect();
            fields.iter().flat_map(each).chain([(format!("{place}.*"), Value::Object(longer))]).collect()
        }
        _ => Vec::new(),
    };
    inner
}

/// Proves: whatever is long in a report is cut, the report counts, and little of it is stored.
#[test]
fn no_text_or_list_of_a_report_is_stored_beyond_its_limit() {
    let mut tried = Vec::new();
    let mut plane = Plane::start();
    let (mut spec, _) = report(&plane);
    let kinds = blown_up(&serde_json::to_value(full_report(&spec)).expect("a report is JSON"), "").len();
    for index in 0..kinds {
        let full = serde_json::to_value(full_report(&spec)).expect("a report is JSON");
        let (place, report) = blown_up(&full, "").remove(index);
        let answer = plane.report_with(&spec.token, &report);
        // A word of the protocol that isn't one, or a field that is missing, is no report.
        let is_no_report = (answer.status, answer.refusal_code().as_deref()) == (400, Some("G0306"));
        assert!(answer.status == 200 || is_no_report, "{place}: {answer:?}");
        let database = rusqlite::Connection::open(plane.folder.path().join("journal.sqlite")).expect("it is there");
        let sql = "SELECT max(length(CAST(doc AS BLOB))) FROM jobs";
        let longest: i64 = database.query_row(sql, [], |row| row.get(0)).expect("the read models are readable");
        assert!(longest < 200_000, "{place}: a job takes {longest} bytes");
        if answer.status == 200 {
            tried.push(place);
            // The job has ended: the next one.
            plane = Plane::start();
            spec = self::report(&plane).0;
        }
    }
    for place in [
        ".notice.text",
        ".rendezvous.address",
        ".state.outcome.fault.cause.message",
        ".state.outcome.fault.last_lines[]",
        ".state.outcome.fault.diagnosis.summary",
        ".findings[].place",
        ".findings[]",
        ".usage.*",
        ".samples[]",
        ".ranks[]",
    ] {
        assert!(tried.iter().any(|other| other == place), "{place} was not tried: {tried:?}");
    }
}
