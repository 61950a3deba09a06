//! The waiting jobs of one queue, in order and grouped by request.
//!
//! Jobs that ask for the same gang and may hold it equally long form one *request*: if the first finds no
//! room, none does. So a pass tries each request once, however many jobs wait. Invariant: every job in the
//! order is in exactly one group.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{GangShape, JobId, JobSpec, Priority, Timestamp};

use crate::queueing::queue::QueueIndex;

/// A position in a queue: higher priority first, then the earlier turn ([`crate::Job::turn`]), then the older
/// job. A requeued job keeps its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    pub(crate) priority: Reverse<Priority>,
    pub(crate) turn: Timestamp,
    pub(crate) job: JobId,
}

/// The longest time an attempt may hold its devices: the time limit plus the grace period. A job without a
/// limit has the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(Duration);

impl Span {
    /// Returns the span of a job.
    pub(crate) fn of(spec: &JobSpec) -> Span {
        Span(spec.time_limit.map_or(Duration::MAX, |limit| limit.saturating_add(spec.checkpoint.grace)))
    }

    /// Returns when an attempt that starts at `start` ends at the latest; none without a limit.
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
    /// Reports whether a job in this queue asks for `gang`.
    pub(super) fn asks_for(&self, gang: &GangShape) -> bool {
        self.requests.contains_key(gang)
    }

    /// Inserts a job; reports whether it was absent.
    pub(super) fn insert(&mut self, spec: &JobSpec, key: QueueKey) -> bool {
        if !self.requests.contains_key(&spec.gang) {
            self.requests.insert(Arc::new(spec.gang.clone()), BTreeMap::new());
        }
        let spans = self.requests.get_mut(&spec.gang).expect("the gang was inserted just now");
        spans.entry(Span::of(spec)).or_default().insert(key);
        self.order.insert(key)
    }

    /// Removes a job; reports whether it was present.
    pub(super) fn remove(&mut self, spec: &JobSpec, key: &QueueKey) -> bool {
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

    /// Returns all jobs, in order.
    pub(crate) fn order(&self) -> &BTreeSet<QueueKey> {
        &self.order
    }

    /// Returns the requested gangs.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &Arc<GangShape>> {
        self.requests.keys()
    }

    /// Returns the first job of each request for `gang`.
    pub(crate) fn firsts<'a>(&'a self, gang: &GangShape) -> impl Iterator<Item = (Span, QueueKey)> + 'a {
        let spans = self.requests.get(gang).into_iter().flatten();
        spans.filter_map(|(span, jobs)| jobs.first().map(|first| (*span, *first)))
    }

    /// Returns the jobs of each request, requests for most nodes first.
    pub(crate) fn largest_first(&self) -> impl Iterator<Item = (&Arc<GangShape>, &BTreeSet<QueueKey>)> {
        // Gangs sort by node count first.
        self.requests.iter().rev().flat_map(|(gang, spans)| spans.values().map(move |jobs| (gang, jobs)))
    }

    /// Returns the next job of the same request after this key.
    pub(crate) fn next_alike(&self, spec: &JobSpec, key: &QueueKey) -> Option<QueueKey> {
        let jobs = self.requests.get(&spec.gang)?.get(&Span::of(spec))?;
        jobs.range((std::ops::Bound::Excluded(*key), std::ops::Bound::Unbounded)).next().copied()
    }
}

/// The requests of waiting jobs in all queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(BTreeMap<Arc<GangShape>, Asked>);

#[derive(Clone, Debug, Default)]
struct Asked {
    /// The number of jobs for each span.
    spans: BTreeMap<Span, usize>,
    /// Queues that request the gang and aren't known to exceed a limit with it.
    open: BTreeSet<QueueIndex>,
}

impl Requests {
    /// Returns the gangs requested by a queue that isn't known to exceed a limit with them.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Arc<GangShape>> {
        self.0.iter().filter(|(_, asked)| !asked.open.is_empty()).map(|(gang, _)| gang)
    }

    /// Returns these queues.
    pub(crate) fn open_lines(&self, gang: &GangShape) -> impl Iterator<Item = QueueIndex> + '_ {
        self.0.get(gang).into_iter().flat_map(|asked| asked.open.iter().copied())
    }

    /// Returns the shortest span requested for a gang.
    pub(crate) fn shortest(&self, gang: &GangShape) -> Option<Span> {
        self.0.get(gang).and_then(|asked| asked.spans.keys().next().copied())
    }

    pub(super) fn count(&mut self, spec: &JobSpec) {
        if !self.0.contains_key(&spec.gang) {
            self.0.insert(Arc::new(spec.gang.clone()), Asked::default());
        }
        let asked = self.0.get_mut(&spec.gang).expect("the gang was inserted just now");
        *asked.spans.entry(Span::of(spec)).or_insert(0) += 1;
    }

    pub(super) fn discount(&mut self, spec: &JobSpec) {
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

    /// Marks a queue as open for a gang; reports whether it was not.
    pub(super) fn open_line(&mut self, gang: &GangShape, line: QueueIndex) -> bool {
        self.0.get_mut(gang).is_some_and(|asked| asked.open.insert(line))
    }

    /// Marks a queue as closed for a gang; reports whether it was open.
    pub(super) fn close_line(&mut self, gang: &GangShape, line: QueueIndex) -> bool {
        self.0.get_mut(gang).is_some_and(|asked| asked.open.remove(&line))
    }
}
