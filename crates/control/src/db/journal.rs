//! The journal's one writer: group commit, snapshots, and refusing everything after a failure.

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
    /// The largest snapshot, before it is compressed.
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
pub(super) const PAGE_BYTES: u64 = 4_096;

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
    pub(super) kept: Kept,
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
        let failed = |error| Error::from_sqlite(&database, error);
        let log = options.accept_loss_after.map(|_| folder.keep_log_aside()).transpose()?.flatten();
        let opened = open_sound(&database, anchored, options);
        let has_lost = opened.as_ref().is_ok_and(|(_, found)| found.recovered.has_given_up());
        if let Some(unused) = log.as_ref().filter(|_| !has_lost) {
            // A copy that stays does no harm.
            let _ = std::fs::remove_file(unused);
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

    /// Opens the database of a poisoned journal again, if it can be read and written now, and returns what is durable. The folder
    /// stays held. Nothing that was answered with a failure may be assumed: the writer starts from what is returned.
    ///
    /// If it is full, the records that a start doesn't need make room: `state_of` says what a snapshot of what was recovered is,
    /// after which it needs none.
    ///
    /// # Errors
    /// Those of [`Journal::open`], and what the disk said when it was written to; the journal stays poisoned then.
    pub fn reopen(
        &mut self,
        options: Options,
        state_of: &dyn Fn(&Recovered) -> Option<Vec<u8>>,
    ) -> Result<Recovered, Error> {
        let failed = |error| Error::from_sqlite(&self.database, error);
        // Closes the connection that failed: it may hold locks, and what it remembers of the file is worth nothing.
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

    /// Writes a snapshot of all that is durable, archives what it covers, and returns where the database's records begin then.
    fn make_room(&self, connection: &mut Connection, head: Head, state: &[u8]) -> Result<Head, Error> {
        Snapshots::of(&self.database).write(head, state)?;
        let archive = Archive::of(&self.database);
        let order = all_until(connection, self.reader(), archive, head.sequence)?;
        make_room(connection, order)
    }

    /// The last record.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.head.sequence
    }

    /// The end of the chain.
    pub(super) fn head(&self) -> Head {
        self.head
    }

    /// The database file.
    pub(super) fn database(&self) -> &Path {
        &self.database
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
        (self.head, self.kept) = append(&mut self.connection, (self.head, self.kept), batch)
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

    /// Removes some of what the archive has, or what newer snapshots make useless, without a batch: for when there is none.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn tidy(&mut self) -> Result<(), Error> {
        if !self.is_tidying() {
            return Ok(());
        }
        self.commit(Batch { records: &[], given_out: self.given_out, read_models: &mut |_| Ok(()) }).map(|_| ())
    }

    /// Saves the writer's state after the last record, and forgets all but the last two snapshots. Records stay.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Folder`]; the journal goes on without it.
    pub fn write_snapshot(&mut self, body: &[u8]) -> Result<(), Error> {
        self.refuse_if_poisoned()?;
        let sequence = self.order_snapshot().write(body)?;
        self.snapshot_written(sequence);
        Ok(())
    }

    /// Makes the anchor durable against a power cut. To be called once a second or so; after a kill of the process alone the
    /// anchor is exact anyway.
    pub fn sync_anchor(&mut self) {
        match self.anchor.sync() {
            Ok(()) => self.kept.anchored = self.head.sequence,
            Err(error) => {
                warn!(%error, "the journal's anchor can't be synced; a loss of the last records might not show");
            }
        }
    }

    /// From now on the journal counts as nearly full.
    #[cfg(test)]
    pub(crate) fn press(&mut self) {
        self.kept.room.max = self.kept.room.used;
    }

    /// Keeps a snapshot as earlier releases did.
    #[cfg(test)]
    pub(super) fn keep_in_table(&mut self, body: &[u8]) {
        let Head { sequence, checksum } = self.head;
        let sum = super::record::Checksum::of_snapshot(sequence, checksum, body).0;
        let insert = "INSERT INTO snapshots (sequence, body, record_checksum, checksum) VALUES (?1, ?2, ?3, ?4)";
        self.connection.execute(insert, params![sequence.to_sql(), body, checksum.0, sum]).expect("there is room");
    }

    /// From now on the database can't grow, as on a disk that is full.
    #[cfg(test)]
    pub(crate) fn fill_disk(&self) {
        let pages: i64 = self.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("it is open");
        self.connection.pragma_update(None, "max_page_count", pages).expect("it is open");
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

    /// The write-ahead log has grown by what others wrote.
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
fn open_sound(database: &Path, anchored: Option<Anchored>, options: Options) -> Result<(Connection, Found), Error> {
    let failed = |error| Error::from_sqlite(database, error);
    let mut connection = connect(database).map_err(failed)?;
    schema::update(&mut connection, database)?;
    configure(&connection, options.bytes_max).map_err(failed)?;
    let found = recover(&mut connection, database, anchored, options.accept_loss_after)?;
    Ok((connection, found))
}

/// A database that can't be written anew is as good as before: only its file never shrinks.
fn may_shrink(connection: &Connection) -> bool {
    adopt(connection).unwrap_or_else(|error| {
        warn!(%error, "the journal's database can't be written anew so that it can shrink");
        false
    })
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

pub(super) fn refuse_over(what: &'static str, size: usize, limit: Bytes) -> Result<Bytes, Error> {
    let size = Bytes(u64::try_from(size).expect("u64 holds a usize on Linux"));
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(size) }
}

fn append(
    connection: &mut Connection,
    (mut head, kept): (Head, Kept),
    batch: Batch<'_>,
) -> rusqlite::Result<(Head, Kept)> {
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
    let mut kept = kept.forget(&transaction, batch.records.len())?;
    kept.room = Room::of(&transaction, kept.room.max)?;
    transaction.commit()?;
    Ok((head, kept))
}
