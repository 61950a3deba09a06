//! The samples of each attempt's first node: rows while a job runs, and packed blocks ([`super::block`]) soon
//! after its end. A sample may be in both if an ended job continues after an accepted loss of records; it
//! counts once.

use gangline_base::JobId;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::block::{BLOCK_POINTS, StoredPoint, decode, encode};
use super::store::{sample_sum, to_sql, unless_damaged};
use crate::db::{damaged, row_sum};

/// The most blocks that one removal deletes, so that the control thread isn't blocked for long.
pub(super) const BLOCKS_PER_REMOVAL_MAX: u32 = 64;

/// A job and the number of one of its attempts.
pub(super) type Attempt = (JobId, u32);

/// The columns of `samples` that [`read_row`] reads.
pub(super) const POINT_COLUMNS: &str = "number, at_unix_nanos, step, tokens, loss, sum";
/// The columns of `curves` that [`read_block`] reads.
pub(super) const BLOCK_COLUMNS: &str = "job, attempt, first, last, points, body, sum";
/// Selects the blocks of an attempt that may have samples from `?3` to `?4`, in order.
const BLOCKS_BETWEEN: &str = "FROM curves WHERE job = ?1 AND attempt = ?2 AND first <= ?4 AND first >= coalesce(
     (SELECT max(first) FROM curves WHERE job = ?1 AND attempt = ?2 AND first <= ?3), ?3) ORDER BY first";

/// Consecutive samples, ready to replace their rows as a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    first: i64,
    last: i64,
    pub points: u32,
    body: Vec<u8>,
}

impl PackedBlock {
    fn of(points: &[StoredPoint]) -> Option<PackedBlock> {
        let (first, last) = (points.first()?.number, points.last()?.number);
        let count = u32::try_from(points.len()).expect("a block has few samples");
        Some(PackedBlock { first, last, points: count, body: encode(points) })
    }

    fn write(&self, transaction: &Transaction<'_>, (job, attempt): Attempt) -> rusqlite::Result<()> {
        let PackedBlock { first, last, points, body } = self;
        let (job, attempt, points) = (to_sql(job.0), i64::from(attempt), i64::from(*points));
        let sum = block_sum([job, attempt, *first, *last, points], body);
        let sql =
            "INSERT INTO curves (job, attempt, first, last, points, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        transaction.prepare_cached(sql)?.execute(params![job, attempt, first, last, points, body, sum]).map(drop)
    }
}

/// Returns the checksum of a block's row: of its key, its edges, its count and its body.
fn block_sum(numbers: [i64; 5], body: &[u8]) -> [u8; 8] {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    row_sum(&[&bytes, body])
}

/// Returns the sample in a row of [`POINT_COLUMNS`], if it is intact.
pub(super) fn read_row(row: &Row<'_>, (job, attempt): Attempt) -> rusqlite::Result<StoredPoint> {
    let number: i64 = row.get(0)?;
    let what = || damaged(format!("sample {number} of attempt {attempt} of {job}"));
    let read = || {
        let [at, step, tokens] = [row.get(1)?, row.get(2)?, row.get(3)?];
        Ok::<_, rusqlite::Error>((StoredPoint { number, at, step, tokens, loss: row.get(4)? }, row.get(5)?))
    };
    let (point, sum): (StoredPoint, Option<i64>) = read().map_err(|_| what())?;
    let StoredPoint { at, step, tokens, loss, .. } = point;
    let written = sample_sum(&[to_sql(job.0), i64::from(attempt), 0, number, at, step, tokens], loss);
    // A sample of an earlier release has no checksum and is accepted.
    if sum.is_some_and(|sum| sum != i64::from(written)) { Err(what()) } else { Ok(point) }
}

