//! The head: the points that aren't in a segment yet, and what has been stored of each source.

use std::collections::{BTreeMap, BTreeSet};

use super::bytes::{Reader, Writer, wide};
use super::error::Error;
use super::key::{Batch, Point, Scope, Source};
use super::rollup::ms;

/// Limits of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Points in memory from which on a segment is written.
    pub head_points: usize,
    /// Points in memory from which on batches are refused, because segments can't be written.
    pub head_points_max: usize,
    /// Bytes of the log from which on a segment is written.
    pub log_bytes: u64,
    /// Names of metrics of one source; values of further ones are refused.
    pub names_per_source_max: usize,
    /// Series that are written to at a time; values of further ones are refused.
    pub series_max: usize,
    /// Sources whose rows are remembered; those of further ones are refused until others have been silent for a week.
    pub sources_max: usize,
    /// Bytes of a metric's name.
    pub name_bytes_max: usize,
    /// Rows of a batch.
    pub rows_per_batch_max: usize,
    /// Values of a batch.
    pub values_per_batch_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_points: 1 << 19,
            head_points_max: 1 << 20,
            log_bytes: 128 << 20,
            names_per_source_max: 1_000,
            series_max: 500_000,
            sources_max: 200_000,
            name_bytes_max: 200,
            rows_per_batch_max: 10_000,
            values_per_batch_max: 100_000,
        }
    }
}

/// Silence after which a source is forgotten: by then nothing is sent again.
const FORGET_AFTER_MS: i64 = 7 * 24 * 3_600_000;

/// How far a source's rows are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The number of the first row that isn't stored.
    pub(super) next: u64,
    /// When the source was last heard, by the newest row.
    pub(super) heard_ms: i64,
}

impl Cursor {
    pub(super) fn write(&self, to: &mut Writer) {
        to.unsigned(self.next);
        to.unsigned(self.heard_ms.unsigned_abs());
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Cursor> {
        Some(Cursor { next: from.unsigned()?, heard_ms: from.unsigned()?.cast_signed() })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Head {
    points: BTreeMap<Source, BTreeMap<String, Vec<Point>>>,
    count: usize,
    pub(super) cursors: BTreeMap<Source, Cursor>,
    names: BTreeMap<Source, BTreeSet<String>>,
    names_count: usize,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) next: u64,
    pub(super) values: u64,
    pub(super) refused: u64,
}

impl Head {
    pub(super) fn with_cursors(cursors: BTreeMap<Source, Cursor>) -> Head {
        Head { cursors, ..Head::default() }
    }

    /// Number of points.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Number of the source's rows that are stored.
    pub(super) fn next(&self, source: &Source) -> u64 {
        self.cursors.get(source).map_or(0, |cursor| cursor.next)
    }

    /// Takes in a batch that is in the log. Rows that are stored already are skipped.
    pub(super) fn take(&mut self, batch: &Batch, limits: &Limits) -> Taken {
        let next = self.next(&batch.source);
        let mut taken = Taken { next, ..Taken::default() };
        let end = batch.first.saturating_add(wide(batch.rows.len()));
        let skip = usize::try_from(next.saturating_sub(batch.first)).unwrap_or(usize::MAX);
        if end <= next {
            return taken;
        }
        if self.cursors.len() >= limits.sources_max && !self.cursors.contains_key(&batch.source) {
            let refused = batch.rows.iter().map(|row| wide(row.values.len())).sum();
            return Taken { next: end, refused, values: 0 };
        }
        let known = self.know(&batch.source, &batch.names, limits);
        let of_source = self.points.entry(batch.source.clone()).or_default();
        let mut lists: Vec<Option<Vec<Point>>> = known.iter().map(|known| known.then(Vec::new)).collect();
        for row in batch.rows.iter().skip(skip) {
            for (name, value) in &row.values {
                let list = usize::try_from(*name).ok().and_then(|name| lists.get_mut(name)?.as_mut());
                let Some(list) = list else {
                    taken.refused += 1;
                    continue;
                };
                list.push(Point { at: row.at, step: row.step, value: *value });
                taken.values += 1;
            }
        }
        for (name, list) in batch.names.iter().zip(lists) {
            let Some(list) = list.filter(|list| !list.is_empty()) else { continue };
            self.count += list.len();
            match of_source.get_mut(name) {
                Some(points) => points.extend(list),
                None => drop(of_source.insert(name.clone(), list)),
            }
        }
        let heard_ms = batch.rows.last().map_or(0, |row| ms(row.at));
        let cursor = self.cursors.entry(batch.source.clone()).or_default();
        *cursor = Cursor { next: end, heard_ms: cursor.heard_ms.max(heard_ms) };
        taken.next = end;
        taken
    }

    /// Says which of these names may have points, and remembers those.
    fn know(&mut self, source: &Source, names: &[String], limits: &Limits) -> Vec<bool> {
        let known = self.names.entry(source.clone()).or_default();
        let mut may_have = |name: &String| {
            if known.contains(name) {
                return true;
            }
            let is_fine = !name.is_empty() && name.len() <= limits.name_bytes_max && !name.contains(char::is_control);
            let fits = known.len() < limits.names_per_source_max && self.names_count < limits.series_max;
            if is_fine && fits {
                known.insert(name.clone());
                self.names_count += 1;
            }
            is_fine && fits
        };
        names.iter().map(&mut may_have).collect()
    }

    /// Returns the points of a scope.
    pub(super) fn of_scope(&self, scope: &Scope) -> impl Iterator<Item = (&Source, &BTreeMap<String, Vec<Point>>)> {
        self.points.range(scope.lowest()..).take_while(move |(source, _)| source.scope == *scope)
    }

    /// Returns all points.
    pub(super) fn all(&self) -> &BTreeMap<Source, BTreeMap<String, Vec<Point>>> {
        &self.points
    }

    /// Forgets the points, which are in a segment now, and the sources that have been silent for long.
    pub(super) fn flushed(&mut self) {
        (self.points, self.count) = (BTreeMap::new(), 0);
        let newest = self.cursors.values().map(|cursor| cursor.heard_ms).max().unwrap_or_default();
        self.cursors.retain(|_, cursor| newest.saturating_sub(cursor.heard_ms) < FORGET_AFTER_MS);
        let cursors = &self.cursors;
        self.names.retain(|source, _| cursors.contains_key(source));
        self.names_count = self.names.values().map(BTreeSet::len).sum();
    }
}

/// Checks a batch before anything is done with it.
pub(super) fn check(batch: &Batch, limits: &Limits) -> Result<(), Error> {
    let values: usize = batch.rows.iter().map(|row| row.values.len()).sum();
    let refused = |what| Err(Error::Refused { what });
    if batch.rows.len() > limits.rows_per_batch_max {
        return refused("it has too many rows");
    }
    if values > limits.values_per_batch_max || batch.names.len() > limits.values_per_batch_max {
        return refused("it has too many values");
    }
    if batch.first.checked_add(wide(batch.rows.len())).is_none() {
        return refused("its numbers are beyond 64 bits");
    }
    Ok(())
}
