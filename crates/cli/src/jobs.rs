//! `ps`, `explain` of a job, `cancel`.

use std::time::Duration;

use clap::Args;
use gangline_api as api;
use gangline_base::Timestamp;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::listing::Filter;
use crate::{listing, moment, output, report, sweeps};

/// Which jobs.
#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    /// Only the jobs of this sweep, as sweep-3, ended ones too
    sweep: Option<String>,
    /// Ended ones too
    #[arg(short, long)]
    all: bool,
    /// Only jobs that this user submitted
    #[arg(short, long)]
    user: Option<String>,
    /// Only jobs in these states, as running or failed,cancelled; states of ended jobs show ended ones
    #[arg(long, value_delimiter = ',', value_parser = state)]
    state: Vec<api::JobState>,
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs submitted since then, ended ones too: how long ago, as 2d, or when, as 2026-11-25
    #[arg(long, value_name = "TIME", value_parser = moment::since)]
    since: Option<Timestamp>,
    /// Only jobs with this in their names
    #[arg(long)]
    name: Option<String>,
    /// At most this many ended ones, newest first; live ones are always shown, all of them
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

/// All states, in the order of a job's life.
const STATES: [api::JobState; 8] = [
    api::JobState::Waiting,
    api::JobState::Starting,
    api::JobState::Running,
    api::JobState::Stopping,
    api::JobState::Succeeded,
    api::JobState::Failed,
    api::JobState::Cancelled,
    api::JobState::Stopped,
];

/// Parses a state.
fn state(text: &str) -> Result<api::JobState, String> {
    let known = || STATES.map(api::JobState::name).join(", ");
    let found = STATES.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| format!("it is no state of a job; the states are {}", known()))
}

impl PsArgs {
    fn filter(&self) -> Filter {
        let PsArgs { user, state, queue, since, name, .. } = self;
        let (user, queue, name) = (user.clone(), queue.clone(), name.clone());
        Filter { user, queue, name, states: state.clone(), since: since.map(api::Time) }
    }

    fn shows_ended(&self) -> bool {
        self.all || self.since.is_some() || self.state.iter().any(|state| state.is_final())
    }

    fn is_filtered(&self) -> bool {
        self.user.is_some()
            || self.queue.is_some()
            || self.name.is_some()
            || !self.state.is_empty()
            || self.since.is_some()
    }
}

pub(crate) fn list(client: &Client, args: &PsArgs, is_json: bool) -> Result<(), Failure> {
    if let Some(sweep) = &args.sweep {
        return sweeps::show(client, sweep, is_json);
    }
    let filter = args.filter();
    let mut list = listing::live(client, &filter)?;
    if args.shows_ended() {
        let ended = listing::ended(client, &filter, args.limit)?;
        // A job may have ended between the two questions.
        let is_new = |job: &api::Job| list.jobs.iter().all(|live| live.id != job.id);
        let ended: api::JobList = api::JobList { jobs: ended.jobs.into_iter().filter(is_new).collect(), ..ended };
        list.jobs.extend(ended.jobs);
        list.damaged.extend(ended.damaged);
        list.next = ended.next;
    }
    for job in &list.damaged {
        output::tell(&format!("{job} can't be shown: what is kept of it is damaged on disk (docs/errors/G0213.md)"));
    }
    if is_json {
        return output::json(&list);
    }
    if list.jobs.is_empty() {
        let chosen = if args.is_filtered() { " is chosen" } else { "" };
        let ended = if args.shows_ended() { "" } else { "; gangline ps --all shows ended ones" };
        output::tell(&format!("no job{chosen}{ended}; send one with: gangline submit job.yaml"));
        return Ok(());
    }
    output::print(&jobs_table(&list.jobs))?;
    if list.next.is_some() {
        output::tell(&format!("only the newest {} ended jobs are shown; --limit shows more", args.limit));
    }
    Ok(())
}

