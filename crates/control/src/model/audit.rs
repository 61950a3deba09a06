//! Rows read only to see whether they are what was written, a slice at a time.

use rusqlite::{Row, Transaction, params};

use super::answers::is_intact;
use super::store::sample_sum;

/// What a slice of a table came to.
#[derive(Debug)]
pub(crate) struct Slice<K> {
    /// Rows that aren't what was written.
    pub(crate) damaged: u64,
    /// Where the next one begins; none at the end.
    pub(crate) next: Option<K>,
}

/// The key of a sample: job, attempt, node and number.
pub(crate) type SampleKey = [i64; 4];

/// Looks at `count` samples after a key.
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
        let (numbers, is_intact) = sample(row)?;
        slice.damaged += u64::from(!is_intact);
        slice.next = numbers[..4].try_into().ok();
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
}

fn sample(row: &Row<'_>) -> rusqlite::Result<([i64; 7], bool)> {
    let mut numbers = [0; 7];
    for (column, number) in numbers.iter_mut().enumerate() {
        *number = row.get(column)?;
    }
    let sum: Option<i64> = row.get(8)?;
    Ok((numbers, sum.is_none_or(|sum| row.get(7).is_ok_and(|loss| sum == i64::from(sample_sum(&numbers, loss))))))
}

/// Looks at `count` answers after a number.
pub(crate) fn answers_from(transaction: &Transaction<'_>, after: i64, count: u32) -> rusqlite::Result<Slice<i64>> {
    let sql = "SELECT request, body, at_unix_nanos, sequence, sum, user, key, number FROM answers
               WHERE number > ?1 ORDER BY number LIMIT ?2";
    let mut statement = transaction.prepare_cached(sql)?;
    let mut rows = statement.query(params![after, count])?;
    let (mut slice, mut seen) = (Slice { damaged: 0, next: None }, 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        let (user, key) = (row.get_ref(5)?.as_bytes()?, row.get_ref(6)?.as_bytes()?);
        slice.damaged += u64::from(!is_intact(row, (user, key))?);
        slice.next = Some(row.get(7)?);
    }
    slice.next = slice.next.filter(|_| seen == count);
    Ok(slice)
}
