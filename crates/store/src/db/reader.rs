//! Read-only connections for everyone but the writer. They run concurrently with it and see only durable
//! state.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction};

use super::archive::Archive;
use super::begin::oldest_sound;
use super::folder::DATABASE;
use super::record::{Checksum, Head, StoredRecord};
use super::recovery::stored_record;
use super::snapshots::Snapshots;
use super::{Error, Record, Sequence};

/// The most idle connections kept open.
const IDLE_MAX: usize = 8;

/// How long a query waits while the write-ahead log is reset.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the journal and the read models. Cheap to clone and safe to share. A query blocks, so run it where
/// blocking is allowed.
#[derive(Clone, Debug)]
pub struct Reader {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    database: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Reader {
    pub(super) fn new(database: PathBuf) -> Reader {
        Reader { pool: Arc::new(Pool { database, idle: Mutex::default() }) }
    }

    /// Opens the journal of a data folder for reading, whether or not a process holds it.
    ///
    /// # Errors
    /// [`Error::Folder`] if there is no journal.
    pub fn open(folder: &Path) -> Result<Reader, Error> {
        let database = folder.join(DATABASE);
        match std::fs::metadata(&database) {
            Ok(_) => Ok(Reader::new(database)),
            Err(source) => Err(Error::Folder { path: database, source }),
        }
    }

    /// Runs `query` in a read transaction: all its statements see the same durable state.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Storage`]. A poisoned journal can still be read.
    pub(crate) fn read<T>(&self, query: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, Error> {
        self.pool.read(query).map_err(|error| Error::from_sqlite(&self.pool.database, error))
    }

    /// Returns SQLite's error with this database's path.
    pub(crate) fn failed(&self, error: rusqlite::Error) -> Error {
        Error::from_sqlite(&self.pool.database, error)
    }

    /// Returns the size of the database file, if it can be read.
    #[must_use]
    pub fn size(&self) -> Option<Bytes> {
        std::fs::metadata(&self.pool.database).ok().map(|metadata| Bytes(metadata.len()))
    }

    /// Runs one statement that doesn't change the database, outside of a transaction.
    pub(super) fn execute(&self, sql: &str, argument: &str) -> Result<(), Error> {
        let executed = self.pool.open().and_then(|connection| connection.execute(sql, [argument]));
        executed.map(|_| ()).map_err(|error| Error::from_sqlite(&self.pool.database, error))
    }

    /// Returns up to `count_max` records after `after`, in order, each verified against the one before; for
    /// audits and simulations. Archived records are read from the archive.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the chain breaks, [`Error::History`] where the archive is damaged, and those
    /// of a read.
    pub fn history(&self, after: Sequence, count_max: u32) -> Result<Vec<Record>, Error> {
        let count_max = usize::try_from(count_max).expect("usize holds a u32 on Linux");
        let read = |transaction: &Transaction<'_>| {
            let base = base_of(transaction)?;
            let from = after.max(base.sequence);
            let archived = usize::try_from(from.0 - after.0).unwrap_or(usize::MAX);
            let stored = records_after(transaction, from, count_max.saturating_sub(archived))?;
            Ok((base, head_at(transaction, from)?, stored))
        };
        // The database first: records that have left it by then are in the archive.
        let (base, mut head, mut stored) = self.read(read)?;
        if after < base.sequence {
            let archive = Archive::of(&self.pool.database);
            let (found, mut older) = archive.after(after, base.sequence, count_max)?;
            older.append(&mut stored);
            (head, stored) = (Some(found), older);
        }
        let missing = Error::Corrupt { at: after, last_sound: Sequence::ZERO, what: "it is missing" };
        let mut head = head.ok_or(missing)?;
        let mut records = Vec::with_capacity(stored.len());
        for row in stored {
            head = head.checked(&row).map_err(|what| Error::Corrupt {
                at: head.sequence.next(),
                last_sound: head.sequence,
                what,
            })?;
            if head.sequence == base.sequence {
                // The archive may belong to another journal.
                Archive::of(&self.pool.database).linked(base, head)?;
            }
            records.push(row.record);
        }
        Ok(records)
    }

    /// Returns the oldest sound snapshot that covers a record: its last record, and the writer's state.
    ///
    /// # Errors
    /// Those of a read.
    pub fn snapshot_of(&self, record: Sequence) -> Result<Option<(Sequence, Vec<u8>)>, Error> {
        let (snapshots, archive) = (Snapshots::of(&self.pool.database), Archive::of(&self.pool.database));
        let found = self.read(|transaction| Ok(oldest_sound(transaction, (&snapshots, &archive), record)))??;
        Ok(found.map(|snapshot| (snapshot.sequence, snapshot.body)))
    }
}

impl Pool {
    fn read<T>(&self, query: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let idle = self.idle().pop();
        let mut connection = idle.map_or_else(|| self.open(), Ok)?;
        let transaction = connection.transaction()?;
        let outcome = query(&transaction)?;
        transaction.finish()?;
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(outcome)
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.database, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        Ok(connection)
    }

    /// A panic in a query loses its connection, but never the list.
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the chain's state at a record, or `None` if the database has no such record or its checksum has a
/// wrong length.
pub(super) fn head_at(transaction: &Transaction<'_>, sequence: Sequence) -> rusqlite::Result<Option<Head>> {
    let base = base_of(transaction)?;
    if sequence == base.sequence {
        return Ok(Some(base));
    }
    let checksum: Option<Vec<u8>> = transaction
        .query_row("SELECT checksum FROM records WHERE sequence = ?1", [sequence.to_sql()], |row| row.get(0))
        .optional()?;
    let checksum = checksum.and_then(|bytes| bytes.try_into().ok()).map(Checksum);
    Ok(checksum.map(|checksum| Head { sequence, checksum }))
}

/// Returns up to `count_max` records of the database after `after`, as stored.
pub(super) fn records_after(
    transaction: &Transaction<'_>,
    after: Sequence,
    count_max: usize,
) -> rusqlite::Result<Vec<StoredRecord>> {
    let mut statement = transaction.prepare(
        "SELECT sequence, at_unix_nanos, body, checksum FROM records WHERE sequence > ?1 ORDER BY sequence LIMIT ?2",
    )?;
    let count_max = i64::try_from(count_max).unwrap_or(i64::MAX);
    statement.query_map((after.to_sql(), count_max), stored_record)?.collect()
}

/// Returns the chain where the database's records begin; earlier records are in the archive.
pub(super) fn base_of(transaction: &Connection) -> rusqlite::Result<Head> {
    // A database that no control plane of this release has opened has no such table.
    let is_there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'archived'";
    if transaction.query_row(is_there, [], |_| Ok(())).optional()?.is_none() {
        return Ok(Head::empty());
    }
    let base = transaction.query_row("SELECT sequence, checksum FROM archived", [], |row| {
        let checksum = row.get::<_, Vec<u8>>(1)?.try_into();
        let checksum = checksum.map_err(|_| rusqlite::Error::IntegralValueOutOfRange(1, 0))?;
        Ok(Head { sequence: Sequence::from_sql(row.get(0)?), checksum: Checksum(checksum) })
    });
    Ok(base.optional()?.unwrap_or(Head::empty()))
}
