//! Alerts as receivers expect them.
//!
//! Formats: Slack's incoming webhooks (<https://api.slack.com/messaging/webhooks>) and `PostableAlerts` of Alertmanager's
//! API version 2 (<https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml>). The webhook's own is
//! described in docs/guides/alerts.md.

use std::time::Duration;

use gangline_base::Timestamp;
use serde_json::{Value, json};

use super::alert::{Alert, State};
use super::rule::{Severity, Subject};

/// Turns a time into RFC 3339 text; the crate has no calendar.
pub type Rfc3339 = fn(Timestamp) -> String;

/// Returns the body of a webhook: version, and each alert as an object.
#[must_use]
pub fn webhook(alerts: &[Alert], time: Rfc3339) -> Value {
    let one = |alert: &Alert| {
        let mut value = json!({
            "id": alert.id,
            "rule": alert.rule,
            "subject": alert.subject.to_string(),
            "severity": alert.severity.name(),
            "state": alert.state.name(),
            "since": time(alert.since),
            "value": alert.value,
            "parts": alert.parts,
            "more_parts": alert.more_parts,
            "summary": alert.summary,
            "hint": alert.hint,
        });
        for (key, at) in [("fired_at", alert.fired_at), ("resolved_at", alert.resolved_at)] {
            if let Some(at) = at {
                value[key] = Value::String(time(at));
            }
        }
        value
    };
    json!({ "version": 1, "alerts": alerts.iter().map(one).collect::<Vec<_>>() })
}

/// Returns the body for a Slack webhook: one line for each alert.
#[must_use]
pub fn slack(alerts: &[Alert]) -> Value {
    let line = |alert: &Alert| {
        let mark = match (alert.state, alert.severity) {
            (State::Resolved, _) => ":white_check_mark: resolved",
            (_, Severity::Critical) => ":rotating_light: critical",
            (_, Severity::Warning) => ":warning: warning",
            (_, Severity::Info) => ":information_source: info",
        };
        format!("{mark}: {} ({})", escaped(&alert.summary), escaped(&alert.rule))
    };
    json!({ "text": alerts.iter().map(line).collect::<Vec<_>>().join("\n") })
}

/// Returns the subject and the text of a mail.
#[must_use]
pub fn mail(alerts: &[Alert], time: Rfc3339) -> (String, String) {
    let said = |alert: &Alert| if alert.state == State::Resolved { "resolved" } else { alert.severity.name() };
    let more = if alerts.len() > 1 { format!(" and {} more", alerts.len() - 1) } else { String::new() };
    let first = alerts.first().map(|alert| format!("{}: {}", said(alert), alert.summary)).unwrap_or_default();
    let one = |alert: &Alert| {
        let since = time(alert.fired_at.unwrap_or(alert.since));
        format!(
            "{}: {}\n  {}\n  rule {}, alert {}, since {since}\n",
            said(alert),
            alert.summary,
            alert.hint,
            alert.rule,
            alert.id
        )
    };
    // A subject is one line.
    let subject = format!("[gangline] {first}{more}").replace(char::is_control, " ");
    (subject, alerts.iter().map(one).collect::<Vec<_>>().join("\n"))
}

/// Escapes the three characters that Slack gives a meaning.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the body for Alertmanager's `/api/v2/alerts`. An alert that fires ends there by itself `lives` after it was last
/// sent.
#[must_use]
pub fn alertmanager(alerts: &[Alert], now: Timestamp, lives: Duration, time: Rfc3339) -> Value {
    let one = |alert: &Alert| {
        let mut labels = json!({
            "alertname": alert.rule,
            "severity": alert.severity.name(),
            "subject": alert.subject.to_string(),
            "service": "gangline",
        });
        let (key, name) = match &alert.subject {
            Subject::ControlPlane => ("component", "control-plane".to_owned()),
            Subject::Job(job) => ("job_id", job.to_string()),
            Subject::Node(node) => ("node", node.to_string()),
            Subject::Queue(queue) => ("queue", queue.clone()),
            Subject::Budget(budget) => ("budget", budget.clone()),
        };
        labels[key] = Value::String(name);
        let annotations = json!({ "summary": alert.summary, "description": alert.hint, "value": alert.value });
        let ends = alert.resolved_at.unwrap_or(now + lives);
        json!({
            "labels": labels,
            "annotations": annotations,
            "startsAt": time(alert.fired_at.unwrap_or(alert.since)),
            "endsAt": time(ends),
        })
    };
    Value::Array(alerts.iter().map(one).collect())
}
