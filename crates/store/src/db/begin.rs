//! Chooses where a start begins to read: at the newest snapshot that is sound and belongs to the journal's
//! records. Snapshots are files beside the database, or rows of the table that earlier releases used.

use rusqlite::{OptionalExtension, Row, Transaction};

use super::archive::Archive;
use super::reader::{base_of, head_at};
use super::record::{Checksum, Head};
use super::snapshots::{Snapshots, Sound};
use super::{Error, Recovered, Sequence, Snapshot, Warning};

/// The storage of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Table,
    File,
}

/// The snapshots that a start found.
#[derive(Debug, Default)]
pub(super) struct Begin {
    /// The chain at the chosen snapshot; the journal's beginning if there is none.
    pub(super) head: Option<Head>,
    /// The last records of the newest usable snapshot and of the one before.
    pub(super) kept: [Sequence; 2],
    /// The last record of the newest snapshot in the table.
    pub(super) newest_row: Sequence,
    /// Snapshot files that aren't sound.
    pub(super) unsound: Vec<Sequence>,
    /// The last record that any snapshot covers.
    pub(super) furthest: Sequence,
}

/// Reads the newest sound snapshot into `recovered`. Snapshots with a wrong checksum are dropped: the records
/// hold the same information.
pub(super) fn begin(
    transaction: &Transaction<'_>,
    (snapshots, archive): (&Snapshots, &Archive),
    recovered: &mut Recovered,
) -> Result<Begin, Error> {
    let mut all: Vec<(Sequence, Place)> = snapshots.list()?.into_iter().map(|at| (at, Place::File)).collect();
    let rows = rows(transaction).map_err(|error| snapshots.failed(error))?;
    let newest_row = rows.iter().max().copied().unwrap_or(Sequence::ZERO);
    all.extend(rows.into_iter().map(|at| (at, Place::Table)));
    all.sort_unstable_by(|one, other| other.cmp(one));
    let furthest = all.first().map_or(Sequence::ZERO, |(at, _)| *at);
    let mut found = Begin { newest_row, furthest, ..Begin::default() };
    for (index, (sequence, place)) in all.iter().copied().enumerate() {
        let read = match place {
            // An unreadable snapshot counts as damaged.
            Place::File => snapshots.read(sequence).unwrap_or_default(),
            Place::Table => row(transaction, sequence).map_err(|error| snapshots.failed(error))?,
        };
        let Some(Sound { snapshot, head }) = read else {
            match place {
                Place::File => found.unsound.push(sequence),
                Place::Table => forget(transaction, sequence).map_err(|error| snapshots.failed(error))?,
            }
            recovered.warnings.push(Warning::SnapshotDropped { sequence });
            continue;
        };
        if belongs(transaction, archive, head).map_err(|error| snapshots.failed(error))? {
            let older = all[index + 1..].iter().map(|(at, _)| *at).find(|at| *at < sequence);
            found.kept = [sequence, older.unwrap_or(Sequence::ZERO)];
            found.head = Some(head);
            recovered.snapshot = Some(snapshot);
            break;
        }
    }
    Ok(found)
}

/// Returns the journal's oldest sound snapshot that covers a record.
pub(super) fn oldest_sound(
    transaction: &Transaction<'_>,
    (snapshots, archive): (&Snapshots, &Archive),
    record: Sequence,
) -> Result<Option<Snapshot>, Error> {
    let failed = |error| snapshots.failed(error);
    let files = snapshots.list()?.into_iter().map(|at| (at, Place::File));
    let rows = rows(transaction).map_err(failed)?.into_iter().map(|at| (at, Place::Table));
    let mut all: Vec<(Sequence, Place)> = files.chain(rows).filter(|(at, _)| *at >= record).collect();
    all.sort_unstable();
    for (sequence, place) in all {
        let read = match place {
            Place::File => snapshots.read(sequence).unwrap_or_default(),
            // A malformed page counts as a damaged row.
            Place::Table => row(transaction, sequence).unwrap_or_default(),
        };
        let Some(Sound { snapshot, head }) = read else { continue };
        if belongs(transaction, archive, head).map_err(failed)? {
            return Ok(Some(snapshot));
        }
    }
    Ok(None)
}

/// Reports whether the records reach a snapshot and its chain is theirs. Somebody may have restored the
/// database without the snapshots beside it.
fn belongs(transaction: &Transaction<'_>, archive: &Archive, head: Head) -> rusqlite::Result<bool> {
    let base = base_of(transaction)?;
    if head.sequence < base.sequence {
        // If the archive can't be read, reading on from there reports it.
        return Ok(archive.head_at(head.sequence, base.sequence).is_ok_and(|found| found == Some(head)));
    }
    if let Some(found) = head_at(transaction, head.sequence)? {
        return Ok(found == head);
    }
    let is_behind = "SELECT 1 FROM records WHERE sequence > ?1 LIMIT 1";
    Ok(transaction.query_row(is_behind, [head.sequence.to_sql()], |_| Ok(())).optional()?.is_some())
}

fn rows(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<Sequence>> {
    let mut statement = transaction.prepare("SELECT sequence FROM snapshots")?;
    statement.query_map([], |row| row.get(0).map(Sequence::from_sql))?.collect()
}

fn row(transaction: &Transaction<'_>, sequence: Sequence) -> rusqlite::Result<Option<Sound>> {
    transaction.query_row(
        "SELECT sequence, body, record_checksum, checksum FROM snapshots WHERE sequence = ?1",
        [sequence.to_sql()],
        checked,
    )
}

/// Deletes a snapshot from the table.
pub(super) fn forget(transaction: &Transaction<'_>, sequence: Sequence) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM snapshots WHERE sequence = ?1", [sequence.to_sql()]).map(|_| ())
}

fn checked(row: &Row<'_>) -> rusqlite::Result<Option<Sound>> {
    let snapshot = Snapshot { sequence: Sequence::from_sql(row.get(0)?), body: row.get(1)? };
    let record: Option<Checksum> = row.get::<_, Vec<u8>>(2)?.try_into().ok().map(Checksum);
    let checksum: Vec<u8> = row.get(3)?;
    let is_sound = |record: &Checksum| Checksum::of_snapshot(snapshot.sequence, *record, &snapshot.body).0 == *checksum;
    let Some(record) = record.filter(is_sound) else { return Ok(None) };
    let head = Head { sequence: snapshot.sequence, checksum: record };
    Ok(Some(Sound { snapshot, head }))
}
