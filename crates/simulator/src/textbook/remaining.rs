//! SRTF and SRSF: the shortest remaining time, or remaining time x accelerators, first; preemptive and
//! clairvoyant.
//!
//! As in Muri's simulator (Zhao et al., SIGCOMM'22), runnable jobs are sorted stably at every event, so
//! equals keep their order, and all that fit run; a job that doesn't fit is passed. Where preemption is free,
//! all jobs are placed anew by first fit and move free of charge.
//!
//! The order hardly changes between events, because all running jobs progress at the same rate. So it is
//! kept, and only the few jobs that are out of order are moved.

use std::time::Duration;

use gangline_base::{NodeId, Timestamp};

use super::Occupancy;
use super::first_fit::FirstFit;
use super::preemptive::{Placing, settle};
use crate::floor::Shares;
use crate::policy::{Action, Happening, Manner, Moves, Place, Policy, View};
use crate::workload::JobIndex;

/// The most positions per job by which jobs are moved one by one before everything is sorted.
const SHIFTS_PER_JOB_MAX: usize = 8;

/// The measure to minimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Remaining time: SRTF.
    Time,
    /// Remaining time x accelerators: SRSF.
    Service,
}

/// A job that waits or runs. All are visited at every event, so they are kept small.
#[derive(Clone, Copy, Debug)]
struct Runnable {
    job: JobIndex,
    gpus: u32,
    /// The remaining work in nanoseconds: as of now for a running job, as of its next start for a waiting
    /// one.
    left: u64,
    /// When a running job's work will be done.
    end: Timestamp,
    /// The first of its nodes, if it runs.
    node: Option<NodeId>,
}

impl Runnable {
    /// Returns the present sort key.
    #[inline]
    fn key(&self, measure: Measure) -> u128 {
        match measure {
            Measure::Time => u128::from(self.left),
            Measure::Service => u128::from(self.left) * u128::from(self.gpus),
        }
    }
}

/// The shortest-remaining policy.
#[derive(Debug)]
pub(crate) struct ShortestRemaining {
    measure: Measure,
    /// Sorted as of the last event.
    runnable: Vec<Runnable>,
    ground: Ground,
}

/// The placement of jobs.
#[derive(Debug)]
enum Ground {
    /// All jobs are placed anew at every event.
    Anew {
        floor: FirstFit,
        /// The nodes of jobs that have several, by job.
        wide: Vec<Shares>,
    },
    /// Running jobs stay unless a job before them needs their place.
    Sticky(Occupancy),
}

impl ShortestRemaining {
    pub(crate) fn new(measure: Measure, placing: Placing, capacity: &[u32], jobs: usize) -> Self {
        let ground = match placing {
            Placing::Anew => Ground::Anew { floor: FirstFit::new(capacity), wide: vec![Shares::new(); jobs] },
            Placing::Sticky => Ground::Sticky(Occupancy::new(capacity, jobs)),
        };
        ShortestRemaining { measure, runnable: Vec::new(), ground }
    }

    fn note(&mut self, view: &View<'_>, happenings: &[Happening]) {
        let finished = happenings.partition_point(|happening| matches!(happening, Happening::Finished(_)));
        if finished > 0 {
            // Completed jobs come first in the order, so few are visited.
            let is_over = |job| happenings[..finished].binary_search(&Happening::Finished(job)).is_ok();
            let mut left = finished;
            self.runnable.retain(|runnable| {
                let is_over = left > 0 && is_over(runnable.job);
                left -= usize::from(is_over);
                !is_over
            });
        }
        for happening in happenings {
            match (&mut self.ground, *happening) {
                (_, Happening::Submitted(job)) => {
                    let (gpus, left) = (view.gpus(job), nanos(view.remaining(job)));
                    self.runnable.push(Runnable { job, gpus, left, end: view.now, node: None });
                }
                (Ground::Anew { wide, .. }, Happening::Finished(job)) => wide[job.index()] = Shares::new(),
                (Ground::Anew { .. }, _) => {}
                (Ground::Sticky(occupancy), happening) => occupancy.note(happening),
            }
        }
    }

