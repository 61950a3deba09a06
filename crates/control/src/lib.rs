//! The control plane: the service, its journal and read models, and the API's view of them.
//!
//! [`service::Service`] is the one thread that owns the engine and the journal. Changes go through its
//! handle; [`views`] answers from the read models. The HTTP API is the crate `gangline-server`. Keeps A-2,
//!

pub mod backup;
pub mod codec;
pub mod db;
mod deflate;
mod folders;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod history;
mod model;
mod notice;
pub mod rebuild;
pub mod retention;
pub mod secret;
pub mod service;
pub mod views;
