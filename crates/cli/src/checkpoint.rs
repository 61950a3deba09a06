//! `checkpoint`: look at a checkpoint folder. Needs no control plane.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use gangline_base::{Bytes, Step};
use gangline_storage::{Listed, Options, Store};
use serde::Serialize;

use crate::failure::Failure;
use crate::internal::with_sources;
use crate::{Global, output};

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum CheckpointCommand {
    /// List the complete checkpoints of a folder
    List {
        /// The folder
        folder: PathBuf,
    },
    /// Read every byte of a checkpoint and compare it with its hashes
    Verify {
        /// The folder
        folder: PathBuf,
        /// The step [default: all]
        #[arg(long)]
        step: Option<u64>,
    },
}

/// A checkpoint as it is printed.
#[derive(Serialize)]
struct Row {
    step: u64,
    bytes: Option<u64>,
    tensors: Option<usize>,
    content_hash: Option<String>,
    problems: Vec<String>,
}

pub(crate) fn run(global: &Global, command: &CheckpointCommand) -> Result<ExitCode, Failure> {
    let (folder, rows) = match command {
        CheckpointCommand::List { folder } => (folder, list(folder)?),
        CheckpointCommand::Verify { folder, step } => (folder, verify(folder, *step)?),
    };
    let is_sound = rows.iter().all(|row| row.problems.is_empty());
    if global.json {
        output::json(&rows)?;
    } else if rows.is_empty() {
        output::tell(&format!("no complete checkpoint in {}", folder.display()));
    } else {
        output::print(&table(&rows))?;
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(folder: &Path) -> Result<Store, Failure> {
    if !folder.is_dir() {
        let hint = "gangline show JOB names the folder of a job's checkpoints";
        return Err(Failure::local(format!("there is no folder {}", folder.display()), hint));
    }
    Store::open(folder, Options::reader()).map_err(failed)
}

fn failed(error: gangline_storage::Error) -> Failure {
    Failure::local(format!("failed to {}", with_sources(&error)), "")
}

fn list(folder: &Path) -> Result<Vec<Row>, Failure> {
    let listed = open(folder)?.list().map_err(failed)?;
    let row = |listed: Listed| match listed.manifest {
        Ok(info) => Row {
            step: info.step.0,
            bytes: Some(info.bytes.0),
            tensors: Some(info.tensors.len()),
            content_hash: Some(info.content_hash.to_string()),
            problems: Vec::new(),
        },
        Err(error) => Row {
            step: listed.step.0,
            bytes: None,
            tensors: None,
            content_hash: None,
            problems: vec![error.to_string()],
        },
    };
    Ok(listed.into_iter().map(row).collect())
}

fn verify(folder: &Path, step: Option<u64>) -> Result<Vec<Row>, Failure> {
    let store = open(folder)?;
    let mut rows = list(folder)?;
    rows.retain(|row| step.is_none_or(|step| row.step == step));
    if rows.is_empty()
        && let Some(step) = step
    {
        return Err(Failure::local(
            format!("there is no checkpoint of step {step}"),
            "gangline checkpoint list shows those there are",
        ));
    }
    for row in rows.iter_mut().filter(|row| row.problems.is_empty()) {
        let report = store.verify(Step(row.step)).map_err(failed)?;
        row.problems.extend(report.problems.iter().map(ToString::to_string));
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let dash = || "-".to_owned();
    let headings = [">STEP", ">SIZE", ">TENSORS", "CONTENT HASH", "PROBLEMS"];
    let rows = rows.iter().map(|row| {
        vec![
            row.step.to_string(),
            row.bytes.map_or_else(dash, |bytes| Bytes(bytes).to_string()),
            row.tensors.map_or_else(dash, |count| count.to_string()),
            row.content_hash.clone().unwrap_or_else(dash),
            if row.problems.is_empty() { "none found".to_owned() } else { row.problems.join("; ") },
        ]
    });
    output::table(&headings, rows.collect())
}
