//! The journal's files between two starts: copies of them, damage to them, and what their records say.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng as _;
use rusqlite::{Connection, OptionalExtension as _};
use serde_json::Value;

use super::oracle::Lost;

const DATABASE: &str = "journal.sqlite";
const LOG: &str = "journal.sqlite-wal";
/// The files that are the journal; SQLite makes the index of the log anew.
const FILES: [&str; 3] = [DATABASE, LOG, "journal.sqlite-shm"];
/// Older records and snapshots.
const FOLDERS: [&str; 2] = ["history", "snapshots"];

/// What says beside the database how far the journal had come.
const ANCHOR: &str = "journal.anchor";
/// The distance of its two slots, which are written in turn: `gangline-anchor-1 TURN SEQUENCE ...`.
const ANCHOR_SLOT_BYTES: usize = 4_096;

/// The end of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: u64,
    checksum: Vec<u8>,
}

/// Copies the journal's database from one folder to another, over what is there, with what belongs to it: a start that accepts a
/// loss puts aside what lies beyond it.
///
/// # Errors
/// When that fails.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    copy_files(from, to, &FILES)?;
    FOLDERS.iter().try_for_each(|name| copy_folder(&from.join(name), &to.join(name)))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("remove {}", to.display()))?;
    }
    if !from.exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(from).with_context(|| format!("look into {}", from.display()))?;
    let names: Vec<String> = entries
        .map(|entry| Ok(entry.context("look at a file")?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    copy_files(from, to, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Copies its anchor.
///
/// # Errors
/// When that fails.
pub(super) fn copy_anchor(from: &Path, to: &Path) -> Result<()> {
    copy_files(from, to, &[ANCHOR])
}

fn copy_files(from: &Path, to: &Path, names: &[&str]) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for name in names {
        let target = to.join(name);
        if target.exists() {
            std::fs::remove_file(&target).with_context(|| format!("remove {}", target.display()))?;
        }
        let source = from.join(name);
        if source.exists() {
            std::fs::copy(&source, &target).with_context(|| format!("copy {}", source.display()))?;
        }
    }
    Ok(())
}

/// Cuts the write-ahead log to a length below its own; what was done, or none if it is empty.
///
/// # Errors
/// When that fails.
pub(super) fn cut_log(data: &Path, random: &mut ChaCha8Rng) -> Result<Option<String>> {
    let Some((file, length)) = open(&data.join(LOG))? else { return Ok(None) };
    let keep = random.next_u64() % length;
    file.set_len(keep).context("cut the write-ahead log")?;
    Ok(Some(format!("{LOG} cut from {length} to {keep} bytes")))
}

/// Flips a bit of the write-ahead log; what was done, or none if it is empty.
///
/// # Errors
/// When that fails.
pub(super) fn flip_log(data: &Path, random: &mut ChaCha8Rng) -> Result<Option<String>> {
    flip(&data.join(LOG), random)
}

/// Brings everything from the write-ahead log into the database, and flips a bit of that; what was done.
///
/// # Errors
/// When that fails.
pub(super) fn flip_database(data: &Path, random: &mut ChaCha8Rng) -> Result<Option<String>> {
    let all = connect(data)?.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    all.context("bring the write-ahead log into the database")?;
    flip(&data.join(DATABASE), random)
}

/// Flips a bit of the anchor; what was done, or none if there is no anchor.
///
/// # Errors
/// When that fails.
pub(super) fn flip_anchor(data: &Path, random: &mut ChaCha8Rng) -> Result<Option<String>> {
    flip(&data.join(ANCHOR), random)
}

fn flip(path: &Path, random: &mut ChaCha8Rng) -> Result<Option<String>> {
    let Some((file, length)) = open(path)? else { return Ok(None) };
    let (at, bit) = (random.next_u64() % length, random.next_u64() % 8);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).context("read a byte to flip")?;
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, at).context("write a flipped byte")?;
    Ok(Some(format!("bit {bit} of byte {at} of {} flipped, which has {length}", path.display())))
}

