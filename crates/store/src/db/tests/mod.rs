//! Tests of the journal on real files: committed records come back, and damage is found, named and survived.

mod archive;
mod damage;
mod moved;
mod shrinking;
mod writing;

use std::fs;
use std::path::Path;

use gangline_base::{JobId, Timestamp};
use rusqlite::Connection;
use tempfile::TempDir;

use super::{Entry, Error, Journal, Options, Recovered, Sequence};

/// The two files of the anchor.
const ANCHOR: [&str; 2] = ["journal.anchor", "high-water"];

fn folder() -> TempDir {
    tempfile::tempdir().expect("the temporary folder is writable")
}

fn open(folder: &Path) -> Result<(Journal, Recovered), Error> {
    Journal::open(folder, Options::default())
}

fn entry(body: &str) -> Entry {
    Entry { at: Timestamp::from_unix_nanos(1_700_000_000_000_000_000), body: body.into() }
}

fn commit(journal: &mut Journal, bodies: &[&str]) -> Result<Sequence, Error> {
    let records: Vec<Entry> = bodies.iter().map(|body| entry(body)).collect();
    journal.commit_writing(&records, JobId(0), &mut |_| Ok(())).map(|info| info.last)
}

/// Writes a journal of the records `1` to `count`, each committed on its own, and closes it.
fn written(folder: &Path, count: u64) {
    let (mut journal, _) = open(folder).expect("a new journal opens");
    for number in 1..=count {
        commit(&mut journal, &[&number.to_string()]).expect("there is room");
    }
}

fn bodies(recovered: &Recovered) -> String {
    let bodies: Vec<_> = recovered.records.iter().map(|record| String::from_utf8_lossy(&record.body)).collect();
    bodies.join(" ")
}

/// Returns a start's snapshot, records and warnings as text, or its refusal with the code.
fn start(folder: &Path, options: Options) -> String {
    match Journal::open(folder, options) {
        Err(error) => format!("{} {error}", error.code()),
        Ok((_, recovered)) => {
            let snapshot = recovered
                .snapshot
                .as_ref()
                .map_or(String::new(), |snapshot| format!("snapshot {}; ", snapshot.sequence));
            let warnings: Vec<String> = recovered.warnings.iter().map(|warning| format!("; {warning}")).collect();
            format!("{snapshot}records {}{}", bodies(&recovered), warnings.concat())
        }
    }
}

fn tamper(folder: &Path, sql: &str) {
    let connection = Connection::open(folder.join("journal.sqlite")).expect("the database opens");
    connection.execute_batch(sql).expect("the statement is sound");
}

/// Flips a bit in the middle of a file.
fn damage(folder: &Path, name: &str) {
    let path = folder.join(name);
    let mut bytes = fs::read(&path).expect("the file is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("the file is ours");
}

fn remove_anchor(folder: &Path) {
    ANCHOR.iter().for_each(|name| fs::remove_file(folder.join(name)).expect("there is an anchor"));
}

/// Copies the database of a journal that nobody holds.
fn crashed_copy_of_closed(from: &Path) -> TempDir {
    let copy = folder();
    fs::copy(from.join("journal.sqlite"), copy.path().join("journal.sqlite")).expect("the file is there");
    copy
}

/// Copies the files while the writer lives, as a crash leaves them.
fn crashed_copy(from: &Path) -> TempDir {
    let copy = folder();
    for name in ["journal.sqlite", "journal.sqlite-wal", ANCHOR[0], ANCHOR[1]] {
        fs::copy(from.join(name), copy.path().join(name)).expect("the file is there");
    }
    copy
}
