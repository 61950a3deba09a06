//! Integrity checks of read-model rows, one slice at a time.

use rusqlite::{Row, Transaction, params};

use super::answers::is_intact;
use super::curve::{BLOCK_COLUMNS, read_block};
use super::store::{sample_sum, unless_damaged};

/// The result of checking a slice of a table.
#[derive(Debug)]
pub struct Slice<K> {
    /// The number of damaged rows.
    pub damaged: u64,
    /// Where the next slice begins; `None` at the end.
    pub next: Option<K>,
}

/// The key of a sample: job, attempt, node and number.
pub(crate) type SampleKey = [i64; 4];

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
    let mut rows = statement.query(params![job, attempt, node_rank, number, count])?;
    let (mut slice, mut seen) = (Slice { damaged: 0, next: None }, 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        let (key, is_intact) = sample(row)?;
        slice.damaged += u64::from(!is_intact);
        slice.next = Some(key);
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
}

/// Checks `count` blocks of packed samples after an id; in a damaged block all samples count as damaged.
pub(crate) fn blocks_from(transaction: &Transaction<'_>, after: i64, count: u32) -> rusqlite::Result<Slice<i64>> {
    let sql = format!("SELECT {BLOCK_COLUMNS}, id FROM curves WHERE id > ?1 ORDER BY id LIMIT ?2");
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query(params![after, count])?;
    let (mut slice, mut seen) = (Slice { damaged: 0, next: None }, 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        if unless_damaged(read_block(row))?.is_none() {
            let points = row.get::<_, i64>(4).ok().and_then(|points| u64::try_from(points).ok());
            slice.damaged += points.unwrap_or(1);
        }
        slice.next = Some(row.get(7)?);
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
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
    let mut rows = statement.query(params![after, count])?;
    let (mut slice, mut seen) = (Slice { damaged: 0, next: None }, 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        let intact = || is_intact(row, (row.get_ref(5)?.as_bytes()?, row.get_ref(6)?.as_bytes()?));
        slice.damaged += u64::from(!intact().unwrap_or(false));
        slice.next = Some(row.get(7)?);
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
}
