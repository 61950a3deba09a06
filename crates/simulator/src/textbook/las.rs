//! Two-dimensional least attained service, discretised: Tiresias (Gu et al., NSDI'19) as in Muri's simulator.
//!
//! Attained service is time with accelerators multiplied by their number. A job begins in the first of three
//! queues and is demoted when its service reaches the queue's threshold; it is never promoted. Queues are
//! served in order, and all jobs that fit run. Within a queue running jobs come before waiting ones, so a
//! waiting job preempts only lower queues. Not clairvoyant. Where preemption is free, accelerators are only
//! counted, as in Muri's simulator.

use std::time::Duration;

use gangline_base::Timestamp;

use super::Occupancy;
use super::preemptive::{Placing, settle};
use crate::policy::{Action, Happening, Manner, Place, Policy, View};
use crate::workload::JobIndex;

/// The service, in accelerator-seconds, at which a job is demoted to the next queue: Muri's values.
const THRESHOLDS: [u64; 2] = [3_250, 7_200];

/// The least-attained-service policy.
#[derive(Debug)]
pub(crate) struct LeastAttainedService {
    placing: Placing,
    occupancy: Occupancy,
    capacity_total: u32,
    queues: [Vec<JobIndex>; THRESHOLDS.len() + 1],
    /// Jobs in order of submission with their queue.
    runnable: Vec<JobIndex>,
    level: Vec<usize>,
    /// Which jobs run, where accelerators are only counted.
    is_on: Vec<bool>,
}

impl LeastAttainedService {
    pub(crate) fn new(placing: Placing, capacity: &[u32], jobs: usize) -> Self {
        LeastAttainedService {
            placing,
            occupancy: Occupancy::new(capacity, jobs),
            capacity_total: capacity.iter().sum(),
            queues: std::array::from_fn(|_| Vec::new()),
            runnable: Vec::new(),
            level: vec![0; jobs],
            is_on: vec![false; jobs],
        }
    }

    fn note(&mut self, happening: Happening) {
        self.occupancy.note(happening);
        match happening {
            Happening::Submitted(job) => {
                self.queues[0].push(job);
                self.runnable.push(job);
            }
            Happening::Finished(job) => {
                self.is_on[job.index()] = false;
                self.runnable.retain(|other| *other != job);
                self.queues[self.level[job.index()]].retain(|other| *other != job);
            }
            Happening::Freed(job) | Happening::Failed(job) => self.is_on[job.index()] = false,
            Happening::NodeLost(_)
            | Happening::NodeBack(_)
            | Happening::CheckpointDurable(_)
            | Happening::NodeLeaves(..)
            | Happening::Timer => {}
        }
    }

    fn sink(&mut self, view: &View<'_>) {
        for job in self.runnable.iter().copied().filter(|job| view.is_running(*job)) {
            let level = self.level[job.index()];
            let Some(threshold) = THRESHOLDS.get(level) else { continue };
            if view.attained(job) * view.gpus(job) >= Duration::from_secs(*threshold) {
                self.queues[level].retain(|other| *other != job);
                self.queues[level + 1].push(job);
                self.level[job.index()] = level + 1;
            }
        }
    }

    /// Decides which jobs run by counting accelerators only.
    fn count(&mut self, view: &View<'_>) -> Vec<Action> {
        let mut free = self.capacity_total;
        let (mut stops, mut starts) = (Vec::new(), Vec::new());
        for job in self.queues.iter().flatten().copied() {
            let runs = view.gpus(job) <= free;
            if runs {
                free -= view.gpus(job);
            }
            match (std::mem::replace(&mut self.is_on[job.index()], runs), runs) {
                (true, false) => stops.push(Action::Preempt { job, manner: Manner::AtOnce }),
                (false, true) => starts.push(Action::Start { job, place: Place::Counted }),
                _ => {}
            }
        }
        stops.append(&mut starts);
        stops
    }

    /// Puts running jobs before waiting ones in each queue, and returns when the next job is demoted.
    fn reorder(&mut self, view: &View<'_>) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for (level, queue) in self.queues.iter_mut().enumerate() {
            // The sort is stable: false (running) comes before true (waiting).
            queue.sort_by_key(|job| !self.is_on[job.index()]);
            let Some(threshold) = THRESHOLDS.get(level) else { continue };
            for job in queue.iter().copied().take_while(|job| self.is_on[job.index()]) {
                let service = Duration::from_secs(threshold.div_ceil(u64::from(view.gpus(job))));
                let at = view.now + service.saturating_sub(view.attained(job));
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        next
    }
}

impl Policy for LeastAttainedService {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        for happening in happenings {
            self.note(*happening);
        }
        self.sink(view);
        let mut actions = match self.placing {
            Placing::Anew => self.count(view),
            Placing::Sticky => {
                let order: Vec<JobIndex> = self.queues.iter().flatten().copied().collect();
                let actions = settle(view, &mut self.occupancy, &order);
                for job in order {
                    self.is_on[job.index()] = self.occupancy.place(job).is_some();
                }
                actions
            }
        };
        actions.extend(self.reorder(view).map(Action::WakeAt));
        actions
    }
}
