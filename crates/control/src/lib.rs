//! The control plane: journal, read models, HTTP API and web page.
//!
//! [`service::Service`] is the one thread that owns the engine and the journal. [`http`] turns requests into
//! calls on the service's handle and into queries of the read models. Keeps
//! and A-13 at the product's border.

pub mod backup;
pub mod codec;
pub mod db;
mod deflate;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod history;
pub mod http;
mod model;
mod notice;
pub mod rebuild;
pub mod retention;
pub mod secret;
pub mod service;
pub mod tls;
mod web;
