//! The store's ports: what the control plane asks of a store, and what every store must promise.
//!
//! Today SQLite stands behind them ([`crate::db`]). The tests in `conformance.rs` check the promises against
//! any store that a factory opens, so that a second one (PostgreSQL) is accepted by the same tests.
//!
//! - [`Journal`] is the one writer. What decides (events, decisions, results of attempts) and the read models
//!   that follow from it become durable together.
//! - [`Queries`] reads the read models and the journal's records.

#[cfg(test)]
pub(crate) mod conformance;
mod journal;
mod queries;

pub use journal::{Batch, Changes, Journal};
pub use queries::Queries;
