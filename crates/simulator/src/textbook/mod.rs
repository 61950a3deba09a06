//! Textbook policies, exactly as in their papers and those papers' simulators.
//!
//! | policy | order | preempts | clairvoyant | after |
//! |---|---|---|---|---|
//! | fifo | submission | no | no | Helios (Hu et al., SC'21), its FIFO |
//! | sjf | duration | no | yes | Helios, its SJF |
//! | srtf, srsf | remaining time (x accelerators) | yes | yes | Tiresias (Gu et al., NSDI'19), Muri (Zhao et al., SIGCOMM'22) |
//! | las | attained service x accelerators, in three queues | yes | no | Tiresias, as in Muri's simulator |
//! | priority | priority, submission | yes | no | Slurm's PreemptMode=REQUEUE, preempt_youngest_first |
//! | easy-backfill | submission, with backfill | no | no | Lifka, JSSPP'95; Mu'alem and Feitelson, TPDS'01 |

mod easy;
mod first_fit;
mod las;
mod nonpreemptive;
mod preemptive;
mod priority;
mod remaining;
mod ties;

use super::floor::{Floor, Shares};
use super::policy::{Action, Happening, Manner, Place};
use super::workload::JobIndex;

pub(crate) use easy::EasyBackfill;
pub(crate) use las::LeastAttainedService;
pub(crate) use nonpreemptive::{InOrder, Order};
pub(crate) use preemptive::Placing;
pub(crate) use priority::PriorityPreemption;
pub(crate) use remaining::{Measure, ShortestRemaining};

/// The floor and each job's place on it: the bookkeeping that all textbook policies share.
#[derive(Clone, Debug)]
pub(crate) struct Occupancy {
    pub(crate) floor: Floor,
    places: Vec<Option<Shares>>,
}

impl Occupancy {
    pub(crate) fn new(capacity: &[u32], jobs: usize) -> Self {
        Occupancy { floor: Floor::new(capacity), places: vec![None; jobs] }
    }

    /// Returns a job's place.
    pub(crate) fn place(&self, job: JobIndex) -> Option<&Shares> {
        self.places[job.index()].as_ref()
    }

    /// Places a job.
    pub(crate) fn start(&mut self, job: JobIndex, shares: Shares) -> Action {
        self.floor.take(&shares);
        self.places[job.index()] = Some(shares.clone());
        Action::Start { job, place: Place::Nodes(shares) }
    }

    /// Removes a job at once.
    pub(crate) fn preempt(&mut self, job: JobIndex) -> Action {
        self.leave(job);
        Action::Preempt { job, manner: Manner::AtOnce }
    }

    /// Frees a job's accelerators.
    pub(crate) fn leave(&mut self, job: JobIndex) -> Option<Shares> {
        let shares = self.places[job.index()].take()?;
        self.floor.release(&shares);
        Some(shares)
    }

    /// Records what happened to jobs and nodes.
    pub(crate) fn note(&mut self, happening: Happening) {
        match happening {
            Happening::Finished(job) | Happening::Freed(job) | Happening::Failed(job) => {
                self.leave(job);
            }
            Happening::NodeLost(node) => self.floor.take_down(node),
            Happening::NodeBack(node) => self.floor.bring_up(node),
            Happening::Submitted(_)
            | Happening::CheckpointDurable(_)
            | Happening::NodeLeaves(..)
            | Happening::Timer => {}
        }
    }

    /// Restores a removed job to its former place, if it had one.
    pub(crate) fn put(&mut self, job: JobIndex, shares: Option<Shares>) {
        if let Some(shares) = &shares {
            self.floor.take(shares);
        }
        self.places[job.index()] = shares;
    }
}
