//! Which lines may have the right to stop somebody: those are looked at in a pass, the others aren't.
//!
//! A right comes about only by a change: the first in line is another, its queue or one above holds less, a queue beside
//! begins or ends to want something, there is more or less in all, or somebody of lower priority has started in its queue.
//! Each of these puts lines on the list; a look that finds no right takes them off. The invariant check of the tests
//! compares with a look at every line.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gangline_base::{Priority, Timestamp};

use crate::job::Job;
use crate::queue::{QueueIndex, Queues};
use crate::rank::Standing;
use crate::rotation::without_pauses;

impl Queues {
    /// Lines that may have a right, the best standing first. One that is over a limit with all it asks for has none.
    pub(crate) fn seeking(&self) -> BinaryHeap<Reverse<(Standing, QueueIndex)>> {
        let lines = self.seeking.iter().filter(|line| self.is_looked_at(**line));
        lines.map(|line| Reverse((self.kept_standing(*line), *line))).collect()
    }

    /// Whether a line is on the list.
    pub(crate) fn is_seeking(&self, leaf: QueueIndex) -> bool {
        self.seeking.contains(&leaf)
    }

    /// A line has no right for now.
    pub(crate) fn give_up(&mut self, leaf: QueueIndex) {
        self.seeking.remove(&leaf);
    }

    pub(crate) fn seek(&mut self, leaf: QueueIndex) {
        self.seeking.insert(leaf);
        if self.configuration().preemption.share_time {
            self.sharing.insert(leaf);
        }
    }

    /// All lines in and below a queue.
    pub(crate) fn seek_below(&mut self, queue: QueueIndex) {
        let mut open = vec![queue];
        while let Some(queue) = open.pop() {
            if self.active.contains(&queue) {
                self.seek(queue);
            }
            open.extend(self.children(queue));
        }
    }

    /// A queue begins or ends to want accelerators: those beside it are entitled to less or more.
    pub(crate) fn seek_beside(&mut self, queue: QueueIndex) {
        self.book_demand(queue);
        if let Some(parent) = self.parent(queue) {
            self.seek_below(parent);
        }
    }

    /// A job holds devices from now on.
    pub(crate) fn started(&mut self, placed_at: Timestamp, job: &Job) {
        let leaf = self.leaf(&job.spec.queue);
        let running = self.queues[leaf.0].running.entry(job.spec.priority).or_default();
        running.insert((without_pauses(placed_at, job.ran), job.id));
        self.seek(leaf);
    }

    /// A job holds none any more. Queues above it hold less.
    pub(crate) fn ended(&mut self, placed_at: Timestamp, job: &Job) {
        let leaf = self.leaf(&job.spec.queue);
        let running = &mut self.queues[leaf.0].running;
        if let Some(alike) = running.get_mut(&job.spec.priority) {
            alike.remove(&(without_pauses(placed_at, job.ran), job.id));
            if alike.is_empty() {
                running.remove(&job.spec.priority);
            }
        }
        let named: Vec<QueueIndex> = self.path_up(leaf).filter(|queue| self.name(*queue).is_some()).collect();
        named.into_iter().for_each(|queue| self.seek_below(queue));
        self.seek(leaf);
    }

    /// Whether a job of lower priority runs in a leaf.
    pub(crate) fn runs_below(&self, leaf: QueueIndex, priority: Priority) -> bool {
        self.queues[leaf.0].running.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }
}
