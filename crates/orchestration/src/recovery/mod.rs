//! Recovery: what happens to a running job when its nodes fail, slow down, leave or become more.
//!
//! The recovery `ladder` chooses between a restart in place, another placement and the end of the job.
//! `spares` keeps standby nodes. `elasticity` lets a gang shrink or grow, by its measured `pace`. `departure`
//! stops jobs before a node goes away, and `eviction` moves a job away from a node on which one of its ranks
//! is slow.
//!
//! Of the other rooms it imports only from `placement` and `preemption`.

mod departure;
mod elasticity;
mod eviction;
mod ladder;
#[cfg(test)]
mod ladder_tests;
mod pace;
mod spares;

pub use ladder::{Remedy, Rung};
pub use pace::Pace;
pub use spares::{InvalidSpares, LossHistory, LossRecord, SPARES_MAX, SparePool, SpareRules, SpareSizing};

pub(crate) use spares::{Spares, lost_node};
