//! `show`: shows a job, a sweep, or the time-outs.

use clap::Args;
use gangline_execution::timeouts::{Timeout, Timeouts};
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, output, report, sweeps};

/// What to show.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The job, as job-3 or 3, or the sweep, as sweep-3
    #[arg(required_unless_present = "timeouts", conflicts_with = "timeouts")]
    job: Option<String>,
    /// Show how long what waits for what, each tied to the one below it, instead; needs no control plane
    #[arg(long)]
    timeouts: bool,
}

pub(crate) fn run(global: &Global, args: &ShowArgs) -> Result<(), Failure> {
    match &args.job {
        Some(job) => show(&Client::connect(global)?, job, global.json),
        None => timeouts(global.json),
    }
}

fn show(client: &Client, job: &str, is_json: bool) -> Result<(), Failure> {
    if sweeps::is_sweep(job) {
        return sweeps::show(client, job, is_json);
    }
    let job = client.job(job)?;
    if is_json { output::json(&job) } else { output::print(&report::job(&job)) }
}

fn timeouts(is_json: bool) -> Result<(), Failure> {
    let rungs = Timeouts::DEFAULT.rungs();
    if is_json {
        let told = |rung: &Timeout| {
            let seconds = rung.after.as_secs_f64();
            json!({"name": rung.name, "seconds": seconds, "times_the_one_below": rung.times_the_one_below, "then": rung.then})
        };
        return output::json(&rungs.iter().map(told).collect::<Vec<_>>());
    }
    let row = |(place, rung): (usize, &Timeout)| {
        let below = place.checked_sub(1).map_or("", |below| rungs[below].name);
        let tie = rung
            .times_the_one_below
            .map_or_else(|| "--heartbeat of up".to_owned(), |times| format!("{times} x {below}"));
        vec![rung.name.to_owned(), output::seconds(rung.after.as_secs_f64()), tie, rung.then.to_owned()]
    };
    output::print(&output::table(&["TIMEOUT", ">AFTER", "IS", "THEN"], rungs.iter().enumerate().map(row).collect()))
}
