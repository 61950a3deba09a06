//! Integrity checks of read-model rows, one slice at a time.

use gangline_base::JobId;
use rusqlite::{Row, Rows, Transaction, params};

use super::account;
use super::answers::is_intact;
use super::store::{from_sql, unless_damaged};
use super::{capacity, incidents, requests, storage};

/// The result of checking a slice of a table.
#[derive(Debug)]
pub struct Slice<K> {
    /// The number of damaged rows.
    pub damaged: u64,
    /// Where the next slice begins; `None` at the end.
    pub next: Option<K>,
}

/// The key of a change of what a node offers: its name, and the time in nanoseconds.
pub(crate) type NotedKey = (String, i64);

/// Checks rows, `count` at most. `look` returns a row's key and how much damage it stands for.
fn slice_of<K>(
    mut rows: Rows<'_>,
    count: u32,
    mut look: impl FnMut(&Row<'_>) -> rusqlite::Result<(K, u64)>,
) -> rusqlite::Result<Slice<K>> {
    let (mut slice, mut seen) = (Slice { damaged: 0, next: None }, 0);
    while let Some(row) = rows.next()? {
        let (key, damaged) = look(row)?;
        seen += 1;
        slice.damaged += damaged;
        slice.next = Some(key);
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
}

/// Checks `count` answers after a number.
pub(crate) fn answers_from(transaction: &Transaction<'_>, after: i64, count: u32) -> rusqlite::Result<Slice<i64>> {
    let sql = "SELECT request, body, at_unix_nanos, sequence, sum, user, key, number FROM answers
               WHERE number > ?1 ORDER BY number LIMIT ?2";
    let mut statement = transaction.prepare_cached(sql)?;
    slice_of(statement.query(params![after, count])?, count, |row| {
        let intact = || is_intact(row, (row.get_ref(5)?.as_bytes()?, row.get_ref(6)?.as_bytes()?));
        Ok((row.get(7)?, u64::from(!intact().unwrap_or(false))))
    })
}

/// Checks `count` accounts after a job.
pub(crate) fn accounts_from(transaction: &Transaction<'_>, after: i64, count: u32) -> rusqlite::Result<Slice<i64>> {
    let sql = format!("SELECT {} FROM accounts WHERE job > ?1 ORDER BY job LIMIT ?2", account::COLUMNS);
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![after, count])?, count, |row| {
        let job: i64 = row.get(0)?;
        Ok((job, u64::from(unless_damaged(account::read(row, JobId(from_sql(job))))?.is_none())))
    })
}

/// Checks `count` rows of what nodes offered after a node and a time.
pub(crate) fn capacities_from(
    transaction: &Transaction<'_>,
    (node, at): &NotedKey,
    count: u32,
) -> rusqlite::Result<Slice<NotedKey>> {
    let sql = format!(
        "SELECT {} FROM capacity WHERE (node, from_unix_nanos) > (?1, ?2) ORDER BY node, from_unix_nanos LIMIT ?3",
        capacity::COLUMNS
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![node, at, count])?, count, |row| {
        let is_damaged = unless_damaged(capacity::read(row))?.is_none();
        Ok(((row.get(0)?, row.get(1)?), u64::from(is_damaged)))
    })
}

/// Checks `count` rows of what folders hold after a folder and a time.
pub(crate) fn storage_from(
    transaction: &Transaction<'_>,
    (folder, at): &NotedKey,
    count: u32,
) -> rusqlite::Result<Slice<NotedKey>> {
    let sql = format!(
        "SELECT {} FROM storage WHERE (folder, from_unix_nanos) > (?1, ?2) ORDER BY folder, from_unix_nanos LIMIT ?3",
        storage::COLUMNS
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![folder, at, count])?, count, |row| {
        let is_damaged = unless_damaged(storage::read(row))?.is_none();
        Ok(((row.get(0)?, row.get(1)?), u64::from(is_damaged)))
    })
}

/// Checks `count` rows of incidents after a job or a node and a time.
pub(crate) fn incidents_from(
    transaction: &Transaction<'_>,
    (subject, at): &NotedKey,
    count: u32,
) -> rusqlite::Result<Slice<NotedKey>> {
    let sql = format!(
        "SELECT {} FROM incidents WHERE (subject, at_unix_nanos) > (?1, ?2) ORDER BY subject, at_unix_nanos LIMIT ?3",
        incidents::COLUMNS
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![subject, at, count])?, count, |row| {
        let is_damaged = unless_damaged(incidents::read(row))?.is_none();
        Ok(((row.get(0)?, row.get(1)?), u64::from(is_damaged)))
    })
}

/// A job, an attempt, and what tells a fetch from others.
pub(crate) type RequestsKey = (i64, i64, String);

/// Checks `count` rows of requests after a key.
pub(crate) fn requests_from(
    transaction: &Transaction<'_>,
    (job, attempt, place): &RequestsKey,
    count: u32,
) -> rusqlite::Result<Slice<RequestsKey>> {
    let sql = format!(
        "SELECT {} FROM requests WHERE (job, attempt, place) > (?1, ?2, ?3) ORDER BY job, attempt, place LIMIT ?4",
        requests::COLUMNS
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![job, attempt, place, count])?, count, |row| {
        let is_damaged = unless_damaged(requests::read(row))?.is_none();
        Ok(((row.get(0)?, row.get(1)?, row.get(2)?), u64::from(is_damaged)))
    })
}
