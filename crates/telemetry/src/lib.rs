//! Telemetry: what every rank, node and accelerator does, and where its time goes.
//!
//! The crate is effectful, but its rooms [`alerts`] (readings in, what fires out), [`kernel_log`] (lines in, verdicts out) and
//! [`stragglers`] (bytes of a trace in, values out) are pure.

pub mod alerts;
pub mod collectors;
pub mod kernel_log;
mod priority;
pub mod series;
pub mod stragglers;

pub use priority::lower_priority;
