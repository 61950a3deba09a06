//! The journal's one writer: group commit, snapshots, and the refusal of every write after a failure.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use gangline_base::{Bytes, JobId, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use tracing::warn;

use super::anchor::{Anchor, Anchored};
use super::archive::Archive;
use super::compaction::{Kept, Room, all_until, make_room};
use super::folder::HeldFolder;
use super::identity::Identity;
use super::reader::BUSY_TIMEOUT;
use super::record::Head;
use super::recovery::{Found, Warning, recover};
use super::shrink::adopt;
use super::snapshots::Snapshots;
use super::{Error, Reader, Recovered, Sequence, schema};

/// How to open a journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The largest size of the database file; beyond it, commits fail with [`Error::DiskFull`].
    pub bytes_max: Bytes,
    /// Accepts the loss if the journal turns out corrupt after exactly this record: later records are put
    /// aside.
    pub accept_loss_after: Option<Sequence>,
    /// Accepts a folder that is a copy of another: the original is gone for good, and this folder continues
    /// its jobs.
    pub takes_over: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { bytes_max: Bytes(64 << 30), accept_loss_after: None, takes_over: false }
    }
}

/// The limits of written data.
#[derive(Clone, Copy, Debug)]
pub struct Limits;

impl Limits {
    /// The largest record body.
    pub const RECORD: Bytes = Bytes(4 << 20);
    /// The largest sum of record bodies in one batch: far above what the service adds in one turn, even if
    /// all waiting jobs are placed at once.
    pub const BATCH: Bytes = Bytes(256 << 20);
    /// The largest snapshot, before it is compressed.
    pub const SNAPSHOT: Bytes = Bytes(512 << 20);
}

/// The write-ahead log is checkpointed after this many commits or record bytes: rarely enough that a commit
/// costs one fsync, often enough that the log stays at a few tens of megabytes.
const COMMITS_PER_CHECKPOINT: u32 = 1_000;
const BYTES_PER_CHECKPOINT: u64 = 16 << 20;

/// The size to which the write-ahead log is truncated after a larger batch.
const LOG_BYTES_KEPT: u64 = 64 << 20;

/// Room that must exist before a failed journal is written again.
const ROOM_PROVED: Bytes = Bytes(1 << 20);

/// SQLite's page size.
pub(super) const PAGE_BYTES: u64 = 4_096;

/// An event or decision that has no number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it happened, by the control plane's clock.
    pub at: Timestamp,
    /// The content, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// The journal's last record.
    pub last: Sequence,
    /// The bytes appended.
    pub appended: Bytes,
}

/// The journal, held by its one writer. Dropping it releases the data folder.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
    database: PathBuf,
    head: Head,
    anchor: Anchor,
    given_out: JobId,
    poison: Option<String>,
    commits_since_checkpoint: u32,
    bytes_since_checkpoint: u64,
    pub(super) kept: Kept,
    identity: Identity,
    /// The last field, so that the folder is released after the connection is closed.
    folder: HeldFolder,
}

impl Journal {
    /// Locks the folder, creating it if need be, verifies the part that a start needs, and returns that part.
    ///
    /// Only the records after the newest sound snapshot are read, so the cost of a start doesn't grow with
    /// the history. A last record with a wrong checksum is put aside with a warning; after a bad snapshot,
    /// the one before is used.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process holds the folder; [`Error::Corrupt`] if a damaged record isn't the
    /// last, or was committed; [`Error::TailLost`] if committed records are missing; [`Error::Damaged`] if
    /// the file is damaged; [`Error::NewerSchema`]; otherwise the I/O error.
    pub fn open(folder: &Path, options: Options) -> Result<(Journal, Recovered), Error> {
        let folder = HeldFolder::hold(folder)?;
        let mut identity = Identity::open(folder.path())?;
        if options.takes_over {
            identity.own()?;
        }
        let anchored = Anchor::read(folder.path())?;
        folder.ensure_database(anchored, options.accept_loss_after)?;
        let database = folder.database();
        let failed = |error| Error::from_sqlite(&database, error);
        let log = options.accept_loss_after.map(|_| folder.keep_log_aside()).transpose()?.flatten();
        let opened = open_sound(&database, anchored, options);
        let has_lost = opened.as_ref().is_ok_and(|(_, found)| found.recovered.has_given_up());
        // After any other error the loss may have been committed.
        let is_refused = matches!(opened, Err(Error::Corrupt { .. } | Error::TailLost { .. }));
        if let Some(copy) = &log {
            // A log that can't be removed does no harm.
            let _ = match has_lost {
                true => folder.remove_oldest_logs(copy),
                false if opened.is_ok() || is_refused => std::fs::remove_file(copy),
                false => Ok(()),
            };
        }
        let (connection, mut found) = opened?;
        found.recovered.warnings.extend(log.filter(|_| has_lost).map(|path| Warning::LogKept { path }));
        let (recovered, head) = (&found.recovered, found.head);
        let given_out = recovered.given_out.unwrap_or(JobId(0));
        let anchor = Anchor::open(folder.path(), Anchored { head, given_out })?;
        checkpoint_on_close(&connection, true).map_err(failed)?;
        let may_shrink = may_shrink(&connection);
        let kept = Kept::of(&found, Room::of(&connection, options.bytes_max).map_err(failed)?, may_shrink);
        let journal = Journal {
            connection,
            database,
            head,
            anchor,
            given_out,
            poison: None,
            commits_since_checkpoint: 0,
            bytes_since_checkpoint: 0,
            kept,
            identity,
            folder,
        };
        Ok((journal, found.recovered))
    }

