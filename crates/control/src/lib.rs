//! The control plane: the service that decides, and the API's view of what it stored.
//!
//! [`service::Service`] is the one thread that owns the engine and the journal. Changes go through its
//! handle; [`views`] answers from the read models. Journal and read models are the crate `gangline-store`,
//! the HTTP API is `gangline-server`. Keeps.

pub mod backup;
mod bound;
pub mod code;
pub mod delivery;
mod disk_usage;
mod folders;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod ids;
pub mod job_runs;
mod notice;
pub mod registry;
mod reported;
pub mod retention;
pub mod secret;
pub mod service;
pub mod upkeep;
pub mod views;
pub mod webhooks;
