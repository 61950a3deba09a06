//! The queues: a tree with quota, borrowing limit and weight, what each holds, and the jobs that wait in its leaves.
//!
//! Invariants: what a queue holds is what the jobs in and below it hold; no queue holds more than its limit after a
//! placement; within a queue jobs stand by priority, then by age. Which queue is served first: one below its quota before
//! one that borrows, then the one with the lower dominant share over its weight (`share.rs`), compared level by level from
//! the top, as in Slurm's Fair Tree. Shares are brought forward once a minute, not at every look, so between changes the
//! order stands still and is kept (`standing.rs`) rather than worked out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AcceleratorKind, GangShape, JobId, Priority, QueueName, Timestamp};

use crate::configuration::{Configuration, QueueSpec};
use crate::entitlement::{Demand, Entitlement};
use crate::job::Job;
use crate::line::{Line, QueueKey, Requests};
use crate::rank::{Rank, Standing};
use crate::share::{Resource, Usages};

/// Shares are those of the last full minute. A half-life is at least a second and usually days, in which use decays by a
/// ten-thousandth in a minute.
const SHARE_PERIOD: Duration = Duration::from_mins(1);

/// Where a queue is in [`Queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueIndex(pub(crate) usize);

/// All queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    configuration: Configuration,
    /// The first is the root, which has no name; without configured queues it is the one line that all jobs wait in.
    pub(crate) queues: Vec<Queue>,
    by_name: BTreeMap<QueueName, QueueIndex>,
    /// Kinds of accelerators that somebody has a quota of.
    pub(crate) kinds: Arc<[AcceleratorKind]>,
    /// Leaves in which jobs wait.
    pub(crate) active: BTreeSet<QueueIndex>,
    /// Leaves that may have the right to stop somebody (`seeking.rs`).
    pub(crate) seeking: BTreeSet<QueueIndex>,
    /// Leaves in which somebody may have run for so long that equals take its devices (`equals.rs`).
    pub(crate) sharing: BTreeSet<QueueIndex>,
    /// What waiting jobs ask for, in all lines.
    pub(crate) requests: Requests,
    /// When shares were last brought forward, and what there was then.
    pub(crate) as_of: Timestamp,
    pub(crate) totals: BTreeMap<Resource, u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    spec: Option<QueueSpec>,
    pub(crate) parent: Option<QueueIndex>,
    children: Vec<QueueIndex>,
    /// Jobs that wait in it and below.
    waiting: usize,
    usages: Usages,
    /// How many jobs of each priority hold devices in it.
    pub(crate) running: BTreeMap<Priority, BTreeSet<(Timestamp, JobId)>>,
    pub(crate) line: Line,
    /// Kinds with quotas that it is in demand of, as the queue above has booked it.
    pub(crate) wants: BTreeSet<AcceleratorKind>,
    /// What the queues directly below are promised of the kinds that they are in demand of (`entitlement.rs`).
    pub(crate) demand: BTreeMap<AcceleratorKind, Demand>,
    /// The pass is done with its line.
    pub(crate) is_aside: bool,
    /// How many of the gangs that its line asks for aren't known to be over a limit.
    pub(crate) open: usize,
    /// Lines, and what they ask for, that wait for this queue to hold less.
    pub(crate) blocked: BTreeSet<(QueueIndex, Arc<GangShape>)>,
    /// Those of its children that have a line to look at, in order.
    pub(crate) ranked: BTreeSet<Rank>,
    /// How it stands in its parent's `ranked`, if it is there.
    pub(crate) rank: Option<Rank>,
}

/// A quota in the way of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    pub(crate) queue: QueueName,
    pub(crate) held: u32,
    pub(crate) limit: u32,
}

/// A configured queue and its share.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStanding<'a> {
    /// Its rules.
    pub spec: &'a QueueSpec,
    /// Its dominant share over its weight: of its siblings the one with the lowest is served first.
    pub share: f64,
    /// Accelerators its jobs hold and it is entitled to (its quota, and its part by weight of what is left), by kind.
    pub accelerators: BTreeMap<AcceleratorKind, (u32, u32)>,
}

