//! The rows of what attempts asked of object storage, and nodes for jobs that waited: written once, and verified at every read.

use gangline_base::{JobId, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::{from_sql, to_sql};
use crate::codec::{Noted, Recorded, RequestsMade, decode_entry};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order.
pub(super) const COLUMNS: &str = "job, attempt, place, to_unix_nanos, entry, sum";

/// Writes the requests of an attempt or a fetch.
pub(crate) fn write_requests(transaction: &Transaction<'_>, made: &RequestsMade) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO requests ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
    let (entry, to) = (made.encode(), to_sql(made.to.unix_nanos()));
    let columns =
        params![to_sql(made.job.0), made.attempt, made.place(), to, entry, row_sum(&[&to.to_le_bytes(), &entry])];
    transaction.prepare_cached(&sql)?.execute(columns).map(drop)
}

/// Returns the row of the same attempt or fetch, if it is intact.
pub(crate) fn stored_requests(
    transaction: &Transaction<'_>,
    made: &RequestsMade,
) -> rusqlite::Result<Option<RequestsMade>> {
    let sql = format!("SELECT {COLUMNS} FROM requests WHERE job = ?1 AND attempt = ?2 AND place = ?3");
    let key = params![to_sql(made.job.0), made.attempt, made.place()];
    transaction.prepare_cached(&sql)?.query_row(key, read).optional()
}

/// Passes the requests that were made in a period, at least in part, to `each`.
pub(crate) fn read_requests(
    transaction: &Transaction<'_>,
    (from, to): (Timestamp, Timestamp),
    each: &mut dyn FnMut(RequestsMade),
) -> rusqlite::Result<()> {
    let sql =
        format!("SELECT {COLUMNS} FROM requests WHERE to_unix_nanos >= ?1 ORDER BY to_unix_nanos, job, attempt, place");
    let from = to_sql(from.unix_nanos().min(i64::MAX.unsigned_abs()));
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query([from])?;
    while let Some(row) = rows.next()? {
        let made = read(row)?;
        if made.from < to {
            each(made);
        }
    }
    Ok(())
}

/// Returns the requests of a job's attempts, in order; first those of fetches while it waited.
pub(crate) fn read_requests_of(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<RequestsMade>> {
    let sql = format!("SELECT {COLUMNS} FROM requests WHERE job = ?1 ORDER BY attempt, place");
    transaction.prepare_cached(&sql)?.query_map([to_sql(job.0)], read)?.collect()
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<RequestsMade> {
    let (job, attempt): (i64, u32) = (row.get(0)?, row.get(1)?);
    let job = JobId(from_sql(job));
    let what = || format!("what attempt {attempt} of {job} asked of object storage");
    let place: String = row.get(2).map_err(|_| damaged(what()))?;
    let to: i64 = row.get(3).map_err(|_| damaged(what()))?;
    let entry: Vec<u8> = row.get(4).map_err(|_| damaged(what()))?;
    check_row(row.get_ref(5)?, &[&to.to_le_bytes(), &entry], what)?;
    match decode_entry(&entry).map(|recorded| if let Recorded::Noted(noted) = recorded { Some(*noted) } else { None }) {
        Ok(Some(Noted::Requests(made))) if (made.job, made.attempt, made.place()) == (job, attempt, place) => Ok(made),
        _ => Err(damaged(what())),
    }
}
