//! `/metrics`: the control plane for Prometheus, in its text format or, if that is asked for, as OpenMetrics.
//!
//! Names follow Prometheus' conventions (<https://prometheus.io/docs/practices/naming/>): base units, `_total` for counters.
//! Labels are states, kinds of accelerators, queues and rules, of which there are few; jobs, ranks and steps are no labels.
//! The formats: <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use gangline_api as api;
use gangline_telemetry::series;

use super::App;
use super::error::ApiError;
use super::export::{Handle, Kind as Exported, Status};

/// Queues that have samples of their own; further ones are left out and counted.
const QUEUES_MAX: usize = 500;
/// The media type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// What kind of metric a family is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

/// Samples of one name.
pub(super) struct Family {
    /// The name, of a counter without `_total`.
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// Whether others named it, who know no `_total`.
    is_foreign: bool,
    /// Label names and values, and the value.
    samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help, is_foreign: false, samples: Vec::new() }
}

fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help, is_foreign: false, samples: Vec::new() }
}

impl Family {
    /// Returns a family under a name that others gave it.
    pub(super) fn foreign(name: &'static str, is_counter: bool, help: &'static str) -> Family {
        let kind = if is_counter { Kind::Counter } else { Kind::Gauge };
        Family { name, kind, help, is_foreign: true, samples: Vec::new() }
    }

