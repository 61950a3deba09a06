//! The store on its folder: start after a crash, take in, flush, merge, answer. `service.rs` calls it from its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use gangline_base::Timestamp;

use super::chunk::at_resolution;
use super::error::Error;
use super::head::{Head, Limits, Taken, check};
use super::key::{Batch, Point, Scope, Series};
use super::log::{self, Log};
use super::merge::{self, Keep};
use super::query::{Answer, Moment, Query};
use super::rollup::{Bucket, Resolution, ms};
use super::segment::{self, Meta, Segment};
use super::writer::{SegmentWriter, UNFINISHED};

/// What readers and the two threads share.
#[derive(Debug)]
pub(super) struct Shared {
    folder: PathBuf,
    keep: Keep,
    state: RwLock<State>,
    next_segment: AtomicU64,
    /// What a start found damaged, and what merging did since.
    pub(super) damage: RwLock<Damage>,
}

#[derive(Debug, Default)]
struct State {
    segments: Vec<Arc<Segment>>,
    head: Head,
}

/// What couldn't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Segment files; they are left where they are, and nothing is read from them.
    pub segments: u64,
    /// Chunks that a merge left out.
    pub chunks: u64,
    /// Records of the log.
    pub records: u64,
    /// Bytes at the end of the log that were no whole record: what a crash tore, which nobody was told of.
    pub torn_bytes: u64,
}

/// The writing side; there is one.
#[derive(Debug)]
pub(super) struct Store {
    shared: Arc<Shared>,
    log: Log,
    limits: Limits,
    /// When the oldest point in the head was taken in.
    head_since: Option<Timestamp>,
    /// Why the last segment couldn't be written.
    flush_failure: Option<String>,
}

impl Store {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// [`Error::Newer`] if a newer release wrote it; [`Error::Io`].
    pub(super) fn open(folder: &Path, limits: Limits, keep: Keep, now: Timestamp) -> Result<Store, Error> {
        fs::create_dir_all(folder).map_err(Error::io("make", folder))?;
        let found = Found::look(folder)?;
        let mut damage = Damage::default();
        let segments = open_segments(folder, &found.segments, &mut damage)?;
        let newest = segments.iter().max_by_key(|segment| segment.meta.log_through);
        let log_through = newest.map_or(0, |segment| segment.meta.log_through);
        let mut head = Head::with_cursors(newest.map(|newest| newest.meta.cursors.clone()).unwrap_or_default());
        for number in &found.logs {
            let path = folder.join(log::file_name(*number));
            if *number <= log_through {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                continue;
            }
            let replayed = log::replay(&path)?;
            damage.records += replayed.damaged;
            damage.torn_bytes += replayed.torn_bytes;
            replayed.batches.iter().for_each(|batch| _ = head.take(batch, &limits));
        }
        let next_log = found.logs.last().copied().unwrap_or_default().max(log_through) + 1;
        let next_segment = found.segments.last().copied().unwrap_or_default() + 1;
        let head_since = (head.count() > 0).then_some(now);
        let shared = Shared {
            folder: folder.to_owned(),
            keep,
            state: RwLock::new(State { segments, head }),
            next_segment: AtomicU64::new(next_segment),
            damage: RwLock::new(damage),
        };
        let log = Log::beginning(folder, next_log);
        Ok(Store { shared: Arc::new(shared), log, limits, head_since, flush_failure: None })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// When the oldest point was taken in that is in no segment.
    pub(super) fn head_since(&self) -> Option<Timestamp> {
        self.head_since
    }

    /// Takes in batches: all are durable, or those that fail get an error. One sync for all of them.
    pub(super) fn take(&mut self, batches: &[Batch], now: Timestamp) -> Vec<Result<Taken, Error>> {
        let is_full = self.shared.read_state(|state| state.head.count()) >= self.limits.head_points_max;
        let refusal = |batch: &Batch| {
            check(batch, &self.limits)?;
            match self.flush_failure.as_ref().filter(|_| is_full) {
                Some(cause) => Err(Error::Full { cause: cause.clone() }),
                None => Ok(()),
            }
        };
        let refusals: Vec<Result<(), Error>> = batches.iter().map(refusal).collect();
        let accepted = batches.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_ok());
        let accepted: Vec<&Batch> = accepted.map(|(batch, _)| batch).collect();
        let appended = if accepted.is_empty() { Ok(()) } else { self.log.append(&accepted) };
        if appended.is_ok() && !accepted.is_empty() {
            self.head_since = self.head_since.or(Some(now));
        }
        let failure = appended.err();
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let outcome = |(batch, refusal): (&Batch, Result<(), Error>)| {
            refusal?;
            match &failure {
                None => Ok(state.head.take(batch, &self.limits)),
                Some(error) => Err(again(error)),
            }
        };
        batches.iter().zip(refusals).map(outcome).collect()
    }

    /// Reports whether the head should become a segment for its size or its log's.
    pub(super) fn is_head_full(&self) -> bool {
        self.log.bytes >= self.limits.log_bytes
            || self.shared.read_state(|state| state.head.count()) >= self.limits.head_points
    }

    /// Makes the head a segment and removes its logs. If that fails everything stays as it was.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.shared.read_state(|state| state.head.count()) == 0 && self.log.bytes == 0 {
            self.head_since = None;
            return Ok(());
        }
        let log_through = self.log.rotate();
        let written = self.shared.write_head(log_through);
        self.flush_failure = written.as_ref().err().map(ToString::to_string);
        let segment = written?;
        self.shared.write_state(|state| {
            state.segments.push(Arc::new(segment));
            state.head.flushed();
        });
        self.head_since = None;
        for number in Found::look(&self.shared.folder)?.logs.into_iter().filter(|number| *number <= log_through) {
            // The next start removes it if this fails.
            let _ = fs::remove_file(self.shared.folder.join(log::file_name(number)));
        }
        Ok(())
    }
}

