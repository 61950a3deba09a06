//! A stretch of one series as columns, and back.

use gangline_base::{Step, Timestamp};

use super::bytes::{Reader, Writer};
use super::column;
use super::rollup::{Bucket, Resolution, roll_up};

/// Rows of a full chunk: long enough to be coded well, short enough to be read for a chart.
pub(super) const CHUNK_ROWS: usize = 4_096;
/// The most rows of another release's chunk.
const CHUNK_ROWS_MAX: usize = 1 << 20;
/// Stands for a row without a step.
const NO_STEP: i64 = -1;
/// Columns of points: time, step, value.
const POINT_COLUMNS: usize = 3;
/// Columns of buckets: time, first and last step, count, not finite, min, max, sum, time of the last, last.
const BUCKET_COLUMNS: usize = 10;

/// Where a column is in its file.
pub(super) type Place = (u64, u32);

/// What a segment's index says of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkEntry {
    pub(super) resolution: Resolution,
    pub(super) rows: u64,
    /// Number of points behind the rows.
    pub(super) points: u64,
    /// The smallest and the largest time, in milliseconds.
    pub(super) times: (i64, i64),
    /// The smallest and the largest step.
    pub(super) steps: Option<(u64, u64)>,
    pub(super) columns: Vec<Place>,
}

impl ChunkEntry {
    /// Returns the entry of a chunk of these buckets, of which there is at least one; its columns are to be placed.
    pub(super) fn of(buckets: &[Bucket], resolution: Resolution) -> ChunkEntry {
        let times = buckets.iter().flat_map(|bucket| [bucket.at_ms, bucket.last_ms]);
        let steps = buckets.iter().filter_map(|bucket| bucket.steps);
        let (low, high) = (times.clone().min().unwrap_or_default(), times.max().unwrap_or_default());
        ChunkEntry {
            resolution,
            rows: super::bytes::wide(buckets.len()),
            points: buckets.iter().map(Bucket::points).sum(),
            times: (low, high),
            steps: steps.map(|(low, high)| (low.0, high.0)).reduce(|one, two| (one.0.min(two.0), one.1.max(two.1))),
            columns: Vec::new(),
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.unsigned(match self.resolution {
            Resolution::Point => 0,
            Resolution::Minute => 1,
            Resolution::Hour => 2,
        });
        [self.rows, self.points].into_iter().for_each(|number| to.unsigned(number));
        [self.times.0, self.times.1].into_iter().for_each(|time| to.unsigned(time.cast_unsigned()));
        to.optional(self.steps.map(|(low, _)| low));
        to.optional(self.steps.map(|(_, high)| high));
        for (offset, length) in &self.columns {
            to.unsigned(*offset);
            to.unsigned(u64::from(*length));
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<ChunkEntry> {
        let resolution = *Resolution::ALL.get(usize::try_from(from.unsigned()?).ok()?)?;
        let (rows, points) = (from.unsigned()?, from.unsigned()?);
        let times = (from.unsigned()?.cast_signed(), from.unsigned()?.cast_signed());
        let steps = from.optional()?.zip(from.optional()?);
        let columns = (0..columns_of(resolution)).map(|_| Some((from.unsigned()?, from.small()?)));
        let columns = columns.collect::<Option<Vec<_>>>()?;
        Some(ChunkEntry { resolution, rows, points, times, steps, columns })
    }
}

fn columns_of(resolution: Resolution) -> usize {
    if resolution == Resolution::Point { POINT_COLUMNS } else { BUCKET_COLUMNS }
}

/// Returns the columns of these buckets.
pub(super) fn encode(buckets: &[Bucket], resolution: Resolution) -> Vec<Vec<u8>> {
    let step = |step: Option<Step>| step.map_or(NO_STEP, |step| i64::try_from(step.0).unwrap_or(i64::MAX));
    let integers = |field: &dyn Fn(&Bucket) -> i64| column::encode(&buckets.iter().map(field).collect::<Vec<i64>>());
    let floats = |field: &dyn Fn(&Bucket) -> f64| column::encode(&buckets.iter().map(field).collect::<Vec<f64>>());
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let times = integers(&|bucket| bucket.at_ms);
    let steps = integers(&|bucket| step(bucket.steps.map(|(low, _)| low)));
    if resolution == Resolution::Point {
        return vec![times, steps, floats(&|bucket| bucket.last)];
    }
    vec![
        times,
        steps,
        integers(&|bucket| step(bucket.steps.map(|(_, high)| high))),
        integers(&|bucket| count(bucket.count)),
        integers(&|bucket| count(bucket.not_finite)),
        floats(&|bucket| bucket.min),
        floats(&|bucket| bucket.max),
        floats(&|bucket| bucket.sum),
        integers(&|bucket| bucket.last_ms),
        floats(&|bucket| bucket.last),
    ]
}

/// Returns the buckets of a chunk, or none if its columns aren't what its entry says.
pub(super) fn decode(entry: &ChunkEntry, columns: &[Vec<u8>]) -> Option<Vec<Bucket>> {
    let rows = usize::try_from(entry.rows).ok().filter(|rows| *rows <= CHUNK_ROWS_MAX)?;
    let integers = |place: usize| column::decode::<i64>(columns.get(place)?, rows);
    let floats = |place: usize| column::decode::<f64>(columns.get(place)?, rows);
    let step = |step: i64| u64::try_from(step).ok().map(Step);
    let (times, steps) = (integers(0)?, integers(1)?);
    if entry.resolution == Resolution::Point {
        let values = floats(2)?;
        let point = |row: usize| point_bucket(times[row], step(steps[row]), values[row]);
        return Some((0..rows).map(point).collect());
    }
    let (last_steps, counts, not_finite) = (integers(2)?, integers(3)?, integers(4)?);
    let (min, max, sum, last_times, last) = (floats(5)?, floats(6)?, floats(7)?, integers(8)?, floats(9)?);
    let bucket = |row: usize| Bucket {
        at_ms: times[row],
        steps: step(steps[row]).zip(step(last_steps[row])),
        count: counts[row].unsigned_abs(),
        not_finite: not_finite[row].unsigned_abs(),
        min: min[row],
        max: max[row],
        sum: sum[row],
        last_ms: last_times[row],
        last: last[row],
    };
    Some((0..rows).map(bucket).collect())
}

fn point_bucket(at_ms: i64, step: Option<Step>, value: f64) -> Bucket {
    let point = super::key::Point { at: Timestamp::EPOCH, step, value };
    Bucket { at_ms, last_ms: at_ms, ..Bucket::of(&point) }
}

/// Returns the buckets of a resolution that stand for these points.
pub(super) fn at_resolution(points: &[Bucket], resolution: Resolution) -> Vec<Bucket> {
    roll_up(points.to_vec(), resolution)
}
