//! `cost estimate`: what a job file may cost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gangline_api as api;
use gangline_base::Money;

use crate::client::Client;
use crate::failure::Failure;
use crate::{output, submit};

/// Which job file.
#[derive(Args, Debug)]
pub(crate) struct EstimateArgs {
    /// The job file (YAML), or a batch script with #SBATCH lines; - for standard input
    file: PathBuf,
    /// Override a key of the file, such as resources.nodes=4 (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(super) fn run(client: &Client, args: &EstimateArgs, is_json: bool) -> Result<(), Failure> {
    let estimate = of_file(client, &args.file, &args.set)?;
    if is_json { output::json(&estimate) } else { output::print(&text(&estimate)) }
}

/// Returns what a job file may cost.
pub(super) fn of_file(client: &Client, file: &Path, set: &[String]) -> Result<api::CostEstimate, Failure> {
    let request = submit::request_of(client, file, set.to_vec())?;
    let answer = client.post("/cost/estimate", &request);
    answer.map_err(|failure| submit::in_file(failure, &file.display().to_string()))
}

fn text(estimate: &api::CostEstimate) -> String {
    let api::CostEstimate { name, jobs, devices, accelerator, .. } = estimate;
    let money = Money::from_nano_dollars;
    let of = if *jobs > 1 { format!("{jobs} jobs of ") } else { String::new() };
    let mut text = format!("{name}: {of}{devices} x {accelerator}");
    let (Some(price), Some(per_hour)) = (estimate.price_nano_dollars_per_hour, estimate.nano_dollars_per_hour) else {
        return text + ", not priced: give a price in [[price]] or at [[node]] of the configuration\n";
    };
    let each = if *jobs > 1 { " for each job" } else { "" };
    let overhead = estimate.overhead_nano_dollars_per_hour;
    let beside = overhead.map(|overhead| format!(" and {} of overheads", money(overhead))).unwrap_or_default();
    text += &format!(" at {}{beside} an hour each: {} an hour{each}\n", money(price), money(per_hour));
    text += &match (estimate.time_limit_seconds, estimate.at_most_nano_dollars) {
        (Some(limit), Some(at_most)) => {
            let limit = output::duration(Duration::from_secs(limit));
            format!("at most {} for one attempt of {limit}, its time limit (estimated)\n", money(at_most))
        }
        _ => {
            "it has no time limit, so no most that it may cost: see time_limit and budget of the job file\n".to_owned()
        }
    };
    if let Some(budget) = estimate.budget_nano_dollars {
        text += &format!("it is stopped once it has cost {}, its budget\n", money(budget));
    }
    text
}
