//! A job's curve from the table of samples, thinned out by seeking rather than by reading all of it: the cost follows the
//! points asked for, not the length of the training.

use gangline_base::{JobId, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::{from_sql, sample_sum, stride, to_sql, unless_damaged};
use crate::db::damaged;
use crate::wire::{Point, Series, Time};

/// Samples that are looked through for one with a loss, at least.
const LOOK_AHEAD_MIN: u64 = 64;

/// What of a sample is shown.
const POINT_COLUMNS: &str = "at_unix_nanos, step, loss, tokens, sum, number";
/// Points of a thinned attempt that are read at most.
const LEFT_POINTS_MAX: u32 = 1_000;

/// The numbers of the samples of one attempt.
struct Span {
    attempt: u32,
    first: u64,
    last: u64,
}

impl Span {
    fn length(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The curve of a job's first node: evenly spread samples, the first and the last among them, at most `points_max`.
/// Where samples without a loss lie between, the next one with a loss is taken.
/// `thinned_at`: since when only points are left that stand out, which then are all of them, or evenly many.
pub(crate) fn read_series(
    transaction: &Transaction<'_>,
    job: JobId,
    points_max: u32,
    thinned_at: Option<Timestamp>,
) -> rusqlite::Result<Series> {
    let spans = spans(transaction, job)?;
    let thinned = thinned_at.map(Time);
    let mut series = Series { job: job.to_string(), points: Vec::new(), thinned_at: thinned, damaged: 0 };
    if thinned_at.is_some() {
        left_points(transaction, job, (&spans, points_max), &mut series)?;
        return Ok(series);
    }
    let total: u64 = spans.iter().map(Span::length).sum();
    let count = total.min(u64::from(points_max.max(2)));
    let (mut at, mut before) = (0, 0);
    for index in 0..count {
        let position = if count == 1 { 0 } else { spread(index, count - 1, total - 1) };
        while position - before >= spans[at].length() {
            before += spans[at].length();
            at += 1;
        }
        let until = if index + 1 == count { total } else { spread(index + 1, count - 1, total - 1) };
        let number = spans[at].first + (position - before);
        let last = spans[at].last.min(number + (until - position) - 1);
        let ahead = LOOK_AHEAD_MIN.max(2 * stride(number)) - 1;
        match unless_damaged(point(transaction, job, spans[at].attempt, (number, last.min(number + ahead))))? {
            Some(point) => series.points.extend(point),
            None => series.damaged += 1,
        }
    }
    Ok(series)
}

/// What a thinning has left lies unevenly, so that seeking would miss it; there are few enough to read all.
fn left_points(
    transaction: &Transaction<'_>,
    job: JobId,
    (spans, points_max): (&[Span], u32),
    series: &mut Series,
) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {POINT_COLUMNS} FROM samples WHERE job = ?1 AND attempt = ?2 AND node_rank = 0 ORDER BY number LIMIT ?3"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut points = Vec::new();
    for span in spans {
        let mut rows = statement.query(params![to_sql(job.0), span.attempt, LEFT_POINTS_MAX])?;
        while let Some(row) = rows.next()? {
            match unless_damaged(read_point(row, (job, span.attempt)))? {
                Some(point) => points.push(point),
                None => series.damaged += 1,
            }
        }
    }
    let (total, count) = (points.len() as u64, u64::from(points_max.max(2)));
    if total <= count {
        series.points = points;
        return Ok(());
    }
    let chosen = (0..count).map(|index| spread(index, count - 1, total - 1));
    series.points = chosen.filter_map(|place| points.get(usize::try_from(place).ok()?).copied()).collect();
    Ok(())
}

/// `index` of `steps` as a place from 0 to `last`.
fn spread(index: u64, steps: u64, last: u64) -> u64 {
    let place = u128::from(index) * u128::from(last) / u128::from(steps);
    u64::try_from(place).expect("a fraction of a u64 is one")
}

/// By attempt, each found by seeks.
fn spans(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<Span>> {
    let job = to_sql(job.0);
    let next_sql = "SELECT min(attempt) FROM samples WHERE job = ?1 AND attempt > ?2";
    let edge_sql =
        |edge| format!("SELECT {edge}(number) FROM samples WHERE job = ?1 AND attempt = ?2 AND node_rank = 0");
    let mut next = transaction.prepare_cached(next_sql)?;
    let mut first = transaction.prepare_cached(&edge_sql("min"))?;
    let mut last = transaction.prepare_cached(&edge_sql("max"))?;
    let mut spans = Vec::new();
    let mut after: u32 = 0;
    while let Some(attempt) = next.query_row(params![job, after], |row| row.get::<_, Option<u32>>(0))? {
        let edges: (Option<i64>, Option<i64>) = (
            first.query_row(params![job, attempt], |row| row.get(0))?,
            last.query_row(params![job, attempt], |row| row.get(0))?,
        );
        if let (Some(first), Some(last)) = edges {
            spans.push(Span { attempt, first: from_sql(first), last: from_sql(last) });
        }
        after = attempt;
    }
    Ok(spans)
}

/// The first sample with a loss among these numbers, or the first at all.
fn point(
    transaction: &Transaction<'_>,
    job: JobId,
    attempt: u32,
    (from, to): (u64, u64),
) -> rusqlite::Result<Option<Point>> {
    let sql = format!(
        "SELECT {POINT_COLUMNS} FROM samples
         WHERE job = ?1 AND attempt = ?2 AND node_rank = 0 AND number BETWEEN ?3 AND ?4
         ORDER BY loss IS NULL, number LIMIT 1"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let range = params![to_sql(job.0), attempt, to_sql(from), to_sql(to)];
    statement.query_row(range, |row| read_point(row, (job, attempt))).optional()
}

/// From a row of [`POINT_COLUMNS`], if it is what was written.
fn read_point(row: &Row<'_>, (job, attempt): (JobId, u32)) -> rusqlite::Result<Point> {
    let number: i64 = row.get(5)?;
    let what = || damaged(format!("sample {number} of attempt {attempt} of {job}"));
    let read = || Ok::<_, rusqlite::Error>(([row.get(0)?, row.get(1)?, row.get(3)?], row.get(2)?, row.get(4)?));
    let ([at, step, tokens], loss, sum): ([i64; 3], Option<f64>, Option<i64>) = read().map_err(|_| what())?;
    let written = sample_sum(&[to_sql(job.0), i64::from(attempt), 0, number, at, step, tokens], loss);
    if sum.is_some_and(|sum| sum != i64::from(written)) {
        return Err(what());
    }
    let at = Time(Timestamp::from_unix_nanos(from_sql(at)));
    Ok(Point { attempt, at, step: from_sql(step), loss, tokens: from_sql(tokens) })
}
