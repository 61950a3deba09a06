//! FIFO and SJF without preemption, as in Helios (Hu et al., SC'21): jobs start in queue order, each
//! consolidated (on the fullest node that fits, or on whole idle nodes and the rest), up to the first that
//! doesn't fit. Submissions of one second are ordered as `ties.rs` describes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Occupancy, ties};
use crate::policy::{Action, Happening, Policy, View};
use crate::workload::{JobIndex, Workload};

/// The order of the queue.
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
    /// Every job's position in the order of submission.
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
