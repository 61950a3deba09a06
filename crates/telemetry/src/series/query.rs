//! Questions about the series of a scope, answered with a limited number of points.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_base::{AttemptNumber, NodeName, Step, Timestamp};

use super::chunk::ChunkEntry;
use super::error::Error;
use super::key::{Point, Scope, Series, Source};
use super::rollup::{Bucket, Resolution, fit, ms, roll_up};
use super::segment::Segment;

/// What is asked for. Ranges include both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The job or node.
    pub scope: Scope,
    /// Names of metrics; all if there are none.
    pub metrics: Vec<String>,
    /// Whether series of a metric's parts are asked for as well, whose names go on with a dot, such as `host.disk_busy_ratio.sda`.
    pub with_parts: bool,
    /// Only this attempt.
    pub attempt: Option<AttemptNumber>,
    /// Only this node.
    pub node: Option<NodeName>,
    /// Only this rank.
    pub rank: Option<u32>,
    /// Only this device.
    pub device: Option<u32>,
    /// The time range.
    pub times: (Option<Timestamp>, Option<Timestamp>),
    /// The range of steps; points without a step are left out if there is one.
    pub steps: (Option<Step>, Option<Step>),
    /// The finest rows to read, if not the coarsest that fill the budget: of a short time range only these are exact.
    pub resolution: Option<Resolution>,
    /// The most points of each curve.
    pub points_max: usize,
    /// The most curves; further ones are counted.
    pub curves_max: usize,
}

impl Query {
    /// Returns a query for all series of a scope.
    #[must_use]
    pub fn all(scope: Scope, points_max: usize, curves_max: usize) -> Query {
        let (times, steps) = ((None, None), (None, None));
        let (attempt, node, rank, device) = (None, None, None, None);
        let (metrics, with_parts, resolution) = (Vec::new(), false, None);
        Query {
            scope,
            metrics,
            with_parts,
            attempt,
            node,
            rank,
            device,
            times,
            steps,
            resolution,
            points_max,
            curves_max,
        }
    }

    /// Reports whether a series of the scope is asked for.
    #[must_use]
    pub fn asks_for(&self, source: &Source, metric: &str) -> bool {
        let is = |wanted: bool, same: bool| !wanted || same;
        let is_named = |name: &String| {
            let rest = metric.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || (self.with_parts && rest.starts_with('.')))
        };
        is(!self.metrics.is_empty(), self.metrics.iter().any(is_named))
            && is(self.attempt.is_some(), self.attempt == source.attempt)
            && is(self.node.is_some(), self.node == source.node)
            && is(self.rank.is_some(), self.rank == source.rank)
            && is(self.device.is_some(), self.device == source.device)
    }

    fn times_ms(&self) -> (i64, i64) {
        (self.times.0.map_or(i64::MIN, ms), self.times.1.map_or(i64::MAX, ms))
    }

    /// Reports whether only some steps are asked for.
    #[must_use]
    pub const fn has_steps(&self) -> bool {
        self.steps.0.is_some() || self.steps.1.is_some()
    }

    /// Returns the first and the last step that are asked for.
    #[must_use]
    pub fn steps_wanted(&self) -> (u64, u64) {
        (self.steps.0.map_or(0, |step| step.0), self.steps.1.map_or(u64::MAX, |step| step.0))
    }

    /// Reports whether something with these times, in milliseconds, and steps may be asked for.
    #[must_use]
    pub fn touches(&self, times: (i64, i64), steps: Option<(u64, u64)>) -> bool {
        let (from, to) = self.times_ms();
        let (low, high) = self.steps_wanted();
        let in_steps = !self.has_steps() || steps.is_some_and(|(first, last)| first <= high && low <= last);
        times.0 <= to && from <= times.1 && in_steps
    }
}

/// One series, with at most as many points as were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is.
    pub series: Series,
    /// What its points were made from.
    pub resolution: Resolution,
    /// The points, in time.
    pub buckets: Vec<Bucket>,
    /// Number of points that are damaged on the disk.
    pub unreadable: u64,
}

/// Answers of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The curves, by source and metric.
    pub curves: Vec<Curve>,
    /// Number of curves beyond the limit.
    pub left_out: u64,
    /// Number of files whose list of series is damaged on the disk.
    pub damaged_files: u64,
}

/// A series' stored and unstored parts.
#[derive(Default)]
struct Parts {
    chunks: Vec<(usize, ChunkEntry)>,
    points: Vec<Point>,
}

/// What a query looks at: a moment of the store.
pub(super) struct Moment {
    pub(super) segments: Vec<Arc<Segment>>,
    /// The points of the scope that are in no segment.
    pub(super) points: BTreeMap<Series, Vec<Point>>,
}

