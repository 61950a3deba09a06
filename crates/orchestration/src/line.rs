//! The line of one queue: the jobs that wait in it, in order, and grouped by what they ask for.
//!
//! Jobs that ask for the same gang and may hold it equally long are one *request*: where the first of them finds no
//! room, none does. So a pass looks at each request once, however many jobs wait. Invariant: every job of the order is
//! in exactly one group.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{GangShape, JobId, JobSpec, Priority, Timestamp};

use crate::queue::QueueIndex;

/// A place in a queue: higher priority first, then the earlier turn ([`crate::Job::turn`]), then the older job. A job
/// that is queued again keeps its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) priority: Reverse<Priority>,
    pub(crate) turn: Timestamp,
    pub(crate) job: JobId,
}

/// How long an attempt may hold its devices at most: the time limit and the grace of its stop. The longest stands for a
/// job without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(Duration);

impl Span {
    /// Of a job.
    pub(crate) fn of(spec: &JobSpec) -> Span {
        Span(spec.time_limit.map_or(Duration::MAX, |limit| limit.saturating_add(spec.checkpoint.grace)))
    }

    /// When an attempt that starts at `start` is over at the latest; unknown without a limit.
    pub(crate) fn end(self, start: Timestamp) -> Option<Timestamp> {
        (self.0 < Duration::MAX).then(|| start + self.0)
    }
}

/// The jobs that wait in one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    order: BTreeSet<QueueKey>,
    requests: BTreeMap<Arc<GangShape>, BTreeMap<Span, BTreeSet<QueueKey>>>,
}

impl Line {
    /// Whether a job here asks for `gang`.
    pub(crate) fn asks_for(&self, gang: &GangShape) -> bool {
        self.requests.contains_key(gang)
    }

    /// Whether the job wasn't there yet.
    pub(crate) fn insert(&mut self, spec: &JobSpec, key: QueueKey) -> bool {
        if !self.requests.contains_key(&spec.gang) {
            self.requests.insert(Arc::new(spec.gang.clone()), BTreeMap::new());
        }
        let spans = self.requests.get_mut(&spec.gang).expect("the gang was inserted just now");
        spans.entry(Span::of(spec)).or_default().insert(key);
        self.order.insert(key)
    }

    /// Whether the job was there.
    pub(crate) fn remove(&mut self, spec: &JobSpec, key: &QueueKey) -> bool {
        let span = Span::of(spec);
        if let Some(spans) = self.requests.get_mut(&spec.gang) {
            if let Some(jobs) = spans.get_mut(&span) {
                jobs.remove(key);
            }
            spans.retain(|other, jobs| *other != span || !jobs.is_empty());
            if spans.is_empty() {
                self.requests.remove(&spec.gang);
            }
        }
        self.order.remove(key)
    }

    /// All jobs, in order.
    pub(crate) fn order(&self) -> &BTreeSet<QueueKey> {
        &self.order
    }

    /// The gangs that are asked for.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &Arc<GangShape>> {
        self.requests.keys()
    }

    /// The first job of each request for `gang`.
    pub(crate) fn firsts<'a>(&'a self, gang: &GangShape) -> impl Iterator<Item = (Span, QueueKey)> + 'a {
        let spans = self.requests.get(gang).into_iter().flatten();
        spans.filter_map(|(span, jobs)| jobs.first().map(|first| (*span, *first)))
    }

    /// The jobs of each request, those for most nodes first.
    pub(crate) fn largest_first(&self) -> impl Iterator<Item = (&Arc<GangShape>, &BTreeSet<QueueKey>)> {
        // Gangs are ordered by their nodes before anything else.
        self.requests.iter().rev().flat_map(|(gang, spans)| spans.values().map(move |jobs| (gang, jobs)))
    }

    /// The job of the same request that comes after the one with this key.
    pub(crate) fn next_alike(&self, spec: &JobSpec, key: &QueueKey) -> Option<QueueKey> {
        let jobs = self.requests.get(&spec.gang)?.get(&Span::of(spec))?;
        jobs.range((std::ops::Bound::Excluded(*key), std::ops::Bound::Unbounded)).next().copied()
    }
}

/// What waiting jobs ask for, in all lines together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(BTreeMap<Arc<GangShape>, Asked>);

#[derive(Clone, Debug, Default)]
struct Asked {
    /// For how long, and how many do.
    spans: BTreeMap<Span, usize>,
    /// Lines that ask for it and aren't known to be over a limit with it.
    open: BTreeSet<QueueIndex>,
}

impl Requests {
    /// The gangs that some line asks for that isn't known to be over a limit with it.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Arc<GangShape>> {
        self.0.iter().filter(|(_, asked)| !asked.open.is_empty()).map(|(gang, _)| gang)
    }

    /// Those lines.
    pub(crate) fn open_lines(&self, gang: &GangShape) -> impl Iterator<Item = QueueIndex> + '_ {
        self.0.get(gang).into_iter().flat_map(|asked| asked.open.iter().copied())
    }

    /// The shortest time that a gang is asked for.
    pub(crate) fn shortest(&self, gang: &GangShape) -> Option<Span> {
        self.0.get(gang).and_then(|asked| asked.spans.keys().next().copied())
    }

    pub(crate) fn count(&mut self, spec: &JobSpec) {
        if !self.0.contains_key(&spec.gang) {
            self.0.insert(Arc::new(spec.gang.clone()), Asked::default());
        }
        let asked = self.0.get_mut(&spec.gang).expect("the gang was inserted just now");
        *asked.spans.entry(Span::of(spec)).or_insert(0) += 1;
    }

    pub(crate) fn discount(&mut self, spec: &JobSpec) {
        let span = Span::of(spec);
        let Some(asked) = self.0.get_mut(&spec.gang) else { return };
        if let Some(count) = asked.spans.get_mut(&span) {
            *count -= 1;
        }
        if asked.spans.get(&span) == Some(&0) {
            asked.spans.remove(&span);
        }
        if asked.spans.is_empty() {
            self.0.remove(&spec.gang);
        }
    }

    /// Whether the line wasn't open yet.
    pub(crate) fn open_line(&mut self, gang: &GangShape, line: QueueIndex) -> bool {
        self.0.get_mut(gang).is_some_and(|asked| asked.open.insert(line))
    }

    /// Whether the line was open.
    pub(crate) fn close_line(&mut self, gang: &GangShape, line: QueueIndex) -> bool {
        self.0.get_mut(gang).is_some_and(|asked| asked.open.remove(&line))
    }
}
