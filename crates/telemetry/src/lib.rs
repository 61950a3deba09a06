//! Telemetry: what every rank does, and where its time goes.
//!
//! The crate is effectful, but its rooms [`alerts`] (readings in, what fires out) and [`stragglers`] (bytes of a trace in, values
//! out) are pure.

pub mod alerts;
pub mod series;
pub mod stragglers;
