//! The database's tables and their version. Migrations are numbered and never changed, only added.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{Error, shrink};

/// Migration `n` is at index `n - 1`; it brings a database from version `n - 1` to `n`.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_journal.sql"),
    include_str!("migrations/0002_read_models.sql"),
    include_str!("migrations/0003_answers.sql"),
    include_str!("migrations/0004_sweeps.sql"),
    include_str!("migrations/0005_row_sums.sql"),
    include_str!("migrations/0006_archive.sql"),
    include_str!("migrations/0007_more_row_sums.sql"),
    include_str!("migrations/0008_removed.sql"),
    include_str!("migrations/0009_curves.sql"),
    include_str!("migrations/0010_unreported.sql"),
    include_str!("migrations/0011_accounts.sql"),
    include_str!("migrations/0012_storage.sql"),
    include_str!("migrations/0013_no_curves.sql"),
    include_str!("migrations/0014_requests.sql"),
    include_str!("migrations/0015_fetches.sql"),
    include_str!("migrations/0016_overheads.sql"),
    include_str!("migrations/0017_archives.sql"),
];

const VERSION_KEY: &str = "schema_version";

/// Returns the newest version that this program can read.
pub(super) fn newest() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are fewer migrations than a u32 counts")
}

/// Creates the tables of a new database, which is not yet in WAL mode and so is one file.
pub(super) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    shrink::prepare(connection)?;
    connection.execute_batch(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         INSERT INTO meta (key, value) VALUES ('schema_version', 0);",
    )?;
    migrate(connection, 0)
}

/// Migrates an older database and refuses a newer one.
pub(super) fn update(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let failed = |error| Error::from_sqlite(path, error);
    let has_meta = connection
        .query_row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'", [], |_| Ok(()))
        .optional()
        .map_err(failed)?
        .is_some();
    if !has_meta {
        let what = "it holds no journal (empty or made by another program)".to_owned();
        return Err(Error::Damaged { path: path.to_owned(), what });
    }
    let found: u32 = connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [VERSION_KEY], |row| row.get(0))
        .map_err(failed)?;
    if found > newest() {
        return Err(Error::NewerSchema { found, known: newest() });
    }
    migrate(connection, found).map_err(failed)
}

/// Makes all migrations and the new version durable together.
fn migrate(connection: &mut Connection, found: u32) -> rusqlite::Result<()> {
    if found == newest() {
        return Ok(());
    }
    let done = usize::try_from(found).expect("usize holds a u32 on Linux");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration)?;
    }
    transaction.execute("UPDATE meta SET value = ?2 WHERE key = ?1", params![VERSION_KEY, newest()])?;
    transaction.commit()
}
