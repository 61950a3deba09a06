//! Reads a job's curve from the samples, with fewer points, by seeks. The cost depends on the number of
//! points requested and not on the length of the training.

use gangline_base::{JobId, Timestamp};
use rusqlite::{Transaction, params};

use super::block::StoredPoint;
use super::curve::{Curve, POINT_COLUMNS, next_attempt, read_row};
use super::store::{from_sql, stride, to_sql, unless_damaged};
use crate::db::damaged;

/// The fewest samples among which a loss is looked for.
const LOOK_AHEAD_MIN: u64 = 64;

/// The most points read of a thinned attempt.
const LEFT_POINTS_MAX: u32 = 1_000;

/// A job's curve, with as many points as were requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// Ordered by attempt and sample number.
    pub points: Vec<SeriesPoint>,
    /// Points that can't be read because their rows are damaged.
    pub damaged: u64,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesPoint {
    /// The number of the attempt within its job.
    pub attempt: u32,
    /// When the step ended.
    pub at: Timestamp,
    /// The step.
    pub step: u64,
    /// `None` if the ranks reported no loss, or one that isn't finite.
    pub loss: Option<f64>,
    /// Tokens since the attempt began.
    pub tokens: u64,
}

/// The range of one attempt's sample numbers.
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

/// Returns at most `points_max` evenly spread samples of a job's first node, including the first and the
/// last. In place of a sample without a loss, the next one with a loss is taken. A thinned curve
/// has only its striking points left: all of them are returned, or an evenly spread part.
pub(crate) fn read_series(
    transaction: &Transaction<'_>,
    job: JobId,
    points_max: u32,
    is_thinned: bool,
) -> rusqlite::Result<Series> {
    let spans = spans(transaction, job)?;
    let mut series = Series::default();
    if is_thinned {
        left_points(transaction, job, (&spans, points_max), &mut series)?;
        return Ok(series);
    }
    let total: u64 = spans.iter().map(Span::length).sum();
    let count = total.min(u64::from(points_max.max(2)));
    let (mut at, mut before) = (0, 0);
    let mut curve = spans.first().map(|span| Curve::of(transaction, (job, span.attempt)));
    for index in 0..count {
        let position = if count == 1 { 0 } else { spread(index, count - 1, total - 1) };
        while position - before >= spans[at].length() {
            before += spans[at].length();
            at += 1;
            curve = Some(Curve::of(transaction, (job, spans[at].attempt)));
        }
        let until = if index + 1 == count { total } else { spread(index + 1, count - 1, total - 1) };
        let number = spans[at].first + (position - before);
        let last = spans[at].last.min(number + (until - position) - 1);
        let ahead = LOOK_AHEAD_MIN.max(2 * stride(number)) - 1;
        let Some(curve) = &mut curve else { break };
        match unless_damaged(curve.first_between(to_sql(number), to_sql(last.min(number + ahead))))? {
            Some(point) => series.points.extend(point.map(|point| shown(spans[at].attempt, point))),
            None => series.damaged += 1,
        }
    }
    Ok(series)
}

/// Reads all points of a thinned curve: they are unevenly spaced, so seeks would miss them, and there are
/// few.
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
        let attempt = (job, span.attempt);
        let (mut left, lost) =
            Curve::of(transaction, attempt).packed_after(-1, usize::try_from(LEFT_POINTS_MAX).unwrap_or(usize::MAX))?;
        series.damaged += lost;
        let mut rows = statement.query(params![to_sql(job.0), span.attempt, LEFT_POINTS_MAX])?;
        while let Some(row) = rows.next()? {
            match unless_damaged(read_row(row, attempt))? {
                Some(point) => left.push(point),
                None => series.damaged += 1,
            }
        }
        left.sort_by_key(|point| point.number);
        left.dedup_by_key(|point| point.number);
        points.extend(left.into_iter().map(|point| shown(span.attempt, point)));
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

/// Returns the place of `index`, among `steps`, between 0 and `last`.
fn spread(index: u64, steps: u64, last: u64) -> u64 {
    let place = u128::from(index) * u128::from(last) / u128::from(steps);
    u64::try_from(place).expect("a fraction of a u64 is one")
}

/// Returns the span of each attempt, found by seeks.
fn spans(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<Span>> {
    let (mut spans, mut after) = (Vec::new(), 0);
    while let Some(next) = next_attempt(transaction, job, after)? {
        after = next;
        let attempt = u32::try_from(next).map_err(|_| damaged("the number of an attempt".to_owned()))?;
        if let Some((first, last)) = Curve::of(transaction, (job, attempt)).edges()? {
            spans.push(Span { attempt, first: from_sql(first), last: from_sql(last) });
        }
    }
    Ok(spans)
}

fn shown(attempt: u32, point: StoredPoint) -> SeriesPoint {
    let StoredPoint { at, step, tokens, loss, .. } = point;
    let at = Timestamp::from_unix_nanos(from_sql(at));
    SeriesPoint { attempt, at, step: from_sql(step), loss, tokens: from_sql(tokens) }
}
