//! Preemption: which running jobs make room for a waiting one.
//!
//! `victims` determines which jobs a waiting job may preempt, by priority or entitlement, and asks
//! [`victim_search`] for the cheapest set whose freed devices **fit**; `cost` prices each victim. A [`Claim`]
//! holds the nodes until the victims have left. `peers` finds jobs that make room for others of equal right:
//! by `time_slicing`, or by `consolidation` of small jobs.
//!
//! Of the other rooms it imports only from `queueing` and `placement`.

mod claim;
mod consolidation;
mod cost;
mod peers;
mod time_slicing;
pub mod victim_search;
mod victims;

pub use claim::{Claim, ClaimReason, ClaimRight, VictimAlternative};
pub use cost::RestartCosts;

pub(crate) use claim::names;
pub(crate) use cost::since_durable;
pub(crate) use victims::stop_cost;
