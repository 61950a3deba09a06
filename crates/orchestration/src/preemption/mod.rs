//! Preemption: which running jobs make room for a waiting one.
//!
//! `victims` determines which jobs a waiting job may preempt, by priority or entitlement, and asks
//! [`victim_search`] for the cheapest set whose freed devices **fit**, by what each costs ([`crate::RestartCosts`]).
//! `claims` hold the nodes until the victims have left. `peers` finds jobs that make room for others of equal right:
//! by `time_slicing`, or by `consolidation` of small jobs. `overdue` lets the job that has waited longest go before all
//! others, and holds its nodes against them.
//!
//! Of the other rooms it imports only from `queueing` and `placement`.

mod claims;
mod consolidation;
mod overdue;
#[cfg(test)]
mod overdue_tests;
mod peers;
mod time_slicing;
pub mod victim_search;
mod victims;
