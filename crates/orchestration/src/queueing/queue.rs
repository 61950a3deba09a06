//! The queues: a tree with quota, borrowing limit and weight, what each holds, and the jobs that wait in its
//! leaves.
//!
//! Invariants: a queue holds what the jobs in and below it hold; no queue exceeds its limit after a
//! placement; within a queue jobs are ordered by priority, then by turn. Among queues, one below its quota is
//! served before one that borrows, then the one with the lower dominant share over its weight (`usage.rs`),
//! compared level by level from the top as in Slurm's Fair Tree. Shares are updated once a minute rather than
//! at every visit, so the order is kept between changes (`rank.rs`) instead of being recomputed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AcceleratorKind, GangShape, GpuSeconds, JobId, JobSpec, Priority, QueueName, Timestamp};

use crate::queueing::entitlement::{Demand, Entitlement};
use crate::queueing::hours::{HourQuota, Meter};
use crate::queueing::pending::{Line, QueueKey, Requests};
use crate::queueing::rank::{Rank, RankPath};
use crate::queueing::rules::{QueueSpec, QueueingRules};
use crate::queueing::usage::{Resource, Usages};

/// The interval at which shares are updated. Half-lives are at least a second and usually days, in which case
/// use decays by a ten-thousandth in a minute.
const SHARE_PERIOD: Duration = Duration::from_mins(1);

/// A queue's index in [`Queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueIndex(pub(super) usize);

/// All queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    half_life: Duration,
    /// Whether `sharing` is kept.
    pub(super) shares_time: bool,
    /// All queues. The first is the root, which has no name; without configured queues it is the single queue
    /// in which all jobs wait.
    pub(super) queues: Vec<Queue>,
    by_name: BTreeMap<QueueName, QueueIndex>,
    /// Kinds of accelerators for which some queue has a quota.
    pub(super) kinds: Arc<[AcceleratorKind]>,
    /// Leaves with waiting jobs.
    pub(super) active: BTreeSet<QueueIndex>,
    /// Leaves that may have the right to preempt (`preemptors.rs`).
    pub(super) seeking: BTreeSet<QueueIndex>,
    /// Leaves in which a job may have run long enough for time slicing (`peers.rs`).
    pub(super) sharing: BTreeSet<QueueIndex>,
    /// Requests of waiting jobs, over all queues.
    pub(super) requests: Requests,
    /// Queues with a quota of hours.
    pub(super) metered: Vec<QueueIndex>,
    /// When shares were last updated, and the totals used.
    pub(super) as_of: Timestamp,
    pub(super) totals: BTreeMap<Resource, u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    spec: Option<QueueSpec>,
    pub(super) parent: Option<QueueIndex>,
    children: Vec<QueueIndex>,
    /// The number of jobs that wait in and below the queue.
    waiting: usize,
    pub(super) usages: Usages,
    /// Its quota of hours, with its use.
    pub(super) hours: Option<Meter>,
    /// Jobs that hold devices in the queue, by priority.
    pub(super) running: BTreeMap<Priority, BTreeSet<(Timestamp, JobId)>>,
    pub(super) line: Line,
    /// Kinds with quotas that the queue demands, as booked in its parent.
    pub(super) wants: BTreeSet<AcceleratorKind>,
    /// The summed guarantees of its children in demand, by kind (`entitlement.rs`).
    pub(super) demand: BTreeMap<AcceleratorKind, Demand>,
    /// Whether the current pass is done with the queue.
    pub(super) is_aside: bool,
    /// The number of its requested gangs that aren't known to exceed a limit.
    pub(super) open: usize,
    /// Queues, and their requested gangs, that wait for this queue to hold less.
    pub(super) blocked: BTreeSet<(QueueIndex, Arc<GangShape>)>,
    /// Its children that have a leaf to visit, in order.
    pub(super) ranked: BTreeSet<Rank>,
    /// Its rank in its parent's `ranked`, if it is there.
    pub(super) rank: Option<Rank>,
}

/// A queue limit that a gang would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    pub(crate) queue: QueueName,
    pub(crate) held: u32,
    pub(crate) limit: u32,
}

