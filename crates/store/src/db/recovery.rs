//! Recovery at a start. A bad last record is put aside with a warning. Damage before it, or a missing
//! committed tail, prevents the start until the user accepts the loss by naming its record.

use std::fmt;
use std::path::{Path, PathBuf};

use gangline_base::{JobId, Timestamp};
use rusqlite::{Connection, Row, Transaction, params};

use super::anchor::Anchored;
use super::archive::{Archive, Range};
use super::begin::{Begin, begin};
use super::compaction::set_base;
use super::reader::{base_of, head_at};
use super::record::{Head, StoredRecord};
use super::snapshots::Snapshots;
use super::{Error, Record, Sequence};

/// The number of snapshots kept: the newest, and one to fall back to.
pub(super) const SNAPSHOTS_KEPT: u32 = 2;

/// The durable state from which the control plane rebuilds its own.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The newest sound snapshot.
    pub snapshot: Option<Snapshot>,
    /// All records after the snapshot, in order and without gaps.
    pub records: Vec<Record>,
    /// The highest job id given out, if a readable anchor knows it: ids up to this one are never given out
    /// again, whatever the records say.
    pub given_out: Option<JobId>,
    /// Repaired damage, to be logged and shown.
    pub warnings: Vec<Warning>,
}

impl Recovered {
    /// Reports whether there may be read-model rows of records that are gone: rebuild the read models then.
    ///
    /// A lost tail of the write-ahead log may leave such rows too. The part of the log that was checkpointed is in
    /// the database file, and a reader sees those pages wherever the rest of the log doesn't have older ones.
    #[must_use]
    pub fn may_read_models_be_ahead(&self) -> bool {
        let is_ahead = |warning: &Warning| match warning {
            Warning::LastRecordDropped { .. }
            | Warning::LossAccepted { .. }
            | Warning::TailGivenUp { .. }
            | Warning::NoAnchor => true,
            Warning::LogKept { .. } | Warning::SnapshotDropped { .. } | Warning::NothingToAccept => false,
        };
        self.warnings.iter().any(is_ahead)
    }

    /// Reports whether committed records were given up, as the user asked.
    pub(super) fn has_given_up(&self) -> bool {
        let is_loss = |warning: &Warning| matches!(warning, Warning::LossAccepted { .. } | Warning::TailGivenUp { .. });
        self.warnings.iter().any(is_loss)
    }
}

/// The writer's state after a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record that the state covers.
    pub sequence: Sequence,
    /// The state, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// Damage that didn't prevent the journal from opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The last record was torn or changed; it is kept in the table `dropped`.
    LastRecordDropped {
        /// The record's number.
        sequence: Sequence,
        /// The defect.
        what: &'static str,
    },
    /// Records after damage were given up, as [`super::Options::accept_loss_after`] asked; they are kept in
    /// `dropped`.
    LossAccepted {
        /// The last sound record.
        last_sound: Sequence,
        /// The number of records put aside.
        records: usize,
    },
    /// Committed records are missing or replaced by others, and the user accepted the loss.
    TailGivenUp {
        /// The last remaining record.
        last: Sequence,
        /// The last record that had been committed.
        anchored: Sequence,
        /// The highest job id given out by then.
        given_out: JobId,
    },
    /// The write-ahead log was copied before a loss was accepted; lost records may be rescued from the copy.
    LogKept {
        /// The copy's path.
        path: PathBuf,
    },
    /// A journal with records has no readable anchor, so a missing tail can't be detected.
    NoAnchor,
    /// A snapshot had a wrong checksum; an older one, or the whole journal, was read instead.
    SnapshotDropped {
        /// The last record that it covered.
        sequence: Sequence,
    },
    /// [`super::Options::accept_loss_after`] was given, but nothing is lost; it had no effect.
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
            Warning::LogKept { path } => write!(f, "the write-ahead log as it was is kept as {}", path.display()),
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

/// The findings of a start.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) recovered: Recovered,
    /// The end of the chain.
    pub(super) head: Head,
    /// The chain where the database's records begin.
    pub(super) base: Head,
    pub(super) begin: Begin,
}

