//! `nodes NODE`: one node with its readings, its history and who ran there.

use std::fmt::Write as _;

use gangline_api as api;
use gangline_base::Bytes;
use gangline_telemetry::collectors::{Unit, metric_named};

use super::{nodes_table, reasons};
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Readings that say most of a node; `gangline series --node NODE` lists all.
const TOLD: [&str; 20] = [
    "host.cpu_busy_ratio",
    "host.cpu_pressure_ratio",
    "host.cpu_steal_ratio",
    "host.memory_available_bytes",
    "host.io_pressure_ratio",
    "host.disk_read_bytes_per_second",
    "host.disk_write_bytes_per_second",
    "host.filesystem_used_ratio",
    "host.network_receive_bytes_per_second",
    "host.network_transmit_bytes_per_second",
    "host.infiniband_receive_bytes_per_second",
    "host.infiniband_transmit_bytes_per_second",
    "gpu.utilization_ratio",
    "gpu.sm_active_ratio",
    "gpu.tensor_active_ratio",
    "gpu.memory_used_bytes",
    "gpu.power_watts",
    "gpu.temperature_celsius",
    "gpu.clocks_held",
    "gpu.ecc_uncorrected_total",
];
/// Events that are shown; --json has all.
const EVENTS_SHOWN: usize = 20;

pub(super) fn show(client: &Client, node: &str, is_json: bool) -> Result<(), Failure> {
    let detail: api::NodeDetail = client.get(&format!("/nodes/{}", path_segment(node)))?;
    if is_json { output::json(&detail) } else { output::print(&told(&detail)) }
}

fn told(detail: &api::NodeDetail) -> String {
    let list = api::NodeList { nodes: vec![detail.node.clone()] };
    let mut text = nodes_table(&list) + &reasons(&list) + "\n" + &agent(detail);
    for problem in &detail.problems {
        let kind = if problem.is_fault { "fault" } else { "warning" };
        let since = output::time(problem.since);
        // Writing to a String can't fail.
        let _ = writeln!(text, "{kind}: {}: {} (since {since})", problem.place, problem.measured);
    }
    if !detail.node.cached_datasets.is_empty() {
        let row = |held: &api::CachedDataset| {
            vec![held.dataset.clone(), Bytes(held.here_bytes).to_string(), Bytes(held.bytes).to_string()]
        };
        text += "\ndatasets in its caches:\n";
        text += &output::table(&["DATASET", ">HERE", ">OF"], detail.node.cached_datasets.iter().map(row).collect());
    }
    if !detail.readings.is_empty() {
        text += "\nlast hour (measured):\n";
        text += &readings(detail);
    }
    if !detail.attempts.is_empty() {
        let headings = ["JOB", "NAME", "USER", ">ATTEMPT", ">DEVICES", "FROM", "TO", "END"];
        text += "\nwho ran here, newest first:\n";
        text += &output::table(&headings, detail.attempts.iter().map(attempt).collect());
    }
    if !detail.history.is_empty() {
        let row = |event: &api::NodeEvent| {
            vec![output::time(event.at), event.kind.clone(), event.place.clone(), output::shorten(&event.text, 80)]
        };
        text += "\nwhat happened here, newest first:\n";
        let events = detail.history.iter().take(EVENTS_SHOWN).map(row).collect();
        text += &output::table(&["TIME", "WHAT", "WHERE", "SAID"], events);
    }
    text
}

fn agent(detail: &api::NodeDetail) -> String {
    let Some(agent) = &detail.agent else {
        return "no agent reports from here; start one: gangline agent (docs/guides/monitoring.md)\n".to_owned();
    };
    let heard = output::time(agent.heard_at);
    let every = output::seconds(agent.every_seconds);
    let silent = if agent.is_current { "" } else { "; it is SILENT, so what follows is old" };
    let hung = match agent.hung.join(", ") {
        hung if hung.is_empty() => String::new(),
        hung => format!("; doesn't answer it: {hung}"),
    };
    format!("agent: last report {heard}, a reading every {every}{silent}{hung}\n")
}

fn readings(detail: &api::NodeDetail) -> String {
    let mut rows: Vec<(usize, Vec<String>)> = Vec::new();
    for metric in &detail.readings {
        let Some(known) = metric_named(&metric.metric) else { continue };
        let Some(place) = TOLD.iter().position(|told| *told == known.name) else { continue };
        let device = metric.source.device.map_or_else(String::new, |device| device.to_string());
        let mut row = vec![metric.metric.clone(), device];
        let values = &metric.values;
        row.extend([Some(values.last.0), values.min, values.mean, values.max].map(|value| value_of(known.unit, value)));
        rows.push((place, row));
    }
    rows.sort();
    let headings = ["READING", ">GPU", ">LAST", ">MIN", ">MEAN", ">MAX"];
    output::table(&headings, rows.into_iter().map(|(_, row)| row).collect())
}

/// Formats a value with its unit.
fn value_of(unit: Unit, value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return "-".to_owned() };
    let scaled = |unit: &str| {
        let prefixes = ["", "k", "M", "G", "T", "P"];
        let (mut value, mut place) = (value, 0);
        while value.abs() >= 1_000.0 && place + 1 < prefixes.len() {
            (value, place) = (value / 1_000.0, place + 1);
        }
        format!("{value:.1} {}{unit}", prefixes[place])
    };
    match unit {
        Unit::Ratio => format!("{:.1} %", value * 100.0),
        Unit::Bytes => scaled("B"),
        Unit::BytesPerSecond => scaled("B/s"),
        Unit::BitsPerSecond => scaled("bit/s"),
        Unit::Hertz => scaled("Hz"),
        Unit::Watts => scaled("W"),
        Unit::Joules => scaled("J"),
        Unit::PerSecond => scaled("/s"),
        Unit::Celsius => format!("{value:.0} °C"),
        Unit::Seconds => output::seconds(value),
        Unit::Count | Unit::Flag | Unit::Code => format!("{value:.1}").trim_end_matches(".0").to_owned(),
    }
}

fn attempt(attempt: &api::NodeAttempt) -> Vec<String> {
    vec![
        attempt.job.clone(),
        output::shorten(&attempt.name, 24),
        attempt.user.clone(),
        attempt.attempt.to_string(),
        attempt.devices.len().to_string(),
        output::time(attempt.placed_at),
        attempt.ended_at.map_or_else(|| "runs".to_owned(), output::time),
        output::shorten(attempt.ended_because.as_deref().unwrap_or_default(), 40),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_unit() {
        let check = |unit, value: f64, text: &str| assert_eq!(value_of(unit, Some(value)), text);
        check(Unit::Ratio, 0.613, "61.3 %");
        check(Unit::BytesPerSecond, 2.5e9, "2.5 GB/s");
        check(Unit::Bytes, 512.0, "512.0 B");
        check(Unit::Flag, 1.0, "1");
        check(Unit::Celsius, 67.4, "67 °C");
        assert_eq!(value_of(Unit::Watts, None), "-");
        assert_eq!(value_of(Unit::Watts, Some(f64::NAN)), "-");
        assert!(TOLD.iter().all(|name| metric_named(name).is_some_and(|metric| metric.name == *name)));
    }
}
