//! `ps`, `explain` of a job, `cancel`.

use clap::Args;
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{listing, output, report, sweeps};

/// Which jobs.
#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    /// Only the jobs of this sweep, as sweep-3, ended ones too
    sweep: Option<String>,
    /// Ended ones too
    #[arg(short, long)]
    all: bool,
    /// At most this many ended ones, newest first; live ones are always shown, all of them
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub(crate) fn list(client: &Client, args: &PsArgs, is_json: bool) -> Result<(), Failure> {
    if let Some(sweep) = &args.sweep {
        return sweeps::show(client, sweep, is_json);
    }
    let mut list = listing::live(client)?;
    if args.all {
        let ended = listing::ended(client, args.limit)?;
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
        let ended = if args.all { "" } else { "; gangline ps --all shows ended ones" };
        output::tell(&format!("no job{ended}; send one with: gangline submit job.yaml"));
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
    let headings = ["JOB", "NAME", "QUEUE", "STATE", ">STEP", ">LOSS", ">SLOTS", ">AGE", "WHY"];
    let rows = jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            output::shorten(&job.name, 24),
            job.queue.clone(),
            job.state.name().to_owned(),
            step(job),
            job.progress.last_loss(4).unwrap_or_else(|| "-".to_owned()),
            slots(&job.gang),
            output::age(job.submitted_at),
            output::shorten(&job.because, 80),
        ]
    });
    output::table(&headings, rows.collect())
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
