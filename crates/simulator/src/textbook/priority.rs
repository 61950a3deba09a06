//! Preemption by priority without regard to checkpoints: the baseline for policies that regard them.
//!
//! Jobs of higher priority come first, then earlier submissions; a job that doesn't fit is passed. A waiting
//! job takes the place of running jobs of lower priority, the lowest and youngest first, which are killed and
//! wait again (as under Slurm's PreemptMode=REQUEUE with preempt_youngest_first). Not clairvoyant.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gangline_base::Priority;

use super::Occupancy;
use super::preemptive::take_place_of;
use crate::policy::{Action, Happening, Policy, View};
use crate::workload::JobIndex;

type Rank = (Reverse<Priority>, JobIndex);

/// The priority policy: the highest priority runs, whatever work is lost.
#[derive(Debug)]
pub(crate) struct PriorityPreemption {
    occupancy: Occupancy,
    waiting: BTreeSet<Rank>,
    running: BTreeSet<Rank>,
}

impl PriorityPreemption {
    pub(crate) fn new(capacity: &[u32], jobs: usize) -> Self {
        let occupancy = Occupancy::new(capacity, jobs);
        PriorityPreemption { occupancy, waiting: BTreeSet::new(), running: BTreeSet::new() }
    }

    fn note(&mut self, view: &View<'_>, happening: Happening) {
        self.occupancy.note(happening);
        match happening {
            Happening::Submitted(job) => {
                self.waiting.insert(rank(view, job));
            }
            Happening::Finished(job) => {
                self.running.remove(&rank(view, job));
            }
            Happening::Failed(job) | Happening::Freed(job) => {
                self.running.remove(&rank(view, job));
                self.waiting.insert(rank(view, job));
            }
            Happening::NodeLost(_)
            | Happening::NodeBack(_)
            | Happening::CheckpointDurable(_)
            | Happening::NodeLeaves(..)
            | Happening::Timer => {}
        }
    }

    /// Returns the actions that start a job now; empty if it can't start.
    fn try_to_start(&mut self, view: &View<'_>, (priority, job): Rank) -> Vec<Action> {
        if let Some(shares) = self.occupancy.floor.find(view.gpus(job)) {
            return vec![self.occupancy.start(job, shares)];
        }
        let lower: Vec<JobIndex> =
            self.running.iter().rev().take_while(|(other, _)| *other > priority).map(|(_, job)| *job).collect();
        let behind: u32 = lower.iter().map(|job| view.gpus(*job)).sum();
        if view.gpus(job) > self.occupancy.floor.free_total() + behind {
            return Vec::new();
        }
        take_place_of(view, &mut self.occupancy, job, lower.into_iter())
    }
}

fn rank(view: &View<'_>, job: JobIndex) -> Rank {
    (Reverse(view.priority(job)), job)
}

impl Policy for PriorityPreemption {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        for happening in happenings {
            self.note(view, *happening);
        }
        let lowest = |running: &BTreeSet<Rank>| running.last().map(|(priority, _)| *priority);
        let mut actions = Vec::new();
        for candidate in self.waiting.iter().copied().collect::<Vec<_>>() {
            let can_preempt = lowest(&self.running).is_some_and(|lowest| lowest > candidate.0);
            if self.occupancy.floor.free_total() == 0 && !can_preempt {
                break;
            }
            for action in self.try_to_start(view, candidate) {
                match action {
                    Action::Start { job, .. } => {
                        self.waiting.remove(&candidate);
                        self.running.insert(rank(view, job));
                    }
                    Action::Preempt { job, .. } => {
                        self.running.remove(&rank(view, job));
                        self.waiting.insert(rank(view, job));
                    }
                    Action::Move(_) | Action::WakeAt(_) => {}
                }
                actions.push(action);
            }
        }
        actions
    }
}
