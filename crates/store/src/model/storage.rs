//! The rows of what folders hold: written once, and verified at every read.

use gangline_base::{JobId, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::{from_sql, to_sql};
use crate::codec::{Noted, Recorded, StorageClassV1, StorageMeasured, decode_entry};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order.
pub(super) const COLUMNS: &str = "folder, from_unix_nanos, entry, sum";

/// Writes a measurement; a second one of a folder at the same time replaces the first.
pub(crate) fn write_storage(
    transaction: &Transaction<'_>,
    at: Timestamp,
    measured: &StorageMeasured,
) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO storage ({COLUMNS}, archived_by) VALUES (?1, ?2, ?3, ?4, ?5)");
    let is_archive = measured.class == StorageClassV1::Archives;
    let archived_by = measured.owner.as_ref().filter(|_| is_archive).map(|owner| to_sql(owner.job.0));
    let (entry, time) = (measured.encode(), at.unix_nanos().to_le_bytes());
    let columns = params![measured.folder, to_sql(at.unix_nanos()), entry, row_sum(&[&time, &entry]), archived_by];
    transaction.prepare_cached(&sql)?.execute(columns).map(drop)
}

/// Returns the row of a folder at exactly this time, if it is intact.
pub(crate) fn stored_storage(
    transaction: &Transaction<'_>,
    at: Timestamp,
    folder: &str,
) -> rusqlite::Result<Option<StorageMeasured>> {
    let sql = format!("SELECT {COLUMNS} FROM storage WHERE folder = ?1 AND from_unix_nanos = ?2");
    let found = transaction.prepare_cached(&sql)?.query_row(params![folder, to_sql(at.unix_nanos())], read).optional();
    found.map(|found| found.map(|(_, measured)| measured))
}

/// Passes the measurements that matter to a period to `each`, by folder and time: those in it, and each folder's last one
/// before.
pub(crate) fn read_storage(
    transaction: &Transaction<'_>,
    (from, to): (Timestamp, Timestamp),
    each: &mut dyn FnMut(Timestamp, StorageMeasured),
) -> rusqlite::Result<()> {
    let mut next = transaction.prepare_cached("SELECT min(folder) FROM storage WHERE folder > ?1")?;
    let first = "SELECT max(from_unix_nanos) FROM storage WHERE folder = ?1 AND from_unix_nanos <= ?2";
    let mut first = transaction.prepare_cached(first)?;
    let rows = format!(
        "SELECT {COLUMNS} FROM storage WHERE folder = ?1 AND from_unix_nanos BETWEEN ?2 AND ?3 ORDER BY from_unix_nanos"
    );
    let mut rows = transaction.prepare_cached(&rows)?;
    let [from, to] = [from, to].map(|at| to_sql(at.unix_nanos().min(i64::MAX.unsigned_abs())));
    let mut folder = String::new();
    while let Some(found) = next.query_row([&folder], |row| row.get::<_, Option<String>>(0))? {
        let before: Option<i64> = first.query_row(params![found, from], |row| row.get(0))?;
        let mut found_rows = rows.query(params![found, before.unwrap_or(from), to])?;
        while let Some(row) = found_rows.next()? {
            let (at, measured) = read(row)?;
            each(at, measured);
        }
        folder = found;
    }
    Ok(())
}

/// Returns all measurements of one folder, by time.
pub(crate) fn read_storage_in(
    transaction: &Transaction<'_>,
    folder: &str,
) -> rusqlite::Result<Vec<(Timestamp, StorageMeasured)>> {
    let sql = format!("SELECT {COLUMNS} FROM storage WHERE folder = ?1 ORDER BY from_unix_nanos");
    transaction.prepare_cached(&sql)?.query_map([folder], read)?.collect()
}

/// Returns the addresses of the archives that were ever charged to a job.
pub(crate) fn read_archives_of(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT DISTINCT folder FROM storage WHERE archived_by = ?1 ORDER BY folder";
    transaction.prepare_cached(sql)?.query_map([to_sql(job.0)], |row| row.get(0))?.collect()
}

/// Returns the last measurement of each archive.
pub(crate) fn read_archives(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<(Timestamp, StorageMeasured)>> {
    let sql = "SELECT DISTINCT folder FROM storage WHERE archived_by IS NOT NULL";
    let last = format!("SELECT {COLUMNS} FROM storage WHERE folder = ?1 ORDER BY from_unix_nanos DESC LIMIT 1");
    let mut names = transaction.prepare_cached(sql)?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut last = transaction.prepare_cached(&last)?;
    names.iter().map(|name| last.query_row([name], read)).collect()
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Timestamp, StorageMeasured)> {
    let folder: String = row.get(0)?;
    let what = || format!("what is stored in {folder}");
    let at = Timestamp::from_unix_nanos(from_sql(row.get(1)?));
    let entry: Vec<u8> = row.get(2).map_err(|_| damaged(what()))?;
    check_row(row.get_ref(3)?, &[&at.unix_nanos().to_le_bytes(), &entry], what)?;
    match decode_entry(&entry).map(|recorded| if let Recorded::Noted(noted) = recorded { Some(*noted) } else { None }) {
        Ok(Some(Noted::Storage(measured))) if measured.folder == folder => Ok((at, measured)),
        _ => Err(damaged(what())),
    }
}
