//! `checkpoint diff`: compares each tensor of two checkpoints.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use gangline_base::Bytes;
use gangline_storage::{CheckpointInfo, Compared, Snapshot, TensorInfo, Verdict, compare};
use serde::Serialize;

use crate::checkpoint::archive::KeyFile;
use crate::checkpoint::failed;
use crate::checkpoint::groups::{grouped, pattern};
use crate::checkpoint::magnitudes::{self, Magnitudes};
use crate::checkpoint::place::Place;
use crate::checkpoint::show::declared;
use crate::failure::Failure;
use crate::{Global, output};

/// What is compared.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The folder of checkpoints, or the archive, and the step: PLACE@STEP, or PLACE for the newest
    before: String,
    /// The other: PLACE@STEP, or @STEP alone for one of the same place
    after: String,
    /// A line for each tensor, equal ones too
    #[arg(long)]
    all: bool,
    /// Read what has changed, and say by how much: elements whose bits differ, the largest difference, the root of the mean
    /// square of the differences, and that as a part of what was (L2); NaN and infinities, before and after
    #[arg(long)]
    magnitudes: bool,
    /// End with 1 if anything differs
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    key: KeyFile,
}

/// The result as it is printed in JSON.
#[derive(Serialize)]
struct Difference<'a> {
    before: Side<'a>,
    after: Side<'a>,
    is_equal: bool,
    counts: BTreeMap<Verdict, Count>,
    tensors: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Side<'a> {
    place: &'a str,
    step: u64,
    content_hash: String,
}

/// Number of tensors with a verdict, and their bytes; for removed tensors, the earlier bytes.
#[derive(Clone, Copy, Default, Serialize)]
struct Count {
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    verdict: Verdict,
    before: Option<&'a TensorInfo>,
    after: Option<&'a TensorInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    magnitude: Option<magnitudes::Row>,
}

