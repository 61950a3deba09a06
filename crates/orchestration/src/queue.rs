//! The queues: a tree with quota, borrowing limit and weight, what each holds, and the jobs that wait in its leaves.
//!
//! Invariants: what a queue holds is what the jobs in and below it hold; no queue holds more than its limit after a
//! placement; within a queue jobs stand by priority, then by age. Which queue is served first: one below its quota before
//! one that borrows, then the one with the lower dominant share over its weight (`share.rs`), compared level by level from
//! the top, as in Slurm's Fair Tree.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{AcceleratorKind, GangShape, JobId, Priority, QueueName, Timestamp};

use crate::configuration::{Configuration, QueueSpec};
use crate::entitlement::Entitlement;
use crate::share::{Resource, Usages};

/// A place in a queue: higher priority first, then the older job. A job that is queued again keeps its place.
pub(crate) type QueueKey = (Reverse<Priority>, JobId);

/// Where a queue is in [`Queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueIndex(usize);

/// All queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    configuration: Configuration,
    /// The first is the root, which has no name; without configured queues it is the one line that all jobs wait in.
    queues: Vec<Queue>,
    by_name: BTreeMap<QueueName, QueueIndex>,
    /// Leaves in which jobs wait.
    active: BTreeSet<QueueIndex>,
}

#[derive(Clone, Debug)]
struct Queue {
    spec: Option<QueueSpec>,
    parent: Option<QueueIndex>,
    children: Vec<QueueIndex>,
    /// Jobs that wait in it and below.
    waiting: usize,
    usages: Usages,
    pending: BTreeSet<QueueKey>,
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

/// How a leaf stands beside the others; less is served first.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    path: Vec<Rank>,
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    is_over_quota: bool,
    share: f64,
    index: QueueIndex,
}

impl Queues {
    pub(crate) fn new(configuration: Configuration) -> Self {
        let mut queues = Queues {
            configuration,
            queues: vec![Queue::new(None, None)],
            by_name: BTreeMap::new(),
            active: BTreeSet::new(),
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

    pub(crate) fn insert(&mut self, name: &QueueName, key: QueueKey) {
        let leaf = self.leaf(name);
        if self.queues[leaf.0].pending.insert(key) {
            self.count_waiting(leaf, |waiting| waiting + 1);
        }
        self.active.insert(leaf);
    }

    pub(crate) fn remove(&mut self, name: &QueueName, key: &QueueKey) {
        let leaf = self.leaf(name);
        if self.queues[leaf.0].pending.remove(key) {
            self.count_waiting(leaf, |waiting| waiting - 1);
        }
        if self.queues[leaf.0].pending.is_empty() {
            self.active.remove(&leaf);
        }
    }

    fn count_waiting(&mut self, leaf: QueueIndex, change: fn(usize) -> usize) {
        let mut at = Some(leaf);
        while let Some(index) = at {
            let queue = &mut self.queues[index.0];
            queue.waiting = change(queue.waiting);
            at = queue.parent;
        }
    }

    pub(crate) fn contains(&self, name: &QueueName, key: &QueueKey) -> bool {
        self.queues[self.leaf(name).0].pending.contains(key)
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
        &self.queues[leaf.0].pending
    }

    /// Books a gang's devices, cores and memory in its queue and all above.
    pub(crate) fn take(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before + amount);
    }

    /// Takes them out again.
    pub(crate) fn give_back(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before - amount);
    }

    fn change(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)], change: fn(u64, u64) -> u64) {
        let half_life = self.configuration.half_life;
        let mut at = Some(self.leaf(name));
        while let Some(index) = at {
            let queue = &mut self.queues[index.0];
            for (resource, amount) in held {
                queue.usages.change(now, half_life, resource, |before| change(before, *amount));
            }
            at = queue.parent;
        }
    }

    /// The first queue from the leaf up whose limit the gang would break.
    pub(crate) fn over_limit(&self, leaf: QueueIndex, gang: &GangShape) -> Option<OverLimit> {
        self.path_up(leaf).find_map(|index| {
            let queue = &self.queues[index.0];
            let spec = queue.spec.as_ref()?;
            let limit = spec.limit(&gang.accelerator)?;
            let held = queue.held(&gang.accelerator);
            let is_over = held.saturating_add(gang.devices()) > limit;
            is_over.then(|| OverLimit { queue: spec.name.clone(), held, limit })
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

    /// How a leaf stands now.
    pub(crate) fn standing(&self, leaf: QueueIndex, now: Timestamp, totals: &BTreeMap<Resource, u64>) -> Standing {
        let mut path: Vec<Rank> = self.path_up(leaf).map(|index| self.rank(index, now, totals)).collect();
        path.reverse();
        Standing { path }
    }

    fn rank(&self, index: QueueIndex, now: Timestamp, totals: &BTreeMap<Resource, u64>) -> Rank {
        let queue = &self.queues[index.0];
        let Some(spec) = &queue.spec else { return Rank { is_over_quota: true, share: 0.0, index } };
        let is_over_quota = spec.quota.iter().all(|(kind, quota)| queue.held(kind) >= *quota);
        let share = queue.usages.dominant_share(now, self.configuration.half_life, totals);
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
            standings.push(QueueStanding { spec, share: self.rank(index, now, totals).share, accelerators });
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
            }
        }
    }

    /// The same use until now, with nothing held: for queues that are set up anew.
    pub(crate) fn past(&self, now: Timestamp) -> Vec<(Option<QueueName>, Usages)> {
        let half_life = self.configuration.half_life;
        self.usages().into_iter().map(|(name, usages)| (name, usages.past(now, half_life))).collect()
    }
}

const ROOT: QueueIndex = QueueIndex(0);

impl Queue {
    fn new(spec: Option<QueueSpec>, parent: Option<QueueIndex>) -> Self {
        Queue { spec, parent, children: Vec::new(), waiting: 0, usages: Usages::default(), pending: BTreeSet::new() }
    }

    fn held(&self, kind: &AcceleratorKind) -> u32 {
        let held = self.usages.held(&Resource::Accelerator(kind.clone()));
        u32::try_from(held).unwrap_or(u32::MAX)
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Standing {}

impl PartialOrd for Standing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Standing {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rank = |(a, b): (&Rank, &Rank)| {
            let by_share = || a.share.total_cmp(&b.share);
            a.is_over_quota.cmp(&b.is_over_quota).then_with(by_share).then_with(|| a.index.cmp(&b.index))
        };
        let ranks = self.path.iter().zip(&other.path).map(by_rank);
        ranks.fold(Ordering::Equal, Ordering::then).then(self.path.len().cmp(&other.path.len()))
    }
}
