//! What agents read: of a node, or of a job's nodes while it ran.

use std::collections::BTreeSet;

use gangline_api as api;
use serde_json::json;

use super::{SeriesArgs, numbers, or_dash, print_points, tell_gaps};
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// The stretch of time that is shown; all if it is empty.
type Within = String;

pub(super) fn of_node(client: &Client, args: &SeriesArgs, node: &str, is_json: bool) -> Result<(), Failure> {
    match &args.metric {
        None => {
            let mut list: api::NodeMetricList = client.get(&format!("/nodes/{}/metrics", path_segment(node)))?;
            list.metrics.retain(|metric| is_wanted(&metric.source, args));
            if is_json {
                return output::json(&list);
            }
            print_list(&list)
        }
        Some(metric) => {
            let found = curves(client, args, (node, Some(metric)), &Within::new())?;
            if is_json { output::json(&found) } else { print_curves(&found, metric) }
        }
    }
}

/// The nodes of the last attempt, between its beginning and its end.
pub(super) fn of_job(client: &Client, args: &SeriesArgs, job: &str, is_json: bool) -> Result<(), Failure> {
    let job = client.job(job)?;
    let Some(attempt) = job.attempts.last() else {
        output::tell(&format!("{} has not run yet", job.id));
        return if is_json { output::json(&json!({ "nodes": [] })) } else { Ok(()) };
    };
    let time = |key: &str, time: api::Time| format!("&{key}={}", path_segment(&time.to_string()));
    let within = time("from", attempt.placed_at) + &attempt.ended_at.map(|end| time("to", end)).unwrap_or_default();
    let nodes: BTreeSet<&str> = attempt.shares.iter().map(|share| share.node.as_str()).collect();
    let mut found = Vec::new();
    for node in nodes.into_iter().filter(|node| args.node.as_deref().is_none_or(|wanted| wanted == *node)) {
        let of_node = curves(client, args, (node, args.metric.as_deref()), &within)?;
        if is_json {
            found.push(of_node);
            continue;
        }
        match &args.metric {
            Some(metric) => print_curves(&of_node, metric)?,
            None => print_list(&as_list(of_node))?,
        }
    }
    if is_json { output::json(&json!({ "nodes": found })) } else { Ok(()) }
}

fn is_wanted(source: &api::MetricSource, args: &SeriesArgs) -> bool {
    args.device.is_none() || args.device == source.device
}

/// Returns curves of a node; without a metric, all as one point each.
fn curves(
    client: &Client,
    args: &SeriesArgs,
    (node, metric): (&str, Option<&str>),
    within: &Within,
) -> Result<api::NodeMetricCurves, Failure> {
    let points = metric.map_or(1, |_| args.points);
    let metric = metric.map(|metric| format!("&metric={}", path_segment(metric))).unwrap_or_default();
    let device = args.device.map(|device| format!("&device={device}")).unwrap_or_default();
    client.get(&format!("/nodes/{}/metrics/curves?points={points}{metric}{device}{within}", path_segment(node)))
}

fn as_list(found: api::NodeMetricCurves) -> api::NodeMetricList {
    let metric = |mut curve: api::MetricCurve| {
        let values = curve.points.pop()?;
        Some(api::Metric { metric: curve.metric, source: curve.source, values, damaged: curve.damaged })
    };
    let metrics = found.curves.into_iter().filter_map(metric).collect();
    let (left_out, damaged_files) = (found.left_out, found.damaged_files);
    api::NodeMetricList { node: found.node, metrics, left_out, damaged_files }
}

fn print_list(list: &api::NodeMetricList) -> Result<(), Failure> {
    if list.metrics.is_empty() {
        output::tell(&format!("no readings of {}: does its agent run? gangline nodes {} says", list.node, list.node));
    } else {
        let row = |metric: &api::Metric| {
            let values = &metric.values;
            let count = values.count + values.not_finite;
            let mut row = vec![list.node.clone(), or_dash(metric.source.device), metric.metric.clone()];
            row.push(count.to_string());
            row.extend(numbers(values));
            row
        };
        let headings = ["NODE", ">DEVICE", "METRIC", ">POINTS", ">LAST", ">MIN", ">MEAN", ">MAX"];
        output::print(&output::table(&headings, list.metrics.iter().map(row).collect()))?;
    }
    tell_gaps(list.left_out, list.damaged_files);
    Ok(())
}

fn print_curves(found: &api::NodeMetricCurves, metric: &str) -> Result<(), Failure> {
    if found.curves.is_empty() {
        let node = &found.node;
        output::tell(&format!("no values of {metric} of {node}; gangline series --node {node} lists its metrics"));
    }
    for curve in &found.curves {
        let device = curve.source.device.map(|device| format!(", device {device}")).unwrap_or_default();
        output::say(&format!("{metric} of {}{device} (measured)", found.node))?;
        print_points(curve)?;
    }
    tell_gaps(found.left_out, found.damaged_files);
    Ok(())
}
