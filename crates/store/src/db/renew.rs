//! Rewrites a journal's database into a new file that replaces the old one. Other tables are copied as far as
//! they can be read, and the caller writes the read models. Whatever page of the old file is malformed, the new file is sound; the
//! old one is kept.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use super::anchor::Anchor;
use super::folder::{DATABASE, HeldFolder, create_aside, publish, remove_if_there};
use super::journal::connect;
use super::reader::head_at;
use super::record::Head;
use super::snapshots::Snapshots;
use super::{Error, Reader, Sequence, schema};

/// Name under which the old database is kept.
const BEFORE: &str = "journal.sqlite.before-rebuild";
/// Tables that aren't copied: the caller writes them.
const WRITTEN: [&str; 4] = ["jobs", "sweeps", "ledger", "answers"];
/// Tables that are copied as far as they can be read: nothing depends on the missing rows, or the caller writes them again.
const DISPENSABLE: [&str; 7] = ["dropped", "snapshots", "accounts", "capacity", "storage", "requests", "incidents"];
/// The most ranges tried before the rest is given up.
const TRIES_MAX: u32 = 2_000;

/// A journal that no control plane holds.
#[derive(Debug)]
pub(crate) struct Offline {
    folder: HeldFolder,
}

/// An engine state to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSnapshot<'a> {
    /// The last record that the state covers.
    pub sequence: Sequence,
    /// The state, in the writer's own encoding.
    pub body: &'a [u8],
}

impl Offline {
    /// Locks a folder that has a journal.
    ///
    /// # Errors
    /// [`Error::InUse`] if a control plane holds it; [`Error::Folder`] if there is no journal.
    pub(crate) fn open(folder: &Path) -> Result<Offline, Error> {
        let path = folder.join(DATABASE);
        fs::metadata(&path).map_err(|source| Error::Folder { path, source })?;
        Ok(Offline { folder: HeldFolder::hold(folder)? })
    }

    pub(super) fn hold(folder: HeldFolder) -> Offline {
        Offline { folder }
    }

    /// Returns a handle for reading the journal.
    #[must_use]
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.folder.database())
    }

    /// Refuses a journal that doesn't reach the record that its anchor names.
    ///
    /// # Errors
    /// [`Error::TailLost`].
    pub(crate) fn refuse_lost_tail(&self, last: Sequence) -> Result<(), Error> {
        match Anchor::read(self.folder.path())? {
            Some(known) if known.head.sequence > last => Err(Error::TailLost {
                path: self.folder.database(),
                last,
                anchored: known.head.sequence,
                given_out: known.given_out,
            }),
            _ => Ok(()),
        }
    }

    /// Returns SQLite's first complaint about the file.
    ///
    /// # Errors
    /// Those of [`Reader::read`], except damage.
    pub(crate) fn malformed(&self) -> Result<Option<String>, Error> {
        let verdict = self.reader().read(|t| t.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)));
        match verdict {
            Ok(verdict) => Ok(Some(verdict).filter(|verdict: &String| verdict != "ok")),
            Err(Error::Damaged { what, .. }) => Ok(Some(what)),
            Err(error) => Err(error),
        }
    }

    /// Creates a new database, lets the caller fill it in one transaction with the old one attached as `old`,
    /// and replaces the old one. Returns the path where the old one is kept.
    ///
    /// # Errors
    /// The I/O error; nothing has been changed then.
    pub(crate) fn renew(
        &self,
        snapshot: NewSnapshot<'_>,
        fill: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<PathBuf, Error> {
        let database = self.folder.database();
        let failed = |error| Error::from_sqlite(&database, error);
        let mut old = connect(&database).map_err(failed)?;
        schema::update(&mut old, &database)?;
        drop(old);
        let aside = create_aside(self.folder.path())?;
        if let Some(last) = self.fill(&aside, snapshot.sequence, fill).map_err(failed)? {
            // The snapshot covers the same records as the old database.
            Snapshots::of(&database).write(last, snapshot.body)?;
        }
        self.empty_log(&database).map_err(failed)?;
        let kept = self.folder.path().join(BEFORE);
        let refused = |source| Error::Folder { path: aside.clone(), source };
        remove_if_there(&kept).map_err(refused)?;
        fs::hard_link(&database, &kept).map_err(refused)?;
        for suffix in ["-wal", "-shm"] {
            remove_if_there(&self.folder.path().join(format!("{DATABASE}{suffix}"))).map_err(refused)?;
        }
        publish(&aside, &database, self.folder.path()).map_err(refused)?;
        Ok(kept)
    }

    fn fill(
        &self,
        aside: &Path,
        sequence: Sequence,
        fill: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<Option<Head>> {
        let mut connection = Connection::open(aside)?;
        // The new file is synced as a whole before it is used.
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update(None, "journal_mode", "MEMORY")?;
        connection.execute("ATTACH ?1 AS old", [self.folder.database().to_string_lossy()])?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        copy_tables(&transaction)?;
        fill(&transaction)?;
        let last = head_at(&transaction, sequence)?;
        transaction.commit()?;
        connection.execute("DETACH old", [])?;
        let verdict: String = connection.query_row("PRAGMA main.quick_check(1)", [], |row| row.get(0))?;
        if verdict != "ok" {
            let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            return Err(rusqlite::Error::SqliteFailure(corrupt, Some(verdict)));
        }
        connection.close().map_err(|(_, error)| error)?;
        Ok(last)
    }

    /// Checkpoints the old database's write-ahead log, so that no frame of it can be applied to the new
    /// database.
    fn empty_log(&self, database: &Path) -> rusqlite::Result<()> {
        let connection = connect(database)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if is_busy {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(busy, Some("somebody reads the journal".to_owned())));
        }
        connection.close().map_err(|(_, error)| error)
    }
}

