//! `checkpoint`: inspects a folder of checkpoints or an archive, moves checkpoints between them, and converts
//! them to and from other libraries' formats. Needs no control plane.

pub(crate) mod archive;
mod bench;
mod branches;
mod diff;
pub(crate) mod export;
mod groups;
mod import;
mod keys;
mod magnitudes;
pub(crate) mod place;
mod prune;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use gangline_api::Time;
use gangline_base::{Bytes, Step, with_causes};
use gangline_storage::archive::Milestone;
use gangline_storage::{Branch, Listed, NoteTypes, ORIGIN_PREFIX, Options, Store};
use serde::Serialize;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, output};
use archive::{KeyFile, PullArgs, PushArgs};
use keys::KeysCommand;

/// Maximum length of metadata in a table.
const METADATA_WIDTH: usize = 40;

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum CheckpointCommand {
    /// List the complete checkpoints of a folder or an archive
    List {
        /// The folder, or the archive: s3://bucket/prefix, or its folder; or a job, as job-4
        place: String,
        #[command(flatten)]
        key: KeyFile,
    },
    /// Show one checkpoint: its tensors, metadata, ranks and hashes
    Show(show::ShowArgs),
    /// Compare two checkpoints, tensor by tensor
    Diff(diff::DiffArgs),
    /// Write a checkpoint's weights to a folder that other libraries read
    Export(export::ExportArgs),
    /// Make a checkpoint of a model in safetensors files
    Import(import::ImportArgs),
    /// Read every byte of a checkpoint and compare it with its hashes
    Verify {
        /// The folder, or the archive
        place: String,
        /// The step [default: all]
        #[arg(long)]
        step: Option<u64>,
        #[command(flatten)]
        key: KeyFile,
    },
    /// Put a checkpoint into an archive: coded, and without what is there already
    Push(PushArgs),
    /// Get a checkpoint from an archive, bit for bit
    Pull(PullArgs),
    /// Measure this disk and memory, and say what checkpoints of a model will take here
    Bench(bench::BenchArgs),
    /// Show which saves of a folder follow which, and which branches are abandoned
    Branches(branches::BranchesArgs),
    /// Remove checkpoints from an archive, or a folder, but for those that an option names
    Prune(prune::PruneArgs),
    /// Make, replace and show the keys of an encrypted archive
    #[command(subcommand)]
    Keys(KeysCommand),
}

/// A checkpoint as it is printed.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) step: u64,
    pub(crate) bytes: Option<u64>,
    pub(crate) tensors: Option<usize>,
    pub(crate) content_hash: Option<String>,
    pub(crate) saved_at: Option<Time>,
    pub(crate) branch: Option<Branch>,
    pub(crate) metadata: BTreeMap<String, Value>,
    /// Whether it is abandoned: the current branch doesn't go back to it.
    pub(crate) is_abandoned: bool,
    /// The milestone that is left of it in an archive, if it isn't complete.
    pub(crate) milestone: Option<Milestone>,
    pub(crate) problems: Vec<String>,
    /// Whether every byte was read to look for problems.
    pub(crate) is_verified: bool,
}

impl Row {
    /// Creates the row of a checkpoint that can't be read.
    pub(crate) fn broken(step: u64, problem: String) -> Row {
        Row {
            step,
            bytes: None,
            tensors: None,
            content_hash: None,
            saved_at: None,
            branch: None,
            metadata: BTreeMap::new(),
            is_abandoned: false,
            milestone: None,
            problems: vec![problem],
            is_verified: false,
        }
    }
}

