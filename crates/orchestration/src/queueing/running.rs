//! The jobs that hold devices in each queue, by priority and by how long they have run.

use std::time::Duration;

use gangline_base::{JobId, JobSpec, Priority, Timestamp};

use crate::queueing::queue::{QueueIndex, Queues};

/// An attempt of a job that holds devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) job: JobId,
    pub(crate) placed_at: Timestamp,
    /// How long the job held devices in earlier attempts.
    pub(crate) ran: Duration,
}

impl Run {
    /// Returns when the job would have been placed if it had run for its total run time without a pause.
    fn start(self) -> Timestamp {
        let ran = u64::try_from(self.ran.as_nanos()).unwrap_or(u64::MAX);
        Timestamp::from_unix_nanos(self.placed_at.unix_nanos().saturating_sub(ran))
    }
}

impl Queues {
    /// Notes that a job now holds devices.
    pub(crate) fn started(&mut self, spec: &JobSpec, run: Run) {
        let leaf = self.leaf(&spec.queue);
        let running = self.queues[leaf.0].running.entry(spec.priority).or_default();
        running.insert((run.start(), run.job));
        self.seek(leaf);
    }

    /// Notes that a job no longer holds devices. The queues above it then hold less.
    pub(crate) fn ended(&mut self, spec: &JobSpec, run: Run) {
        let leaf = self.leaf(&spec.queue);
        let running = &mut self.queues[leaf.0].running;
        if let Some(alike) = running.get_mut(&spec.priority) {
            alike.remove(&(run.start(), run.job));
            if alike.is_empty() {
                running.remove(&spec.priority);
            }
        }
        let named: Vec<QueueIndex> = self.path_up(leaf).filter(|queue| self.name(*queue).is_some()).collect();
        named.into_iter().for_each(|queue| self.seek_below(queue));
        self.seek(leaf);
    }

    /// Returns the jobs that run in a leaf.
    pub(crate) fn running(&self, leaf: QueueIndex) -> impl Iterator<Item = JobId> + '_ {
        self.queues[leaf.0].running.values().flatten().map(|(_, job)| *job)
    }

    /// Returns the jobs of lower priority that run in a leaf.
    pub(crate) fn running_below(&self, leaf: QueueIndex, priority: Priority) -> impl Iterator<Item = JobId> + '_ {
        self.queues[leaf.0].running.range(..priority).flat_map(|(_, alike)| alike).map(|(_, job)| *job)
    }

    /// Returns the jobs of one priority that run in a leaf, the longest first, with the start that each would
    /// have had without pauses.
    pub(crate) fn running_of(
        &self,
        leaf: QueueIndex,
        priority: Priority,
    ) -> impl Iterator<Item = (Timestamp, JobId)> + use<'_> {
        self.queues[leaf.0].running.get(&priority).into_iter().flatten().copied()
    }

    /// Returns the leaves in and below a queue in which jobs run.
    pub(crate) fn leaves_running(&self, queue: QueueIndex) -> Vec<QueueIndex> {
        let (mut open, mut leaves) = (vec![queue], Vec::new());
        while let Some(queue) = open.pop() {
            if !self.queues[queue.0].running.is_empty() {
                leaves.push(queue);
            }
            open.extend(self.children(queue));
        }
        leaves
    }
}