impl Shared {
    fn read_state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_head(&self, log_through: u64) -> Result<Segment, Error> {
        let id = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let meta = Meta { log_through, cursors: state.head.cursors.clone(), ..Meta::default() };
        let mut writer = SegmentWriter::create(&self.folder, id, meta)?;
        for (source, by_name) in state.head.all() {
            for (metric, points) in by_name {
                let series = Series { source: source.clone(), metric: metric.clone() };
                let buckets: Vec<Bucket> = points.iter().map(Bucket::of).collect();
                for resolution in Resolution::ALL {
                    writer.add(&series, resolution, &at_resolution(&buckets, resolution))?;
                }
            }
        }
        drop(state);
        writer.finish()
    }

    /// Merges or thins what is due. Returns whether anything was.
    pub(super) fn merge(&self, now: Timestamp) -> Result<bool, Error> {
        let now_ms = ms(now);
        let due = self.read_state(|state| merge::due(&state.segments, &self.keep, now_ms));
        let Some(due) = due else { return Ok(false) };
        let id = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let (merged, unreadable) = merge::merge(&self.folder, id, &due, (&self.keep, now_ms))?;
        self.damage.write().unwrap_or_else(PoisonError::into_inner).chunks += unreadable;
        let gone: BTreeSet<u64> = due.inputs.iter().map(|segment| segment.id).collect();
        self.write_state(|state| {
            state.segments.retain(|segment| !gone.contains(&segment.id));
            state.segments.push(Arc::new(merged));
        });
        for segment in due.inputs {
            // The next start removes it if this fails, because the new one replaces it.
            let _ = fs::remove_file(&segment.path);
        }
        Ok(true)
    }

    /// Answers a query.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn query(&self, query: &Query) -> Result<Answer, Error> {
        self.read_state(|state| Moment { segments: state.segments.clone(), points: points(&state.head, &query.scope) })
            .answer(query)
    }

    /// Returns number and bytes of the segments, their points, and the points that are in none.
    pub(super) fn sizes(&self) -> (usize, u64, u64, usize) {
        self.read_state(|state| {
            let sum = |of: fn(&Segment) -> u64| state.segments.iter().map(|segment| of(segment)).sum();
            let (bytes, points) = (sum(|segment| segment.bytes), sum(|segment| segment.meta.points));
            (state.segments.len(), bytes, points, state.head.count())
        })
    }
}

fn points(head: &Head, scope: &Scope) -> BTreeMap<Series, Vec<Point>> {
    let of_source = head.of_scope(scope).flat_map(|(source, by_name)| {
        by_name.iter().map(move |(metric, points)| {
            let points = points.iter().map(|point| Point { at: Timestamp::from_unix_nanos(at_ms(point)), ..*point });
            (Series { source: source.clone(), metric: metric.clone() }, points.collect())
        })
    });
    of_source.collect()
}

/// Returns a point's time to the millisecond, as it is stored.
fn at_ms(point: &Point) -> u64 {
    point.at.unix_nanos() / 1_000_000 * 1_000_000
}

/// An error that several senders get.
fn again(error: &Error) -> Error {
    match error {
        Error::Io { doing, path, source } => {
            let source = source.raw_os_error().map_or_else(|| source.kind().into(), std::io::Error::from_raw_os_error);
            Error::Io { doing, path: path.clone(), source }
        }
        Error::Refused { what } => Error::Refused { what },
        other => Error::Closed { cause: other.to_string() },
    }
}

/// The files in the folder.
pub(super) struct Found {
    /// Ids of segments, ascending.
    pub(super) segments: Vec<u64>,
    /// Numbers of logs, ascending.
    pub(super) logs: Vec<u64>,
}

impl Found {
    /// Looks at the folder.
    pub(super) fn look(folder: &Path) -> Result<Found, Error> {
        let mut found = Found { segments: Vec::new(), logs: Vec::new() };
        for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
            let path = entry.map_err(Error::io("list", folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let number = |prefix: &str| name.strip_prefix(prefix)?.parse::<u64>().ok();
            found.segments.extend(number("segment-"));
            found.logs.extend(number("log-"));
        }
        found.segments.sort_unstable();
        found.logs.sort_unstable();
        Ok(found)
    }
}

/// Removes segments that a crash left unfinished. Only at the start: later there may be a merge under way.
fn remove_unfinished(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let path = entry.map_err(Error::io("list", folder))?.path();
        if path.extension().is_some_and(|extension| extension == UNFINISHED) {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Opens all segments but those that another one replaces, which are removed.
fn open_segments(folder: &Path, ids: &[u64], damage: &mut Damage) -> Result<Vec<Arc<Segment>>, Error> {
    remove_unfinished(folder)?;
    let mut segments = Vec::new();
    for id in ids {
        let path = folder.join(segment::file_name(*id));
        match Segment::open(&path, *id) {
            Ok(segment) => segments.push(Arc::new(segment)),
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "a file of the series store is left out");
                damage.segments += 1;
            }
            Err(error) => return Err(error),
        }
    }
    let replaced: BTreeSet<u64> = segments.iter().flat_map(|segment| segment.meta.replaces.iter().copied()).collect();
    let (gone, kept): (Vec<_>, Vec<_>) = segments.into_iter().partition(|segment| replaced.contains(&segment.id));
    for segment in gone {
        fs::remove_file(&segment.path).map_err(Error::io("remove", &segment.path))?;
    }
    Ok(kept)
}
