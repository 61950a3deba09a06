//! EASY backfill (Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, TPDS 2001): FIFO, but
//! when the head doesn't fit it gets a reservation, and a later job may pass it if that can't delay it.
//!
//! The reservation is in time and space: running jobs are taken to end at their limits until the head fits, and a
//! job is backfilled if it is over before then by its own limit, or if the head still fits then beside it. Estimates
//! are the limits that users typed; it isn't clairvoyant. A job may outlive its limit only through faults and
//! restarts, which delay the head as they would in reality.

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::Timestamp;

use super::Occupancy;
use crate::simulator::floor::{Floor, NodeChoice};
use crate::simulator::policy::{Action, Happening, Policy, View};
use crate::simulator::workload::JobIndex;

/// FIFO with a reservation for its head.
#[derive(Debug)]
pub(crate) struct EasyBackfill {
    occupancy: Occupancy,
    queue: BTreeSet<JobIndex>,
    running: BTreeSet<(Timestamp, JobIndex)>,
    ends: Vec<Timestamp>,
}

/// When the head can start at the latest, and the floor then.
struct Reservation {
    at: Timestamp,
    floor: Floor,
}

impl EasyBackfill {
    pub(crate) fn new(capacity: &[u32], jobs: usize) -> Self {
        EasyBackfill {
            occupancy: Occupancy::new(capacity, jobs),
            queue: BTreeSet::new(),
            running: BTreeSet::new(),
            ends: vec![Timestamp::EPOCH; jobs],
        }
    }

    fn start(&mut self, view: &View<'_>, job: JobIndex, shares: crate::simulator::floor::Shares) -> Action {
        self.queue.remove(&job);
        let end = view.latest_end(job).expect("every job has a limit: simulate refuses this policy without");
        self.ends[job.index()] = end;
        self.running.insert((end, job));
        self.occupancy.start(job, shares)
    }

    /// Where the head stands in time and space, if running jobs end at their limits. None if it can't start even when
    /// all have: nodes are down, and nobody knows for how long.
    fn reserve(&self, view: &View<'_>, head: JobIndex) -> Option<Reservation> {
        let mut floor = self.occupancy.floor.clone();
        let mut ends = self.running.iter().peekable();
        while let Some((end, job)) = ends.next() {
            if let Some(shares) = self.occupancy.place(*job) {
                floor.release(shares);
            }
            let is_last_of_instant = ends.peek().is_none_or(|(next, _)| next != end);
            if is_last_of_instant && floor.find(view.gpus(head), NodeChoice::Fullest).is_some() {
                return Some(Reservation { at: (*end).max(view.now + Duration::from_nanos(1)), floor });
            }
        }
        None
    }

    /// Starts what can't delay the head.
    fn backfill(&mut self, view: &View<'_>, head: JobIndex, actions: &mut Vec<Action>) {
        let mut reservation = self.reserve(view, head);
        let behind: Vec<JobIndex> = self.queue.iter().copied().filter(|job| *job != head).collect();
        for job in behind {
            if self.occupancy.floor.free_total() == 0 {
                break;
            }
            let Some(shares) = self.occupancy.floor.find(view.gpus(job), NodeChoice::Fullest) else { continue };
            let end = view.latest_end(job).expect("every job has a limit: simulate refuses this policy without");
            if let Some(reservation) = reservation.as_mut().filter(|reservation| end > reservation.at) {
                reservation.floor.take(&shares);
                if reservation.floor.find(view.gpus(head), NodeChoice::Fullest).is_none() {
                    reservation.floor.release(&shares);
                    continue;
                }
            }
            actions.push(self.start(view, job, shares));
        }
    }
}

impl Policy for EasyBackfill {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        for happening in happenings {
            self.occupancy.note(*happening);
            match happening {
                Happening::Submitted(job) => {
                    self.queue.insert(*job);
                }
                Happening::Finished(job) => {
                    self.running.remove(&(self.ends[job.index()], *job));
                }
                Happening::Failed(job) | Happening::Freed(job) => {
                    self.running.remove(&(self.ends[job.index()], *job));
                    self.queue.insert(*job);
                }
                _ => {}
            }
        }
        let mut actions = Vec::new();
        while let Some(head) = self.queue.first().copied() {
            let Some(shares) = self.occupancy.floor.find(view.gpus(head), NodeChoice::Fullest) else {
                self.backfill(view, head, &mut actions);
                break;
            };
            actions.push(self.start(view, head, shares));
        }
        actions
    }
}
