//! The order in which leaves are visited: each queue in the tree keeps, in order, its children that have a
//! leaf to visit.
//!
//! Invariants: a queue is in its parent's order exactly if it or a leaf below it is to be visited, with the
//! rank of its last change; ranks are as of [`Queues::as_of`]. A change costs the depth of the tree times the
//! logarithm of the number of siblings. A request that exceeds a limit is skipped until the limiting queue
//! holds less or a new job makes the request.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_base::{GangShape, Timestamp};

use crate::queueing::queue::{QueueIndex, Queues, ROOT, share_time};
use crate::queueing::usage::Resource;

/// A queue's rank among its siblings; lower ranks are served first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) is_over_quota: bool,
    pub(crate) share: f64,
    pub(crate) index: QueueIndex,
}

/// A leaf's rank among all leaves; lower ranks are served first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankPath {
    path: Vec<Rank>,
}

impl RankPath {
    pub(super) fn new(path: Vec<Rank>) -> Self {
        RankPath { path }
    }
}

impl Queues {
    /// Updates shares, if an update is due or the totals have changed.
    pub(crate) fn bring_forward(&mut self, now: Timestamp, totals: BTreeMap<Resource, u64>) {
        self.note_hours(now);
        let as_of = share_time(now);
        if as_of == self.as_of && totals == self.totals {
            return;
        }
        if totals != self.totals {
            self.seeking = self.active.clone();
        }
        (self.as_of, self.totals) = (as_of, totals);
        for leaf in self.active().collect::<Vec<_>>() {
            self.rank_up(leaf);
        }
    }

    /// Returns the leaf to visit next.
    pub(crate) fn first_line(&self) -> Option<QueueIndex> {
        let mut at = ROOT;
        loop {
            let queue = &self.queues[at.0];
            if queue.has_line_to_look_at() {
                return Some(at);
            }
            at = queue.ranked.first()?.index;
        }
    }

    /// Reports whether a leaf is to be visited.
    pub(crate) fn is_looked_at(&self, leaf: QueueIndex) -> bool {
        self.queues[leaf.0].has_line_to_look_at()
    }

    /// Skips a leaf until it is put back.
    pub(crate) fn put_aside(&mut self, leaf: QueueIndex) {
        self.queues[leaf.0].is_aside = true;
        self.rank_up(leaf);
    }

    /// Visits a leaf again.
    pub(crate) fn put_back(&mut self, leaf: QueueIndex) {
        self.queues[leaf.0].is_aside = false;
        self.rank_up(leaf);
    }

    /// Adds a requested gang that may be within the leaf's limits.
    pub(super) fn open(&mut self, leaf: QueueIndex, gang: &GangShape) {
        if self.requests.open_line(gang, leaf) {
            self.queues[leaf.0].open += 1;
        }
        self.rank_up(leaf);
    }

    /// Removes a gang that a leaf no longer requests, or that would exceed a limit.
    pub(super) fn close(&mut self, leaf: QueueIndex, gang: &GangShape) {
        if self.requests.close_line(gang, leaf) {
            self.queues[leaf.0].open -= 1;
        }
        self.rank_up(leaf);
    }

    /// Skips a leaf's request for a gang until `by` holds less.
    pub(crate) fn block(&mut self, leaf: QueueIndex, gang: &Arc<GangShape>, by: QueueIndex) {
        self.queues[by.0].blocked.insert((leaf, gang.clone()));
        self.close(leaf, gang);
    }

    /// Returns the standing of a leaf to be visited, from the stored ranks.
    pub(crate) fn kept_standing(&self, leaf: QueueIndex) -> RankPath {
        let mut path: Vec<Rank> = self.path_up(leaf).filter_map(|index| self.queues[index.0].rank).collect();
        path.reverse();
        RankPath { path }
    }

    /// Updates the position of a queue and all its ancestors.
    pub(super) fn rank_up(&mut self, from: QueueIndex) {
        let mut at = from;
        while let Some(parent) = self.queues[at.0].parent {
            let queue = &self.queues[at.0];
            let has_any = queue.has_line_to_look_at() || !queue.ranked.is_empty();
            let rank = has_any.then(|| self.rank_of(at, self.as_of, &self.totals));
            let old = std::mem::replace(&mut self.queues[at.0].rank, rank);
            if old != rank {
                let ranked = &mut self.queues[parent.0].ranked;
                old.map(|old| ranked.remove(&old));
                ranked.extend(rank);
            }
            at = parent;
        }
    }
}

impl crate::queueing::queue::Queue {
    pub(super) fn has_line_to_look_at(&self) -> bool {
        !self.is_aside && self.open > 0
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_quota = self.is_over_quota.cmp(&other.is_over_quota);
        by_quota.then_with(|| self.share.total_cmp(&other.share)).then_with(|| self.index.cmp(&other.index))
    }
}
