//! `cost diff`: two job files or two jobs, beside each other.

use std::path::Path;

use clap::Args;
use gangline_api as api;
use gangline_base::Money;
use serde_json::json;

use super::{device_time, estimate};
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// What to compare.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// A job file, or a job as job-3
    before: String,
    /// Another
    after: String,
}

/// One side of the comparison.
enum Side {
    File(Box<api::CostEstimate>),
    Job(Box<api::JobCost>),
}

pub(super) fn run(client: &Client, args: &DiffArgs, is_json: bool) -> Result<(), Failure> {
    let (before, after) = (side(client, &args.before)?, side(client, &args.after)?);
    match (before, after) {
        (Side::File(before), Side::File(after)) if is_json => output::json(&json!({"before": before, "after": after})),
        (Side::Job(before), Side::Job(after)) if is_json => output::json(&json!({"before": before, "after": after})),
        (Side::File(before), Side::File(after)) => output::print(&files(args, &before, &after)),
        (Side::Job(before), Side::Job(after)) => output::print(&jobs(args, &before, &after)),
        _ => Err(Failure::local(
            format!("{} and {} are a job file and a job", args.before, args.after),
            "compare two job files (estimated), or two jobs (measured)",
        )),
    }
}

fn side(client: &Client, name: &str) -> Result<Side, Failure> {
    let is_job = name.strip_prefix("job-").is_some_and(|number| number.parse::<u64>().is_ok());
    if is_job && !Path::new(name).exists() {
        return client.get(&format!("/cost/jobs/{}", path_segment(name))).map(|job| Side::Job(Box::new(job)));
    }
    estimate::of_file(client, Path::new(name), &[]).map(|estimate| Side::File(Box::new(estimate)))
}

fn files(args: &DiffArgs, before: &api::CostEstimate, after: &api::CostEstimate) -> String {
    let devices = |estimate: &api::CostEstimate| {
        let jobs = if estimate.jobs > 1 { format!("{} jobs of ", estimate.jobs) } else { String::new() };
        format!("{jobs}{} x {}", estimate.devices, estimate.accelerator)
    };
    let hours = |estimate: &api::CostEstimate| {
        estimate.time_limit_seconds.map_or_else(|| "none".to_owned(), |seconds| device_time(whole(seconds)))
    };
    let rows = vec![
        vec!["devices".to_owned(), devices(before), devices(after), String::new()],
        vec!["time limit".to_owned(), hours(before), hours(after), String::new()],
        money("an hour", before.nano_dollars_per_hour, after.nano_dollars_per_hour),
        money("at most", before.at_most_nano_dollars, after.at_most_nano_dollars),
        money("budget", before.budget_nano_dollars, after.budget_nano_dollars),
    ];
    output::table(&["ESTIMATED", &args.before, &args.after, "CHANGE"], rows)
}

fn jobs(args: &DiffArgs, before: &api::JobCost, after: &api::JobCost) -> String {
    let time = |job: &api::JobCost| device_time(job.total.gpu_seconds);
    let useful = |job: &api::JobCost| {
        job.total.useful_share.map_or_else(|| "unknown".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    let total = |job: &api::JobCost| {
        let total = &job.total;
        (total.unpriced_gpu_seconds == 0.0).then_some(total.cost_nano_dollars)
    };
    let rows = vec![
        vec!["state".to_owned(), before.state.name().to_owned(), after.state.name().to_owned(), String::new()],
        vec!["device time".to_owned(), time(before), time(after), String::new()],
        vec!["useful".to_owned(), useful(before), useful(after), String::new()],
        vec!["steps".to_owned(), before.steps.to_string(), after.steps.to_string(), String::new()],
        money("cost", total(before), total(after)),
        money("a step", before.nano_dollars_per_step, after.nano_dollars_per_step),
        money("1M tokens", before.nano_dollars_per_million_tokens, after.nano_dollars_per_million_tokens),
        money("a useful device-hour", before.nano_dollars_per_useful_gpu_hour, after.nano_dollars_per_useful_gpu_hour),
    ];
    output::table(&["MEASURED", &args.before, &args.after, "CHANGE"], rows)
}

/// Formats two amounts and what changes; an amount that isn't known is never 0.
fn money(what: &str, before: Option<i64>, after: Option<i64>) -> Vec<String> {
    let shown = |amount: Option<i64>| {
        amount.map_or_else(|| "-".to_owned(), |nanos| Money::from_nano_dollars(nanos).to_string())
    };
    let change = before.zip(after).map(|(before, after)| {
        let sign = if after >= before { "+" } else { "-" };
        let by = Money::from_nano_dollars(after.saturating_sub(before).saturating_abs());
        let ratio = (as_float(after) / as_float(before) - 1.0) * 100.0;
        if before > 0 { format!("{sign}{by} ({ratio:+.1} %)") } else { format!("{sign}{by}") }
    });
    vec![what.to_owned(), shown(before), shown(after), change.unwrap_or_default()]
}

#[expect(clippy::cast_precision_loss, reason = "a ratio in percent")]
fn as_float(number: i64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "a time limit is far below 2^53 seconds")]
fn whole(seconds: u64) -> f64 {
    seconds as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_its_sign_and_what_is_not_known_is_no_zero() {
        let row = |before, after| money("cost", before, after).split_off(1);
        assert_eq!(row(Some(743_000_000_000), Some(322_000_000_000)), ["$743.00", "$322.00", "-$421.00 (-56.7 %)"]);
        assert_eq!(row(Some(5_000_000_000), Some(10_000_000_000)), ["$5.00", "$10.00", "+$5.00 (+100.0 %)"]);
        assert_eq!(row(None, Some(1_000_000_000)), ["-", "$1.00", ""]);
        assert_eq!(row(Some(0), Some(1_000_000_000)), ["$0.00", "$1.00", "+$1.00"]);
    }
}
