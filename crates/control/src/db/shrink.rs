//! Pages that nothing uses are given back to the file system, by a thread of the service and a little at a time: between two steps the
//! journal's writer has the database for itself. A database of an earlier release can't do so until it is written anew, which a start
//! does where that is quick.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Bytes;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::compaction::Room;
use super::journal::{PAGE_BYTES, connect};
use super::{Error, Journal};

/// Pages that nothing uses are given back only where there are as many as this,
const FREE_MIN: Bytes = Bytes(8 << 20);
/// and more than this share of the file: what jobs come and go with is used again.
const FREE_SHARE: u64 = 4;
/// Pages given back in one step, which takes a few milliseconds,
const PAGES_PER_STEP: u64 = 32;
/// the pause after it,
const PAUSE: Duration = Duration::from_millis(20);
/// and steps in one order: the thread has snapshots to write as well.
const STEPS_MAX: u64 = 64;
/// A start writes a file up to this size anew, in a few tenths of a second.
const WRITTEN_ANEW_MAX: Bytes = Bytes(32 << 20);
/// SQLite's `auto_vacuum`: pages are given back when it is asked to.
const INCREMENTAL: i64 = 2;

/// Pages to be given back, by any thread.
#[derive(Debug)]
pub struct ShrinkOrder {
    database: PathBuf,
}

/// What was given back, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    given_back: Bytes,
    free: Bytes,
}

impl ShrinkOrder {
    /// Gives some pages back. The journal is to be told of it.
    ///
    /// # Errors
    /// What the disk said; the database is as before then, or some steps smaller.
    pub fn carry_out(self) -> Result<Shrunk, Error> {
        shrink(&self.database).map_err(|error| Error::from_sqlite(&self.database, error))
    }
}

fn shrink(database: &Path) -> rusqlite::Result<Shrunk> {
    let mut connection = connect(database)?;
    // What is given back is lost by a power cut and given back again. The writer's own commits sync the log.
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
        // Waits for the writer; a statement that finds out only later that it has to write doesn't.
        match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(transaction) => {
                give_back(&transaction)?;
                transaction.commit()?;
            }
            // The writer has much to do and goes first.
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
    // Each row is a page.
    while rows.next()?.is_some() {}
    Ok(())
}

fn free_pages(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA freelist_count", [], |row| row.get(0))
}

/// Makes a new, empty database one that can give pages back.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)
}

/// Makes an earlier release's database such a one if it is small; whether it is one now.
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
    /// Whether so little of the file is in use that some of it should be given back.
    fn is_loose(self) -> bool {
        self.free >= FREE_MIN && self.free.0.saturating_mul(FREE_SHARE) > self.used.0.saturating_add(self.free.0)
    }
}

impl Journal {
    /// An order to give back what nothing uses, if that is much.
    #[must_use]
    pub fn order_shrink(&self) -> Option<ShrinkOrder> {
        let is_due = self.kept.may_shrink && self.kept.room.is_loose() && self.poison().is_none();
        is_due.then(|| ShrinkOrder { database: self.database().to_owned() })
    }

    /// Pages were given back.
    pub fn shrunk(&mut self, shrunk: Shrunk) {
        self.kept.room.free = shrunk.free;
        // The log has the pages that were moved.
        self.note_written(shrunk.given_back);
    }

    /// Nothing is given back any more until the next start.
    pub fn stop_shrinking(&mut self) {
        self.kept.may_shrink = false;
    }
}