    /// Updates remaining work and order.
    fn sort(&mut self, view: &View<'_>) {
        // Where remaining work changes other than by the passing of time, it is read from the world.
        let is_asked = view.has_quirk || matches!(self.ground, Ground::Sticky(_));
        for runnable in &mut self.runnable {
            if is_asked {
                runnable.left = nanos(view.remaining(runnable.job));
            } else if runnable.node.is_some() {
                runnable.left = runnable.end.unix_nanos() - view.now.unix_nanos();
            }
        }
        set_right(&mut self.runnable, self.measure);
    }
}

/// Sorts a nearly sorted list stably.
fn set_right(runnable: &mut [Runnable], measure: Measure) {
    let mut shifts = SHIFTS_PER_JOB_MAX * runnable.len();
    let mut greatest = 0;
    for index in 0..runnable.len() {
        let key = runnable[index].key(measure);
        if greatest <= key {
            greatest = key;
            continue;
        }
        let place = runnable[..index].partition_point(|other| other.key(measure) <= key);
        let Some(left) = shifts.checked_sub(index - place) else {
            // Equals still have their original order, so a stable sort is correct.
            runnable.sort_by_key(|runnable| runnable.key(measure));
            return;
        };
        shifts = left;
        runnable[place..=index].rotate_right(1);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("the end of a job's work is a representable time")
}

/// Places all jobs anew, in order.
fn place_anew(view: &View<'_>, floor: &mut FirstFit, wide: &mut [Shares], order: &mut [Runnable]) -> Vec<Action> {
    floor.clear();
    let (mut stops, mut moves, mut starts) = (Vec::new(), Moves::default(), Vec::new());
    let mut shares = Shares::new();
    for runnable in order {
        let Runnable { job, gpus, node: before, .. } = *runnable;
        runnable.node = None;
        let mut is_same = true;
        if floor.is_misfit(gpus) {
            // The job doesn't run.
        } else if floor.is_narrow(gpus) {
            runnable.node = floor.take_node(gpus);
            is_same = runnable.node == before;
        } else if floor.take_nodes(gpus, &mut shares) {
            runnable.node = shares.first().map(|(node, _)| *node);
            is_same = before.is_some() && wide[job.index()] == shares;
            if !is_same {
                wide[job.index()].clone_from(&shares);
            }
        }
        match (before, runnable.node) {
            (Some(_), None) => stops.push(Action::Preempt { job, manner: Manner::AtOnce }),
            (Some(_), Some(_)) if is_same => {}
            (before, Some(node)) => {
                let one = [(node, gpus)];
                let shares = if floor.is_narrow(gpus) { &one } else { shares.as_slice() };
                if before.is_some() {
                    moves.push(job, shares);
                } else {
                    runnable.end = view.now + Duration::from_nanos(runnable.left);
                    starts.push(Action::Start { job, place: Place::Nodes(shares.to_vec()) });
                }
            }
            (None, None) => {}
        }
    }
    if !moves.is_empty() {
        stops.push(Action::Move(moves));
    }
    stops.append(&mut starts);
    stops
}

impl Policy for ShortestRemaining {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        self.note(view, happenings);
        self.sort(view);
        match &mut self.ground {
            Ground::Anew { floor, wide } => place_anew(view, floor, wide, &mut self.runnable),
            Ground::Sticky(occupancy) => {
                let order: Vec<JobIndex> = self.runnable.iter().map(|runnable| runnable.job).collect();
                settle(view, occupancy, &order)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(keys: impl IntoIterator<Item = u64>) -> Vec<Runnable> {
        let runnable = |(job, left)| Runnable { job: JobIndex(job), gpus: 1, left, end: Timestamp::EPOCH, node: None };
        (0..).zip(keys).map(runnable).collect()
    }

    #[test]
    fn equals_keep_their_order_however_many_are_out_of_it() {
        let nearly = (0..500).map(|key| if key % 90 == 3 { key / 3 } else { key / 2 });
        let reversed = (0..500).map(|key| (500 - key) / 3);
        for keys in [nearly.collect::<Vec<u64>>(), reversed.collect(), vec![7; 50], vec![]] {
            let (mut found, mut expected) = (keyed(keys.clone()), keyed(keys));
            set_right(&mut found, Measure::Time);
            expected.sort_by_key(|runnable| runnable.left);
            assert!(found.iter().map(|it| it.job).eq(expected.iter().map(|it| it.job)));
        }
    }
}