    /// Reopens the database of a poisoned journal, if it can be read and written now, and returns the durable
    /// state. The folder stays locked. A batch whose commit failed may or may not be durable, so the writer
    /// starts from the returned state.
    ///
    /// In a full journal, the records that a start doesn't need make room. `state_of` encodes the recovered
    /// state as a snapshot, after which a start needs no records.
    ///
    /// # Errors
    /// Those of [`Journal::open`], and the error of a failed write; the journal then stays poisoned.
    pub fn reopen(
        &mut self,
        options: Options,
        state_of: &dyn Fn(&Recovered) -> Option<Vec<u8>>,
    ) -> Result<Recovered, Error> {
        let failed = |error| Error::from_sqlite(&self.database, error);
        // Closes the failed connection: it may hold locks, and its cached view of the file is unreliable.
        self.connection = Connection::open_in_memory().map_err(failed)?;
        let anchored = Anchor::read(self.folder.path())?;
        let (mut connection, mut found) = open_sound(&self.database, anchored, options)?;
        match prove_writable(&mut connection).map_err(failed) {
            Err(full @ Error::DiskFull { .. }) => {
                let Some(state) = state_of(&found.recovered) else { return Err(full) };
                found.base = self.make_room(&mut connection, found.head, &state)?;
                found.begin.kept = [found.head.sequence, found.begin.kept[0]];
                prove_writable(&mut connection).map_err(failed)?;
            }
            proved => proved?,
        }
        let head = found.head;
        self.given_out = self.given_out.max(found.recovered.given_out.unwrap_or(JobId(0)));
        self.anchor = Anchor::open(self.folder.path(), Anchored { head, given_out: self.given_out })?;
        checkpoint_on_close(&connection, true).map_err(failed)?;
        let room = Room::of(&connection, options.bytes_max).map_err(failed)?;
        self.kept = Kept::of(&found, room, self.kept.may_shrink);
        (self.connection, self.head, self.poison) = (connection, head, None);
        (self.commits_since_checkpoint, self.bytes_since_checkpoint) = (0, 0);
        Ok(found.recovered)
    }

    /// Writes a snapshot of the durable state, archives the records that it covers, and returns the new start
    /// of the database's records.
    fn make_room(&self, connection: &mut Connection, head: Head, state: &[u8]) -> Result<Head, Error> {
        Snapshots::of(&self.database).write(head, state)?;
        let archive = Archive::of(&self.database);
        let order = all_until(connection, self.reader(), archive, head.sequence)?;
        make_room(connection, order)
    }

