//! `runs export`: runs with their whole histories, a JSON object in each line, or one row for each run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::import::run::ImportedRun;
use super::wire::{Found, Run};
use crate::client::Client;
use crate::failure::Failure;

/// The most runs of a request.
const PAGE: u32 = 1000;

/// Which runs, and how.
#[derive(Args, Debug)]
pub(super) struct ExportArgs {
    /// Only runs of this experiment
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// Only runs for which this holds, as in runs list
    #[arg(long)]
    filter: Option<String>,
    /// jsonl: everything, as runs import reads it; csv: a row for each run, with parameters and the latest values
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// The file, which must not exist; - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Jsonl,
    Csv,
}

pub(super) fn run(client: &Client, experiments: &BTreeMap<String, String>, args: &ExportArgs) -> Result<(), Failure> {
    let experiments: BTreeMap<String, String> = experiments
        .iter()
        .filter(|(_, name)| args.experiment.as_ref().is_none_or(|wanted| wanted == *name))
        .map(|(id, name)| (id.clone(), name.clone()))
        .collect();
    if let (Some(name), true) = (&args.experiment, experiments.is_empty()) {
        let message = format!("there is no experiment \"{name}\"");
        return Err(Failure::coded("G0332", message, "gangline runs list shows the experiments of runs"));
    }
    let runs = all(client, &experiments, args.filter.as_deref())?;
    let mut out: Box<dyn Write> = if args.output.as_os_str() == "-" {
        Box::new(std::io::stdout().lock())
    } else {
        let failed = |error| Failure::local(format!("{} can't be made: {error}", args.output.display()), "");
        Box::new(BufWriter::new(File::create_new(&args.output).map_err(failed)?))
    };
    match args.format {
        Format::Csv => out.write_all(&rows(&runs, &experiments)?)?,
        Format::Jsonl => {
            for run in runs {
                let experiment = experiments.get(&run.info.experiment_id).cloned().unwrap_or_default();
                let whole = ImportedRun::of(client, &experiment, run)?;
                serde_json::to_writer(&mut out, &whole).map_err(std::io::Error::from)?;
                out.write_all(b"\n")?;
            }
        }
    }
    Ok(out.flush()?)
}

/// Returns all runs of experiments, page by page.
fn all(client: &Client, experiments: &BTreeMap<String, String>, filter: Option<&str>) -> Result<Vec<Run>, Failure> {
    let ids: Vec<&String> = experiments.keys().collect();
    let (mut runs, mut token) = (Vec::new(), None::<String>);
    loop {
        let search = json!({"experiment_ids": ids, "filter": filter, "max_results": PAGE, "page_token": token,
            "order_by": ["attributes.start_time ASC"]});
        let page: Found = client.track("runs/search", &search)?;
        runs.extend(page.runs);
        token = page.next_page_token;
        if token.is_none() {
            return Ok(runs);
        }
    }
}

fn rows(runs: &[Run], experiments: &BTreeMap<String, String>) -> Result<Vec<u8>, Failure> {
    let params: BTreeSet<&str> = runs.iter().flat_map(|run| &run.data.params).map(|entry| entry.key.as_str()).collect();
    let metrics: BTreeSet<&str> =
        runs.iter().flat_map(|run| &run.data.metrics).map(|metric| metric.key.as_str()).collect();
    let mut table = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| Failure::local(error.to_string(), "");
    let fixed = ["run_id", "name", "experiment", "status", "start_time", "end_time"].map(str::to_owned);
    let heading = fixed.into_iter();
    let heading = heading.chain(params.iter().map(|key| format!("params.{key}")));
    table.write_record(heading.chain(metrics.iter().map(|key| format!("metrics.{key}")))).map_err(failed)?;
    for run in runs {
        let info = &run.info;
        let end = info.end_time.map_or_else(String::new, |end| end.to_string());
        let experiment = experiments.get(&info.experiment_id).cloned().unwrap_or_default();
        let fixed = [
            info.run_id.clone(),
            info.run_name.clone(),
            experiment,
            info.status.clone(),
            info.start_time.to_string(),
            end,
        ];
        let param = |key: &&str| {
            run.data.params.iter().find(|entry| entry.key == *key).map_or_else(String::new, |entry| entry.value.clone())
        };
        let metric = |key: &&str| {
            let found = run.data.metrics.iter().find(|metric| metric.key == *key);
            found.map_or_else(String::new, |metric| metric.value.to_string().trim_matches('"').to_owned())
        };
        let record = fixed.into_iter().chain(params.iter().map(param)).chain(metrics.iter().map(metric));
        table.write_record(record).map_err(failed)?;
    }
    table.into_inner().map_err(|error| Failure::local(error.to_string(), ""))
}
