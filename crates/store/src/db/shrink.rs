//! Returns free database pages to the file system, in small steps on a thread of the service: between two
//! steps the journal's writer has the database to itself. A database of an earlier release must first be
//! rewritten, which a start does if that is quick.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Bytes;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::compaction::Room;
use super::journal::{PAGE_BYTES, connect};
use super::{Error, Journal};

/// Free pages are returned only if there are at least this many bytes of them,
const FREE_MIN: Bytes = Bytes(8 << 20);
/// and more than this fraction of the file: jobs that come and go reuse the rest.
const FREE_SHARE: u64 = 4;
/// Pages returned in one step, which takes a few milliseconds,
const PAGES_PER_STEP: u64 = 32;
/// the pause after a step,
const PAUSE: Duration = Duration::from_millis(20);
/// and the most steps in one order, because the thread also writes snapshots.
const STEPS_MAX: u64 = 64;
/// A start rewrites a file up to this size, in a few tenths of a second.
const WRITTEN_ANEW_MAX: Bytes = Bytes(32 << 20);
/// SQLite's `auto_vacuum` mode that returns pages on request.
const INCREMENTAL: i64 = 2;

/// An order to return pages, on any thread.
#[derive(Debug)]
pub struct ShrinkOrder {
    database: PathBuf,
}

/// The bytes returned, and the bytes still free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    given_back: Bytes,
    free: Bytes,
}

impl ShrinkOrder {
    /// Returns some pages. The caller then calls [`Journal::shrunk`].
    ///
    /// # Errors
    /// The I/O error; some steps may have been done.
    pub fn carry_out(self) -> Result<Shrunk, Error> {
        shrink(&self.database).map_err(|error| Error::from_sqlite(&self.database, error))
    }
}

fn shrink(database: &Path) -> rusqlite::Result<Shrunk> {
    let mut connection = connect(database)?;
    // A power cut may undo this, and it is then done again. The writer's own commits sync the log.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    let before = free_pages(&connection)?;
    for step in 0..STEPS_MAX {
        if free_pages(&connection)? == 0 {
            break;
        }
        if step > 0 {
            std::thread::sleep(PAUSE);
        }
        // IMMEDIATE waits for the writer; a deferred transaction that turns to writing later doesn't.
        match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(transaction) => {
                give_back(&transaction)?;
                transaction.commit()?;
            }
            // The writer is busy and goes first.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => break,
            Err(error) => return Err(error),
        }
    }
    let free = free_pages(&connection)?;
    let bytes = |pages: i64| Bytes(pages.max(0).cast_unsigned() * PAGE_BYTES);
    Ok(Shrunk { given_back: bytes(before - free), free: bytes(free) })
}

fn give_back(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(&format!("PRAGMA incremental_vacuum({PAGES_PER_STEP})"))?;
    let mut rows = statement.query([])?;
    // Each row stands for one page.
    while rows.next()?.is_some() {}
    Ok(())
}

fn free_pages(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA freelist_count", [], |row| row.get(0))
}

/// Makes a new, empty database able to return pages.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)
}

/// Makes an earlier release's database able to return pages if it is small, and reports whether it is able
/// now.
pub(super) fn adopt(connection: &Connection) -> rusqlite::Result<bool> {
    let mode = || connection.query_row("PRAGMA auto_vacuum", [], |row| row.get::<_, i64>(0));
    let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    if mode()? != INCREMENTAL && pages.cast_unsigned().saturating_mul(PAGE_BYTES) <= WRITTEN_ANEW_MAX.0 {
        prepare(connection)?;
        connection.execute_batch("VACUUM")?;
    }
    Ok(mode()? == INCREMENTAL)
}

impl Room {
    /// Reports whether so little of the file is in use that pages should be returned.
    fn is_loose(self) -> bool {
        self.free >= FREE_MIN && self.free.0.saturating_mul(FREE_SHARE) > self.used.0.saturating_add(self.free.0)
    }
}

impl Journal {
    /// Returns an order to return free pages, if there are many.
    #[must_use]
    pub fn order_shrink(&self) -> Option<ShrinkOrder> {
        let is_due = self.kept.may_shrink && self.kept.room.is_loose() && self.poison().is_none();
        is_due.then(|| ShrinkOrder { database: self.database().to_owned() })
    }

    /// Notes that pages were returned.
    pub fn shrunk(&mut self, shrunk: Shrunk) {
        self.kept.room.free = shrunk.free;
        // The log has the pages that were moved.
        self.note_written(shrunk.given_back);
    }

    /// Disables shrinking until the next start.
    pub fn stop_shrinking(&mut self) {
        self.kept.may_shrink = false;
    }
}
