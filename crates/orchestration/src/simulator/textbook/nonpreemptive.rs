//! FIFO and SJF without preemption, as in Helios (Hu et al., SC'21): the queue in order, each job consolidated (the
//! fullest node that fits, or whole idle nodes and the rest), stopping at the first that doesn't fit. Submissions of one
//! second stand in the order that `ties.rs` describes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Occupancy, ties};
use crate::simulator::policy::{Action, Happening, Policy, View};
use crate::simulator::workload::{JobIndex, Workload};

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
    /// Every job's place in the order of submission.
    places: Vec<u32>,
    queue: BTreeSet<(Duration, u32, JobIndex)>,
}

impl InOrder {
    pub(crate) fn new(order: Order, capacity: &[u32], workload: &Workload) -> Self {
        let occupancy = Occupancy::new(capacity, workload.jobs.len());
        InOrder { order, occupancy, places: ties::places(workload), queue: BTreeSet::new() }
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
                self.queue.insert((key, self.places[job.index()], *job));
            }
        }
        let mut actions = Vec::new();
        while let Some((_, _, job)) = self.queue.first().copied() {
            let Some(shares) = self.occupancy.floor.find(view.gpus(job)) else { break };
            self.queue.pop_first();
            actions.push(self.occupancy.start(job, shares));
        }
        actions
    }
}