/// Returns the samples in a row of [`BLOCK_COLUMNS`], if they are intact.
pub(super) fn read_block(row: &Row<'_>) -> rusqlite::Result<Vec<StoredPoint>> {
    let key: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
    let [job, attempt, first] = key;
    let what = || damaged(format!("the samples from {first} on of attempt {attempt} of job-{job}"));
    let read = || {
        let (last, points): (i64, i64) = (row.get(3)?, row.get(4)?);
        let body = row.get_ref(5)?.as_blob()?;
        let is_written = row.get_ref(6)?.as_blob()? == block_sum([job, attempt, first, last, points], body);
        Ok::<_, rusqlite::Error>(decode(body).filter(|_| is_written))
    };
    read().ok().flatten().ok_or_else(what)
}

/// Reads one attempt's samples by seeks. Caches the last block, which often has the next sample too.
pub(super) struct Curve<'t> {
    transaction: &'t Transaction<'t>,
    attempt: Attempt,
    block: Option<(i64, Vec<StoredPoint>)>,
}

impl<'t> Curve<'t> {
    pub(super) fn of(transaction: &'t Transaction<'t>, attempt: Attempt) -> Curve<'t> {
        Curve { transaction, attempt, block: None }
    }

    /// Returns the first sample with a loss among these numbers, or else the first sample.
    pub(super) fn first_between(&mut self, from: i64, to: i64) -> rusqlite::Result<Option<StoredPoint>> {
        let sql = format!(
            "SELECT {POINT_COLUMNS} FROM samples
             WHERE job = ?1 AND attempt = ?2 AND node_rank = 0 AND number BETWEEN ?3 AND ?4
             ORDER BY loss IS NULL, number LIMIT 1"
        );
        let (job, attempt) = self.attempt;
        let mut statement = self.transaction.prepare_cached(&sql)?;
        let range = params![to_sql(job.0), attempt, from, to];
        let row = statement.query_row(range, |row| read_row(row, self.attempt)).optional()?;
        let packed = self.first_packed(from, to)?;
        Ok(row.into_iter().chain(packed).min_by_key(|point| (point.loss.is_none(), point.number)))
    }

    fn first_packed(&mut self, from: i64, to: i64) -> rusqlite::Result<Option<StoredPoint>> {
        let mut first = None;
        for (begins, ends) in self.block_edges(from, to)? {
            if ends < from {
                continue;
            }
            for point in self.block(begins)?.iter().filter(|point| (from..=to).contains(&point.number)) {
                if point.loss.is_some() {
                    return Ok(Some(*point));
                }
                first = first.or(Some(*point));
            }
        }
        Ok(first)
    }

    /// Returns the first and last number of each block that may have samples with numbers in this range.
    fn block_edges(&self, from: i64, to: i64) -> rusqlite::Result<Vec<(i64, i64)>> {
        let (job, attempt) = self.attempt;
        let mut statement = self.transaction.prepare_cached(&format!("SELECT first, last {BLOCKS_BETWEEN}"))?;
        let range = params![to_sql(job.0), attempt, from, to];
        statement.query_map(range, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// Returns the samples of the block that begins with this number.
    fn block(&mut self, first: i64) -> rusqlite::Result<&[StoredPoint]> {
        if self.block.as_ref().is_none_or(|(begins, _)| *begins != first) {
            let (job, attempt) = self.attempt;
            let sql = format!("SELECT {BLOCK_COLUMNS} FROM curves WHERE job = ?1 AND attempt = ?2 AND first = ?3");
            let mut statement = self.transaction.prepare_cached(&sql)?;
            let points = statement.query_row(params![to_sql(job.0), attempt, first], read_block)?;
            self.block = Some((first, points));
        }
        Ok(self.block.as_ref().map_or(&[], |(_, points)| points.as_slice()))
    }

    /// Returns the packed samples after a number, at least `count` if there are that many, and the number of
    /// unreadable samples.
    pub(super) fn packed_after(&self, after: i64, count: usize) -> rusqlite::Result<(Vec<StoredPoint>, u64)> {
        let (job, attempt) = self.attempt;
        let mut statement = self.transaction.prepare_cached(&format!("SELECT {BLOCK_COLUMNS} {BLOCKS_BETWEEN}"))?;
        let mut rows = statement.query(params![to_sql(job.0), attempt, after, i64::MAX])?;
        let (mut found, mut lost) = (Vec::new(), 0);
        while found.len() < count
            && let Some(row) = rows.next()?
        {
            match unless_damaged(read_block(row))? {
                Some(points) => found.extend(points.into_iter().filter(|point| point.number > after)),
                // The stored count may be damaged as well.
                None => lost += row.get::<_, i64>(4).ok().and_then(|points| u64::try_from(points).ok()).unwrap_or(1),
            }
        }
        Ok((found, lost))
    }

    /// Returns the numbers of the first and the last sample.
    pub(super) fn edges(&self) -> rusqlite::Result<Option<(i64, i64)>> {
        let (job, attempt) = self.attempt;
        let edge = |sql: &str| -> rusqlite::Result<Option<i64>> {
            self.transaction.prepare_cached(sql)?.query_row(params![to_sql(job.0), attempt], |row| row.get(0))
        };
        let of_rows =
            |edge| format!("SELECT {edge}(number) FROM samples WHERE job = ?1 AND attempt = ?2 AND node_rank = 0");
        let last = "SELECT (SELECT last FROM curves WHERE job = ?1 AND attempt = ?2 ORDER BY first DESC LIMIT 1)";
        let first = [edge(&of_rows("min"))?, edge("SELECT min(first) FROM curves WHERE job = ?1 AND attempt = ?2")?];
        let last = [edge(&of_rows("max"))?, edge(last)?];
        Ok(first.into_iter().flatten().min().zip(last.into_iter().flatten().max()))
    }
}

/// Returns the job's next attempt after this one that has samples.
pub(super) fn next_attempt(transaction: &Transaction<'_>, job: JobId, after: i64) -> rusqlite::Result<Option<i64>> {
    let mut found = Vec::new();
    for table in ["samples", "curves"] {
        let sql = format!("SELECT min(attempt) FROM {table} WHERE job = ?1 AND attempt > ?2");
        let next: Option<i64> =
            transaction.prepare_cached(&sql)?.query_row(params![to_sql(job.0), after], |row| row.get(0))?;
        found.extend(next);
    }
    Ok(found.into_iter().min())
}

/// Blocks made from sample rows, and the last number read if there may be more.
pub type PackedBlocks = (Vec<PackedBlock>, Option<i64>);

/// Packs up to `count` of an attempt's sample rows after a number into blocks. Also returns the last number
/// read, if there may be more. A damaged row stays a row, so that it is still reported.
pub(crate) fn blocks_of_rows(
    transaction: &Transaction<'_>,
    attempt: Attempt,
    after: i64,
    count: u32,
) -> rusqlite::Result<PackedBlocks> {
    let sql = format!(
        "SELECT {POINT_COLUMNS} FROM samples WHERE job = ?1 AND attempt = ?2 AND node_rank = 0 AND number > ?3
         ORDER BY number LIMIT ?4"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query(params![to_sql(attempt.0.0), attempt.1, after, count])?;
    let (mut blocks, mut points, mut last, mut seen) = (Vec::new(), Vec::new(), None, 0);
    while let Some(row) = rows.next()? {
        (seen, last) = (seen + 1, Some(row.get(0)?));
        let point = unless_damaged(read_row(row, attempt))?;
        if point.is_none() || points.len() == BLOCK_POINTS {
            blocks.extend(PackedBlock::of(&std::mem::take(&mut points)));
        }
        points.extend(point);
    }
    blocks.extend(PackedBlock::of(&points));
    Ok((blocks, last.filter(|_| seen == count)))
}

/// Replaces rows by the blocks made from them. Skips a block whose rows have changed. If older blocks overlap
/// with it, they are unpacked into rows, to be packed again with the others later.
pub(super) fn pack_rows(
    transaction: &Transaction<'_>,
    attempt: Attempt,
    blocks: &[PackedBlock],
) -> rusqlite::Result<()> {
    let job = to_sql(attempt.0.0);
    let which = "FROM samples WHERE job = ?1 AND attempt = ?2 AND node_rank = 0 AND number BETWEEN ?3 AND ?4";
    let mut count = transaction.prepare_cached(&format!("SELECT count(*) {which}"))?;
    let mut delete = transaction.prepare_cached(&format!("DELETE {which}"))?;
    for block in blocks {
        let range = params![job, attempt.1, block.first, block.last];
        if count.query_row(range, |row| row.get::<_, u32>(0))? != block.points {
            continue;
        }
        let curve = Curve::of(transaction, attempt);
        if curve.block_edges(block.first, block.last)?.iter().any(|(_, last)| *last >= block.first) {
            return unpack_attempt(transaction, attempt);
        }
        delete.execute(range)?;
        block.write(transaction, attempt)?;
    }
    Ok(())
}

/// Unpacks an attempt's readable blocks into rows.
pub(super) fn unpack_attempt(transaction: &Transaction<'_>, (job, attempt): Attempt) -> rusqlite::Result<()> {
    let (key, mut ids) = (params![to_sql(job.0), attempt], Vec::new());
    let mut statement = transaction.prepare_cached("SELECT id FROM curves WHERE job = ?1 AND attempt = ?2")?;
    let mut rows = statement.query(key)?;
    while let Some(row) = rows.next()? {
        ids.push(row.get::<_, i64>(0)?);
    }
    let mut read = transaction.prepare_cached(&format!("SELECT {BLOCK_COLUMNS} FROM curves WHERE id = ?1"))?;
    let mut delete = transaction.prepare_cached("DELETE FROM curves WHERE id = ?1")?;
    let sql = "INSERT OR IGNORE INTO samples (job, attempt, node_rank, number, at_unix_nanos, step, loss, tokens, sum)
               VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = transaction.prepare_cached(sql)?;
    for id in ids {
        let Some(points) = unless_damaged(read.query_row([id], read_block))? else { continue };
        for StoredPoint { number, at, step, tokens, loss } in points {
            let sum = sample_sum(&[to_sql(job.0), i64::from(attempt), 0, number, at, step, tokens], loss);
            insert.execute(params![to_sql(job.0), attempt, number, at, step, loss, tokens, sum])?;
        }
        delete.execute([id])?;
    }
    Ok(())
}

/// Removes the packed samples of an attempt with numbers in these ascending ranges.
pub(super) fn thin_blocks(
    transaction: &Transaction<'_>,
    attempt: Attempt,
    ranges: &[(i64, i64)],
) -> rusqlite::Result<()> {
    let (Some((from, _)), Some((_, to))) = (ranges.first(), ranges.last()) else { return Ok(()) };
    let mut curve = Curve::of(transaction, attempt);
    let goes = |number: i64| {
        let next = ranges.partition_point(|(_, to)| *to < number);
        ranges.get(next).is_some_and(|(from, _)| *from <= number)
    };
    for (first, _) in curve.block_edges(*from, *to)? {
        let Some(points) = unless_damaged(curve.block(first).map(<[_]>::to_vec))? else { continue };
        let staying: Vec<StoredPoint> = points.iter().filter(|point| !goes(point.number)).copied().collect();
        if staying.len() == points.len() {
            continue;
        }
        let sql = "DELETE FROM curves WHERE job = ?1 AND attempt = ?2 AND first = ?3";
        transaction.prepare_cached(sql)?.execute(params![to_sql(attempt.0.0), attempt.1, first])?;
        PackedBlock::of(&staying).map_or(Ok(()), |block| block.write(transaction, attempt))?;
    }
    Ok(())
}
