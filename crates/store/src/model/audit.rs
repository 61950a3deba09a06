//! Integrity checks of read-model rows, one slice at a time.

use gangline_base::JobId;
use rusqlite::{Row, Rows, Transaction, params};

use super::account;
use super::answers::is_intact;
use super::curve::{BLOCK_COLUMNS, read_block};
use super::store::{from_sql, sample_sum, unless_damaged};
use super::{capacity, storage};

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

/// The key of a sample: job, attempt, node and number.
pub(crate) type SampleKey = [i64; 4];

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

/// Checks `count` samples after a key.
pub(crate) fn samples_from(
    transaction: &Transaction<'_>,
    after: SampleKey,
    count: u32,
) -> rusqlite::Result<Slice<SampleKey>> {
    let sql = "SELECT job, attempt, node_rank, number, at_unix_nanos, step, tokens, loss, sum FROM samples
               WHERE (job, attempt, node_rank, number) > (?1, ?2, ?3, ?4)
               ORDER BY job, attempt, node_rank, number LIMIT ?5";
    let mut statement = transaction.prepare_cached(sql)?;
    let [job, attempt, node_rank, number] = after;
    let rows = statement.query(params![job, attempt, node_rank, number, count])?;
    slice_of(rows, count, |row| {
        let (key, is_intact) = sample(row)?;
        Ok((key, u64::from(!is_intact)))
    })
}

/// Checks `count` blocks of packed samples after an id; in a damaged block all samples count as damaged.
pub(crate) fn blocks_from(transaction: &Transaction<'_>, after: i64, count: u32) -> rusqlite::Result<Slice<i64>> {
    let sql = format!("SELECT {BLOCK_COLUMNS}, id FROM curves WHERE id > ?1 ORDER BY id LIMIT ?2");
    let mut statement = transaction.prepare_cached(&sql)?;
    slice_of(statement.query(params![after, count])?, count, |row| {
        let points = || row.get::<_, i64>(4).ok().and_then(|points| u64::try_from(points).ok());
        let is_damaged = unless_damaged(read_block(row))?.is_none();
        Ok((row.get(7)?, if is_damaged { points().unwrap_or(1) } else { 0 }))
    })
}

/// The key comes from the table's tree; any other column of a wrong type is damage.
fn sample(row: &Row<'_>) -> rusqlite::Result<(SampleKey, bool)> {
    let key = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
    let is_intact = || {
        let numbers = [row.get(4)?, row.get(5)?, row.get(6)?];
        let (loss, sum): (Option<f64>, Option<i64>) = (row.get(7)?, row.get(8)?);
        let ([job, attempt, node_rank, number], [at, step, tokens]) = (key, numbers);
        let written = sample_sum(&[job, attempt, node_rank, number, at, step, tokens], loss);
        Ok::<_, rusqlite::Error>(sum.is_none_or(|sum| sum == i64::from(written)))
    };
    Ok((key, is_intact().unwrap_or(false)))
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