pub(crate) fn diff(global: &Global, args: &DiffArgs) -> Result<ExitCode, Failure> {
    let before = Place::parse(&args.before);
    let mut after = Place::parse(&args.after);
    if after.place.is_empty() {
        after.place.clone_from(&before.place);
    }
    let (old, new) = (before.info(&args.key)?, after.info(&args.key)?);
    let mut compared = compare(&old, &new);
    let mut magnitudes = None;
    if args.magnitudes || compared.iter().any(|one| one.verdict == Verdict::Recut) {
        let both = before.snapshot()?.zip(after.snapshot()?);
        if args.magnitudes {
            let (old, new) = both.as_ref().ok_or_else(not_at_hand)?;
            magnitudes = Some(magnitudes::measure(&compared, old, new)?);
        }
        let mut unknown = compared.iter_mut().filter(|one| one.verdict == Verdict::Recut);
        both.map_or(Ok(()), |(old, new)| unknown.try_for_each(|one| decide(one, &old, &new)))?;
    }
    let is_equal = compared.iter().all(|one| one.verdict == Verdict::Equal);
    if global.json {
        output::json(&difference((&before, &old), (&after, &new), &compared, magnitudes.as_ref()))?;
    } else {
        output::print(&text(&compared, args.all, magnitudes.as_ref()))?;
    }
    Ok(if args.exit_code && !is_equal { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn not_at_hand() -> Failure {
    let hint = "get them first: gangline checkpoint pull ARCHIVE FOLDER";
    Failure::local("magnitudes take the tensors themselves, and those of an archive aren't at hand", hint)
}

/// Compares the contents of a tensor that was split differently.
fn decide(one: &mut Compared<'_>, before: &Snapshot, after: &Snapshot) -> Result<(), Failure> {
    let is_equal = before.is_equal_to(after, &one.tensor().name).map_err(failed)?;
    one.verdict = if is_equal { Verdict::Equal } else { Verdict::Changed };
    Ok(())
}

fn counts(compared: &[Compared<'_>]) -> BTreeMap<Verdict, Count> {
    let mut counts: BTreeMap<Verdict, Count> = BTreeMap::new();
    for one in compared {
        let count = counts.entry(one.verdict).or_default();
        count.tensors += 1;
        count.bytes += one.tensor().bytes.0;
    }
    counts
}

fn difference<'a>(
    before: (&'a Place, &'a CheckpointInfo),
    after: (&'a Place, &'a CheckpointInfo),
    compared: &[Compared<'a>],
    magnitudes: Option<&Magnitudes>,
) -> Difference<'a> {
    let side = |(place, info): (&'a Place, &'a CheckpointInfo)| Side {
        place: &place.place,
        step: info.step.0,
        content_hash: info.content_hash.to_string(),
    };
    let row = |one: &Compared<'a>| Row {
        name: &one.tensor().name,
        verdict: one.verdict,
        before: one.before,
        after: one.after,
        magnitude: magnitudes.and_then(|all| all.get(&one.tensor().name)).map(magnitudes::Row::of),
    };
    Difference {
        before: side(before),
        after: side(after),
        is_equal: compared.iter().all(|one| one.verdict == Verdict::Equal),
        counts: counts(compared),
        tensors: compared.iter().map(row).collect(),
    }
}

fn text(compared: &[Compared<'_>], is_all: bool, magnitudes: Option<&Magnitudes>) -> String {
    let shown = compared.iter().filter(|one| is_all || one.verdict != Verdict::Equal);
    let key = |one: &&Compared<'_>| {
        let name = &one.tensor().name;
        (one.verdict, if is_all { name.clone() } else { pattern(name) }, declarations(one))
    };
    let row = |((verdict, pattern, declarations), group): ((Verdict, String, String), Vec<&Compared<'_>>)| {
        let bytes = Bytes(group.iter().map(|one| one.tensor().bytes.0).sum());
        let name = if let [alone] = group[..] { alone.tensor().name.clone() } else { pattern };
        let mut row = vec![said(verdict).to_owned(), name, group.len().to_string(), declarations, bytes.to_string()];
        row.extend(magnitudes.into_iter().flat_map(|all| magnitudes::cells(all, &group)));
        row
    };
    let mut headings = vec!["", "TENSOR", ">COUNT", "TYPE AND SHAPE", ">SIZE"];
    headings.extend(magnitudes.into_iter().flat_map(|_| magnitudes::HEADINGS));
    let rows: Vec<Vec<String>> = grouped(shown, key).into_iter().map(row).collect();
    let table = if rows.is_empty() { String::new() } else { output::table(&headings, rows) + "\n" };
    let count =
        |(verdict, count): (Verdict, Count)| format!("{} {} ({})", count.tensors, said(verdict), Bytes(count.bytes));
    let counts = counts(compared);
    let is_unknown = counts.contains_key(&Verdict::Recut);
    let summary: Vec<String> = counts.into_iter().map(count).collect();
    let summary = if summary.is_empty() { "no tensors on either side".to_owned() } else { summary.join(", ") };
    let hint =
        if is_unknown { "what is cut otherwise can be compared once both are pulled into folders\n" } else { "" };
    format!("{table}{summary}\n{hint}")
}

/// Formats type and shape; both old and new if they have changed.
fn declarations(one: &Compared<'_>) -> String {
    let declared = |tensor: &TensorInfo| declared(tensor.data_type, &tensor.shape);
    match (one.before, one.after, one.verdict) {
        (Some(before), Some(after), Verdict::Redeclared) => format!("{} -> {}", declared(before), declared(after)),
        _ => declared(one.tensor()),
    }
}

fn said(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "equal",
        Verdict::Changed => "changed",
        Verdict::Redeclared => "of another type or shape",
        Verdict::Added => "added",
        Verdict::Removed => "removed",
        Verdict::Recut => "cut otherwise",
    }
}
