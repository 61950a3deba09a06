//! Messages to receivers.

use serde_json::json;

use super::*;

fn time(at: Timestamp) -> String {
    format!("t{}", at.unix_nanos() / 1_000_000_000)
}

fn fired() -> Alert {
    let mut engine = Engine::new(vec![Rule { summary: "<{subject}> & {value}".into(), ..rule(0, 0) }]);
    engine.evaluate(at(0), &heat(3, &[12.5]));
    engine.firing().remove(0)
}

#[test]
fn a_webhook_gets_every_field() {
    let expected = json!({ "version": 1, "alerts": [{
        "id": 1, "rule": "hot", "subject": "job-3", "severity": "warning", "state": "firing", "since": "t1000000",
        "fired_at": "t1000000", "value": "12.5", "parts": ["rank 0"], "more_parts": 0, "summary": "<job-3> & 12.5",
        "hint": "cool it",
    }] });
    assert_eq!(message::webhook(&[fired()], time), expected);
}

#[test]
fn slack_gets_one_line_for_each_alert_with_its_own_characters_escaped() {
    let ended = Alert { state: State::Resolved, ..fired() };
    let text = ":warning: warning: &lt;job-3&gt; &amp; 12.5 (hot)\n:white_check_mark: resolved: &lt;job-3&gt; &amp; 12.5 (hot)";
    assert_eq!(message::slack(&[fired(), ended]), json!({ "text": text }));
}

#[test]
fn alertmanager_gets_labels_and_when_the_alert_ends_by_itself() {
    let lives = Duration::from_secs(60);
    let sent = message::alertmanager(&[fired()], at(5), lives, time);
    let labels = json!({ "alertname": "hot", "severity": "warning", "subject": "job-3", "service": "gangline", "job_id": "job-3" });
    assert_eq!(
        (&sent[0]["labels"], &sent[0]["startsAt"], &sent[0]["endsAt"]),
        (&labels, &json!("t1000000"), &json!("t1000065"))
    );
    let ended = Alert { state: State::Resolved, resolved_at: Some(at(4)), ..fired() };
    assert_eq!(message::alertmanager(&[ended], at(5), lives, time)[0]["endsAt"], "t1000004");
}