/// A configured queue and its share.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStanding<'a> {
    /// The queue's configuration.
    pub spec: &'a QueueSpec,
    /// Its dominant share over its weight; among siblings the lowest is served first.
    pub share: f64,
    /// Accelerators its jobs hold, and its entitlement (its quota plus a part, by weight, of what is left),
    /// by kind.
    pub accelerators: BTreeMap<AcceleratorKind, (u32, u32)>,
    /// Its quota of hours, what it has used of it, and when the next period begins.
    pub hours: Option<(HourQuota, GpuSeconds, Timestamp)>,
}

impl Queues {
    /// Creates empty queues.
    pub(crate) fn new(rules: QueueingRules) -> Self {
        let specs = rules.queues;
        let mut queues = Queues {
            half_life: rules.half_life,
            shares_time: rules.shares_time,
            queues: vec![Queue::new(None, None)],
            by_name: BTreeMap::new(),
            kinds: [].into(),
            active: BTreeSet::new(),
            seeking: BTreeSet::new(),
            sharing: BTreeSet::new(),
            requests: Requests::default(),
            metered: Vec::new(),
            as_of: Timestamp::EPOCH,
            totals: BTreeMap::new(),
        };
        let with_quota: BTreeSet<&AcceleratorKind> = specs.iter().flat_map(|spec| spec.quota.keys()).collect();
        queues.kinds = with_quota.into_iter().cloned().collect();
        for spec in &specs {
            queues.add(spec.clone());
        }
        for spec in &specs {
            let own = queues.by_name[&spec.name];
            let parent = spec.parent.as_ref().and_then(|parent| queues.by_name.get(parent)).copied();
            let parent = parent.unwrap_or(ROOT);
            queues.queues[own.0].parent = Some(parent);
            queues.queues[parent.0].children.push(own);
            if let Some(quota) = rules.hours.get(&spec.name) {
                queues.queues[own.0].hours = Some(Meter::new(*quota));
                queues.metered.push(own);
            }
        }
        queues
    }

    fn add(&mut self, spec: QueueSpec) -> QueueIndex {
        let index = QueueIndex(self.queues.len());
        self.by_name.insert(spec.name.clone(), index);
        self.queues.push(Queue::new(Some(spec), Some(ROOT)));
        index
    }

    /// Returns the leaf with this name; the root if none are configured or the name no longer exists.
    pub(crate) fn leaf(&self, name: &QueueName) -> QueueIndex {
        self.by_name.get(name).copied().unwrap_or(ROOT)
    }

    /// Reports whether jobs may be submitted to a queue of this name.
    pub(crate) fn takes_jobs(&self, name: &QueueName) -> bool {
        self.by_name.is_empty() || self.by_name.get(name).is_some_and(|index| self.queues[index.0].children.is_empty())
    }

    /// Returns the names of the queues that take jobs.
    pub(crate) fn leaf_names(&self) -> Vec<QueueName> {
        let leaves = self.by_name.iter().filter(|(_, index)| self.queues[index.0].children.is_empty());
        leaves.map(|(name, _)| name.clone()).collect()
    }

    /// Adds a waiting job.
    pub(crate) fn insert(&mut self, spec: &JobSpec, key: QueueKey) {
        let leaf = self.leaf(&spec.queue);
        if self.queues[leaf.0].line.insert(spec, key) {
            self.count_waiting(leaf, |waiting| waiting + 1);
            self.requests.count(spec);
        }
        self.active.insert(leaf);
        self.seek(leaf);
        self.open(leaf, &spec.gang);
    }

    /// Removes a waiting job.
    pub(crate) fn remove(&mut self, spec: &JobSpec, key: &QueueKey) {
        let leaf = self.leaf(&spec.queue);
        if !self.queues[leaf.0].line.remove(spec, key) {
            return;
        }
        self.count_waiting(leaf, |waiting| waiting - 1);
        self.seek(leaf);
        if !self.queues[leaf.0].line.asks_for(&spec.gang) {
            self.close(leaf, &spec.gang);
        }
        self.requests.discount(spec);
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

    /// Returns the number of waiting jobs.
    pub(crate) fn waiting(&self) -> usize {
        self.queues[ROOT.0].waiting
    }

    /// Returns the leaves with waiting jobs.
    pub(crate) fn active(&self) -> impl Iterator<Item = QueueIndex> + '_ {
        self.active.iter().copied()
    }