/// Formats jobs as a table.
pub(crate) fn jobs_table(jobs: &[api::Job]) -> String {
    let headings = ["JOB", "NAME", "QUEUE", "STATE", ">STEP", ">LOSS", ">SLOTS", ">ELAPSED", ">ETA", "WHY"];
    let rows = jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            output::shorten(&job.name, 24),
            job.queue.clone(),
            job.state.name().to_owned(),
            step(job),
            job.progress.last_loss(4).unwrap_or_else(|| "-".to_owned()),
            slots(&job.gang),
            elapsed(job, output::now()).map_or_else(|| "-".to_owned(), output::duration),
            eta(job).map_or_else(|| "-".to_owned(), |left| format!("~{}", output::duration(left))),
            output::shorten(&job.because, 80),
        ]
    });
    output::table(&headings, rows.collect())
}

/// Returns how long a job has held its devices since it last got them, or held them the last time; none if it never
/// has.
fn elapsed(job: &api::Job, now: Timestamp) -> Option<Duration> {
    let last = job.attempts.last()?;
    Some(last.ended_at.map_or(now, |at| at.0).since(last.placed_at.0))
}

/// Returns how long a job will still run: its steps that are left, at the speed of the last ones (estimated).
fn eta(job: &api::Job) -> Option<Duration> {
    let progress = &job.progress;
    let left = progress.total_steps?.checked_sub(progress.step?)?;
    let rate = progress.steps_per_second.filter(|rate| *rate > 0.0 && !job.state.is_final())?;
    Duration::try_from_secs_f64(f64::from(u32::try_from(left).ok()?) / rate).ok()
}

fn step(job: &api::Job) -> String {
    match (job.progress.step, job.progress.total_steps) {
        (None, _) => "-".to_owned(),
        (Some(step), None) => step.to_string(),
        (Some(step), Some(total)) => format!("{step}/{total}"),
    }
}

fn slots(gang: &api::Gang) -> String {
    let per_node = format!("{}:{}", gang.accelerator, gang.accelerators_per_node);
    match gang.nodes_max {
        Some(most) => format!("{}-{most}x{per_node}", gang.nodes),
        None if gang.nodes == 1 => per_node,
        None => format!("{}x{per_node}", gang.nodes),
    }
}

pub(crate) fn explain(client: &Client, job: &str, is_json: bool) -> Result<(), Failure> {
    if sweeps::is_sweep(job) {
        return sweeps::show(client, job, is_json);
    }
    let explanation: api::Explanation = client.get(&format!("/jobs/{}/explain", path_segment(job)))?;
    if is_json {
        return output::json(&explanation);
    }
    let mut text = explanation_text(&explanation);
    if explanation.state.is_some_and(api::JobState::is_final) {
        let job = client.job(job)?;
        if let Some(fault) = job.attempts.iter().rev().find_map(|attempt| attempt.fault.as_ref()) {
            // Writing to a String can't fail.
            let _ = report::first_fault(&mut text, "  ", fault);
        }
    }
    output::print(&text)
}

/// Formats an explanation for people.
pub(crate) fn explanation_text(explanation: &api::Explanation) -> String {
    let mut text = String::new();
    if let (Some(job), Some(state)) = (&explanation.job, explanation.state) {
        text.push_str(&format!("{job} is {}: {}\n", state.name(), explanation.summary));
    } else {
        text.push_str(&format!("{}\n", explanation.summary));
    }
    if explanation.blocker.is_some() {
        let (ahead, waiting) = (explanation.ahead, explanation.waiting);
        text.push_str(&format!("place {} of {waiting} waiting\n", ahead + 1));
    }
    if let Some(at) = explanation.starts_by {
        text.push_str(&format!("starts by {} at the latest, by time limits\n", output::time(at)));
    }
    if let Some(api::FirstBy { at, behind }) = explanation.first_by {
        let others =
            if behind == 0 { String::new() } else { format!(", once the {behind} that waited longer have started") };
        text.push_str(&format!("first in line by {} at the latest, whatever arrives{others}\n", output::time(at)));
    }
    for note in &explanation.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    for line in &explanation.history {
        text.push_str(&format!("  {}  {}\n", output::time(line.at), line.text));
    }
    text
}
