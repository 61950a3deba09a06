//! Runs in the folders of W&B that was offline: files of records in the log format of LevelDB
//! (<https://github.com/google/leveldb/blob/main/doc/log_format.md>, with the checksum of zlib), each a `Record` of
//! <https://github.com/wandb/wandb/blob/main/wandb/proto/wandb_internal.proto>. Metrics and the configuration are taken; media,
//! artifacts and what the system measured are not.

use std::fs;
use std::path::Path;

use prost::Message;
use serde_json::Value;

use super::folders;
use super::run::{ImportedRun, Point, VERSION, millis};
use crate::failure::Failure;

/// How the files' names end.
const ENDING: &str = ".wandb";
/// What a file begins with: a magic, and the version of the format.
const HEAD: &[u8] = b":W&B\xe1\xbe\x00";
/// Bytes of a block of the log, and of the head of each piece in it.
const BLOCK: usize = 32 << 10;
const PIECE_HEAD: usize = 7;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(message, optional, tag = "2")]
    history: Option<History>,
    #[prost(message, optional, tag = "5")]
    config: Option<Config>,
    #[prost(message, optional, tag = "17")]
    run: Option<Run>,
    #[prost(message, optional, tag = "18")]
    exit: Option<Exit>,
}

#[derive(Clone, PartialEq, Message)]
struct History {
    #[prost(message, repeated, tag = "1")]
    item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    step: Option<Step>,
}

#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(int64, tag = "1")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(message, repeated, tag = "1")]
    update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
struct Item {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, repeated, tag = "2")]
    nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    value_json: String,
}

#[derive(Clone, PartialEq, Message)]
struct Run {
    #[prost(string, tag = "1")]
    run_id: String,
    #[prost(string, tag = "3")]
    project: String,
    #[prost(message, optional, tag = "4")]
    config: Option<Config>,
    #[prost(string, tag = "6")]
    run_group: String,
    #[prost(string, tag = "8")]
    display_name: String,
    #[prost(string, tag = "9")]
    notes: String,
    #[prost(string, repeated, tag = "10")]
    tags: Vec<String>,
    #[prost(message, optional, tag = "17")]
    start_time: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Exit {
    #[prost(int32, tag = "1")]
    exit_code: i32,
}

impl Item {
    fn name(&self) -> String {
        if self.nested_key.is_empty() { self.key.clone() } else { self.nested_key.join(".") }
    }

    /// Returns the value if it is a number. W&B writes NaN and infinities as Python does.
    fn number(&self) -> Option<f64> {
        match self.value_json.trim_matches('"') {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => serde_json::from_str::<Value>(text).ok()?.as_f64(),
        }
    }