/// Reads and verifies the part that a start needs, and puts damage aside where that is allowed.
pub(super) fn recover(
    connection: &mut Connection,
    path: &Path,
    anchored: Option<Anchored>,
    accept_loss_after: Option<Sequence>,
) -> Result<Found, Error> {
    let failed = |error| Error::from_sqlite(path, error);
    let (snapshots, archive) = (Snapshots::of(path), Archive::of(path));
    let given_out = anchored.map(|anchored| anchored.given_out);
    let mut recovered = Recovered { given_out, ..Recovered::default() };
    let transaction = connection.transaction().map_err(failed)?;
    let begin = begin(&transaction, (&snapshots, &archive), &mut recovered)?;
    let start = begin.head.unwrap_or(Head::empty());
    let start = read_archive(&transaction, &archive, start, (&mut recovered, accept_loss_after))?;
    let (head, damage) = read_records(&transaction, start, &mut recovered.records).map_err(failed)?;
    if let Some(damage) = &damage {
        let was_committed = anchored.is_some_and(|anchored| anchored.head.sequence > head.sequence);
        let warning = put_right(&transaction, damage, (head.sequence, was_committed), accept_loss_after)
            .map_err(failed)?
            .ok_or(Error::Corrupt { at: head.sequence.next(), last_sound: head.sequence, what: damage.what })?;
        recovered.warnings.push(warning);
    }
    let furthest = archive.segments()?.iter().map(|range| range.last).max().unwrap_or(Sequence::ZERO);
    let furthest = furthest.max(begin.furthest);
    let lost = lost(&transaction, &archive, (head, anchored, furthest)).map_err(failed)?;
    let is_giving_up = lost.is_some() || accept_loss_after == Some(head.sequence);
    match lost {
        Some((anchored, given_out)) => {
            let last = head.sequence;
            if accept_loss_after != Some(last) {
                // --accept-loss-after is offered only if a start with it would succeed.
                refuse_malformed(&transaction, path)?;
                return Err(Error::TailLost { path: path.to_owned(), last, anchored, given_out });
            }
            recovered.warnings.push(Warning::TailGivenUp { last, anchored, given_out });
        }
        None if anchored.is_none() && head.sequence != Sequence::ZERO => recovered.warnings.push(Warning::NoAnchor),
        None if accept_loss_after.is_some() && !recovered.may_read_models_be_ahead() => {
            recovered.warnings.push(Warning::NothingToAccept);
        }
        None => {}
    }
    if is_giving_up {
        take_back(&transaction, &archive, head)?;
    }
    let base = base_of(&transaction).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    let aside = if is_giving_up { Some(head.sequence) } else { None };
    tidy(&snapshots, &archive, (&begin, aside))?;
    Ok(Found { recovered, head, base, begin })
}

/// Reads archived records from `start` on, if a start needs them because no newer snapshot is sound. Returns
/// the chain where the database's records follow.
fn read_archive(
    transaction: &Transaction<'_>,
    archive: &Archive,
    start: Head,
    (recovered, accept_loss_after): (&mut Recovered, Option<Sequence>),
) -> Result<Head, Error> {
    let failed = |error| archive.failed(error);
    let base = base_of(transaction).map_err(failed)?;
    let mut head = start;
    while head.sequence < base.sequence {
        let contents = archive.with(head.sequence.next(), base.sequence);
        let linked = contents.and_then(|contents| {
            let found = contents.head_at(head.sequence).unwrap_or(contents.before);
            archive.linked(found, head).map(|()| contents.records)
        });
        let stored = match linked {
            Ok(stored) => stored,
            Err(_) if accept_loss_after == Some(head.sequence) => {
                let records = put_aside(transaction, head.sequence, "what is before can't be read").map_err(failed)?;
                set_base(transaction, head).map_err(failed)?;
                recovered.warnings.push(Warning::LossAccepted { last_sound: head.sequence, records });
                return Ok(head);
            }
            Err(error) => return Err(error),
        };
        let is_wanted =
            |stored: &StoredRecord| (start.sequence.next()..=base.sequence).contains(&stored.record.sequence);
        for stored in stored.into_iter().filter(is_wanted) {
            head = head.checked(&stored).map_err(|_| archive.out_of_chain(head.sequence.next()))?;
            recovered.records.push(stored.record);
        }
    }
    if start.sequence <= base.sequence { archive.linked(base, head).map(|()| base) } else { Ok(start) }
}

/// Returns the loss after `head` and its last job id, if the anchor, a segment or a snapshot has come
/// further.
fn lost(
    transaction: &Transaction<'_>,
    archive: &Archive,
    (head, anchored, furthest): (Head, Option<Anchored>, Sequence),
) -> rusqlite::Result<Option<(Sequence, JobId)>> {
    let given_out = anchored.map_or(JobId(0), |anchored| anchored.given_out);
    if let Some(anchored) = anchored
        && !reaches(transaction, archive, (head, anchored.head))?
    {
        return Ok(Some((anchored.head.sequence, given_out)));
    }
    Ok((furthest > head.sequence).then_some((furthest, given_out)))
}

