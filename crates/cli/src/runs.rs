//! `runs`: the runs that scripts logged through MLflow's clients.

mod compare;
mod export;
mod import;
mod rerun;
mod wire;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use gangline_api::Time;
use gangline_base::{JobId, Timestamp};
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use wire::{Entry, Found, Metric, Run, experiments, find, tag};

/// Runs in a list unless the user says how many.
const RUNS_SHOWN: u32 = 20;
/// Columns of metrics in a list unless the user names some.
const METRICS_SHOWN: usize = 3;
/// Digits of a run's id that a list shows.
const ID_DIGITS: usize = 12;

/// Which runs to show.
#[derive(Args, Debug)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    command: Option<RunsCommand>,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// List runs, the newest first; the default
    List(ListArgs),
    /// Show a run: its parameters, its metrics, its tags, and the job that it belongs to
    Show {
        /// The run's id, or its first digits
        run: String,
    },
    /// Compare runs: the parameters that differ, and the latest value of each metric
    Compare {
        /// The runs' ids, or their first digits
        #[arg(required = true, num_args = 2..=20)]
        runs: Vec<String>,
        /// Show equal parameters too
        #[arg(long)]
        all: bool,
    },
    /// Write runs with their whole histories to a file that runs import reads, or a table for spreadsheets
    Export(export::ExportArgs),
    /// Take runs over from an MLflow server or its database, TensorBoard's event files, offline runs of W&B, or an export
    Import(import::ImportArgs),
    /// Submit the job of a run again from its beginning, and say what can't be the same
    Rerun {
        /// The run's id, its first digits, or its job, as job-7
        run: String,
    },
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Only runs of this experiment
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Only runs for which this holds, as "metrics.loss < 0.1 AND params.lr = '0.0003'"
    #[arg(long)]
    filter: Option<String>,
    /// The order, as "metrics.loss ASC"
    #[arg(long, value_name = "FIELD")]
    order_by: Option<String>,
    /// Show these metrics (may be repeated)
    #[arg(long = "metric", value_name = "KEY")]
    metrics: Vec<String>,
    /// The most runs
    #[arg(long, default_value_t = RUNS_SHOWN, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    limit: u32,
}

impl Default for ListArgs {
    fn default() -> Self {
        ListArgs { experiment: None, filter: None, order_by: None, metrics: Vec::new(), limit: RUNS_SHOWN }
    }
}

pub(crate) fn run(client: &Client, args: &RunsArgs, is_json: bool) -> Result<(), Failure> {
    let experiments = experiments(client)?;
    match args.command.as_ref().unwrap_or(&RunsCommand::List(ListArgs::default())) {
        RunsCommand::List(wanted) => list(client, &experiments, wanted, is_json),
        RunsCommand::Compare { runs, all } => compare::run(client, &experiments, runs, *all, is_json),
        RunsCommand::Export(args) => export::run(client, &experiments, args),
        RunsCommand::Import(args) => import::run(client, args, is_json),
        RunsCommand::Rerun { run } => rerun::run(client, &experiments, run, is_json),
        RunsCommand::Show { run } => show(&find(client, &experiments, run)?, &experiments, is_json),
    }
}

/// Reports whether this is a job's id. A run's may begin with digits too, of which a list shows more.
fn is_job(text: &str) -> bool {
    text.parse::<JobId>().is_ok() && text.len() < ID_DIGITS
}

/// Returns the job of a run; a job's own id is returned as it is. `therefore` says what can't be done without a job.
fn job_of(
    client: &Client,
    experiments: &BTreeMap<String, String>,
    wanted: &str,
    therefore: &str,
) -> Result<String, Failure> {
    if is_job(wanted) {
        return Ok(wanted.to_owned());
    }
    let run = find(client, experiments, wanted)?;
    let named = tag(&run.data, "gangline.job").map(str::to_owned);
    let message = format!("run \"{wanted}\" was logged by no job, {therefore}");
    named.ok_or_else(|| Failure::coded("G0332", message, "gangline runs list shows the jobs of runs"))
}

/// Returns the job whose devices a run held; a job's own id is returned as it is.
pub(crate) fn paying_job(client: &Client, wanted: &str) -> Result<String, Failure> {
    if is_job(wanted) {
        return Ok(wanted.to_owned());
    }
    job_of(client, &experiments(client)?, wanted, "so it held no devices that are booked")
}

