//! `cost roadmap`: when a cluster runs out of devices and of storage, what to order when, and what that costs.

mod months;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use gangline_accounting::procurement::{FIT_WEEKS_MIN, Growth, PurchaseOption, Roadmap};
use gangline_simulator::{BadRows, Sample, Workload};

use crate::client::data_folder;
use crate::failure::Failure;
use crate::simulate::input::{self, Input, Source};
use crate::{Global, output};
use months::{Advice, Future, Month};

/// The fewest days of the past from which the future is drawn: each day of a week.
const DAYS_MIN: usize = 7;
const DAY_SECONDS: u64 = 86_400;
/// The option that there always is.
const AS_IT_IS: &str = "nothing is bought";

/// Which past, and what is expected.
#[derive(Args, Debug)]
pub(crate) struct RoadmapArgs {
    /// What is expected: growth, teams, storage, and what could be bought (TOML); without it growth is fitted to the past
    file: Option<PathBuf>,
    /// The past of this control plane [default: the data folder's]
    #[arg(long, value_name = "DATA_FOLDER", conflicts_with = "trace")]
    replay: Option<PathBuf>,
    /// The past is a trace instead, as of gangline simulate
    #[arg(long, value_name = "FILE", requires = "cluster")]
    trace: Option<PathBuf>,
    /// The cluster, as of gangline simulate [default: the control plane's own]
    #[arg(long, value_name = "NODESxGPUS|FILE")]
    cluster: Option<String>,
    /// Only nodes and jobs of this kind of device, if there are several
    #[arg(long, value_name = "KIND", conflicts_with = "trace")]
    accelerator: Option<String>,
    /// Draw the days to come from so many days, the last of the past
    #[arg(long, value_name = "DAYS", default_value_t = 28, value_parser = clap::value_parser!(u32).range(7..=3_650))]
    days: u32,
    /// What every random draw comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// An option, and its months in each outlook.
struct Outcome {
    option: PurchaseOption,
    /// By outlook, from low to high.
    months: Vec<Vec<Month>>,
}

/// Everything that is said.
struct Found<'a> {
    future: &'a Future,
    jobs: Growth,
    is_fitted: bool,
    outcomes: Vec<Outcome>,
    /// By outlook; none if nothing is to be bought.
    advice: Vec<Option<Advice>>,
}

pub(super) fn run(global: &Global, args: &RoadmapArgs) -> Result<(), Failure> {
    let roadmap = args.file.as_deref().map_or_else(|| Ok(Roadmap::default()), read)?;
    let own = if args.replay.is_none() && args.trace.is_none() { Some(data_folder(global)?) } else { None };
    let source = Source {
        replay: args.replay.as_deref().or(own.as_deref()),
        trace: args.trace.as_deref(),
        cluster: args.cluster.as_deref(),
        accelerator: args.accelerator.as_deref(),
    };
    let Input { workload, cluster, name } = input::read(source, BadRows::Skip)?;
    let (jobs, is_fitted) = jobs_growth(&roadmap, &workload)?;
    let sample = Sample::of(&workload, args.days as usize);
    if sample.days() < DAYS_MIN {
        let message = format!("{name} has {} whole day(s) of jobs, and {DAYS_MIN} are needed", sample.days());
        return Err(Failure::local(message, "wait for a week of jobs, or give a longer past with --trace"));
    }
    check_teams(&roadmap, &sample)?;
    let future = Future::new((name, cluster), sample, (roadmap, jobs), args.seed)?;
    let as_it_is = PurchaseOption { name: AS_IT_IS.to_owned(), buy: Vec::new() };
    let options: Vec<PurchaseOption> =
        std::iter::once(as_it_is).chain(future.roadmap.options.iter().cloned()).collect();
    let outcomes = future.follow(options)?;
    let advice = future.advise(&outcomes[0])?;
    let found = Found { future: &future, jobs, is_fitted, outcomes, advice };
    if global.json { output::json(&text::value(&found)) } else { output::print(&text::text(&found)) }
}

fn read(file: &Path) -> Result<Roadmap, Failure> {
    let hint = "docs/guides/cost.md#when-do-we-run-out shows such a file";
    let refused = |error: &dyn std::fmt::Display| Failure::local(format!("{}: {error}", file.display()), hint);
    Roadmap::read(&super::plan::read(file)?).map_err(|error| refused(&error))
}

/// Returns how the number of jobs grows, and whether that was fitted to the past.
fn jobs_growth(roadmap: &Roadmap, workload: &Workload) -> Result<(Growth, bool), Failure> {
    if let Some(jobs) = roadmap.growth.jobs {
        return Ok((jobs, false));
    }
    let weeks = weeks(workload);
    let fitted = Growth::fitted(&weeks).ok_or_else(|| {
        let message = format!(
            "the past has {} whole week(s); a growth is fitted to {FIT_WEEKS_MIN} or more, with jobs in each of them",
            weeks.len()
        );
        Failure::local(message, "name the growth in a file: [growth] and below it jobs = [0.02, 0.04, 0.08], a month")
    })?;
    Ok((fitted, true))
}

/// Returns the device-seconds that the jobs of each whole week wanted.
fn weeks(workload: &Workload) -> Vec<f64> {
    let week = |at: gangline_base::Timestamp| {
        usize::try_from(at.since(gangline_base::Timestamp::EPOCH).as_secs() / (7 * DAY_SECONDS)).unwrap_or(usize::MAX)
    };
    // The last week may not be over.
    let mut weeks = vec![0.0; workload.jobs.last().map_or(0, |job| week(job.submitted))];
    for job in &workload.jobs {
        if let Some(used) = weeks.get_mut(week(job.submitted)) {
            *used += job.duration.as_secs_f64() * f64::from(job.gpus);
        }
    }
    weeks
}

/// Refuses teams whose queue has no jobs: what they will run isn't known.
fn check_teams(roadmap: &Roadmap, sample: &Sample) -> Result<(), Failure> {
    let queues = sample.wanted_by_queue();
    let unknown = roadmap.teams.iter().find(|team| !queues.contains_key(team.queue.as_str()));
    unknown.map_or(Ok(()), |team| {
        let names: Vec<&str> = queues.keys().copied().collect();
        Err(Failure::local(
            format!(
                "no job of the past is in the queue \"{}\" of a team, so nobody knows what it will run",
                team.queue
            ),
            format!("there are {}", names.join(", ")),
        ))
    })
}
