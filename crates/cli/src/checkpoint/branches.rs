//! `checkpoint branches`: shows which saves of a folder follow which, and which branches are abandoned.

use std::path::PathBuf;

use clap::Args;
use gangline_api::Time;
use gangline_storage::{BranchInfo, Step};

use crate::checkpoint::{failed, open};
use crate::failure::Failure;
use crate::{Global, output};

/// Maximum number of steps that a line lists one by one.
const STEPS_SHOWN: usize = 6;

/// What is shown.
#[derive(Args, Debug)]
pub(crate) struct BranchesArgs {
    /// The folder of checkpoints
    folder: PathBuf,
}

pub(crate) fn branches(global: &Global, args: &BranchesArgs) -> Result<(), Failure> {
    let branches = open(&args.folder)?.branches().map_err(failed)?;
    if global.json {
        return output::json(&branches);
    }
    if branches.is_empty() {
        output::tell(&format!("no complete checkpoint in {}", args.folder.display()));
        return Ok(());
    }
    let headings = ["BRANCH", "", ">SIZE", "FROM", "RUN", "NEWEST SAVED", "STEPS"];
    output::print(&output::table(&headings, branches.iter().map(row).collect()))
}

fn row(info: &BranchInfo) -> Vec<String> {
    let from = info.forked_from.map_or_else(|| "nothing".to_owned(), |step| format!("step {step}"));
    vec![
        info.branch.to_string(),
        state(info).to_owned(),
        info.bytes.to_string(),
        from,
        if info.run.is_empty() { "-".to_owned() } else { info.run.clone() },
        output::time(Time(info.last_saved_at)),
        steps(info),
    ]
}

fn state(info: &BranchInfo) -> &'static str {
    if info.is_current {
        "current"
    } else if info.abandoned.len() == info.steps.len() {
        "abandoned"
    } else if info.abandoned.is_empty() {
        "gone on from"
    } else {
        "partly abandoned"
    }
}

/// Formats the steps; abandoned ones are in brackets.
fn steps(info: &BranchInfo) -> String {
    let shown = |step: &Step| if info.abandoned.contains(step) { format!("[{step}]") } else { step.to_string() };
    let (first, rest) = info.steps.split_at(info.steps.len().saturating_sub(STEPS_SHOWN));
    let more = if first.is_empty() { String::new() } else { format!("{} more, ", first.len()) };
    format!("{more}{}", rest.iter().map(shown).collect::<Vec<_>>().join(" "))
}
