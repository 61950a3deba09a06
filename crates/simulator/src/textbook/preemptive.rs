//! Turns an order of preference into placements, for policies that preempt at a cost: running jobs stay where
//! they are, and a waiting job takes the place of the least preferred running jobs, and only of those it
//! needs.

use super::Occupancy;
use crate::floor::Shares;
use crate::policy::{Action, View};
use crate::workload::JobIndex;

/// How an order becomes a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    /// All jobs are placed anew at every step, where preemption and moving are free.
    Anew,
    /// Running jobs stay unless a job before them needs their place.
    Sticky,
}

/// Runs the first jobs of `order`, as many as fit.
pub(crate) fn settle(view: &View<'_>, occupancy: &mut Occupancy, order: &[JobIndex]) -> Vec<Action> {
    let mut actions = Vec::new();
    // Accelerators of running jobs after the current one: the most that preemption could give it.
    let holds = |occupancy: &Occupancy, job: &JobIndex| occupancy.place(*job).map_or(0, |_| view.gpus(*job));
    let mut behind: u32 = order.iter().map(|job| holds(occupancy, job)).sum();
    for (place, job) in order.iter().copied().enumerate() {
        let held = holds(occupancy, &job);
        behind -= held;
        if held > 0 || view.gpus(job) > occupancy.floor.free_total() + behind {
            continue;
        }
        let found = occupancy.floor.find(view.gpus(job));
        if let Some(shares) = found {
            actions.push(occupancy.start(job, shares));
        } else if behind > 0 {
            let before = actions.len();
            actions.extend(take_place_of(view, occupancy, job, order[place + 1..].iter().rev().copied()));
            let victims = actions[before..].iter().filter_map(|action| match action {
                Action::Preempt { job, .. } => Some(view.gpus(*job)),
                Action::Start { .. } | Action::Move(_) | Action::WakeAt(_) => None,
            });
            behind -= victims.sum::<u32>();
        }
    }
    actions
}

/// Removes running jobs in the order of `candidates` until `job` fits, restores those whose place isn't
/// needed, and starts it. Does nothing if it doesn't fit even so.
pub(super) fn take_place_of(
    view: &View<'_>,
    occupancy: &mut Occupancy,
    job: JobIndex,
    candidates: impl Iterator<Item = JobIndex>,
) -> Vec<Action> {
    let mut taken: Vec<(JobIndex, Shares)> = Vec::new();
    let mut found = None;
    for candidate in candidates.filter(|candidate| view.is_running(*candidate)) {
        let Some(shares) = occupancy.leave(candidate) else { continue };
        taken.push((candidate, shares));
        found = occupancy.floor.find(view.gpus(job));
        if found.is_some() {
            break;
        }
    }
    let is_needed =
        |shares: &Shares, found: &Shares| shares.iter().any(|(node, _)| found.iter().any(|(wanted, _)| wanted == node));
    let mut actions = Vec::new();
    for (victim, shares) in taken {
        match &found {
            Some(found) if is_needed(&shares, found) => actions.push(occupancy.preempt(victim)),
            _ => occupancy.put(victim, Some(shares)),
        }
    }
    actions.extend(found.map(|shares| occupancy.start(job, shares)));
    actions
}
