//! The journal's one writer: group commit, snapshots, and refusing everything after a failure.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use gangline_base::{Bytes, JobId, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use tracing::warn;

use super::anchor::{Anchor, Anchored};
use super::folder::HeldFolder;
use super::identity::Identity;
use super::reader::{BUSY_TIMEOUT, head_at};
use super::record::{Checksum, Head};
use super::recovery::{SNAPSHOTS_KEPT, recover};
use super::{Error, Reader, Recovered, Sequence, schema};

/// How to open a journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most the database file may grow to; then commits fail with [`Error::DiskFull`].
    pub bytes_max: Bytes,
    /// If the journal turns out corrupt after exactly this record, put the rest aside and start without it.
    pub accept_loss_after: Option<Sequence>,
    /// If the folder is a copy of another, the other one is gone for good: this one goes on with its jobs.
    pub takes_over: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { bytes_max: Bytes(64 << 30), accept_loss_after: None, takes_over: false }
    }
}

/// The limits of what is written.
#[derive(Clone, Copy, Debug)]
pub struct Limits;

impl Limits {
    /// The largest record body.
    pub const RECORD: Bytes = Bytes(4 << 20);
    /// The largest sum of record bodies in one batch: far above what a turn of the service adds, also where all that waits is
    /// placed at once.
    pub const BATCH: Bytes = Bytes(256 << 20);
    /// The largest snapshot (SQLite stops at 1 GB).
    pub const SNAPSHOT: Bytes = Bytes(512 << 20);
}

/// After so many commits, or so many bytes of records, the write-ahead log is copied into the database: rarely enough that a
/// commit costs one fsync, often enough that the log stays at a few tens of megabytes.
const COMMITS_PER_CHECKPOINT: u32 = 1_000;
const BYTES_PER_CHECKPOINT: u64 = 16 << 20;

/// What the write-ahead log file is cut down to after a larger batch.
const LOG_BYTES_KEPT: u64 = 64 << 20;

/// Room that must be there before a journal that had failed is written again.
const ROOM_PROVED: Bytes = Bytes(1 << 20);

/// SQLite's page size.
const PAGE_BYTES: u64 = 4_096;

/// One thing that happened, not yet numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, by the control plane's clock.
    pub at: Timestamp,
    /// What, in the writer's own versioned encoding.
    pub body: Vec<u8>,
}

/// What becomes durable together.
pub struct Batch<'a> {
    /// The records to append, in order.
    pub records: &'a [Entry],
    /// The last job id that was given out in them or before.
    pub given_out: JobId,
    /// Writes the read-model rows that follow from them, in the same transaction.
    pub read_models: &'a mut dyn FnMut(&Transaction<'_>) -> rusqlite::Result<()>,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// The last record of the journal now.
    pub last: Sequence,
    /// How much was appended.
    pub appended: Bytes,
}

/// The journal, held by its one writer. Dropping it lets go of the data folder.
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
    identity: Identity,
    /// Last, so that the folder is let go of after the connection is closed.
    folder: HeldFolder,
}

impl Journal {
    /// Takes the folder (creating it if need be), verifies what is needed to start, and returns it.
    ///
    /// Only the records after the newest sound snapshot are read, so a start costs the same however long the history is.
    /// A last record that fails its checksum is put aside with a warning; a bad snapshot falls back to the one before.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process holds the folder; [`Error::Corrupt`] if a record is damaged that isn't the last, or
    /// was committed; [`Error::TailLost`] if committed records are missing;
    /// [`Error::Damaged`] if the file is; [`Error::NewerSchema`]; otherwise what the disk said.
    pub fn open(folder: &Path, options: Options) -> Result<(Journal, Recovered), Error> {
        let folder = HeldFolder::hold(folder)?;
        let mut identity = Identity::open(folder.path())?;
        if options.takes_over {
            identity.own()?;
        }
        let anchored = Anchor::read(folder.path())?;
        folder.ensure_database(anchored, options.accept_loss_after)?;
        let database = folder.database();
        let (connection, recovered, head) = open_sound(&database, anchored, options)?;
        let given_out = recovered.given_out.unwrap_or(JobId(0));
        let anchor = Anchor::open(folder.path(), Anchored { head, given_out })?;
        checkpoint_on_close(&connection, true).map_err(|error| Error::from_sqlite(&database, error))?;
        let journal = Journal {
            connection,
            database,
            head,
            anchor,
            given_out,
            poison: None,
            commits_since_checkpoint: 0,
            bytes_since_checkpoint: 0,
            identity,
            folder,
        };
        Ok((journal, recovered))
    }

