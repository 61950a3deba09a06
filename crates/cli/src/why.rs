//! `why`: says in a few lines why a job is slower than it could be, or what ended it.

use std::fmt::Write as _;

use clap::Args;
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;
use crate::report::first_fault;

/// Which job.
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    /// The job, as job-3 or 3
    job: String,
    /// Look at the last so many minutes of its last attempt
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    minutes: u32,
}

pub(crate) fn run(client: &Client, args: &WhyArgs, is_json: bool) -> Result<(), Failure> {
    let path = format!("/jobs/{}/why?minutes={}", path_segment(&args.job), args.minutes);
    let why: api::Why = client.get(&path)?;
    if is_json { output::json(&why) } else { output::print(&text(&why)) }
}

/// Returns the answer for a job's last ten minutes as text.
#[cfg(feature = "demo")]
pub(crate) fn of(client: &Client, job: &str) -> Result<String, Failure> {
    client.get(&format!("/jobs/{}/why", path_segment(job))).map(|why| text(&why))
}

/// Formats the answer: the sentence, what was looked at, and two lines for each cause.
fn text(why: &api::Why) -> String {
    let mut text = format!("{}: {}\n", why.job, why.summary);
    if let (Some(attempt), Some(step)) = (why.attempt, why.step_seconds) {
        time_of_steps(&mut text, why, attempt, step);
    }
    if let Some(last) = &why.fault {
        let alike = if last.in_a_row > 1 { format!(", {} in a row in this way", last.in_a_row) } else { String::new() };
        // Writing to a String can't fail.
        let _ = writeln!(text, "  attempt {} ended by a fault{alike}", last.attempt);
        let _ = first_fault(&mut text, "    ", &last.fault);
    }
    text
}

/// Adds what was looked at, and what costs time.
fn time_of_steps(text: &mut String, why: &api::Why, attempt: u32, step: f64) {
    let _ = writeln!(
        text,
        "  {} to {}, attempt {attempt}: {} rank(s), at least {} steps of {} (measured)",
        output::time(why.from),
        output::time(why.to),
        why.ranks,
        why.steps,
        output::seconds(step),
    );
    if let Some(plan) = &why.plan {
        let _ = writeln!(text, "  of its plan        {}", plan.text());
    }
    for cause in &why.causes {
        let share = cause.share.map_or_else(|| "?".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let cost = cause.cost_per_hour.as_ref().map(|cost| format!(", {cost} an hour")).unwrap_or_default();
        let since = output::time(cause.since);
        let _ = writeln!(text, "  {:<18} {share:>5}{cost}, since {since}: {}", cause.kind, cause.evidence);
        let _ = writeln!(text, "  {:<18} {:>5}{}; {}", "", "on ", places(cause), cause.hint);
    }
}

fn places(cause: &api::Cause) -> String {
    let ranks: Vec<String> = cause.ranks.iter().map(ToString::to_string).collect();
    let more = if cause.more_ranks > 0 { format!(" and {} more", cause.more_ranks) } else { String::new() };
    format!("rank {}{more} ({})", ranks.join(", "), cause.nodes.join(", "))
}
