//! Compaction. Records that a start doesn't need move into the history archive: a thread of the service
//! writes, syncs and verifies them there ([`ArchiveOrder::carry_out`]), then the database's one writer
//! deletes them in small transactions. SQLite reuses the freed pages; if there are many, the service has them
//! returned to the file system ([`super::shrink`]). Only pages in use count against the limit.

use gangline_base::Bytes;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tracing::warn;

use super::archive::Archive;
use super::begin::Begin;
use super::journal::PAGE_BYTES;
use super::reader::{base_of, head_at, records_after};
use super::record::{Checksum, Head};
use super::recovery::Found;
use super::segment::{BYTES_WANTED, RECORDS_MAX};
use super::snapshots::Snapshots;
use super::{Error, Journal, Limits, Reader, Sequence};

/// Records that stay in the database although a start doesn't need them, for readers of the recent past.
const RECORDS_KEPT: u64 = 20_000;
/// Above this percentage of its limit the journal counts as nearly full and keeps only what a start needs.
const PRESSED_PERCENT: u64 = 80;
/// The most room that a new job takes, as a multiple of its request's size: an entry, a row, and the
/// decisions on it.
const SHARE_OF_REQUEST: u64 = 3;
/// Records deleted with each commit, in addition to twice as many as it adds, and the limit of their bytes.
const FORGOTTEN_AT_ONCE: usize = 512;
const FORGOTTEN_BYTES: u64 = 1 << 20;
/// A snapshot is due after this fraction of the limit has been appended, however few entries that was.
const SHARE_PER_SNAPSHOT: u64 = 16;

/// The journal's use of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Database pages in use.
    pub used: Bytes,
    /// The limit of pages in use.
    pub max: Bytes,
    /// Free pages of the database.
    pub free: Bytes,
}

impl Room {
    /// Above this percentage no new job is accepted; the rest is reserved for accepted jobs.
    pub const RESERVED_PERCENT: u64 = 95;

    pub(super) fn of(connection: &Connection, max: Bytes) -> rusqlite::Result<Room> {
        let pages = |what| connection.prepare_cached(what)?.query_row([], |row| row.get::<_, i64>(0));
        let (all, free) = (pages("PRAGMA page_count")?, pages("PRAGMA freelist_count")?);
        let bytes = |pages: i64| Bytes(pages.cast_unsigned() * PAGE_BYTES);
        Ok(Room { used: bytes(all - free), max, free: bytes(free) })
    }

    /// Returns the percentage in use.
    #[must_use]
    pub fn percent(self) -> u64 {
        self.used.0.saturating_mul(100) / self.max.0.max(1)
    }

    /// Reports whether the journal is nearly full.
    #[must_use]
    pub fn is_pressed(self) -> bool {
        self.percent() >= PRESSED_PERCENT
    }

    /// Reports whether requests of this size fit without using the room that is reserved for accepted jobs.
    #[must_use]
    pub fn takes(self, requests: Bytes) -> bool {
        let wanted = requests.0.saturating_mul(SHARE_OF_REQUEST).saturating_add(self.used.0);
        wanted.saturating_mul(100) <= self.max.0.saturating_mul(Self::RESERVED_PERCENT)
    }
}

/// What the journal holds beside its records, and how far they have left the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// The chain where the database's records begin.
    pub(super) base: Head,
    /// The last record that the archive is verified to have.
    pub(super) archived: Head,
    /// The last records of the newest snapshot and of the one before.
    pub(super) snapshots: [Sequence; 2],
    /// The last record of the newest snapshot in the table; zero once the table is empty.
    pub(super) newest_row: Sequence,
    /// The position of the durable anchor.
    pub(super) anchored: Sequence,
    pub(super) room: Room,
    /// Whether the database can return pages to the file system.
    pub(super) may_shrink: bool,
    /// Bytes appended since the last snapshot.
    pub(super) bytes_since_snapshot: u64,
}

impl Kept {
    /// Returns the values after a start.
    pub(super) fn of(found: &Found, room: Room, may_shrink: bool) -> Kept {
        let Begin { kept: snapshots, newest_row, .. } = found.begin;
        let (base, anchored) = (found.base, found.head.sequence);
        Kept { base, archived: base, snapshots, newest_row, anchored, room, may_shrink, bytes_since_snapshot: 0 }
    }

    /// Returns the last record that may leave the database.
    fn limit(&self, last: Sequence) -> Sequence {
        let [newest, older] = self.snapshots;
        let limit =
            if self.room.is_pressed() { newest } else { older.min(Sequence(last.0.saturating_sub(RECORDS_KEPT))) };
        limit.min(self.anchored)
    }
}

/// A snapshot to be written, on any thread.
#[derive(Debug)]
pub struct SnapshotOrder {
    snapshots: Snapshots,
    head: Head,
}