    /// Returns the value as a parameter: a text without its quotes, all else as JSON.
    fn text(&self) -> String {
        serde_json::from_str::<String>(&self.value_json).unwrap_or_else(|_| self.value_json.clone())
    }
}

/// Hands over a run for each file.
pub(super) fn each(
    root: &Path,
    experiment: Option<&str>,
    mut take: impl FnMut(&ImportedRun) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (root, folders) = folders::with(root, |name| name.ends_with(ENDING))?;
    if folders.is_empty() {
        let message = format!("there is no run of W&B in {}", root.display());
        return Err(Failure::local(message, "a folder offline-run-... holds a file run-ID.wandb"));
    }
    for file in folders.into_values().flatten() {
        let damaged =
            |why: String| Failure::local(format!("{}: {why}", file.display()), "move it away to import the others");
        let bytes = fs::read(&file).map_err(|error| damaged(error.to_string()))?;
        let mut run = run_of(&bytes).map_err(damaged)?;
        if let Some(experiment) = experiment {
            experiment.clone_into(&mut run.experiment);
        }
        take(&run)?;
    }
    Ok(())
}

fn run_of(bytes: &[u8]) -> Result<ImportedRun, String> {
    let mut run = ImportedRun { version: VERSION, status: "KILLED".to_owned(), ..ImportedRun::default() };
    run.tags.insert("mlflow.source.type".to_owned(), "WANDB".to_owned());
    let mut last = 0;
    for record in records(bytes)? {
        let record = Record::decode(record.as_slice()).map_err(|error| format!("a record can't be read: {error}"))?;
        if let Some(found) = record.run {
            describe(&mut run, found);
        }
        record.config.into_iter().for_each(|config| configure(&mut run, config));
        if let Some(history) = record.history {
            last = last.max(add(&mut run, &history));
        }
        if let Some(Exit { exit_code }) = record.exit {
            run.status = if exit_code == 0 { "FINISHED" } else { "FAILED" }.to_owned();
        }
    }
    if run.id.is_empty() {
        return Err("it names no run: was its writer killed at once?".to_owned());
    }
    run.end_time = u64::try_from(last).ok().filter(|end| *end > 0);
    Ok(run)
}

fn describe(run: &mut ImportedRun, found: Run) {
    run.id = format!("wandb:{}/{}", found.project, found.run_id);
    run.name = if found.display_name.is_empty() { found.run_id } else { found.display_name };
    run.experiment = if found.project.is_empty() { "uncategorized".to_owned() } else { found.project };
    let start = found.start_time.map(|time| time.seconds.saturating_mul(1_000) + i64::from(time.nanos) / 1_000_000);
    run.start_time = start.and_then(|start| u64::try_from(start).ok()).unwrap_or_default();
    found.config.into_iter().for_each(|config| configure(run, config));
    let mut tag = |key: &str, value: String| {
        if !value.is_empty() {
            run.tags.insert(key.to_owned(), value);
        }
    };
    tag("mlflow.note.content", found.notes);
    tag("wandb.group", found.run_group);
    tag("wandb.tags", found.tags.join(","));
}

fn configure(run: &mut ImportedRun, config: Config) {
    let own = config.update.into_iter().filter(|item| !item.name().starts_with('_'));
    run.params.extend(own.map(|item| (item.name(), item.text())));
}

/// Adds the numbers of a step, and returns when they were logged.
fn add(run: &mut ImportedRun, history: &History) -> i64 {
    let named = |name: &str| history.item.iter().find(|item| item.name() == name).and_then(Item::number);
    let step = history.step.as_ref().map_or(0, |step| step.num);
    let at = named("_timestamp").map_or(0, millis);
    for item in &history.item {
        let name = item.name();
        if let Some(value) = item.number().filter(|_| !name.starts_with('_')) {
            run.metrics.entry(name).or_default().push(Point::of(step, at, value));
        }
    }
    at
}

/// Returns the records of a log; the last may be cut off where its writer died.
fn records(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    if !bytes.starts_with(HEAD) {
        return Err("it isn't a file of W&B of a version that is known".to_owned());
    }
    let (mut records, mut record, mut place) = (Vec::new(), Vec::new(), HEAD.len());
    while place < bytes.len() {
        let left = BLOCK - place % BLOCK;
        if left < PIECE_HEAD {
            place += left;
            continue;
        }
        let Some((check, length, kind)) = bytes.get(place..place + PIECE_HEAD).map(head) else { break };
        let Some(piece) = bytes.get(place + PIECE_HEAD - 1..place + PIECE_HEAD + length) else { break };
        let content = &piece[1..];
        // Where a program died, the rest of its block is zeros.
        if (kind, length) != (0, 0) && crc32fast::hash(&[&[kind], content].concat()) != check {
            return Err(format!("the record at byte {place} has another checksum"));
        }
        match kind {
            1 => records.push(content.to_vec()),
            2 => record = content.to_vec(),
            3 => record.extend_from_slice(content),
            4 => {
                record.extend_from_slice(content);
                records.push(std::mem::take(&mut record));
            }
            _ => {}
        }
        place += PIECE_HEAD + length;
    }
    Ok(records)
}

/// Reads the head of a piece: its checksum, its length and its kind (whole, first, middle, last).
fn head(bytes: &[u8]) -> (u32, usize, u8) {
    let check = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (check, usize::from(u16::from_le_bytes([bytes[4], bytes[5]])), bytes[6])
}