/// Copies archived records back into the database if their segment reaches beyond `head`, so that the segment
/// can be put aside.
fn take_back(transaction: &Transaction<'_>, archive: &Archive, head: Head) -> Result<(), Error> {
    let failed = |error| archive.failed(error);
    let base = base_of(transaction).map_err(failed)?;
    let is_needed = |range: &Range| range.last > head.sequence && range.has(base.sequence);
    let Some(range) = archive.segments()?.into_iter().find(is_needed) else { return Ok(()) };
    // An unreadable segment has nothing to copy.
    let Ok(contents) = archive.read(range) else { return Ok(()) };
    for StoredRecord { record, checksum } in &contents.records {
        if record.sequence <= base.sequence {
            let (at, body) = (record.at.unix_nanos().cast_signed(), &record.body);
            let insert =
                "INSERT OR REPLACE INTO records (sequence, at_unix_nanos, body, checksum) VALUES (?1, ?2, ?3, ?4)";
            transaction.execute(insert, params![record.sequence.to_sql(), at, body, checksum]).map_err(failed)?;
        }
    }
    set_base(transaction, contents.before).map_err(failed)
}

/// Removes unfinished and unsound files, and puts aside what lies beyond an accepted loss.
fn tidy(snapshots: &Snapshots, archive: &Archive, (begin, accepted): (&Begin, Option<Sequence>)) -> Result<(), Error> {
    snapshots.tidy()?;
    archive.tidy()?;
    begin.unsound.iter().try_for_each(|unsound| snapshots.remove(*unsound))?;
    let Some(last) = accepted else { return Ok(()) };
    snapshots.list()?.into_iter().filter(|at| *at > last).try_for_each(|at| snapshots.put_aside(at))?;
    archive.segments()?.into_iter().filter(|range| range.last > last).try_for_each(|range| archive.put_aside(range))
}

/// Refuses a database with inconsistent pages, as after the loss of a partly checkpointed log.
fn refuse_malformed(transaction: &Transaction<'_>, path: &Path) -> Result<(), Error> {
    let verdict: rusqlite::Result<String> = transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match verdict.map_err(|error| Error::from_sqlite(path, error))?.as_str() {
        "ok" => Ok(()),
        what => Err(Error::Damaged { path: path.to_owned(), what: what.to_owned() }),
    }
}

/// Reports whether a journal that ends at `head` has the record that its anchor names.
fn reaches(transaction: &Transaction<'_>, archive: &Archive, (head, anchored): (Head, Head)) -> rusqlite::Result<bool> {
    if anchored.sequence >= head.sequence {
        return Ok(anchored == head);
    }
    let base = base_of(transaction)?;
    if anchored.sequence < base.sequence {
        // An unreadable segment is no evidence of a loss.
        return Ok(archive.head_at(anchored.sequence, base.sequence).map_or(true, |found| found == Some(anchored)));
    }
    Ok(head_at(transaction, anchored.sequence)? == Some(anchored))
}

/// The first record that can't be trusted.
struct Damage {
    what: &'static str,
    /// Whether the record exists and is the last: torn, rather than corrupted history.
    is_last: bool,
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

/// Puts aside what follows the last sound record, if that is allowed: a torn last record whose commit was
/// never confirmed, or an accepted loss. The accepted loss must name the exact record: a flag left in a unit
/// file must not discard a later day's history.
fn put_right(
    transaction: &Transaction<'_>,
    damage: &Damage,
    (last_sound, was_committed): (Sequence, bool),
    accept_loss_after: Option<Sequence>,
) -> rusqlite::Result<Option<Warning>> {
    if (!damage.is_last || was_committed) && accept_loss_after != Some(last_sound) {
        return Ok(None);
    }
    let records = put_aside(transaction, last_sound, damage.what)?;
    Ok(Some(if damage.is_last {
        Warning::LastRecordDropped { sequence: last_sound.next(), what: damage.what }
    } else {
        Warning::LossAccepted { last_sound, records }
    }))
}

/// Puts the database's records after `last_sound` aside and returns their number.
fn put_aside(transaction: &Transaction<'_>, last_sound: Sequence, reason: &str) -> rusqlite::Result<usize> {
    transaction.execute(
        "INSERT INTO dropped (sequence, at_unix_nanos, body, checksum, reason)
         SELECT sequence, at_unix_nanos, body, checksum, ?2 FROM records WHERE sequence > ?1 ORDER BY sequence",
        params![last_sound.to_sql(), reason],
    )?;
    transaction.execute("DELETE FROM records WHERE sequence > ?1", [last_sound.to_sql()])
}