impl Moment {
    /// Answers a query.
    ///
    /// # Errors
    /// [`Error::Io`] if a file can't be read. What is damaged is left out and counted.
    pub(super) fn answer(mut self, query: &Query) -> Result<Answer, Error> {
        let (parts, damaged_files) = self.parts(query)?;
        let mut answer = Answer { damaged_files, ..Answer::default() };
        for (series, parts) in parts {
            if answer.curves.len() >= query.curves_max {
                answer.left_out += 1;
            } else {
                answer.curves.extend(self.curve(query, series, &parts)?);
            }
        }
        Ok(answer)
    }

    /// Returns the series that are asked for, with the parts that may have something.
    fn parts(&mut self, query: &Query) -> Result<(BTreeMap<Series, Parts>, u64), Error> {
        let mut parts: BTreeMap<Series, Parts> = BTreeMap::new();
        let mut damaged = 0;
        for (number, segment) in self.segments.iter().enumerate() {
            let index = match segment.index(&query.scope) {
                Ok(index) => index,
                Err(Error::Damaged { .. }) => {
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (series, chunks) in index {
                let is_wanted = query.asks_for(&series.source, &series.metric);
                let chunks = chunks.into_iter().filter(|chunk| is_wanted && query.touches(chunk.times, chunk.steps));
                let chunks: Vec<_> = chunks.map(|chunk| (number, chunk)).collect();
                if !chunks.is_empty() {
                    parts.entry(series).or_default().chunks.extend(chunks);
                }
            }
        }
        for (series, points) in std::mem::take(&mut self.points) {
            if query.asks_for(&series.source, &series.metric) {
                parts.entry(series).or_default().points = points;
            }
        }
        Ok((parts, damaged))
    }

    /// Returns the curve at the coarsest resolution that fills the budget, or else at a finer one.
    fn curve(&self, query: &Query, series: Series, parts: &Parts) -> Result<Option<Curve>, Error> {
        let rows = |resolution: Resolution| {
            let chunks = parts.chunks.iter().filter(|(_, chunk)| chunk.resolution == resolution);
            chunks.fold(0_u64, |sum, (_, chunk)| sum.saturating_add(chunk.rows))
        };
        let budget = query.points_max.max(1);
        let mut resolution = Resolution::Point;
        if rows(Resolution::Point) + super::bytes::wide(parts.points.len()) > super::bytes::wide(budget) {
            let is_enough = |resolution: &Resolution| rows(*resolution) >= super::bytes::wide(budget);
            resolution = Resolution::ALL.into_iter().rev().find(is_enough).unwrap_or(Resolution::Point);
            if budget == 1 {
                resolution = Resolution::Hour;
            }
        }
        let resolution = query.resolution.unwrap_or(resolution);
        let (buckets, unreadable) = self.read(query, parts, resolution)?;
        let buckets = fit(buckets, budget);
        Ok((!buckets.is_empty() || unreadable > 0).then_some(Curve { series, resolution, buckets, unreadable }))
    }

    /// Reads a series at a resolution; where that is no longer kept, at a coarser one.
    fn read(&self, query: &Query, parts: &Parts, resolution: Resolution) -> Result<(Vec<Bucket>, u64), Error> {
        let (mut buckets, mut unreadable) = (parts.points.iter().map(Bucket::of).collect::<Vec<_>>(), 0);
        // Where finer rows begin; rows of a coarser resolution count only before that.
        let mut begins = i64::MAX;
        for resolution in Resolution::ALL.into_iter().filter(|other| *other >= resolution) {
            let chunks = parts.chunks.iter().filter(|(_, chunk)| chunk.resolution == resolution);
            let mut found = Vec::new();
            for (segment, chunk) in chunks.clone().filter(|(_, chunk)| chunk.times.0 < begins) {
                match self.segments[*segment].read(chunk) {
                    Ok(rows) => found.extend(rows),
                    Err(Error::Damaged { .. }) => unreadable += chunk.points,
                    Err(error) => return Err(error),
                }
            }
            let width = resolution.width_ms().unwrap_or_default();
            buckets.extend(found.into_iter().filter(|bucket| begins == i64::MAX || bucket.at_ms + width <= begins));
            begins = chunks.map(|(_, chunk)| chunk.times.0).min().map_or(begins, |first| begins.min(first));
        }
        let buckets = if resolution == Resolution::Point {
            buckets.sort_by_key(|bucket| (bucket.at_ms, bucket.steps.map(|(first, _)| first)));
            buckets
        } else {
            roll_up(buckets, resolution)
        };
        let (from, to) = query.times_ms();
        let width = resolution.width_ms().unwrap_or_default();
        let times =
            |bucket: &Bucket| if width == 0 { (bucket.at_ms, bucket.at_ms) } else { (bucket.at_ms, bucket.last_ms) };
        let is_wanted = |bucket: &Bucket| {
            let steps = bucket.steps.map(|(first, last)| (first.0, last.0));
            let (first, last) = times(bucket);
            first <= to && from <= last && query.touches((first, last), steps)
        };
        Ok((buckets.into_iter().filter(is_wanted).collect(), unreadable))
    }
}
