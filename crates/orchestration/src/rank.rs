//! Which line is looked at next: the tree of queues with, for each, those of its children that have a line to look at,
//! in order.
//!
//! Invariants: a queue is in its parent's order exactly if its own line or one below it is to be looked at, with the
//! rank it had when it last changed; ranks are as of [`Queues::as_of`]. A change costs as much as the tree is deep, times
//! the logarithm of how many siblings there are. What a line asks for and is over a limit with is left out until the
//! queue in its way gives something back, or a job asks for it anew.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_base::{GangShape, Timestamp};

use crate::queue::{QueueIndex, Queues, ROOT, share_time};
use crate::share::Resource;

/// How a queue stands beside its siblings; less is served first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) is_over_quota: bool,
    pub(crate) share: f64,
    pub(crate) index: QueueIndex,
}

/// How a leaf stands beside the others; less is served first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    path: Vec<Rank>,
}

impl Standing {
    pub(crate) fn new(path: Vec<Rank>) -> Self {
        Standing { path }
    }
}

impl Queues {
    /// Brings shares forward, if they are to be or what there is has changed.
    pub(crate) fn bring_forward(&mut self, now: Timestamp, totals: BTreeMap<Resource, u64>) {
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

    /// The line to look at next.
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

    /// Whether a line is to be looked at.
    pub(crate) fn is_looked_at(&self, leaf: QueueIndex) -> bool {
        self.queues[leaf.0].has_line_to_look_at()
    }

    /// Leaves a line out until it is put back.
    pub(crate) fn put_aside(&mut self, leaf: QueueIndex) {
        self.queues[leaf.0].is_aside = true;
        self.rank_up(leaf);
    }

    /// Looks at a line again.
    pub(crate) fn put_back(&mut self, leaf: QueueIndex) {
        self.queues[leaf.0].is_aside = false;
        self.rank_up(leaf);
    }

    /// A line asks for a gang that it may be within its limits with.
    pub(crate) fn open(&mut self, leaf: QueueIndex, gang: &GangShape) {
        if self.requests.open_line(gang, leaf) {
            self.queues[leaf.0].open += 1;
        }
        self.rank_up(leaf);
    }

    /// A line asks for a gang no more, or is over a limit with it.
    pub(crate) fn close(&mut self, leaf: QueueIndex, gang: &GangShape) {
        if self.requests.close_line(gang, leaf) {
            self.queues[leaf.0].open -= 1;
        }
        self.rank_up(leaf);
    }

    /// Leaves what a line asks for out until `by` holds less.
    pub(crate) fn block(&mut self, leaf: QueueIndex, gang: &Arc<GangShape>, by: QueueIndex) {
        self.queues[by.0].blocked.insert((leaf, gang.clone()));
        self.close(leaf, gang);
    }

    /// How a line that is looked at stands, by the ranks that are kept.
    pub(crate) fn kept_standing(&self, leaf: QueueIndex) -> Standing {
        let mut path: Vec<Rank> = self.path_up(leaf).filter_map(|index| self.queues[index.0].rank).collect();
        path.reverse();
        Standing { path }
    }

    /// Puts a queue and all above in their places.
    pub(crate) fn rank_up(&mut self, from: QueueIndex) {
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

impl crate::queue::Queue {
    pub(crate) fn has_line_to_look_at(&self) -> bool {
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
