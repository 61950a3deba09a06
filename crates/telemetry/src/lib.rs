//! Telemetry: what every rank does, and where its time goes.
//!
//! The crate is effectful, but its room [`stragglers`] is pure: bytes of a trace come in, values go out.

pub mod series;
pub mod stragglers;
