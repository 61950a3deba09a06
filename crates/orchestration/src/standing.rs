//! Which line is looked at next: the tree of queues with, for each, those of its children that have a line to look at,
//! in order.
//!
//! Invariants: a queue is in its parent's order exactly if its own line or one below it is to be looked at, with the
//! rank it had when it last changed; ranks are as of [`Queues::as_of`]. A change costs as much as the tree is deep, times
//! the logarithm of how many siblings there are. What a pass is done with, and lines whose jobs are all over a limit,
//! are put aside; a line over a limit comes back when the queue in its way gives something back or a job joins it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use gangline_base::Timestamp;

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

    /// Leaves a line out until one of these queues holds less, or a job joins it.
    pub(crate) fn block(&mut self, leaf: QueueIndex, by: &BTreeSet<QueueIndex>) {
        for index in by {
            self.queues[index.0].blocked.insert(leaf);
        }
        self.put_aside(leaf);
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
    fn has_line_to_look_at(&self) -> bool {
        !self.is_aside && !self.line.order().is_empty()
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