    /// Opens the database of a poisoned journal again, if it can be read and written now, and returns what is durable. The folder
    /// stays held. Nothing that was answered with a failure may be assumed: the writer starts from what is returned.
    ///
    /// # Errors
    /// Those of [`Journal::open`], and what the disk said when it was written to; the journal stays poisoned then.
    pub fn reopen(&mut self, options: Options) -> Result<Recovered, Error> {
        let failed = |error| Error::from_sqlite(&self.database, error);
        // Closes the connection that failed: it may hold locks, and what it remembers of the file is worth nothing.
        self.connection = Connection::open_in_memory().map_err(failed)?;
        let anchored = Anchor::read(self.folder.path())?;
        let (mut connection, recovered, head) = open_sound(&self.database, anchored, options)?;
        prove_writable(&mut connection).map_err(failed)?;
        self.given_out = self.given_out.max(recovered.given_out.unwrap_or(JobId(0)));
        self.anchor = Anchor::open(self.folder.path(), Anchored { head, given_out: self.given_out })?;
        checkpoint_on_close(&connection, true).map_err(failed)?;
        (self.connection, self.head, self.poison) = (connection, head, None);
        (self.commits_since_checkpoint, self.bytes_since_checkpoint) = (0, 0);
        Ok(recovered)
    }

    /// The last record.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.head.sequence
    }

    /// Why nothing is written any more, if so.
    #[must_use]
    pub fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// The folder that this one is a copy of, until [`Journal::own_folder`]: what runs belongs to that one.
    #[must_use]
    pub fn original(&self) -> Option<&Path> {
        self.identity.original()
    }

    /// From now on the folder is no copy but itself.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn own_folder(&mut self) -> Result<(), Error> {
        self.identity.own()
    }

    /// A handle for reading, which outlives a poisoned writer.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.database.clone())
    }

    /// Appends the records, writes the read models and makes both durable with one fsync. On return they are on disk.
    ///
    /// # Errors
    /// Whatever the error, nothing of the batch is visible and the journal is poisoned, because the writer's memory is now
    /// ahead of the disk: every later call answers [`Error::Poisoned`]. After a failed fsync the batch may come back at
    /// the next start; its sender was told of a failure, not of a refusal.
    pub fn commit(&mut self, batch: Batch<'_>) -> Result<CommitInfo, Error> {
        self.refuse_if_poisoned()?;
        let given_out = self.given_out.max(batch.given_out);
        let appended = within_limits(batch.records).map_err(|error| self.poisoned_by(error))?;
        self.head = append(&mut self.connection, self.head, batch)
            .map_err(|error| Error::from_sqlite(&self.database, error))
            .map_err(|error| self.poisoned_by(error))?;
        self.given_out = given_out;
        self.note_anchor();
        self.commits_since_checkpoint += 1;
        self.bytes_since_checkpoint += appended.0;
        self.checkpoint_if_due();
        Ok(CommitInfo { last: self.head.sequence, appended })
    }

    /// Saves the writer's state after record `sequence`, and forgets all but the last two snapshots. Records stay.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::DiskFull`] leave the journal as it was; anything else poisons it.
    ///
    /// # Panics
    /// If `sequence` is after [`Journal::last`]: a state cannot contain what was not committed.
    pub fn write_snapshot(&mut self, sequence: Sequence, body: &[u8]) -> Result<(), Error> {
        assert!(sequence <= self.head.sequence, "a snapshot covers only what was committed");
        self.refuse_if_poisoned()?;
        refuse_over("snapshot", body.len(), Limits::SNAPSHOT)?;
        let written = save_snapshot(&mut self.connection, self.head, sequence, body);
        match written.map_err(|error| Error::from_sqlite(&self.database, error)) {
            // Rolled back, and no memory is ahead of the disk: the records of the next commits may still fit.
            Err(full @ Error::DiskFull { .. }) => Err(full),
            Err(error) => Err(self.poisoned_by(error)),
            Ok(()) => {
                self.checkpoint();
                Ok(())
            }
        }
    }

    /// Makes the anchor durable against a power cut. To be called once a second or so; after a kill of the process alone the
    /// anchor is exact anyway.
    pub fn sync_anchor(&mut self) {
        if let Err(error) = self.anchor.sync() {
            warn!(%error, "the journal's anchor can't be synced; a loss of the last records might not show");
        }
    }

    /// A failure to write the anchor takes nothing from what was committed: only a loss of it might not show.
    fn note_anchor(&mut self) {
        if let Err(error) = self.anchor.note(Anchored { head: self.head, given_out: self.given_out }) {
            warn!(%error, "the journal's anchor can't be written; a loss of the last records might not show");
        }
    }

    fn refuse_if_poisoned(&self) -> Result<(), Error> {
        self.poison.clone().map_or(Ok(()), |cause| Err(Error::Poisoned { cause }))
    }

    /// Remembers the cause, and keeps SQLite from touching the database when it is closed.
    fn poisoned_by(&mut self, error: Error) -> Error {
        let cause = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        self.poison = Some(cause);
        // If even this fails, closing copies only what an earlier fsync covered.
        let _ = checkpoint_on_close(&self.connection, false);
        error
    }

    fn checkpoint_if_due(&mut self) {
        if self.commits_since_checkpoint >= COMMITS_PER_CHECKPOINT
            || self.bytes_since_checkpoint >= BYTES_PER_CHECKPOINT
        {
            self.checkpoint();
        }
    }

    /// Copies the write-ahead log into the database as far as readers allow. Done here rather than by SQLite on its own,
    /// which would hide a failure. What was committed before is durable in the log either way, so only the next commit fails.
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

