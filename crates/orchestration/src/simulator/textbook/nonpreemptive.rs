//! FIFO and SJF without preemption, as in Helios (Hu et al., SC'21): the queue in order, each job consolidated (the
//! fullest node that fits, or whole idle nodes and the rest), stopping at the first that doesn't fit.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Occupancy;
use crate::simulator::floor::NodeChoice;
use crate::simulator::policy::{Action, Happening, Policy, View};
use crate::simulator::workload::JobIndex;

/// What the queue is ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Submission.
    Submission,
    /// True remaining duration, then submission. Clairvoyant.
    Duration,
}

/// A queue that is served strictly in order.
#[derive(Debug)]
pub(crate) struct InOrder {
    order: Order,
    occupancy: Occupancy,
    queue: BTreeSet<(Duration, JobIndex)>,
}

impl InOrder {
    pub(crate) fn new(order: Order, capacity: &[u32], jobs: usize) -> Self {
        InOrder { order, occupancy: Occupancy::new(capacity, jobs), queue: BTreeSet::new() }
    }
}

impl Policy for InOrder {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        for happening in happenings {
            self.occupancy.note(*happening);
            if let Happening::Submitted(job) | Happening::Failed(job) | Happening::Freed(job) = happening {
                let key = match self.order {
                    Order::Submission => Duration::ZERO,
                    Order::Duration => view.remaining(*job),
                };
                self.queue.insert((key, *job));
            }
        }
        let mut actions = Vec::new();
        while let Some((key, job)) = self.queue.first().copied() {
            let Some(shares) = self.occupancy.floor.find(view.gpus(job), NodeChoice::Fullest) else { break };
            self.queue.remove(&(key, job));
            actions.push(self.occupancy.start(job, shares));
        }
        actions
    }
}