    /// Returns the number of the last record.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.head.sequence
    }

    /// Returns the end of the chain.
    pub(super) fn head(&self) -> Head {
        self.head
    }

    /// Returns the path of the database file.
    pub(super) fn database(&self) -> &Path {
        &self.database
    }

    /// Returns the failure that poisoned the journal, if it is poisoned.
    #[must_use]
    pub fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Returns the original's path if this folder is a copy, until [`Journal::own_folder`]: running jobs
    /// belong to the original.
    #[must_use]
    pub fn original(&self) -> Option<&Path> {
        self.identity.original()
    }

    /// Makes this folder an original rather than a copy.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn own_folder(&mut self) -> Result<(), Error> {
        self.identity.own()
    }

    /// Returns a handle for reading, which outlives a poisoned writer.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.database.clone())
    }

    /// Appends the records, and makes them and what `write` does durable with one fsync before it returns.
    ///
    /// # Errors
    /// After any error nothing of the batch is visible, and the journal is poisoned because the writer's
    /// memory is ahead of the disk: every later call returns [`Error::Poisoned`]. After a failed fsync the
    /// batch may come back at the next start; its sender was told of a failure, not of a refusal.
    pub(crate) fn commit_writing(
        &mut self,
        records: &[Entry],
        given_out: JobId,
        write: &mut dyn FnMut(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<CommitInfo, Error> {
        self.refuse_if_poisoned()?;
        let given_out = self.given_out.max(given_out);
        let appended = within_limits(records).map_err(|error| self.poisoned_by(error))?;
        (self.head, self.kept) = append(&mut self.connection, (self.head, self.kept), records, write)
            .map_err(|error| Error::from_sqlite(&self.database, error))
            .map_err(|error| self.poisoned_by(error))?;
        self.given_out = given_out;
        self.note_anchor();
        self.kept.bytes_since_snapshot += appended.0;
        self.commits_since_checkpoint += 1;
        self.bytes_since_checkpoint += appended.0;
        self.checkpoint_if_due();
        Ok(CommitInfo { last: self.head.sequence, appended })
    }

    /// Deletes some archived records and superseded snapshots without a batch, for idle times.
    ///
    /// # Errors
    /// As for a batch.
    pub fn tidy(&mut self) -> Result<(), Error> {
        if !self.is_tidying() {
            return Ok(());
        }
        self.commit_writing(&[], self.given_out, &mut |_| Ok(())).map(|_| ())
    }

    /// Saves the writer's state after the last record, and removes all but the last two snapshots. Records
    /// stay.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Folder`]; the journal continues without the snapshot.
    pub fn write_snapshot(&mut self, body: &[u8]) -> Result<(), Error> {
        self.refuse_if_poisoned()?;
        let sequence = self.order_snapshot().write(body)?;
        self.snapshot_written(sequence);
        Ok(())
    }

    /// Makes the anchor durable against a power cut. Called about once a second; after a kill of only the
    /// process the anchor is exact anyway.
    pub fn sync_anchor(&mut self) {
        match self.anchor.sync() {
            Ok(()) => self.kept.anchored = self.head.sequence,
            Err(error) => {
                warn!(%error, "the journal's anchor can't be synced; a loss of the last records might not show");
            }
        }
    }

    /// Makes the journal count as nearly full, for tests of what its owner does then.
    #[doc(hidden)]
    pub fn press(&mut self) {
        self.kept.room.max = self.kept.room.used;
    }

    /// Stores a snapshot as earlier releases did.
    #[cfg(test)]
    pub(super) fn keep_in_table(&mut self, body: &[u8]) {
        let Head { sequence, checksum } = self.head;
        let sum = super::record::Checksum::of_snapshot(sequence, checksum, body).0;
        let insert = "INSERT INTO snapshots (sequence, body, record_checksum, checksum) VALUES (?1, ?2, ?3, ?4)";
        self.connection.execute(insert, params![sequence.to_sql(), body, checksum.0, sum]).expect("there is room");
    }

    /// Stops the database from growing, as on a full disk, for tests of what the journal's owner does then.
    ///
    /// # Panics
    /// If the database can't be asked for its size.
    #[doc(hidden)]
    pub fn fill_disk(&self) {
        let pages: i64 = self.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("it is open");
        self.connection.pragma_update(None, "max_page_count", pages).expect("it is open");
    }

    /// Updates the anchor. A failure doesn't affect committed records; only a later loss of them might go
    /// unnoticed.
    fn note_anchor(&mut self) {
        if let Err(error) = self.anchor.note(Anchored { head: self.head, given_out: self.given_out }) {
            warn!(%error, "the journal's anchor can't be written; a loss of the last records might not show");
        }
    }

    fn refuse_if_poisoned(&self) -> Result<(), Error> {
        self.poison.clone().map_or(Ok(()), |cause| Err(Error::Poisoned { cause }))
    }

    /// Stores the cause, and keeps SQLite from changing the database when it is closed.
    fn poisoned_by(&mut self, error: Error) -> Error {
        let cause = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        self.poison = Some(cause);
        // If this fails, closing copies only frames that an earlier fsync covered.
        let _ = checkpoint_on_close(&self.connection, false);
        error
    }

    /// Counts bytes that others added to the write-ahead log.
    pub(super) fn note_written(&mut self, written: Bytes) {
        self.bytes_since_checkpoint = self.bytes_since_checkpoint.saturating_add(written.0);
    }

    fn checkpoint_if_due(&mut self) {
        if self.commits_since_checkpoint >= COMMITS_PER_CHECKPOINT
            || self.bytes_since_checkpoint >= BYTES_PER_CHECKPOINT
        {
            self.checkpoint();
        }
    }

    /// Checkpoints the write-ahead log as far as readers allow. SQLite's automatic checkpoint would hide a
    /// failure. Committed batches are durable in the log either way, so only the next commit fails.
    fn checkpoint(&mut self) {
        self.commits_since_checkpoint = 0;
        self.bytes_since_checkpoint = 0;
        let outcome = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = outcome {
            let error = Error::from_sqlite(&self.database, error);
            self.poisoned_by(error);
        }
    }
}

/// Opens a database and verifies the part that a start needs. Closing the connection still changes nothing.
fn open_sound(database: &Path, anchored: Option<Anchored>, options: Options) -> Result<(Connection, Found), Error> {
    let failed = |error| Error::from_sqlite(database, error);
    let mut connection = connect(database).map_err(failed)?;
    schema::update(&mut connection, database)?;
    configure(&connection, options.bytes_max).map_err(failed)?;
    let found = recover(&mut connection, database, anchored, options.accept_loss_after)?;
    Ok((connection, found))
}

/// Enables shrinking. On failure the database works as before, and only its file never shrinks.
fn may_shrink(connection: &Connection) -> bool {
    adopt(connection).unwrap_or_else(|error| {
        warn!(%error, "the journal's database can't be written anew so that it can shrink");
        false
    })
}

/// Proves that the disk can be written after a failure: checkpoints the write-ahead log with a sync, because
/// after a failed fsync the log may be readable but not durable, then allocates some room and frees it.
fn prove_writable(connection: &mut Connection) -> rusqlite::Result<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(busy, Some("queries are in the way".to_owned())));
    }
    let taken = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    taken.execute_batch("DROP TABLE IF EXISTS room; CREATE TABLE room (bytes BLOB NOT NULL) STRICT;")?;
    taken.execute("INSERT INTO room VALUES (zeroblob(?1))", [ROOM_PROVED.0.cast_signed()])?;
    taken.commit()?;
    connection.execute_batch("DROP TABLE room")
}

