//! Index of queues whose leading jobs may preempt; a pass visits only these.
//!
//! The right to preempt arises only from a change: another job is first, the queue or an ancestor holds less,
//! a sibling queue starts or stops wanting accelerators, the total changes, or a job of lower priority starts
//! in the queue. Each of these adds queues to the index; a visit that finds no right removes the queue. The
//! tests' invariant check compares the index with a visit to every queue.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use gangline_base::GangShape;

use crate::queueing::queue::{QueueIndex, Queues};
use crate::queueing::rank::RankPath;

impl Queues {
    /// Returns queues that may have the right to preempt, best standing first. A queue that exceeds a limit
    /// with all its requests is omitted.
    pub(crate) fn seeking(&self) -> BinaryHeap<Reverse<(RankPath, QueueIndex)>> {
        let lines = self.seeking.iter().filter(|line| self.is_looked_at(**line));
        lines.map(|line| Reverse((self.kept_standing(*line), *line))).collect()
    }

    /// Reports whether a queue is in the index.
    pub(crate) fn is_seeking(&self, leaf: QueueIndex) -> bool {
        self.seeking.contains(&leaf)
    }

    /// Removes a queue that has no right for now.
    pub(crate) fn give_up(&mut self, leaf: QueueIndex) {
        self.seeking.remove(&leaf);
    }

    pub(crate) fn seek(&mut self, leaf: QueueIndex) {
        self.seeking.insert(leaf);
        if self.shares_time {
            self.sharing.insert(leaf);
        }
    }

    /// Adds all leaves in and below a queue.
    pub(super) fn seek_below(&mut self, queue: QueueIndex) {
        let mut open = vec![queue];
        while let Some(queue) = open.pop() {
            if self.active.contains(&queue) {
                self.seek(queue);
            }
            open.extend(self.children(queue));
        }
    }

    /// Adds a queue's siblings, whose entitlements change when it starts or stops wanting accelerators.
    pub(super) fn seek_beside(&mut self, queue: QueueIndex) {
        self.book_demand(queue);
        if let Some(parent) = self.parent(queue) {
            self.seek_below(parent);
        }
    }

    /// Returns queues in which a job may have run long enough, and those that request one of these gangs,
    /// best standing first.
    pub(crate) fn sharing(&self, gangs: &BTreeSet<Arc<GangShape>>) -> BinaryHeap<Reverse<(RankPath, QueueIndex)>> {
        let mut lines: BTreeSet<QueueIndex> = self.sharing.clone();
        lines.extend(gangs.iter().flat_map(|gang| self.requests.open_lines(gang)));
        let lines = lines.into_iter().filter(|line| self.is_looked_at(*line));
        lines.map(|line| Reverse((self.kept_standing(line), line))).collect()
    }

    /// Reports whether a queue would be returned by [`Queues::sharing`], or need not be.
    pub(crate) fn is_sharing(&self, leaf: QueueIndex) -> bool {
        self.sharing.contains(&leaf) || !self.is_looked_at(leaf) || !self.shares_time
    }

    /// Removes a queue in which no job has run long enough for now.
    pub(crate) fn share_no_more(&mut self, leaf: QueueIndex) {
        self.sharing.remove(&leaf);
    }
}