fn copy_tables(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let sql = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    let names: Vec<String> = transaction.prepare(sql)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for name in names.iter().filter(|name| !WRITTEN.contains(&name.as_str())) {
        let sql = format!("INSERT OR REPLACE INTO main.{name} SELECT * FROM old.{name}");
        let copied = tried(transaction, |transaction| transaction.execute(&sql, []))?;
        if let Err(error) = copied
            && !DISPENSABLE.contains(&name.as_str())
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Runs a change that may meet a malformed page; a failed change is rolled back.
fn tried<T>(
    transaction: &Transaction<'_>,
    change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Result<T, rusqlite::Error>> {
    transaction.execute_batch("SAVEPOINT tried")?;
    let outcome = change(transaction);
    if outcome.is_err() {
        transaction.execute_batch("ROLLBACK TO tried")?;
    }
    transaction.execute_batch("RELEASE tried")?;
    match outcome {
        Err(error) if !is_malformed(&error) => Err(error),
        outcome => Ok(outcome),
    }
}

/// Reports whether an error means a malformed page.
#[must_use]
pub(crate) fn is_malformed(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// A range of keys to be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// The first key.
    pub from: i64,
    /// The last key.
    pub to: i64,
    /// A range of at most this many keys that can't be read is given up as a whole.
    pub grain: i64,
}

/// Runs `sql` for each readable part of a range of keys, `?1` to `?2`, and returns the unreadable parts.
///
/// # Errors
/// SQLite's error, except for malformed pages.
pub(crate) fn salvage(transaction: &Transaction<'_>, sql: &str, keys: Keys) -> rusqlite::Result<Vec<(i64, i64)>> {
    let (mut left, mut lost, mut tries) = (vec![(keys.from, keys.to)], Vec::new(), 0);
    while let Some((from, to)) = left.pop() {
        tries += 1;
        let copied = tried(transaction, |transaction| transaction.prepare_cached(sql)?.execute(params![from, to]))?;
        if copied.is_ok() {
            continue;
        }
        if to - from < keys.grain || tries >= TRIES_MAX {
            lost.push((from, to));
            continue;
        }
        let middle = from + (to - from) / 2;
        left.extend([(middle + 1, to), (from, middle)]);
    }
    Ok(lost)
}
