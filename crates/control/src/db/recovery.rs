//! What a start finds in the journal, and what it does about damage: a bad last record is put aside with a warning, damage
//! before it, or a tail that was committed and is missing, refuses to start until somebody accepts the loss by name.

use std::fmt;
use std::path::Path;

use gangline_base::{JobId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::anchor::Anchored;
use super::reader::head_at;
use super::record::{Checksum, Head, StoredRecord};
use super::{Error, Record, Sequence};

/// How many snapshots are kept: the newest, and one to fall back to.
pub(super) const SNAPSHOTS_KEPT: u32 = 2;

/// What the control plane rebuilds its state from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest sound snapshot.
    pub snapshot: Option<Snapshot>,
    /// Every record after it, in order and without gaps.
    pub records: Vec<Record>,
    /// The last job id that was given out, if there was an anchor that knows: ids up to this one are never given out again, whatever
    /// the records say.
    pub given_out: Option<JobId>,
    /// Damage that was put right; to be logged and shown.
    pub warnings: Vec<Warning>,
}

impl Recovered {
    /// Whether records were put aside whose read-model rows are still there. If so, rebuild the read models.
    #[must_use]
    pub fn are_read_models_ahead(&self) -> bool {
        self.warnings
            .iter()
            .any(|warning| matches!(warning, Warning::LastRecordDropped { .. } | Warning::LossAccepted { .. }))
    }
}

/// The writer's state after a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record it covers.
    pub sequence: Sequence,
    /// The state, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// Damage that did not keep the journal from opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The last record was torn or changed; it is kept in the table `dropped`.
    LastRecordDropped {
        /// The record.
        sequence: Sequence,
        /// What was wrong with it.
        what: &'static str,
    },
    /// Damage before the end was given up, as [`super::Options::accept_loss_after`] asked; it is kept in `dropped`.
    LossAccepted {
        /// The last record that counts.
        last_sound: Sequence,
        /// How many records were put aside.
        records: usize,
    },
    /// Committed records are missing, or others are in their place, which was given up as asked.
    TailGivenUp {
        /// The last record that counts.
        last: Sequence,
        /// The last record that had been committed.
        anchored: Sequence,
        /// The last job id that had been given out.
        given_out: JobId,
    },
    /// There is no anchor that can be read beside a journal with records: whether its tail is missing can't be told.
    NoAnchor,
    /// A snapshot failed its checksum; an older one, or the whole journal, was read instead.
    SnapshotDropped {
        /// The last record it covered.
        sequence: Sequence,
    },
    /// [`super::Options::accept_loss_after`] was given although nothing is lost; it did nothing.
    NothingToAccept,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::LastRecordDropped { sequence, what } => {
                write!(f, "put aside the last record {sequence}: {what}")
            }
            Warning::LossAccepted { last_sound, records } => {
                write!(f, "put aside {records} records after {last_sound}, as asked")
            }
            Warning::TailGivenUp { last, anchored, given_out } => write!(
                f,
                "went on after record {last} without those up to {anchored}, as asked; job ids up to {given_out} are not \
                 given out again"
            ),
            Warning::NoAnchor => f.write_str(
                "there is no readable anchor beside the journal, so a loss of its last records can't be told; one is made now",
            ),
            Warning::SnapshotDropped { sequence } => {
                write!(f, "snapshot at record {sequence} failed its checksum and was not used")
            }
            Warning::NothingToAccept => f.write_str("no loss to accept: the journal is sound"),
        }
    }
}

/// Reads and verifies what is needed to start, and puts damage aside where that is allowed.
pub(super) fn recover(
    connection: &mut Connection,
    path: &Path,
    anchored: Option<Anchored>,
    accept_loss_after: Option<Sequence>,
) -> Result<(Recovered, Head), Error> {
    let failed = |error| Error::from_sqlite(path, error);
    let given_out = anchored.map(|anchored| anchored.given_out);
    let mut recovered = Recovered { given_out, ..Recovered::default() };
    let transaction = connection.transaction().map_err(failed)?;
    let base = newest_sound_snapshot(&transaction, &mut recovered).map_err(failed)?;
    let (head, damage) = read_records(&transaction, base, &mut recovered.records).map_err(failed)?;
    if let Some(damage) = &damage {
        let was_committed = anchored.is_some_and(|anchored| anchored.head.sequence > head.sequence);
        let warning = put_right(&transaction, damage, (head.sequence, was_committed), accept_loss_after)
            .map_err(failed)?
            .ok_or(Error::Corrupt { at: head.sequence.next(), last_sound: head.sequence, what: damage.what })?;
        recovered.warnings.push(warning);
    }
    let is_whole = match anchored {
        Some(anchored) => reaches(&transaction, head, anchored.head).map_err(failed)?,
        None => true,
    };
    match anchored {
        Some(Anchored { head: Head { sequence: anchored, .. }, given_out }) if !is_whole => {
            let last = head.sequence;
            if accept_loss_after != Some(last) {
                // --accept-loss-after is offered only if a start with it would succeed.
                refuse_malformed(&transaction, path)?;
                return Err(Error::TailLost { path: path.to_owned(), last, anchored, given_out });
            }
            recovered.warnings.push(Warning::TailGivenUp { last, anchored, given_out });
        }
        None if head.sequence != Sequence::ZERO => recovered.warnings.push(Warning::NoAnchor),
        _ if damage.is_none() && accept_loss_after.is_some() => recovered.warnings.push(Warning::NothingToAccept),
        _ => {}
    }
    transaction.commit().map_err(failed)?;
    Ok((recovered, head))
}

