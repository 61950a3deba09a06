//! EASY backfill (Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, TPDS 2001):
//! FIFO, but when the head doesn't fit it gets a reservation, and a later job may pass it if that can't delay
//! it.
//!
//! The reservation is in time and space: running jobs are assumed to end at their limits until the head fits,
//! and a job is backfilled if its own limit ends before then, or if the head still fits beside it then.
//! Estimates are the limits that users typed, so it isn't clairvoyant. A job may exceed its limit only
//! through faults and restarts, which delay the head as they would in reality.

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::Timestamp;

use super::Occupancy;
use crate::floor::Floor;
use crate::policy::{Action, Happening, Policy, View};
use crate::workload::JobIndex;

/// FIFO with a reservation for its head.
#[derive(Debug)]
pub(crate) struct EasyBackfill {
    occupancy: Occupancy,
    queue: BTreeSet<JobIndex>,
    running: BTreeSet<(Timestamp, JobIndex)>,
    ends: Vec<Timestamp>,
}

/// The latest start of the head, and the state of the floor at that time.
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

    fn start(&mut self, view: &View<'_>, job: JobIndex, shares: crate::floor::Shares) -> Action {
        self.queue.remove(&job);
        let end = view.latest_end(job).expect("every job has a limit: simulate refuses this policy without");
        self.ends[job.index()] = end;
        self.running.insert((end, job));
        self.occupancy.start(job, shares)
    }

    /// Returns the head's reservation, assuming that running jobs end at their limits. None if it can't start
    /// even then, because nodes are down for an unknown time.
    fn reserve(&self, view: &View<'_>, head: JobIndex) -> Option<Reservation> {
        let mut floor = self.occupancy.floor.clone();
        let mut ends = self.running.iter().peekable();
        while let Some((end, job)) = ends.next() {
            if let Some(shares) = self.occupancy.place(*job) {
                floor.release(shares);
            }
            let is_last_of_instant = ends.peek().is_none_or(|(next, _)| next != end);
            if is_last_of_instant && floor.find(view.gpus(head)).is_some() {
                return Some(Reservation { at: (*end).max(view.now + Duration::from_nanos(1)), floor });
            }
        }
        None
    }

    /// Starts jobs that can't delay the head.
    fn backfill(&mut self, view: &View<'_>, head: JobIndex, actions: &mut Vec<Action>) {
        let mut reservation = self.reserve(view, head);
        let behind: Vec<JobIndex> = self.queue.iter().copied().filter(|job| *job != head).collect();
        for job in behind {
            if self.occupancy.floor.free_total() == 0 {
                break;
            }
            let Some(shares) = self.occupancy.floor.find(view.gpus(job)) else { continue };
            let end = view.latest_end(job).expect("every job has a limit: simulate refuses this policy without");
            if let Some(reservation) = reservation.as_mut().filter(|reservation| end > reservation.at) {
                reservation.floor.take(&shares);
                if reservation.floor.find(view.gpus(head)).is_none() {
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
            let Some(shares) = self.occupancy.floor.find(view.gpus(head)) else {
                self.backfill(view, head, &mut actions);
                break;
            };
            actions.push(self.start(view, head, shares));
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{FaultSpec, Faults};
    use crate::random::{Draws, Purpose};
    use crate::workload::{Label, TraceJob, Workload};
    use crate::world::{Setting, World};
    use crate::{Charges, LimitModel};

    /// EASY, recording for each head its earliest reserved start.
    struct Watched {
        inner: EasyBackfill,
        promises: Vec<Option<Timestamp>>,
        kept: usize,
        passed: usize,
    }

    impl Policy for Watched {
        fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
            let actions = self.inner.decide(view, happenings);
            for action in &actions {
                let Action::Start { job, .. } = action else { panic!("EASY only starts jobs") };
                if let Some(promise) = self.promises[job.index()] {
                    assert!(view.now <= promise, "{job:?} was promised {promise:?} and started at {:?}", view.now);
                    self.kept += 1;
                }
                self.passed += usize::from(self.inner.queue.first().is_some_and(|head| head < job));
            }
            if let Some(head) = self.inner.queue.first().copied() {
                let promise = self.inner.reserve(view, head).map(|reservation| reservation.at);
                let promise = promise.expect("nothing is down, so the head fits once all limits are over");
                let best = self.promises[head.index()].get_or_insert(promise);
                *best = promise.min(*best);
            }
            actions
        }
    }

    /// Returns up to 60 jobs with up to 24 accelerators, submitted close together, for 4 nodes of 8.
    fn workload(seed: u64) -> Workload {
        let mut at = Duration::ZERO;
        let job = |line: u32| {
            let mut draws = Draws::new(seed, Purpose::Limits, line);
            at += draws.exponential(600.0);
            let share = 12.0 * draws.uniform();
            let size = (1..).zip([1, 1, 1, 2, 3, 4, 6, 8, 8, 11, 16, 24]).find(|(place, _)| share < f64::from(*place));
            TraceJob {
                line,
                submitted: Timestamp::EPOCH + at,
                duration: draws.exponential(4_000.0),
                gpus: size.map_or(1, |(_, gpus)| gpus),
                user: Label::default(),
                queue: Label::default(),
                model: Label::default(),
                limit: None,
            }
        };
        Workload { jobs: (1..=60).map(job).collect(), ..Workload::default() }
    }

    #[test]
    fn the_head_never_starts_later_than_any_reservation_it_had() {
        let (mut kept, mut passed) = (0, 0);
        for seed in 0..200 {
            let workload = workload(seed);
            let capacity = vec![8; 4];
            let setting = Setting {
                workload: &workload,
                charges: Charges::FREE,
                limits: LimitModel::Users.limits(&workload, seed),
                is_high: vec![false; workload.jobs.len()],
                has_quirk: false,
                is_clairvoyant: false,
                faults: Faults::new(FaultSpec::NONE, seed, 4),
                capacity: capacity.clone(),
                racks: Vec::new(),
            };
            let jobs: Vec<JobIndex> = workload.indices().collect();
            let inner = EasyBackfill::new(&capacity, jobs.len());
            let mut watched = Watched { inner, promises: vec![None; jobs.len()], kept: 0, passed: 0 };
            World::new(setting).run(&jobs, &mut watched).expect("it has an end");
            (kept, passed) = (kept + watched.kept, passed + watched.passed);
        }
        assert!(kept > 1_000 && passed > 1_000, "{kept} promises and {passed} backfilled jobs say little");
    }
}
