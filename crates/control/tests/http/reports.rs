//! Where supervisors report.

use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_execution::protocol::{PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST};
use serde_json::{Value, json};

use crate::plane::{Plane, running};

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
