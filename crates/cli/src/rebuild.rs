//! `rebuild`: rebuilds jobs, sweeps and ledger from the journal.

use clap::Args;
use gangline_base::with_causes;
use gangline_store::history::Error;
use gangline_store::rebuild::{self, Counts, Outcome};

use crate::client::{absolute, data_folder};
use crate::failure::Failure;
use crate::{Global, output};

/// Whether to change anything.
#[derive(Args)]
pub(crate) struct RebuildArgs {
    /// Only say what differs; the exit code is 1 if something does
    #[arg(long)]
    check: bool,
    /// The database is lost or can't be opened at all: begin it anew from the folders history and snapshots beside it, and say what is lost
    #[arg(long, conflicts_with = "check")]
    from_history: bool,
}

pub(crate) fn rebuild(global: &Global, args: &RebuildArgs) -> Result<(), Failure> {
    let data = absolute(&data_folder(global)?)?;
    let outcome =
        if args.from_history { rebuild::rebuild_from_history(&data) } else { rebuild::rebuild(&data, args.check) };
    let outcome = outcome.map_err(|error| failed(&error))?;
    if global.json {
        output::json(&outcome)?;
    } else {
        output::say(&report(&outcome, args.check))?;
    }
    if args.check && !outcome.is_sound() {
        let hint = "run gangline rebuild without --check: it makes them again, and keeps the old database";
        return Err(Failure::coded("G0213", "the read models aren't what the journal says", hint));
    }
    Ok(())
}

fn report(outcome: &Outcome, is_check: bool) -> String {
    let made = if is_check { "to be made again" } else { "made again" };
    let line = |what: &str, counts: &Counts| {
        let Counts { same, remade, kept, removed, lost } = counts;
        let gone = if *removed > 0 { format!(", {removed} removed because they are old") } else { String::new() };
        format!(
            "{what}: {same} as the journal has them, {remade} {made}, {kept} kept that it hasn't, {lost} lost{gone}"
        )
    };
    let mut lines = outcome.differences.clone();
    let untold = outcome.differences_total.saturating_sub(outcome.differences.len() as u64);
    if untold > 0 {
        lines.push(format!("and {untold} more"));
    }
    lines.extend(outcome.malformed.as_ref().map(|what| format!("the database file is damaged: {what}")));
    lines.extend(outcome.journal.clone());
    lines.extend(outcome.known_from.map(|job| {
        format!("rows of jobs before {job} are left as they are: not all of the journal that they follow from is there")
    }));
    lines.push(line("jobs", &outcome.jobs));
    lines.push(line("sweeps", &outcome.sweeps));
    lines.push(line("rows of the ledger", &outcome.bookings));
    lines.push(line("notes of what nodes offer and folders hold", &outcome.noted));
    if outcome.lost_answers > 0 {
        let what =
            "some answers to requests with an Idempotency-Key are lost: look before you send one of the last day again";
        lines.push(what.to_owned());
    }
    lines.push(match &outcome.before {
        Some(path) => format!("the old database is {}; remove it once all is well", path.display()),
        None if outcome.is_sound() => "nothing differs, and nothing was changed".to_owned(),
        None => "nothing was changed".to_owned(),
    });
    lines.join("\n")
}

fn failed(error: &Error) -> Failure {
    match error {
        Error::Journal(cause) => Failure::coded(cause.code(), with_causes(error), cause.hint()),
        _ => Failure::local(with_causes(error), "restore the data folder from a backup, or report a bug"),
    }
}