impl Queues {
    pub(crate) fn new(configuration: Configuration) -> Self {
        let mut queues = Queues {
            configuration,
            queues: vec![Queue::new(None, None)],
            by_name: BTreeMap::new(),
            kinds: [].into(),
            active: BTreeSet::new(),
            seeking: BTreeSet::new(),
            sharing: BTreeSet::new(),
            requests: Requests::default(),
            as_of: Timestamp::EPOCH,
            totals: BTreeMap::new(),
        };
        for spec in queues.configuration.queues.clone() {
            queues.add(spec);
        }
        for spec in &queues.configuration.queues {
            let own = queues.by_name[&spec.name];
            let parent = spec.parent.as_ref().and_then(|parent| queues.by_name.get(parent)).copied();
            let parent = parent.unwrap_or(ROOT);
            queues.queues[own.0].parent = Some(parent);
            queues.queues[parent.0].children.push(own);
        }
        let with_quota: BTreeSet<&AcceleratorKind> =
            queues.configuration.queues.iter().flat_map(|spec| spec.quota.keys()).collect();
        queues.kinds = with_quota.into_iter().cloned().collect();
        queues
    }

    fn add(&mut self, spec: QueueSpec) -> QueueIndex {
        let index = QueueIndex(self.queues.len());
        self.by_name.insert(spec.name.clone(), index);
        self.queues.push(Queue::new(Some(spec), Some(ROOT)));
        index
    }

    pub(crate) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The leaf for a queue's name: itself; the one line, if none are configured or the name isn't among them any more.
    pub(crate) fn leaf(&self, name: &QueueName) -> QueueIndex {
        self.by_name.get(name).copied().unwrap_or(ROOT)
    }

    /// Whether jobs may be sent to a queue of this name.
    pub(crate) fn takes_jobs(&self, name: &QueueName) -> bool {
        self.configuration.queues.is_empty()
            || self.by_name.get(name).is_some_and(|index| self.queues[index.0].children.is_empty())
    }

    /// The names of the queues that take jobs.
    pub(crate) fn leaf_names(&self) -> Vec<QueueName> {
        let leaves = self.by_name.iter().filter(|(_, index)| self.queues[index.0].children.is_empty());
        leaves.map(|(name, _)| name.clone()).collect()
    }

    /// A job waits.
    pub(crate) fn insert(&mut self, job: &Job) {
        let leaf = self.leaf(&job.spec.queue);
        if self.queues[leaf.0].line.insert(&job.spec, job.key()) {
            self.count_waiting(leaf, |waiting| waiting + 1);
            self.requests.count(&job.spec);
        }
        self.active.insert(leaf);
        self.seek(leaf);
        self.open(leaf, &job.spec.gang);
    }

    /// A job waits no more.
    pub(crate) fn remove(&mut self, job: &Job) {
        let leaf = self.leaf(&job.spec.queue);
        if !self.queues[leaf.0].line.remove(&job.spec, &job.key()) {
            return;
        }
        self.count_waiting(leaf, |waiting| waiting - 1);
        self.seek(leaf);
        if !self.queues[leaf.0].line.asks_for(&job.spec.gang) {
            self.close(leaf, &job.spec.gang);
        }
        self.requests.discount(&job.spec);
        if self.queues[leaf.0].line.order().is_empty() {
            self.active.remove(&leaf);
        }
    }

    fn count_waiting(&mut self, leaf: QueueIndex, change: fn(usize) -> usize) {
        let mut at = Some(leaf);
        while let Some(index) = at {
            let queue = &mut self.queues[index.0];
            let before = queue.waiting;
            queue.waiting = change(before);
            let (has_changed, parent) = ((before == 0) != (queue.waiting == 0), queue.parent);
            if has_changed {
                self.seek_beside(index);
            }
            at = parent;
        }
    }

    pub(crate) fn contains(&self, name: &QueueName, key: &QueueKey) -> bool {
        self.queues[self.leaf(name).0].line.order().contains(key)
    }