/// Refuses a database whose pages don't fit together, as after a loss of the log when only part of it had been copied into the
/// database.
fn refuse_malformed(transaction: &Transaction<'_>, path: &Path) -> Result<(), Error> {
    let verdict: rusqlite::Result<String> = transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match verdict.map_err(|error| Error::from_sqlite(path, error))?.as_str() {
        "ok" => Ok(()),
        what => Err(Error::Damaged { path: path.to_owned(), what: what.to_owned() }),
    }
}

/// Whether a journal that ends at `head` has the record that its anchor names.
fn reaches(transaction: &Transaction<'_>, head: Head, anchored: Head) -> rusqlite::Result<bool> {
    if anchored.sequence >= head.sequence {
        return Ok(anchored == head);
    }
    Ok(head_at(transaction, anchored.sequence)? == Some(anchored))
}

/// The first record that cannot be trusted.
struct Damage {
    what: &'static str,
    /// It is there, and nothing comes after it: torn, rather than corrupted history.
    is_last: bool,
}

/// The head to read on from. Snapshots that fail their checksum are deleted: they hold nothing the records do not.
fn newest_sound_snapshot(transaction: &Transaction<'_>, recovered: &mut Recovered) -> rusqlite::Result<Head> {
    for _ in 0..SNAPSHOTS_KEPT {
        let newest = transaction
            .query_row(
                "SELECT sequence, body, record_checksum, checksum FROM snapshots ORDER BY sequence DESC LIMIT 1",
                [],
                checked_snapshot,
            )
            .optional()?;
        match newest {
            None => break,
            Some((snapshot, Some(checksum))) => {
                let head = Head { sequence: snapshot.sequence, checksum };
                recovered.snapshot = Some(snapshot);
                return Ok(head);
            }
            Some((Snapshot { sequence, .. }, None)) => {
                transaction.execute("DELETE FROM snapshots WHERE sequence = ?1", [sequence.to_sql()])?;
                recovered.warnings.push(Warning::SnapshotDropped { sequence });
            }
        }
    }
    Ok(Head::empty())
}

/// The snapshot and, if it is sound, the checksum of the record it ends at.
pub(super) fn checked_snapshot(row: &Row<'_>) -> rusqlite::Result<(Snapshot, Option<Checksum>)> {
    let snapshot = Snapshot { sequence: Sequence::from_sql(row.get(0)?), body: row.get(1)? };
    let record_checksum: Option<Checksum> = row.get::<_, Vec<u8>>(2)?.try_into().ok().map(Checksum);
    let checksum: Vec<u8> = row.get(3)?;
    let sound = record_checksum
        .filter(|record| Checksum::of_snapshot(snapshot.sequence, *record, &snapshot.body).0 == *checksum);
    Ok((snapshot, sound))
}

fn read_records(
    transaction: &Transaction<'_>,
    base: Head,
    records: &mut Vec<Record>,
) -> rusqlite::Result<(Head, Option<Damage>)> {
    let mut statement = transaction
        .prepare("SELECT sequence, at_unix_nanos, body, checksum FROM records WHERE sequence > ?1 ORDER BY sequence")?;
    let mut rows = statement.query([base.sequence.to_sql()])?;
    let mut head = base;
    while let Some(row) = rows.next()? {
        let stored = stored_record(row)?;
        match head.checked(&stored) {
            Ok(after) => head = after,
            Err(what) => {
                let is_there = stored.record.sequence == head.sequence.next();
                let is_last = is_there && rows.next()?.is_none();
                return Ok((head, Some(Damage { what, is_last })));
            }
        }
        records.push(stored.record);
    }
    Ok((head, None))
}

/// Reads `sequence, at_unix_nanos, body, checksum`.
pub(super) fn stored_record(row: &Row<'_>) -> rusqlite::Result<StoredRecord> {
    let at = Timestamp::from_unix_nanos(row.get::<_, i64>(1)?.cast_unsigned());
    let record = Record { sequence: Sequence::from_sql(row.get(0)?), at, body: row.get(2)? };
    Ok(StoredRecord { record, checksum: row.get(3)? })
}

/// Puts aside what follows the last sound record if that is allowed: a torn last record that nobody was told of, or a loss that
/// was accepted. The accepted loss has to name the very record: a flag
/// left behind in a unit file must not throw away a later day's history.
fn put_right(
    transaction: &Transaction<'_>,
    damage: &Damage,
    (last_sound, was_committed): (Sequence, bool),
    accept_loss_after: Option<Sequence>,
) -> rusqlite::Result<Option<Warning>> {
    if (!damage.is_last || was_committed) && accept_loss_after != Some(last_sound) {
        return Ok(None);
    }
    transaction.execute(
        "INSERT INTO dropped (sequence, at_unix_nanos, body, checksum, reason)
         SELECT sequence, at_unix_nanos, body, checksum, ?2 FROM records WHERE sequence > ?1 ORDER BY sequence",
        params![last_sound.to_sql(), damage.what],
    )?;
    let records = transaction.execute("DELETE FROM records WHERE sequence > ?1", [last_sound.to_sql()])?;
    Ok(Some(if damage.is_last {
        Warning::LastRecordDropped { sequence: last_sound.next(), what: damage.what }
    } else {
        Warning::LossAccepted { last_sound, records }
    }))
}
