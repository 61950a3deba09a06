//! `cancel`: ends jobs and sweeps, by their ids or by what they have in common.

use clap::{Args, ValueEnum};
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::listing::Filter;
use crate::{listing, output, sweeps};

/// Which jobs to end.
#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// Jobs or sweeps, as job-3, 3 or sweep-3
    #[arg(required_unless_present_any = ["all", "queue", "state", "name"], conflicts_with_all = ["all", "queue", "state", "name"])]
    jobs: Vec<String>,
    /// Every job that waits or runs
    #[arg(long)]
    all: bool,
    /// The jobs of this queue; with other filters, those that all filters leave
    #[arg(long)]
    queue: Option<String>,
    /// Jobs that wait, or jobs that hold devices
    #[arg(long, value_enum)]
    state: Option<LiveState>,
    /// The jobs of this name
    #[arg(long)]
    name: Option<String>,
}

/// What live jobs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LiveState {
    /// They wait in their queue.
    Waiting,
    /// They hold devices.
    Running,
}

impl CancelArgs {
    fn takes(&self, job: &api::Job) -> bool {
        let is_waiting = job.state == api::JobState::Waiting;
        self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.name.as_ref().is_none_or(|name| *name == job.name)
            && self.state.is_none_or(|state| (state == LiveState::Waiting) == is_waiting)
    }
}

/// Cancels each job and says what became of it. One that can't be cancelled doesn't keep the others: the first failure
/// is returned after all were tried.
pub(crate) fn run(client: &Client, args: &CancelArgs, is_json: bool) -> Result<(), Failure> {
    let chosen = match args.jobs.as_slice() {
        [] => listing::live(client, &Filter::default())?
            .jobs
            .into_iter()
            .filter(|job| args.takes(job))
            .map(|job| job.id)
            .collect(),
        named => named.to_vec(),
    };
    if chosen.is_empty() {
        output::tell("no live job is meant; gangline ps lists them");
    }
    let (mut answers, mut failure) = (Vec::new(), None);
    for id in &chosen {
        match cancel(client, id) {
            Ok(done) => answers.extend(done),
            // The one that failed is named at the end, the others here.
            Err(failed) => {
                if let Some(earlier) = failure.replace(failed) {
                    earlier.report(is_json);
                }
            }
        }
    }
    match (is_json, answers.as_slice()) {
        (true, [answer]) if chosen.len() == 1 => output::json(answer)?,
        (true, answers) => output::json(&answers)?,
        (false, answers) => {
            let line = |answer: &api::CancelAnswer| format!("{} is {}\n", answer.job, answer.state.name());
            output::print(&answers.iter().map(line).collect::<String>())?;
        }
    }
    failure.map_or(Ok(()), Err)
}

fn cancel(client: &Client, id: &str) -> Result<Vec<api::CancelAnswer>, Failure> {
    if sweeps::is_sweep(id) {
        return sweeps::cancel(client, id);
    }
    let path = format!("/jobs/{}/cancel", path_segment(id));
    client.post(&path, &serde_json::json!({})).map(|answer| vec![answer])
}