impl SnapshotOrder {
    /// Writes the state durably and returns the last record that it covers. The caller then calls
    /// [`Journal::snapshot_written`].
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Folder`]; the older snapshots stay.
    pub fn write(self, body: &[u8]) -> Result<Sequence, Error> {
        super::journal::refuse_over("snapshot", body.len(), Limits::SNAPSHOT)?;
        self.snapshots.write(self.head, body)?;
        Ok(self.head.sequence)
    }
}

/// Records to be archived, on any thread.
#[derive(Debug)]
pub struct ArchiveOrder {
    reader: Reader,
    archive: Archive,
    before: Head,
    until: Sequence,
}

/// The position up to which the archive has the journal's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Archived(Head);

impl ArchiveOrder {
    /// Durably writes one segment and reads it back. The caller then calls [`Journal::archived`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the records themselves are damaged, which then stay; otherwise the I/O error.
    pub fn carry_out(self) -> Result<Archived, Error> {
        // A crash may have happened after a segment was written and before its records left the database.
        let segments = self.archive.segments()?;
        if let Some(range) = segments.into_iter().rev().find(|range| range.has(self.before.sequence.next())) {
            match self.archive.verified(range, self.before).and_then(|end| self.is_own(end)) {
                Ok(end) => return Ok(Archived(end)),
                // The damaged segment has no record that has left the database.
                Err(_) if range.first == self.before.sequence.next() => self.archive.put_aside(range)?,
                Err(error) => warn!(%error, "the archive's records are written again, from the database"),
            }
        }
        let records = self.records()?;
        if records.is_empty() {
            return Ok(Archived(self.before));
        }
        self.archive.put(self.before, &records).map(Archived)
    }

    /// Checks that a segment is this journal's by its end, because all journals begin alike.
    fn is_own(&self, end: Head) -> Result<Head, Error> {
        let found = self.reader.read(|transaction| head_at(transaction, end.sequence))?;
        if found == Some(end) { Ok(end) } else { Err(self.archive.out_of_chain(end.sequence)) }
    }

    fn records(&self) -> Result<Vec<super::Record>, Error> {
        let count = (self.until.0 - self.before.sequence.0).min(u64::from(RECORDS_MAX));
        let count = usize::try_from(count).expect("it has a limit");
        let stored = self.reader.read(|transaction| records_after(transaction, self.before.sequence, count))?;
        let (mut head, mut bytes, mut records) = (self.before, 0, Vec::new());
        for stored in stored {
            let last_sound = head.sequence;
            head = head.checked(&stored).map_err(|what| Error::Corrupt { at: last_sound.next(), last_sound, what })?;
            bytes += stored.record.body.len();
            records.push(stored.record);
            if u64::try_from(bytes).is_ok_and(|bytes| bytes >= BYTES_WANTED.0) {
                break;
            }
        }
        Ok(records)
    }
}

/// An examination of the whole archive, on any thread.
#[derive(Debug)]
pub struct Examination {
    archive: Archive,
    base: Head,
}

impl Examination {
    /// Fails with the first archive file that is missing or damaged.
    ///
    /// # Errors
    /// [`Error::History`].
    pub fn carry_out(self) -> Result<(), Error> {
        self.archive.examine(self.base)
    }
}

impl Journal {
    /// Returns the journal's use of its limit.
    #[must_use]
    pub fn room(&self) -> Room {
        self.kept.room
    }

    /// Reports whether the bytes since the last snapshot make another one due; in a journal with a low limit
    /// they do so first.
    #[must_use]
    pub fn wants_snapshot(&self) -> bool {
        self.kept.bytes_since_snapshot >= self.kept.room.max.0 / SHARE_PER_SNAPSHOT
    }

    /// Returns an order to write the state after the last record.
    pub fn order_snapshot(&mut self) -> SnapshotOrder {
        self.kept.bytes_since_snapshot = 0;
        SnapshotOrder { snapshots: Snapshots::of(self.database()), head: self.head() }
    }

    /// Notes that a snapshot is durable.
    pub fn snapshot_written(&mut self, sequence: Sequence) {
        let [newest, _] = self.kept.snapshots;
        if newest < sequence && sequence <= self.last() {
            self.kept.snapshots = [sequence, newest];
        }
    }

    /// Returns an order to archive records, once there are enough for a segment.
    #[must_use]
    pub fn order_archive(&self) -> Option<ArchiveOrder> {
        let (before, until) = (self.kept.archived, self.kept.limit(self.last()));
        let waiting = until.0.saturating_sub(before.sequence.0);
        let least = if self.kept.room.is_pressed() { 1 } else { u64::from(RECORDS_MAX) };
        let order = || ArchiveOrder { reader: self.reader(), archive: Archive::of(self.database()), before, until };
        (waiting >= least && self.poison().is_none()).then(order)
    }

    /// Notes that records are archived: the next commits delete them from the database.
    pub fn archived(&mut self, Archived(head): Archived) {
        if self.kept.archived.sequence < head.sequence && head.sequence <= self.last() {
            self.kept.archived = head;
        }
    }

    /// Returns an order to examine the whole archive.
    #[must_use]
    pub fn order_examination(&self) -> Examination {
        Examination { archive: Archive::of(self.database()), base: self.kept.base }
    }

    /// Reports whether archived records, or snapshots of an earlier release, still have to be deleted from
    /// the database.
    #[must_use]
    pub fn is_tidying(&self) -> bool {
        self.kept.has_work()
    }
}

impl Kept {
    fn has_work(&self) -> bool {
        self.base.sequence < self.archived.sequence
            || Sequence::ZERO < self.newest_row && self.newest_row < self.snapshots[1]
    }

    /// Deletes some unneeded records in `transaction`; twice as many as come in, so that it catches up.
    pub(super) fn forget(self, transaction: &Transaction<'_>, coming: usize) -> rusqlite::Result<Kept> {
        let mut kept = self;
        if self.base.sequence < self.archived.sequence {
            kept.base = forget_records(transaction, self, FORGOTTEN_AT_ONCE + 2 * coming)?;
        } else if self.has_work() {
            kept.newest_row = if forget_row(transaction)? { self.newest_row } else { Sequence::ZERO };
        }
        Ok(kept)
    }
}

fn forget_records(transaction: &Transaction<'_>, kept: Kept, count_max: usize) -> rusqlite::Result<Head> {
    let (from, until) = (kept.base.sequence, kept.archived.sequence);
    let mut statement = transaction.prepare_cached(
        "SELECT sequence, length(body) FROM records WHERE sequence > ?1 AND sequence <= ?2 ORDER BY sequence LIMIT ?3",
    )?;
    let mut rows =
        statement.query(params![from.to_sql(), until.to_sql(), i64::try_from(count_max).unwrap_or(i64::MAX)])?;
    let (mut last, mut bytes) = (None, 0);
    while let Some(row) = rows.next()?
        && bytes < FORGOTTEN_BYTES
    {
        last = Some(Sequence::from_sql(row.get(0)?));
        bytes += row.get::<_, i64>(1)?.cast_unsigned();
    }
    // A missing record has left already.
    let Some(head) = last.map(|last| head_at(transaction, last)).transpose()?.flatten() else {
        return Ok(kept.archived);
    };
    transaction.execute("DELETE FROM records WHERE sequence <= ?1", [head.sequence.to_sql()])?;
    set_base(transaction, head)?;
    Ok(head)
}

/// Deletes the oldest snapshot of the table and reports whether there are more.
fn forget_row(transaction: &Transaction<'_>) -> rusqlite::Result<bool> {
    transaction.execute("DELETE FROM snapshots WHERE sequence = (SELECT min(sequence) FROM snapshots)", [])?;
    Ok(transaction.query_row("SELECT 1 FROM snapshots LIMIT 1", [], |_| Ok(())).optional()?.is_some())
}

/// Sets the start of the database's records to after `head`.
pub(super) fn set_base(transaction: &Transaction<'_>, head: Head) -> rusqlite::Result<()> {
    let Checksum(checksum) = head.checksum;
    let values = params![head.sequence.to_sql(), checksum];
    transaction.execute("INSERT OR REPLACE INTO archived (one, sequence, checksum) VALUES (1, ?1, ?2)", values)?;
    Ok(())
}

/// Archives and deletes at once everything that a start doesn't need, for a full journal that can't be
/// written otherwise.
pub(super) fn make_room(connection: &mut Connection, order: ArchiveOrder) -> Result<Head, Error> {
    let ArchiveOrder { reader, archive, mut before, until } = order;
    let failed = |error| archive.failed(error);
    while before.sequence < until {
        let order = ArchiveOrder { reader: reader.clone(), archive: archive.clone(), before, until };
        let Archived(head) = order.carry_out()?;
        if head == before {
            break;
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        transaction.execute("DELETE FROM records WHERE sequence <= ?1", [head.sequence.to_sql()]).map_err(failed)?;
        set_base(&transaction, head).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        before = head;
    }
    Ok(before)
}

/// Returns an order for all records up to `until` that are still in the database.
pub(super) fn all_until(
    connection: &mut Connection,
    reader: Reader,
    archive: Archive,
    until: Sequence,
) -> Result<ArchiveOrder, Error> {
    let failed = |error| archive.failed(error);
    let transaction = connection.transaction().map_err(failed)?;
    let before = base_of(&transaction).map_err(failed)?;
    drop(transaction);
    Ok(ArchiveOrder { reader, archive, before, until })
}