pub(crate) fn run(global: &Global, command: &CheckpointCommand) -> Result<ExitCode, Failure> {
    let (place, rows) = match command {
        CheckpointCommand::List { place, key } => {
            let place = folder_of(global, place)?;
            let rows = list(&place, key)?;
            if rows.is_empty() {
                refuse_foreign(&place)?;
            }
            (place, rows)
        }
        CheckpointCommand::Verify { place, step, key } => (place.clone(), verify(place, *step, key)?),
        CheckpointCommand::Show(args) => return show::show(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Diff(args) => return diff::diff(global, args),
        CheckpointCommand::Export(args) => return export::export(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Import(args) => return import::import(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Bench(args) => return bench::bench(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Push(args) => return archive::push(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Pull(args) => return archive::pull(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Branches(args) => return branches::branches(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Prune(args) => return prune::prune(global, args).map(|()| ExitCode::SUCCESS),
        CheckpointCommand::Keys(command) => return keys::run(global, command).map(|()| ExitCode::SUCCESS),
    };
    let is_sound = rows.iter().all(|row| row.problems.is_empty());
    if global.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::tell(&format!("no complete checkpoint in {place}"));
    } else {
        output::print(&table(&rows))?;
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the checkpoint folder of a job, or the place itself if it isn't a job's id.
fn folder_of(global: &Global, place: &str) -> Result<String, Failure> {
    let is_job = place.strip_prefix("job-").is_some_and(|number| number.parse::<u64>().is_ok());
    if !is_job || Path::new(place).exists() {
        return Ok(place.to_owned());
    }
    let job = Client::connect(global)?.job(place)?;
    job.checkpoint_path.ok_or_else(|| Failure::local(format!("{place} has no checkpoint folder"), ""))
}

/// Fails if a folder without a checkpoint of the store has other files, such as those of `torch.save`.
fn refuse_foreign(place: &str) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir(place) else { return Ok(()) };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    let Some(first) = names.first() else { return Ok(()) };
    let message = format!(
        "{place} has {} file(s) or folder(s), such as \"{}\", and no complete checkpoint of Gangline's store",
        names.len(),
        output::shorten(first, 60)
    );
    let hint = "what other libraries saved (torch.save, say) isn't listed; docs/guides/checkpoints.md says how to save into a \
                store, and gangline checkpoint import takes models in";
    Err(Failure::local(message, hint))
}

pub(crate) fn open(folder: &Path) -> Result<Store, Failure> {
    if !folder.is_dir() {
        let hint = "gangline show JOB names the folder of a job's checkpoints";
        return Err(Failure::local(format!("there is no folder {}", folder.display()), hint));
    }
    Store::open(folder, Options::reader()).map_err(failed)
}

pub(crate) fn failed(error: gangline_storage::Error) -> Failure {
    Failure::local(format!("failed to {}", with_causes(&error)), "")
}

fn list(place: &str, key: &KeyFile) -> Result<Vec<Row>, Failure> {
    if archive::is_archive(place) {
        return archive::list(place, key);
    }
    let store = open(Path::new(place))?;
    let listed = store.list().map_err(failed)?;
    let line: BTreeSet<Step> = store.line().map_err(failed)?.into_iter().collect();
    let row = |listed: Listed| match listed.manifest {
        Ok(info) => Row {
            step: info.step.0,
            bytes: Some(info.bytes.0),
            tensors: Some(info.tensors.len()),
            content_hash: Some(info.content_hash.to_string()),
            saved_at: info.saved_at.map(Time),
            branch: Some(info.branch),
            metadata: notes(&info.metadata, &info.metadata_types),
            is_abandoned: !line.contains(&info.step),
            milestone: None,
            problems: Vec::new(),
            is_verified: false,
        },
        Err(error) => Row::broken(listed.step.0, error.to_string()),
    };
    Ok(listed.into_iter().map(row).collect())
}

fn verify(place: &str, step: Option<u64>, key: &KeyFile) -> Result<Vec<Row>, Failure> {
    let mut rows = list(place, key)?;
    rows.retain(|row| step.is_none_or(|step| row.step == step));
    if rows.is_empty()
        && let Some(step) = step
    {
        return Err(Failure::local(
            format!("there is no checkpoint of step {step}"),
            "gangline checkpoint list shows those there are",
        ));
    }
    if archive::is_archive(place) {
        archive::verify(place, key, &mut rows)?;
        return Ok(rows);
    }
    let store = open(Path::new(place))?;
    for row in rows.iter_mut().filter(|row| row.problems.is_empty()) {
        let report = store.verify(Step(row.step)).map_err(failed)?;
        row.problems.extend(report.problems.iter().map(ToString::to_string));
        row.is_verified = true;
    }
    Ok(rows)
}

/// Returns metadata in which numbers and booleans have their JSON types, without what says where the checkpoint came from.
pub(crate) fn notes(metadata: &BTreeMap<String, String>, types: &NoteTypes) -> BTreeMap<String, Value> {
    let value = |(name, text): (&String, &String)| {
        // JSON can't express numbers that are infinite, NaN or too large.
        let read = types.get(name).and_then(|_| serde_json::from_str(text).ok());
        (name.clone(), read.unwrap_or_else(|| Value::from(text.as_str())))
    };
    metadata.iter().filter(|(name, _)| !name.starts_with(ORIGIN_PREFIX)).map(value).collect()
}

fn noted(metadata: &BTreeMap<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let notes: Vec<String> = metadata.iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
    if notes.is_empty() { "-".to_owned() } else { notes.join(" ") }
}

fn remarks(row: &Row) -> String {
    let found = if row.is_verified { "none found" } else { "not verified" };
    let found = format!("{found}{}", if row.is_abandoned { "; of an abandoned branch" } else { "" });
    match &row.milestone {
        _ if !row.problems.is_empty() => row.problems.join("; "),
        None => found,
        Some(Milestone { kept, tensors_lacking, .. }) => {
            format!("{found}; a milestone: {} are left, {tensors_lacking} tensors are not", kept.join(", "))
        }
    }
}

fn table(rows: &[Row]) -> String {
    let dash = || "-".to_owned();
    let headings = [">STEP", ">SIZE", ">TENSORS", "SAVED", "METADATA", "CONTENT HASH", "PROBLEMS"];
    let rows = rows.iter().map(|row| {
        vec![
            row.step.to_string(),
            row.bytes.map_or_else(dash, |bytes| Bytes(bytes).to_string()),
            row.tensors.map_or_else(dash, |count| count.to_string()),
            row.saved_at.map_or_else(dash, output::time),
            output::shorten(&noted(&row.metadata), METADATA_WIDTH),
            row.content_hash.clone().unwrap_or_else(dash),
            remarks(row),
        ]
    });
    output::table(&headings, rows.collect())
}
