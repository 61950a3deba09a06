//! `hold`, `release`, `set`: changes of waiting jobs; `resume`: an ended job's work goes on.

use std::collections::BTreeMap;

use clap::Args;
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Which jobs.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// Their ids, as job-3 or 3
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
}

/// Which job, and its new values.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The job's id, as job-3 or 3
    job: String,
    /// Keys of the job file and their new values: queue=research, priority=high, time_limit=4h (or none)
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_and_value)]
    values: Vec<(String, String)>,
}

/// Which ended job.
#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// The ended job's id, as job-3 or 3
    job: String,
    /// What is to be different: queue=research, priority=high, time_limit=4h (or none)
    #[arg(value_name = "KEY=VALUE", value_parser = key_and_value)]
    values: Vec<(String, String)>,
    /// Resume it although it succeeded
    #[arg(long)]
    again: bool,
    /// Do all of it again in a folder of checkpoints of its own, instead of going on from its checkpoints
    #[arg(long, conflicts_with = "again")]
    afresh: bool,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, as in priority=high")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Holds or releases jobs. A job that can't be changed doesn't keep the others from it.
pub(crate) fn hold(client: &Client, args: &JobsArgs, hold: bool, is_json: bool) -> Result<(), Failure> {
    let request = api::ChangeRequest { hold: Some(hold), ..api::ChangeRequest::default() };
    let outcomes = args.jobs.iter().map(|job| show(&change(client, job, &request)?, is_json));
    // Every job is tried before the first failure is reported.
    let outcomes: Vec<Result<(), Failure>> = outcomes.collect();
    outcomes.into_iter().collect()
}

/// Sets values of a waiting job: all of them or none.
pub(crate) fn set(client: &Client, args: &SetArgs, is_json: bool) -> Result<(), Failure> {
    let set: BTreeMap<String, String> = args.values.iter().cloned().collect();
    show(&change(client, &args.job, &api::ChangeRequest { hold: None, set })?, is_json)
}

/// Submits a job that continues the work of an ended one.
pub(crate) fn resume(client: &Client, args: &ResumeArgs, is_json: bool) -> Result<(), Failure> {
    let request =
        api::ResumeRequest { set: args.values.iter().cloned().collect(), again: args.again, afresh: args.afresh };
    let submitted: api::Submitted = client.post(&format!("/jobs/{}/resume", path_segment(&args.job)), &request)?;
    if is_json { output::json(&submitted) } else { output::say(&submitted.job) }
}

fn change(client: &Client, job: &str, request: &api::ChangeRequest) -> Result<api::ChangeAnswer, Failure> {
    client.post(&format!("/jobs/{}/change", path_segment(job)), request)
}

fn show(answer: &api::ChangeAnswer, is_json: bool) -> Result<(), Failure> {
    if is_json {
        return output::json(answer);
    }
    let changed = if answer.changed.is_empty() { "nothing to change".to_owned() } else { answer.changed.join(", ") };
    output::say(&format!("{}: {changed}", answer.job))
}