fn list(
    client: &Client,
    experiments: &BTreeMap<String, String>,
    wanted: &ListArgs,
    is_json: bool,
) -> Result<(), Failure> {
    let is_wanted = |name: &String| wanted.experiment.as_ref().is_none_or(|wanted| wanted == name);
    let ids: Vec<&String> = experiments.iter().filter(|(_, name)| is_wanted(name)).map(|(id, _)| id).collect();
    if let (Some(name), true) = (&wanted.experiment, ids.is_empty()) {
        let names: Vec<&str> = experiments.values().map(String::as_str).take(20).collect();
        return Err(Failure::coded(
            "G0332",
            format!("there is no experiment \"{name}\""),
            format!("there are {}", names.join(", ")),
        ));
    }
    let search = json!({
        "experiment_ids": ids, "filter": wanted.filter, "max_results": wanted.limit, "order_by": wanted.order_by.as_ref().map(|order| [order]),
    });
    let found: Found = client.track("runs/search", &search)?;
    if is_json {
        return output::json(&found);
    }
    if found.runs.is_empty() {
        output::tell("no run; a script logs some with MLflow's client (docs/guides/tracking.md)");
        return Ok(());
    }
    let metrics = shown_metrics(&found.runs, &wanted.metrics);
    let mut headings = vec!["RUN", "NAME", "EXPERIMENT", "STATUS", "STARTED", "JOB"];
    let aligned: Vec<String> = metrics.iter().map(|key| format!(">{key}")).collect();
    headings.extend(aligned.iter().map(String::as_str));
    let rows = found.runs.iter().map(|run| row(run, experiments, &metrics)).collect();
    output::print(&output::table(&headings, rows))
}

/// The metrics that a list shows: those named, or the first that its runs have, the scripts' own before Gangline's.
fn shown_metrics(runs: &[Run], named: &[String]) -> Vec<String> {
    if !named.is_empty() {
        return named.to_vec();
    }
    let metrics = || runs.iter().flat_map(|run| &run.data.metrics).map(|metric| &metric.key);
    let is_own = |key: &&String| !key.starts_with("gangline.");
    let mut keys: Vec<String> = Vec::new();
    for key in metrics().filter(is_own).chain(metrics()) {
        if keys.len() < METRICS_SHOWN && !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

fn row(run: &Run, experiments: &BTreeMap<String, String>, metrics: &[String]) -> Vec<String> {
    let Run { info, data, .. } = run;
    let mut row = vec![
        info.run_id.chars().take(ID_DIGITS).collect(),
        output::shorten(&info.run_name, 32),
        output::shorten(experiments.get(&info.experiment_id).map_or("", String::as_str), 24),
        info.status.to_lowercase(),
        time(info.start_time),
        tag(data, "gangline.job").unwrap_or("-").to_owned(),
    ];
    let latest = |key: &String| data.metrics.iter().find(|metric| metric.key == *key).map_or("-".to_owned(), value);
    row.extend(metrics.iter().map(latest));
    row
}

fn time(millis: u64) -> String {
    output::time(Time(Timestamp::from_unix_nanos(millis.saturating_mul(1_000_000))))
}

fn value(metric: &Metric) -> String {
    match &metric.value {
        serde_json::Value::String(text) => text.clone(),
        number => number.as_f64().map_or_else(String::new, |number| format!("{number:.6}")),
    }
}

fn show(run: &Run, experiments: &BTreeMap<String, String>, is_json: bool) -> Result<(), Failure> {
    if is_json {
        return output::json(run);
    }
    let Run { info, data, .. } = run;
    let mut lines = vec![
        format!("run         {}", info.run_id),
        format!("name        {}", info.run_name),
        format!("experiment  {}", experiments.get(&info.experiment_id).map_or("", String::as_str)),
        format!("status      {}", info.status.to_lowercase()),
        format!("started     {}", time(info.start_time)),
    ];
    lines.extend(info.end_time.map(|end| format!("ended       {}", time(end))));
    lines.push(format!("artifacts   {}", info.artifact_uri));
    if let Some(job) = tag(data, "gangline.job") {
        lines.push(format!("job         {job} (gangline cost show {job} says what it cost)"));
    }
    output::print(&(lines.join("\n") + "\n"))?;
    let metrics = data.metrics.iter().map(|metric| vec![metric.key.clone(), value(metric), metric.step.to_string()]);
    section(&["METRIC", ">LATEST", ">STEP"], metrics.collect())?;
    let entries = |entries: &[Entry]| {
        entries.iter().map(|entry| vec![entry.key.clone(), output::shorten(&entry.value, 100)]).collect()
    };
    section(&["PARAMETER", "VALUE"], entries(&data.params))?;
    section(&["TAG", "VALUE"], entries(&data.tags))
}

fn section(headings: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    if rows.is_empty() { Ok(()) } else { output::print(&format!("\n{}", output::table(headings, rows))) }
}