    /// How many jobs wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queues[ROOT.0].waiting
    }

    /// Leaves in which jobs wait.
    pub(crate) fn active(&self) -> impl Iterator<Item = QueueIndex> + '_ {
        self.active.iter().copied()
    }

    /// The jobs of a leaf, in order.
    pub(crate) fn pending(&self, leaf: QueueIndex) -> &BTreeSet<QueueKey> {
        self.line(leaf).order()
    }

    /// The line of a leaf.
    pub(crate) fn line(&self, leaf: QueueIndex) -> &Line {
        &self.queues[leaf.0].line
    }

    /// Books a gang's devices, cores and memory in its queue and all above.
    pub(crate) fn take(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before + amount);
    }

    /// Takes them out again.
    pub(crate) fn give_back(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before - amount);
        for index in self.path_up(self.leaf(name)).collect::<Vec<_>>() {
            for (leaf, gang) in std::mem::take(&mut self.queues[index.0].blocked) {
                if self.queues[leaf.0].line.asks_for(&gang) {
                    self.open(leaf, &gang);
                }
            }
        }
    }

    fn change(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)], change: fn(u64, u64) -> u64) {
        let half_life = self.configuration.half_life;
        let mut at = Some(self.leaf(name));
        while let Some(index) = at {
            let queue = &mut self.queues[index.0];
            let mut has_changed = false;
            for (resource, amount) in held {
                let before = queue.usages.held(resource);
                queue.usages.change(now, half_life, resource, |before| change(before, *amount));
                has_changed |= (before == 0) != (queue.usages.held(resource) == 0);
            }
            at = queue.parent;
            if has_changed {
                self.seek_beside(index);
            }
        }
        self.rank_up(self.leaf(name));
    }

    /// The first queue from the leaf up whose limit the gang would break.
    pub(crate) fn over_limit(&self, leaf: QueueIndex, gang: &GangShape) -> Option<OverLimit> {
        let queue = &self.queues[self.limited_by(leaf, gang)?.0];
        let spec = queue.spec.as_ref()?;
        let limit = spec.limit(&gang.accelerator)?;
        Some(OverLimit { queue: spec.name.clone(), held: queue.held(&gang.accelerator), limit })
    }

    /// The same queue, by its place.
    pub(crate) fn limited_by(&self, leaf: QueueIndex, gang: &GangShape) -> Option<QueueIndex> {
        self.path_up(leaf).find(|index| {
            let queue = &self.queues[index.0];
            let limit = queue.spec.as_ref().and_then(|spec| spec.limit(&gang.accelerator));
            limit.is_some_and(|limit| queue.held(&gang.accelerator).saturating_add(gang.devices()) > limit)
        })
    }

    /// The first queue from the leaf up that the gang could never be within, however empty.
    pub(crate) fn beyond_limit(&self, name: &QueueName, gang: &GangShape) -> Option<OverLimit> {
        self.path_up(self.leaf(name)).find_map(|index| {
            let spec = self.queues[index.0].spec.as_ref()?;
            let limit = spec.limit(&gang.accelerator).filter(|limit| gang.devices() > *limit)?;
            Some(OverLimit { queue: spec.name.clone(), held: 0, limit })
        })
    }

    pub(crate) fn path_up(&self, leaf: QueueIndex) -> impl Iterator<Item = QueueIndex> + '_ {
        std::iter::successors(Some(leaf), |index| self.queues[index.0].parent)
    }

    /// How many accelerators of a kind a leaf may still have, if a limit on the way up bounds that.
    pub(crate) fn left_of(&self, leaf: QueueIndex, kind: &AcceleratorKind) -> Option<u32> {
        let left = |queue: QueueIndex| Some(self.limit(queue, kind)?.saturating_sub(self.held(queue, kind)));
        self.path_up(leaf).filter_map(left).min()
    }

    /// The queues directly in one.
    pub(crate) fn children(&self, queue: QueueIndex) -> impl Iterator<Item = QueueIndex> + '_ {
        self.queues[queue.0].children.iter().copied()
    }

    /// The queue above; none for the root.
    pub(crate) fn parent(&self, queue: QueueIndex) -> Option<QueueIndex> {
        self.queues[queue.0].parent
    }

    /// A configured queue's name.
    pub(crate) fn name(&self, queue: QueueIndex) -> Option<&QueueName> {
        self.queues[queue.0].spec.as_ref().map(|spec| &spec.name)
    }

    /// Accelerators of a kind that the jobs in and below a queue hold.
    pub(crate) fn held(&self, queue: QueueIndex, kind: &AcceleratorKind) -> u32 {
        self.queues[queue.0].held(kind)
    }

    /// Whether jobs in or below a queue hold accelerators of a kind, or wait.
    pub(crate) fn is_in_demand(&self, queue: QueueIndex, kind: &AcceleratorKind) -> bool {
        let queue = &self.queues[queue.0];
        queue.waiting > 0 || queue.held(kind) > 0
    }

    /// The accelerators of a kind that a queue may always have.
    pub(crate) fn quota(&self, queue: QueueIndex, kind: &AcceleratorKind) -> u32 {
        self.queues[queue.0].spec.as_ref().map_or(0, |spec| spec.quota_of(kind))
    }

    /// The most accelerators of a kind a queue may have, if that is bounded.
    pub(crate) fn limit(&self, queue: QueueIndex, kind: &AcceleratorKind) -> Option<u32> {
        self.queues[queue.0].spec.as_ref().and_then(|spec| spec.limit(kind))
    }

    /// A queue's weight beside its siblings'.
    pub(crate) fn weight(&self, queue: QueueIndex) -> u32 {
        self.queues[queue.0].spec.as_ref().map_or(1, |spec| spec.weight.get())
    }

    /// How a leaf stands at the time that shares are brought forward to at `now`.
    pub(crate) fn standing(&self, leaf: QueueIndex, now: Timestamp, totals: &BTreeMap<Resource, u64>) -> Standing {
        let as_of = share_time(now);
        let mut path: Vec<Rank> = self.path_up(leaf).map(|index| self.rank_of(index, as_of, totals)).collect();
        path.reverse();
        Standing::new(path)
    }

    /// How a queue stands beside its siblings.
    pub(crate) fn rank_of(&self, index: QueueIndex, at: Timestamp, totals: &BTreeMap<Resource, u64>) -> Rank {
        let queue = &self.queues[index.0];
        let Some(spec) = &queue.spec else { return Rank { is_over_quota: true, share: 0.0, index } };
        let is_over_quota = spec.quota.iter().all(|(kind, quota)| queue.held(kind) >= *quota);
        let share = queue.usages.dominant_share(at, self.configuration.half_life, totals);
        Rank { is_over_quota, share: share / f64::from(spec.weight.get()), index }
    }

    /// Every configured queue with its share.
    pub(crate) fn standings(&self, now: Timestamp, totals: &BTreeMap<Resource, u64>) -> Vec<QueueStanding<'_>> {
        let mut standings = Vec::with_capacity(self.queues.len());
        for (index, queue) in self.queues.iter().enumerate() {
            let index = QueueIndex(index);
            let Some(spec) = &queue.spec else { continue };
            let of_kind = |(resource, total): (&Resource, &u64)| {
                let Resource::Accelerator(kind) = resource else { return None };
                let Entitlement { held, entitled } =
                    self.entitlement(index, kind, u32::try_from(*total).unwrap_or(u32::MAX));
                Some((kind.clone(), (held, entitled)))
            };
            let accelerators = totals.iter().filter_map(of_kind).collect();
            standings.push(QueueStanding { spec, share: self.rank_of(index, now, totals).share, accelerators });
        }
        standings
    }

    /// Every configured queue with its use, in the order of the configuration.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&QueueSpec, &Usages)> {
        self.queues.iter().filter_map(|queue| queue.spec.as_ref().map(|spec| (spec, &queue.usages)))
    }

    /// What every queue holds and used, for a snapshot; the root's stands under no name.
    pub(crate) fn usages(&self) -> Vec<(Option<QueueName>, Usages)> {
        let name = |queue: &Queue| queue.spec.as_ref().map(|spec| spec.name.clone());
        self.queues.iter().map(|queue| (name(queue), queue.usages.clone())).collect()
    }

    /// Takes over what queues of the same names hold and used.
    pub(crate) fn set_usages(&mut self, usages: Vec<(Option<QueueName>, Usages)>) {
        for (name, usages) in usages {
            let index = name.map_or(Some(ROOT), |name| self.by_name.get(&name).copied());
            if let Some(index) = index {
                self.queues[index.0].usages = usages;
                self.book_demand(index);
            }
        }
    }

    /// The same use until now, with nothing held: for queues that are set up anew.
    pub(crate) fn past(&self, now: Timestamp) -> Vec<(Option<QueueName>, Usages)> {
        let half_life = self.configuration.half_life;
        self.usages().into_iter().map(|(name, usages)| (name, usages.past(now, half_life))).collect()
    }
}

pub(crate) const ROOT: QueueIndex = QueueIndex(0);

/// The time that shares are of at `now`.
pub(crate) fn share_time(now: Timestamp) -> Timestamp {
    let period = u64::try_from(SHARE_PERIOD.as_nanos()).expect("a minute is a few nanoseconds");
    Timestamp::from_unix_nanos(now.unix_nanos() / period * period)
}

impl Queue {
    fn new(spec: Option<QueueSpec>, parent: Option<QueueIndex>) -> Self {
        Queue {
            spec,
            parent,
            children: Vec::new(),
            waiting: 0,
            usages: Usages::default(),
            running: BTreeMap::new(),
            line: Line::default(),
            wants: BTreeSet::new(),
            demand: BTreeMap::new(),
            is_aside: false,
            open: 0,
            blocked: BTreeSet::new(),
            ranked: BTreeSet::new(),
            rank: None,
        }
    }

    fn held(&self, kind: &AcceleratorKind) -> u32 {
        self.usages.accelerators(kind)
    }
}
