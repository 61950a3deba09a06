//! Merges small segments into larger ones and drops what is too old.
//!
//! [`MERGE_WIDTH`] segments of a level become one of the next, so their number grows with the logarithm of the points, and
//! chunks become full. Ages are those of the newest row of a chunk: nothing goes early.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::chunk::{CHUNK_ROWS, ChunkEntry};
use super::error::Error;
use super::key::{Scope, Series};
use super::rollup::{Bucket, Resolution, roll_up};
use super::segment::{Index, Meta, Segment};
use super::writer::SegmentWriter;

/// Segments of a level that are merged at a time.
const MERGE_WIDTH: usize = 8;
/// Chunks with at least this many rows are copied as they are.
const FULL_ENOUGH: u64 = 3 * (CHUNK_ROWS as u64) / 4;

/// How long values are kept, by resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Every point.
    pub points: Duration,
    /// Minutes.
    pub minutes: Duration,
    /// Hours.
    pub hours: Duration,
    /// Bytes of all segments. Beyond that the oldest points go before their time, then minutes, then hours.
    pub bytes_max: u64,
}

const DAY: Duration = Duration::from_secs(24 * 3_600);

impl Default for Keep {
    fn default() -> Self {
        Keep {
            points: DAY.saturating_mul(30),
            minutes: DAY.saturating_mul(180),
            hours: DAY.saturating_mul(1_825),
            bytes_max: 50 << 30,
        }
    }
}

impl Keep {
    /// Returns the time before which rows of this resolution are too old.
    fn horizon(&self, resolution: Resolution, now_ms: i64) -> i64 {
        let kept = match resolution {
            Resolution::Point => self.points,
            Resolution::Minute => self.minutes,
            Resolution::Hour => self.hours,
        };
        now_ms.saturating_sub(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX))
    }

    fn is_old(&self, resolution: Resolution, newest_ms: i64, now_ms: i64) -> bool {
        newest_ms < self.horizon(resolution, now_ms)
    }
}

/// What to do next.
pub(super) struct Due {
    /// Segments that become one.
    pub(super) inputs: Vec<Arc<Segment>>,
    /// A resolution that goes before its time, for lack of room.
    drops: Option<Resolution>,
}

/// Returns what to merge next, or which segment has something to drop.
pub(super) fn due(segments: &[Arc<Segment>], keep: &Keep, now_ms: i64) -> Option<Due> {
    let levels: BTreeSet<u32> = segments.iter().map(|segment| segment.meta.level).collect();
    for level in levels {
        let of_level: Vec<_> = segments.iter().filter(|segment| segment.meta.level == level).cloned().collect();
        if of_level.len() >= MERGE_WIDTH {
            return Some(Due { inputs: of_level.into_iter().take(MERGE_WIDTH).collect(), drops: None });
        }
    }
    let has_old = |segment: &&Arc<Segment>| {
        let mut newest = segment.meta.newest_ms.iter().zip(Resolution::ALL);
        newest.any(|(newest, resolution)| newest.is_some_and(|newest| keep.is_old(resolution, newest, now_ms)))
    };
    let old = segments.iter().find(has_old).map(|segment| Due { inputs: vec![Arc::clone(segment)], drops: None });
    old.or_else(|| beyond_room(segments, keep))
}

/// Returns the oldest segment with the finest rows, if all segments together take too much room.
fn beyond_room(segments: &[Arc<Segment>], keep: &Keep) -> Option<Due> {
    let bytes = segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    if bytes <= keep.bytes_max {
        return None;
    }
    Resolution::ALL.into_iter().find_map(|resolution| {
        let newest = |segment: &&Arc<Segment>| segment.meta.newest_ms[resolution as usize];
        let oldest = segments.iter().filter(|segment| newest(segment).is_some()).min_by_key(newest)?;
        Some(Due { inputs: vec![Arc::clone(oldest)], drops: Some(resolution) })
    })
}

/// Makes one segment of several. Chunks that can't be read are left out and counted.
pub(super) fn merge(
    folder: &Path,
    id: u64,
    Due { inputs, drops }: &Due,
    (keep, now_ms): (&Keep, i64),
) -> Result<(Segment, u64), Error> {
    let newest = inputs.iter().max_by_key(|segment| segment.meta.log_through);
    let is_alone = inputs.len() == 1;
    let meta = Meta {
        level: inputs.iter().map(|segment| segment.meta.level).max().unwrap_or_default() + u32::from(!is_alone),
        replaces: inputs.iter().map(|segment| segment.id).collect(),
        log_through: newest.map_or(0, |segment| segment.meta.log_through),
        cursors: newest.map(|segment| segment.meta.cursors.clone()).unwrap_or_default(),
        ..Meta::default()
    };
    let writer = SegmentWriter::create(folder, id, meta)?;
    let mut merging = Merging { writer, keep, drops: *drops, now_ms, inputs, unreadable_chunks: 0 };
    let scopes: BTreeSet<&Scope> = inputs.iter().flat_map(|segment| segment.scopes()).collect();
    for scope in scopes {
        merging.scope(scope)?;
    }
    Ok((merging.writer.finish()?, merging.unreadable_chunks))
}

struct Merging<'m> {
    writer: SegmentWriter,
    keep: &'m Keep,
    drops: Option<Resolution>,
    now_ms: i64,
    inputs: &'m [Arc<Segment>],
    unreadable_chunks: u64,
}

impl Merging<'_> {
    fn scope(&mut self, scope: &Scope) -> Result<(), Error> {
        let mut indexes: Vec<Index> = Vec::new();
        for segment in self.inputs {
            let index = segment.index(scope);
            indexes.push(match index {
                Err(Error::Damaged { .. }) => {
                    self.unreadable_chunks += 1;
                    Index::new()
                }
                index => index?,
            });
        }
        let all: BTreeSet<Series> = indexes.iter().flat_map(|index| index.keys().cloned()).collect();
        for series in all {
            let drops = self.drops;
            for resolution in Resolution::ALL.into_iter().filter(|resolution| drops != Some(*resolution)) {
                let chunks = indexes.iter().enumerate().flat_map(|(input, index)| {
                    index.get(&series).into_iter().flatten().map(move |chunk| (input, chunk))
                });
                let kept = |(_, chunk): &(usize, &ChunkEntry)| {
                    chunk.resolution == resolution && !self.keep.is_old(resolution, chunk.times.1, self.now_ms)
                };
                let chunks: Vec<(usize, &ChunkEntry)> = chunks.filter(kept).collect();
                self.series(&series, resolution, &chunks)?;
            }
        }
        Ok(())
    }

    fn series(
        &mut self,
        series: &Series,
        resolution: Resolution,
        chunks: &[(usize, &ChunkEntry)],
    ) -> Result<(), Error> {
        let mut loose: Vec<Bucket> = Vec::new();
        for (input, chunk) in chunks {
            let segment = &self.inputs[*input];
            let is_copied = chunk.rows >= FULL_ENOUGH || chunks.len() == 1;
            let read = if is_copied {
                segment.columns(chunk).map(|columns| (columns, Vec::new()))
            } else {
                segment.read(chunk).map(|buckets| (Vec::new(), buckets))
            };
            match read {
                Err(Error::Damaged { .. }) => self.unreadable_chunks += 1,
                Err(error) => return Err(error),
                Ok((columns, _)) if is_copied => self.writer.add_chunk(series, (*chunk).clone(), &columns)?,
                Ok((_, buckets)) => loose.extend(buckets),
            }
        }
        self.writer.add(series, resolution, &roll_up(loose, resolution))
    }
}
