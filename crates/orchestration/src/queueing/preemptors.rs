//! Index of queues whose leading jobs may preempt; a pass visits only these.
//!
//! The right to preempt arises only from a change: another job is first, the queue or an ancestor holds less,
//! a sibling queue starts or stops wanting accelerators, the total changes, or a job of lower priority starts
//! in the queue. Each of these adds queues to the index; a visit that finds no right removes the queue. The
//! tests' invariant check compares the index with a visit to every queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use gangline_base::{Priority, Timestamp};

use crate::job::Job;
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
        if self.configuration().preemption.share_time {
            self.sharing.insert(leaf);
        }
    }

    /// Adds all leaves in and below a queue.
    pub(crate) fn seek_below(&mut self, queue: QueueIndex) {
        let mut open = vec![queue];
        while let Some(queue) = open.pop() {
            if self.active.contains(&queue) {
                self.seek(queue);
            }
            open.extend(self.children(queue));
        }
    }

    /// Adds a queue's siblings, whose entitlements change when it starts or stops wanting accelerators.
    pub(crate) fn seek_beside(&mut self, queue: QueueIndex) {
        self.book_demand(queue);
        if let Some(parent) = self.parent(queue) {
            self.seek_below(parent);
        }
    }

    /// Notes that a job now holds devices.
    pub(crate) fn started(&mut self, placed_at: Timestamp, job: &Job) {
        let leaf = self.leaf(&job.spec.queue);
        let running = self.queues[leaf.0].running.entry(job.spec.priority).or_default();
        running.insert((without_pauses(placed_at, job.ran), job.id));
        self.seek(leaf);
    }

    /// Notes that a job no longer holds devices. The queues above it then hold less.
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

    /// Reports whether a job of lower priority runs in a leaf.
    pub(crate) fn runs_below(&self, leaf: QueueIndex, priority: Priority) -> bool {
        self.queues[leaf.0].running.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }
}

/// Returns when a job would have been placed if it had run for its total run time without a pause.
fn without_pauses(placed_at: Timestamp, ran: Duration) -> Timestamp {
    let ran = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
    Timestamp::from_unix_nanos(placed_at.unix_nanos().saturating_sub(ran))
}