fn open(path: &Path) -> Result<Option<(File, u64)>> {
    if !path.exists() {
        return Ok(None);
    }
    let file =
        OpenOptions::new().read(true).write(true).open(path).with_context(|| format!("open {}", path.display()))?;
    let length = file.metadata().context("look at a file's length")?.len();
    Ok((length > 0).then_some((file, length)))
}

/// The last record of a journal in a folder.
///
/// # Errors
/// When it can't be read.
pub(super) fn head(folder: &Path) -> Result<Head> {
    let read = |connection: &Connection| {
        let newest = "SELECT sequence, checksum FROM records ORDER BY sequence DESC LIMIT 1";
        connection.query_row(newest, [], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?))).optional()
    };
    let (sequence, checksum) = read(&connect(folder)?).context("read the newest record")?.unwrap_or_default();
    Ok(Head { sequence: sequence.cast_unsigned(), checksum })
}

/// The last record that the anchor in a data folder names. The control plane answers nobody about a later one.
///
/// # Errors
/// When the anchor can't be read.
pub(super) fn anchored(data: &Path) -> Result<u64> {
    let bytes = std::fs::read(data.join(ANCHOR)).context("read the anchor")?;
    let named = |slot: &[u8]| {
        let line = String::from_utf8_lossy(slot);
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    };
    let newest = bytes.chunks(ANCHOR_SLOT_BYTES).filter_map(named).max().context("the anchor is empty")?;
    Ok(newest.1)
}

/// Whether a journal in a folder has that record just so.
///
/// # Errors
/// When it can't be read.
pub(super) fn has(folder: &Path, head: &Head) -> Result<bool> {
    if head.sequence == 0 {
        return Ok(true);
    }
    let select = "SELECT checksum FROM records WHERE sequence = ?1";
    let sequence = head.sequence.cast_signed();
    let connection = connect(folder)?;
    let found: Option<Vec<u8>> =
        connection.query_row(select, [sequence], |row| row.get(0)).optional().context("read a record")?;
    // What has left the database for the archive was read back there first.
    let oldest: Option<i64> = connection.query_row("SELECT min(sequence) FROM records", [], |row| row.get(0))?;
    if oldest.is_some_and(|oldest| sequence < oldest) {
        return Ok(true);
    }
    Ok(found.is_some_and(|checksum| checksum == head.checksum))
}

/// The last record that two journals have in common.
///
/// # Errors
/// When they can't be read.
pub(super) fn common(one: &Path, other: &Path) -> Result<u64> {
    let select = "SELECT sequence, checksum FROM records ORDER BY sequence";
    let read = |folder: &Path| -> Result<Vec<Head>> {
        let connection = connect(folder)?;
        let mut statement = connection.prepare(select).context("read records")?;
        let heads = statement
            .query_map([], |row| Ok(Head { sequence: row.get::<_, i64>(0)?.cast_unsigned(), checksum: row.get(1)? }));
        heads.context("read records")?.collect::<Result<_, _>>().context("read a record")
    };
    // Either may have archived more of its oldest records than the other.
    let (one, other) = (read(one)?, read(other)?);
    let first = |heads: &[Head]| heads.first().map_or(1, |head| head.sequence);
    let from = first(&one).max(first(&other));
    let mut last = from - 1;
    let later = |heads: Vec<Head>| heads.into_iter().filter(move |head| head.sequence >= from);
    for (one, other) in later(one).zip(later(other)) {
        if one != other {
            break;
        }
        last = one.sequence;
    }
    Ok(last)
}