    /// Returns the waiting jobs of a leaf, in order.
    pub(crate) fn pending(&self, leaf: QueueIndex) -> &BTreeSet<QueueKey> {
        self.line(leaf).order()
    }

    /// Returns the requests of waiting jobs, over all queues.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns the waiting jobs of a leaf with their requests.
    pub(crate) fn line(&self, leaf: QueueIndex) -> &Line {
        &self.queues[leaf.0].line
    }

    /// Books a gang's devices, cores and memory in its queue and all ancestors.
    pub(crate) fn take(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before + amount);
    }

    /// Undoes [`Queues::take`].
    pub(crate) fn give_back(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)]) {
        self.change(now, name, held, |before, amount| before - amount);
        for index in self.path_up(self.leaf(name)).collect::<Vec<_>>() {
            self.reopen(index);
        }
    }

    /// Visits the requests again that waited for a queue to be below its limits.
    pub(super) fn reopen(&mut self, queue: QueueIndex) {
        for (leaf, gang) in std::mem::take(&mut self.queues[queue.0].blocked) {
            if self.queues[leaf.0].line.asks_for(&gang) {
                self.open(leaf, &gang);
            }
        }
    }

    fn change(&mut self, now: Timestamp, name: &QueueName, held: &[(Resource, u64)], change: fn(u64, u64) -> u64) {
        let half_life = self.half_life;
        let mut at = Some(self.leaf(name));
        while let Some(index) = at {
            self.meter_hours(now, index);
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

    /// Returns the first queue, from the leaf upward, whose limit the gang would exceed.
    pub(crate) fn over_limit(&self, leaf: QueueIndex, gang: &GangShape) -> Option<OverLimit> {
        let queue = &self.queues[self.at_limit(leaf, gang)?.0];
        let spec = queue.spec.as_ref()?;
        let limit = spec.limit(&gang.accelerator)?;
        Some(OverLimit { queue: spec.name.clone(), held: queue.held(&gang.accelerator), limit })
    }

    /// Returns the queue, from the leaf upward, that keeps a gang from starting: by its limit or by its hours.
    pub(crate) fn limited_by(&self, leaf: QueueIndex, gang: &GangShape) -> Option<QueueIndex> {
        self.at_limit(leaf, gang).or_else(|| self.spent_above(leaf))
    }

    /// Returns the first queue, from the leaf upward, whose limit on devices the gang would exceed.
    pub(crate) fn at_limit(&self, leaf: QueueIndex, gang: &GangShape) -> Option<QueueIndex> {
        self.path_up(leaf).find(|index| {
            let queue = &self.queues[index.0];
            let limit = queue.spec.as_ref().and_then(|spec| spec.limit(&gang.accelerator));
            limit.is_some_and(|limit| queue.held(&gang.accelerator).saturating_add(gang.devices()) > limit)
        })
    }

    /// Returns the first queue, from the leaf upward, whose limit the gang would exceed even if the queue
    /// were empty.
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

    /// Returns how many more accelerators of a kind a leaf may get, if it or an ancestor has a limit.
    pub(crate) fn left_of(&self, leaf: QueueIndex, kind: &AcceleratorKind) -> Option<u32> {
        if self.spent_above(leaf).is_some() {
            return Some(0);
        }
        let left = |queue: QueueIndex| Some(self.limit(queue, kind)?.saturating_sub(self.held(queue, kind)));
        self.path_up(leaf).filter_map(left).min()
    }

    /// Returns a queue's children.
    pub(super) fn children(&self, queue: QueueIndex) -> impl Iterator<Item = QueueIndex> + '_ {
        self.queues[queue.0].children.iter().copied()
    }

    /// Returns a queue's parent; none for the root.
    pub(crate) fn parent(&self, queue: QueueIndex) -> Option<QueueIndex> {
        self.queues[queue.0].parent
    }

    /// Returns a configured queue's name.
    pub(crate) fn name(&self, queue: QueueIndex) -> Option<&QueueName> {
        self.queues[queue.0].spec.as_ref().map(|spec| &spec.name)
    }

    /// Returns the accelerators of a kind that jobs in and below a queue hold.
    pub(crate) fn held(&self, queue: QueueIndex, kind: &AcceleratorKind) -> u32 {
        self.queues[queue.0].held(kind)
    }

    /// Reports whether jobs in or below a queue hold or wait for accelerators of a kind.
    pub(super) fn is_in_demand(&self, queue: QueueIndex, kind: &AcceleratorKind) -> bool {
        let queue = &self.queues[queue.0];
        queue.waiting > 0 || queue.held(kind) > 0
    }

    /// Returns a queue's quota for a kind.
    pub(super) fn quota(&self, queue: QueueIndex, kind: &AcceleratorKind) -> u32 {
        self.queues[queue.0].spec.as_ref().map_or(0, |spec| spec.quota_of(kind))
    }

    /// Returns the most accelerators of a kind that a queue may use, if limited.
    pub(super) fn limit(&self, queue: QueueIndex, kind: &AcceleratorKind) -> Option<u32> {
        self.queues[queue.0].spec.as_ref().and_then(|spec| spec.limit(kind))
    }

    /// Returns a queue's weight relative to its siblings.
    pub(super) fn weight(&self, queue: QueueIndex) -> u32 {
        self.queues[queue.0].spec.as_ref().map_or(1, |spec| spec.weight.get())
    }

    /// Returns a leaf's standing as of the share update in force at `now`.
    pub(crate) fn standing(&self, leaf: QueueIndex, now: Timestamp, totals: &BTreeMap<Resource, u64>) -> RankPath {
        let as_of = share_time(now);
        let mut path: Vec<Rank> = self.path_up(leaf).map(|index| self.rank_of(index, as_of, totals)).collect();
        path.reverse();
        RankPath::new(path)
    }

    /// Returns a queue's rank among its siblings.
    pub(super) fn rank_of(&self, index: QueueIndex, at: Timestamp, totals: &BTreeMap<Resource, u64>) -> Rank {
        let queue = &self.queues[index.0];
        let Some(spec) = &queue.spec else { return Rank { is_over_quota: true, share: 0.0, index } };
        let is_over_quota = spec.quota.iter().all(|(kind, quota)| queue.held(kind) >= *quota);
        let share = queue.usages.dominant_share(at, self.half_life, totals);
        Rank { is_over_quota, share: share / f64::from(spec.weight.get()), index }
    }

    /// Returns every configured queue with its share.
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
            let (share, hours) = (self.rank_of(index, now, totals).share, self.hours(now, index));
            standings.push(QueueStanding { spec, share, accelerators, hours });
        }
        standings
    }

    /// Returns every configured queue with its use, in configuration order.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&QueueSpec, &Usages)> {
        self.queues.iter().filter_map(|queue| queue.spec.as_ref().map(|spec| (spec, &queue.usages)))
    }

    /// Returns what every queue holds and has used, for a snapshot; the root has no name.
    pub(crate) fn usages(&self) -> Vec<(Option<QueueName>, Usages)> {
        let name = |queue: &Queue| queue.spec.as_ref().map(|spec| spec.name.clone());
        self.queues.iter().map(|queue| (name(queue), queue.usages.clone())).collect()
    }

    /// Restores what queues of the same names hold and have used.
    pub(crate) fn set_usages(&mut self, usages: Vec<(Option<QueueName>, Usages)>) {
        for (name, usages) in usages {
            let index = name.map_or(Some(ROOT), |name| self.by_name.get(&name).copied());
            if let Some(index) = index {
                self.queues[index.0].usages = usages;
                self.book_demand(index);
            }
        }
    }

    /// Returns each queue's use until now with nothing held, for rebuilding the queues.
    pub(crate) fn past(&self, now: Timestamp) -> Vec<(Option<QueueName>, Usages)> {
        let half_life = self.half_life;
        self.usages().into_iter().map(|(name, usages)| (name, usages.past(now, half_life))).collect()
    }
}

pub(super) const ROOT: QueueIndex = QueueIndex(0);

/// Returns the time of the share update in force at `now`.
pub(super) fn share_time(now: Timestamp) -> Timestamp {
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
            hours: None,
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
