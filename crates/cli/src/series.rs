//! `series`: what the ranks of a job and the agents of nodes measured, as a table of metrics or as the curve of one.

mod hosts;

use clap::Args;
use gangline_api as api;
use gangline_base::Measured;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Metrics about what was dropped, and what each says.
const DROPPED: [(&str, &str); 2] = [
    ("gangline.refused_values", "values were refused: a rank has at most 512 names of metrics, of at most 200 bytes"),
    ("gangline.dropped_rows", "rows were dropped: more was reported than could be sent"),
];

/// Which metrics.
#[derive(Args, Debug)]
pub(crate) struct SeriesArgs {
    /// The job, as job-3 or 3; without it --node names a node
    #[arg(required_unless_present = "node")]
    job: Option<String>,
    /// Show the curve of this metric instead of the list of all
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Only this attempt
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only this global rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Only this node; without a job, what the node's agent reads
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// What the agents of the job's nodes read while its last attempt ran, instead of what its ranks measured
    #[arg(long, requires = "job", conflicts_with = "rank")]
    hosts: bool,
    /// Only this accelerator of a node
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// From this step on
    #[arg(long, value_name = "STEP", requires = "metric")]
    from_step: Option<u64>,
    /// Up to this step
    #[arg(long, value_name = "STEP", requires = "metric")]
    to_step: Option<u64>,
    /// At most this many points of each curve
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    points: u32,
}

pub(crate) fn run(client: &Client, args: &SeriesArgs, is_json: bool) -> Result<(), Failure> {
    match (&args.job, &args.node) {
        (Some(job), _) if args.hosts => hosts::of_job(client, args, job, is_json),
        (Some(job), _) => match &args.metric {
            None => list(client, args, job, is_json),
            Some(metric) => curves(client, args, (job, metric), is_json),
        },
        (None, Some(node)) => hosts::of_node(client, args, node, is_json),
        // The options need one of the two.
        (None, None) => Ok(()),
    }
}

fn list(client: &Client, args: &SeriesArgs, job: &str, is_json: bool) -> Result<(), Failure> {
    let mut list: api::MetricList = client.get(&format!("/jobs/{}/metrics", path_segment(job)))?;
    list.metrics.retain(|metric| is_wanted(&metric.source, args));
    if is_json {
        return output::json(&list);
    }
    if list.metrics.is_empty() {
        output::tell("no metric; a script reports some with gangline.report(step=, loss=), or over GANGLINE_SOCKET");
    } else {
        let headings = ["METRIC", ">ATTEMPT", ">RANK", ">STEPS", ">POINTS", ">LAST", ">MIN", ">MEAN", ">MAX"];
        output::print(&output::table(&headings, list.metrics.iter().map(metric_row).collect()))?;
    }
    tell_losses(&list.metrics);
    tell_gaps(list.left_out, list.damaged_files);
    Ok(())
}

fn is_wanted(source: &api::MetricSource, args: &SeriesArgs) -> bool {
    let is = |wanted: Option<u32>, found: Option<u32>| wanted.is_none() || wanted == found;
    let is_on = args.node.is_none() || args.node == source.node;
    is(args.attempt, source.attempt) && is(args.rank, source.rank) && is_on
}

fn metric_row(metric: &api::Metric) -> Vec<String> {
    let values = &metric.values;
    let mut row = vec![
        metric.metric.clone(),
        or_dash(metric.source.attempt),
        or_dash(metric.source.rank),
        steps(values),
        (values.count + values.not_finite).to_string(),
    ];
    row.extend(numbers(values));
    row
}

fn curves(client: &Client, args: &SeriesArgs, (job, metric): (&str, &str), is_json: bool) -> Result<(), Failure> {
    let number = |key: &str, value: Option<u64>| value.map(|value| format!("&{key}={value}")).unwrap_or_default();
    let path = format!(
        "/jobs/{}/metrics/curves?metric={}&points={}{}{}{}{}{}",
        path_segment(job),
        path_segment(metric),
        args.points,
        number("attempt", args.attempt.map(u64::from)),
        number("rank", args.rank.map(u64::from)),
        number("from_step", args.from_step),
        number("to_step", args.to_step),
        args.node.as_deref().map(|node| format!("&node={}", path_segment(node))).unwrap_or_default(),
    );
    let found: api::MetricCurves = client.get(&path)?;
    if is_json {
        return output::json(&found);
    }
    if found.curves.is_empty() {
        output::tell(&format!("no values of {metric}; gangline series {job} lists the metrics"));
    }
    for curve in &found.curves {
        let source = &curve.source;
        let place = source.node.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
        let rank = source.rank.map(|rank| format!(", rank {rank}{place}")).unwrap_or(place);
        output::say(&format!("{metric}, attempt {}{rank} (measured)", or_dash(source.attempt)))?;
        print_points(curve)?;
    }
    tell_gaps(found.left_out, found.damaged_files);
    Ok(())
}

fn print_points(curve: &api::MetricCurve) -> Result<(), Failure> {
    let row = |values: &api::MetricValues| {
        let mut row = vec![output::time(values.at), steps(values), (values.count + values.not_finite).to_string()];
        row.extend(numbers(values));
        row
    };
    let headings = ["TIME", ">STEPS", ">POINTS", ">LAST", ">MIN", ">MEAN", ">MAX"];
    output::print(&output::table(&headings, curve.points.iter().map(row).collect()))?;
    if curve.damaged > 0 {
        output::tell(&format!("{} values can't be shown: they are damaged on disk", curve.damaged));
    }
    Ok(())
}

fn steps(values: &api::MetricValues) -> String {
    match (values.first_step, values.last_step) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (Some(step), _) | (_, Some(step)) => step.to_string(),
        (None, None) => "-".to_owned(),
    }
}

/// Returns the last, smallest, mean and largest value.
fn numbers(values: &api::MetricValues) -> [String; 4] {
    let short = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| Measured(value).short());
    [short(Some(values.last.0)), short(values.min), short(values.mean), short(values.max)]
}

fn or_dash(number: Option<u32>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// Says what ranks reported that isn't there.
fn tell_losses(metrics: &[api::Metric]) {
    for (name, what) in DROPPED {
        for metric in metrics.iter().filter(|metric| metric.metric == name && metric.values.last.0 > 0.0) {
            let source = &metric.source;
            output::tell(&format!(
                "rank {} of attempt {}: {} {what}",
                or_dash(source.rank),
                or_dash(source.attempt),
                metric.values.last
            ));
        }
    }
}

fn tell_gaps(left_out: u64, damaged_files: u64) {
    if left_out > 0 {
        output::tell(&format!("{left_out} more are left out; --metric and --rank ask for fewer"));
    }
    if damaged_files > 0 {
        output::tell(&format!(
            "{damaged_files} files of the series store are damaged; what they held of this job is missing"
        ));
    }
}