/// Opens a connection that changes nothing when it is closed, until the journal has proved sound.
pub(super) fn connect(database: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    checkpoint_on_close(&connection, false)?;
    Ok(connection)
}

fn checkpoint_on_close(connection: &Connection, wanted: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !wanted).map(|_| ())
}

fn configure(connection: &Connection, bytes_max: Bytes) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: every commit syncs the write-ahead log. NORMAL would sync it only at checkpoints.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT.cast_signed())?;
    connection.pragma_update(None, "max_page_count", (bytes_max.0 / PAGE_BYTES).cast_signed())
}

fn within_limits(records: &[Entry]) -> Result<Bytes, Error> {
    for entry in records {
        refuse_over("record", entry.body.len(), Limits::RECORD)?;
    }
    refuse_over("batch", records.iter().map(|entry| entry.body.len()).sum(), Limits::BATCH)
}

pub(super) fn refuse_over(what: &'static str, size: usize, limit: Bytes) -> Result<Bytes, Error> {
    let size = Bytes(u64::try_from(size).expect("u64 holds a usize on Linux"));
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(size) }
}

fn append(
    connection: &mut Connection,
    (mut head, kept): (Head, Kept),
    records: &[Entry],
    write: &mut dyn FnMut(&Transaction<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<(Head, Kept)> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction
            .prepare_cached("INSERT INTO records (sequence, at_unix_nanos, body, checksum) VALUES (?1, ?2, ?3, ?4)")?;
        for entry in records {
            head = head.extended(entry.at, &entry.body);
            let at = entry.at.unix_nanos().cast_signed();
            insert.execute(params![head.sequence.to_sql(), at, entry.body, head.checksum.0])?;
        }
    }
    write(&transaction)?;
    let mut kept = kept.forget(&transaction, records.len())?;
    kept.room = Room::of(&transaction, kept.room.max)?;
    transaction.commit()?;
    Ok((head, kept))
}