    pub(super) fn sample(mut self, labels: &[(&'static str, &str)], value: f64) -> Family {
        let owned = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push((owned, value));
        self
    }

    fn value(self, value: f64) -> Family {
        self.sample(&[], value)
    }

    /// Writes the family in Prometheus' text format or as OpenMetrics.
    pub(super) fn write(&self, to: &mut String, is_open: bool) {
        let suffix = if self.kind == Kind::Counter && !self.is_foreign { "_total" } else { "" };
        // OpenMetrics names the family, the text format the samples.
        let described = if is_open { self.name.to_owned() } else { format!("{}{suffix}", self.name) };
        let kind = if self.kind == Kind::Counter { "counter" } else { "gauge" };
        // Writing to a String can't fail.
        let _ = write!(to, "# HELP {described} {}\n# TYPE {described} {kind}\n", self.help);
        for (labels, value) in &self.samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(to, "{}{suffix}{labels} {value}", self.name);
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Answers a scrape.
pub(super) async fn scrape(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_open = accepted.contains(OPEN_METRICS);
    let (health, nodes, queues) = (app.handle.health().await?, app.handle.nodes().await?, app.handle.queues().await?);
    let mut families = of_health(&health);
    families.extend(of_nodes(&nodes.nodes));
    families.extend(of_queues(&queues.queues));
    families.extend(of_series(&app.series.summary()));
    families.extend(app.exports.iter().flat_map(of_export));
    families.extend(of_alerts(&app.alerts.list()));
    let mut text = String::new();
    families.iter().filter(|family| !family.samples.is_empty()).for_each(|family| family.write(&mut text, is_open));
    if is_open {
        text.push_str("# EOF\n");
    }
    let media_type = if is_open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    Ok(([(header::CONTENT_TYPE, media_type)], text).into_response())
}

fn of_health(health: &api::Health) -> Vec<Family> {
    let is_healthy = if health.status == "ok" { 1.0 } else { 0.0 };
    vec![
        gauge("gangline_build_info", "The control plane's version.").sample(&[("version", &health.version)], 1.0),
        gauge("gangline_healthy", "1 if the control plane's health is ok, 0 if not.").value(is_healthy),
        counter("gangline_journal_entries", "Entries of the journal.").value(number(health.journal_entries)),
        gauge("gangline_journal_size_bytes", "Bytes that the journal has in use.").value(number(health.journal_bytes)),
        gauge("gangline_journal_limit_bytes", "Bytes that the journal may have.")
            .value(number(health.journal_bytes_max)),
        counter("gangline_jobs_submitted", "Jobs that were ever submitted.").value(number(health.last_job)),
    ]
}

fn of_nodes(nodes: &[api::Node]) -> Vec<Family> {
    let mut by_status: BTreeMap<&str, u32> = BTreeMap::new();
    let mut devices: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for node in nodes {
        *by_status.entry(&node.status).or_default() += 1;
        for slot in &node.slots {
            let state = if slot.job.is_some() { "held" } else { "free" };
            *devices.entry((&node.accelerator, state)).or_default() += 1;
        }
    }
    let nodes = gauge("gangline_nodes", "Nodes by status.");
    let accelerators = gauge("gangline_accelerators", "Accelerators by kind, held by jobs or free.");
    let count = |family: Family, (status, count): (&str, u32)| family.sample(&[("status", status)], f64::from(count));
    let of_kind = |family: Family, ((kind, state), count): ((&str, &str), u32)| {
        family.sample(&[("accelerator", kind), ("state", state)], f64::from(count))
    };
    vec![by_status.into_iter().fold(nodes, count), devices.into_iter().fold(accelerators, of_kind)]
}

fn of_queues(queues: &[api::Queue]) -> Vec<Family> {
    let mut jobs = gauge("gangline_queue_jobs", "Live jobs of each queue, waiting or running.");
    let mut wanted = gauge("gangline_queue_accelerators_wanted", "Accelerators that waiting jobs want.");
    let mut held = gauge("gangline_queue_accelerators_held", "Accelerators that running jobs hold.");
    for queue in queues.iter().take(QUEUES_MAX) {
        let name = ("queue", queue.name.as_str());
        jobs = jobs.sample(&[name, ("state", "waiting")], length(queue.waiting.len()));
        jobs = jobs.sample(&[name, ("state", "running")], length(queue.running.len()));
        wanted = wanted.sample(&[name], f64::from(queue.accelerators_wanted));
        held = held.sample(&[name], f64::from(queue.accelerators_held));
    }
    let left_out = gauge("gangline_queues_left_out", "Queues without samples, for their number.");
    vec![jobs, wanted, held, left_out.value(length(queues.len().saturating_sub(QUEUES_MAX)))]
}

fn of_series(summary: &series::Summary) -> Vec<Family> {
    let is_failing = if summary.failure.is_some() { 1.0 } else { 0.0 };
    let read = gauge("gangline_remote_read_failing", "1 if the server of measurements can't answer, 0 if it can.");
    vec![
        match &summary.elsewhere {
            Some(told) => read.value(f64::from(u8::from(told.is_err()))),
            None => read,
        },
        gauge("gangline_series_size_bytes", "Bytes of the series store's segments.").value(number(summary.bytes)),
        gauge("gangline_series_segments", "Segments of the series store.").value(length(summary.segments)),
        gauge("gangline_series_points", "Points in the series store's segments.").value(number(summary.points)),
        counter("gangline_series_refused_values", "Values that the series store refused.")
            .value(number(summary.refused)),
        gauge("gangline_series_failing", "1 if the series store can't write, 0 if it can.").value(is_failing),
    ]
}

fn of_export(export: &Handle) -> Vec<Family> {
    let Status { sent, dropped, refused, waiting, failure } = export.status();
    let is_failing = if failure.is_some() { 1.0 } else { 0.0 };
    let [counted, waits, fails] = match export.kind {
        Exported::RemoteWrite => [
            counter("gangline_remote_write_samples", "Samples for remote write, by what became of them."),
            gauge("gangline_remote_write_waiting_samples", "Samples that wait to be sent."),
            gauge("gangline_remote_write_failing", "1 if the receiver can't be reached, 0 if it can."),
        ],
        Exported::OtlpMetrics => [
            counter("gangline_otlp_samples", "Samples for OpenTelemetry's receiver, by what became of them."),
            gauge("gangline_otlp_waiting_samples", "Samples that wait to be sent."),
            gauge("gangline_otlp_metrics_failing", "1 if the receiver of metrics can't be reached, 0 if it can."),
        ],
        Exported::OtlpTraces => [
            counter("gangline_otlp_traces", "Traces of jobs for OpenTelemetry's receiver, by what became of them."),
            gauge("gangline_otlp_waiting_traces", "Traces that are on their way."),
            gauge("gangline_otlp_traces_failing", "1 if the receiver of traces can't be reached, 0 if it can."),
        ],
    };
    let outcomes = [("sent", sent), ("dropped", dropped), ("refused", refused)];
    let count = |family: Family, (outcome, count)| family.sample(&[("outcome", outcome)], number(count));
    vec![outcomes.into_iter().fold(counted, count), waits.value(number(waiting)), fails.value(is_failing)]
}

fn of_alerts(list: &api::AlertList) -> Vec<Family> {
    let mut by_rule: BTreeMap<(&str, &str), u32> =
        list.rules.iter().map(|rule| ((rule.as_str(), "firing"), 0)).collect();
    for alert in list.alerts.iter().filter(|alert| alert.state != "resolved") {
        *by_rule.entry((&alert.rule, &alert.state)).or_default() += 1;
    }
    let alerts = gauge("gangline_alerts", "Alerts by rule that are pending or firing.");
    let count = |family: Family, ((rule, state), count): ((&str, &str), u32)| {
        family.sample(&[("rule", rule), ("state", state)], f64::from(count))
    };
    let mut families = vec![by_rule.into_iter().fold(alerts, count)];
    let mut sent = counter("gangline_alert_messages_delivered", "Messages that reached a receiver of alerts.");
    let mut lost = counter("gangline_alert_messages_given_up", "Messages that didn't reach a receiver of alerts.");
    for receiver in &list.receivers {
        sent = sent.sample(&[("receiver", &receiver.name)], number(receiver.delivered));
        lost = lost.sample(&[("receiver", &receiver.name)], number(receiver.given_up));
    }
    families.extend([sent, lost]);
    families
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

fn length(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_name_counters_as_they_ask_and_escape_labels() {
        let family = counter("gangline_x", "What it is.").sample(&[("queue", "a\"b\\c\nd")], 2.0);
        let written = |is_open: bool| {
            let mut text = String::new();
            family.write(&mut text, is_open);
            text
        };
        let sample = "gangline_x_total{queue=\"a\\\"b\\\\c\\nd\"} 2\n";
        assert_eq!(
            written(false),
            format!("# HELP gangline_x_total What it is.\n# TYPE gangline_x_total counter\n{sample}")
        );
        assert_eq!(written(true), format!("# HELP gangline_x What it is.\n# TYPE gangline_x counter\n{sample}"));
    }
}