/// Opens a database and verifies what is needed to start. Closing the connection still changes nothing.
fn open_sound(
    database: &Path,
    anchored: Option<Anchored>,
    options: Options,
) -> Result<(Connection, Recovered, Head), Error> {
    let failed = |error| Error::from_sqlite(database, error);
    let mut connection = connect(database).map_err(failed)?;
    schema::update(&mut connection, database)?;
    configure(&connection, options.bytes_max).map_err(failed)?;
    let (recovered, head) = recover(&mut connection, database, anchored, options.accept_loss_after)?;
    Ok((connection, recovered, head))
}

/// Writes through to the disk after a failure. What the write-ahead log holds is copied into the database and synced: after a
/// failed fsync the log may be readable and yet not be on the disk. Then some room is taken and given back.
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

/// Until the journal has proved sound, closing it changes nothing.
fn connect(database: &Path) -> rusqlite::Result<Connection> {
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
    // FULL: the write-ahead log is synced by every commit. NORMAL would sync it only at checkpoints.
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

fn refuse_over(what: &'static str, size: usize, limit: Bytes) -> Result<Bytes, Error> {
    let size = Bytes(u64::try_from(size).expect("u64 holds a usize on Linux"));
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(size) }
}

fn append(connection: &mut Connection, mut head: Head, batch: Batch<'_>) -> rusqlite::Result<Head> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction
            .prepare_cached("INSERT INTO records (sequence, at_unix_nanos, body, checksum) VALUES (?1, ?2, ?3, ?4)")?;
        for entry in batch.records {
            head = head.extended(entry.at, &entry.body);
            let at = entry.at.unix_nanos().cast_signed();
            insert.execute(params![head.sequence.to_sql(), at, entry.body, head.checksum.0])?;
        }
    }
    (batch.read_models)(&transaction)?;
    transaction.commit()?;
    Ok(head)
}

fn save_snapshot(connection: &mut Connection, last: Head, sequence: Sequence, body: &[u8]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let head = if sequence == last.sequence { Some(last) } else { head_at(&transaction, sequence)? };
    let record = head.ok_or(rusqlite::Error::QueryReturnedNoRows)?.checksum;
    let checksum = Checksum::of_snapshot(sequence, record, body);
    transaction.execute(
        "INSERT OR REPLACE INTO snapshots (sequence, body, record_checksum, checksum) VALUES (?1, ?2, ?3, ?4)",
        params![sequence.to_sql(), body, record.0, checksum.0],
    )?;
    transaction.execute(
        "DELETE FROM snapshots WHERE sequence NOT IN (SELECT sequence FROM snapshots ORDER BY sequence DESC LIMIT ?1)",
        [SNAPSHOTS_KEPT],
    )?;
    transaction.commit()
}