/// What the records of a journal after that one are about.
///
/// # Errors
/// When they can't be read.
pub(super) fn after(folder: &Path, sequence: u64) -> Result<Lost> {
    let connection = connect(folder)?;
    let select = "SELECT at_unix_nanos, body FROM records WHERE sequence > ?1 ORDER BY sequence";
    let mut statement = connection.prepare(select).context("read records")?;
    let rows =
        statement.query_map([sequence.cast_signed()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)));
    let (mut records, mut since, mut jobs) = (0, None, BTreeSet::new());
    for row in rows.context("read records")? {
        let (at, body) = row.context("read a record")?;
        records += 1;
        since.get_or_insert(SystemTime::UNIX_EPOCH + Duration::from_nanos(at.cast_unsigned()));
        let body: Value = serde_json::from_slice(&body).context("read a record's body")?;
        named(&body, &mut jobs);
    }
    Ok(Lost { records, since: since.unwrap_or_else(SystemTime::now), jobs })
}

/// Ids of jobs that a body names, as `"job":7` or `"sweep":7`, whose jobs follow.
fn named(body: &Value, jobs: &mut BTreeSet<String>) {
    match body {
        Value::Object(fields) => {
            if let Some(number) = fields.get("job").and_then(Value::as_u64) {
                jobs.insert(format!("job-{number}"));
            }
            fields.values().for_each(|value| named(value, jobs));
        }
        Value::Array(values) => values.iter().for_each(|value| named(value, jobs)),
        _ => {}
    }
}

/// A connection that a control plane beside it doesn't notice.
fn connect(folder: &Path) -> Result<Connection> {
    let path = folder.join(DATABASE);
    let connection = Connection::open(&path).with_context(|| format!("open {}", path.display()))?;
    connection.busy_timeout(Duration::from_secs(5)).context("open a journal")?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng as _;

    use super::*;

    #[test]
    fn records_say_which_jobs_they_are_about() {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        connection
            .execute_batch(
                r#"CREATE TABLE records (sequence INTEGER PRIMARY KEY, at_unix_nanos INTEGER, body BLOB, checksum BLOB);
                INSERT INTO records VALUES (1, 1000000000, CAST('{"body":{"end":{"job":1}}}' AS BLOB), x'01');
                INSERT INTO records VALUES (2, 2000000000, CAST('{"body":"time_passed"}' AS BLOB), x'02');
                INSERT INTO records VALUES (3, 3000000000, CAST('{"body":{"stop":{"job":7,"attempt":2}}}' AS BLOB), x'03');"#,
            )
            .unwrap();
        let lost = after(folder.path(), 1).unwrap();
        assert_eq!((lost.records, lost.jobs), (2, ["job-7".to_owned()].into()));
        assert_eq!(lost.since, SystemTime::UNIX_EPOCH + Duration::from_secs(2));
        let newest = head(folder.path()).unwrap();
        assert_eq!(newest.sequence, 3);
        assert!(has(folder.path(), &newest).unwrap());
        assert!(!has(folder.path(), &Head { sequence: 2, checksum: vec![9] }).unwrap());
    }

    #[test]
    fn the_newest_slot_of_an_anchor_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![b' '; ANCHOR_SLOT_BYTES];
        bytes.extend(b"gangline-anchor-1 9 41 ab 3 cd\n");
        std::fs::write(folder.path().join(ANCHOR), &bytes).unwrap();
        assert_eq!(anchored(folder.path()).unwrap(), 41);
        let other = b"gangline-anchor-1 10 42 ab 3 cd\n";
        bytes[..other.len()].copy_from_slice(other);
        std::fs::write(folder.path().join(ANCHOR), &bytes).unwrap();
        assert_eq!(anchored(folder.path()).unwrap(), 42);
    }

    #[test]
    fn a_flipped_bit_is_one_bit_and_a_cut_log_is_shorter() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(flip_log(folder.path(), &mut random).unwrap(), None);
        std::fs::write(&log, [0; 100]).unwrap();
        flip_log(folder.path(), &mut random).unwrap();
        let ones: u32 = std::fs::read(&log).unwrap().iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(ones, 1);
        cut_log(folder.path(), &mut random).unwrap();
        assert!(std::fs::metadata(&log).unwrap().len() < 100);
    }
}
