//! How much room the journal and the read models take.

use std::path::Path;

use anyhow::{Context as _, Result};
use rusqlite::{Connection, OpenFlags};

use super::up::Plane;

/// SQLite's page size.
const PAGE_BYTES: u64 = 4_096;

/// Bytes on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    /// All files beside the database and itself.
    pub(super) files: u64,
    /// The journal's entries.
    pub(super) records: u64,
    /// Pages of the database that nothing uses.
    pub(super) free: u64,
    /// Snapshots of the state, of which a fixed number is kept.
    pub(super) snapshots: u64,
    /// All other tables and indices: the read models.
    pub(super) models: u64,
}

/// Of a control plane that may be up.
///
/// # Errors
/// When a file can't be read.
pub(super) fn of_journal(plane: &Plane) -> Result<Sizes> {
    let folder = plane.path("data");
    Ok(Sizes { files: of_files(&folder)?, ..of_tables(&folder.join("journal.sqlite"))? })
}

/// All that lies directly in the folder, and the archive of what was compacted.
fn of_files(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).context("list the data folder")?.flatten() {
        let found = entry.metadata().with_context(|| format!("look at {}", entry.path().display()))?;
        if found.is_file() {
            bytes += found.len();
        } else if entry.file_name() != "jobs" && entry.file_name() != "checkpoints" && found.is_dir() {
            bytes += of_files(&entry.path())?;
        }
    }
    Ok(bytes)
}

fn of_tables(database: &Path) -> Result<Sizes> {
    let connection =
        Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).context("open the journal")?;
    let mut statement = connection.prepare("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let mut sizes = Sizes::default();
    for row in rows {
        let (name, bytes) = row.context("read the tables' sizes")?;
        let bytes = bytes.cast_unsigned();
        match name.as_str() {
            "records" => sizes.records += bytes,
            "snapshots" => sizes.snapshots += bytes,
            _ => sizes.models += bytes,
        }
    }
    let free: i64 = connection.query_row("PRAGMA freelist_count", [], |row| row.get(0))?;
    sizes.free = free.cast_unsigned() * PAGE_BYTES;
    Ok(sizes)
}
