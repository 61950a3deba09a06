//! What failures and checkpoints cost a run: how often something breaks, how often to save, and what part of the time is left for
//! training.

pub mod checkpoint;
pub mod failures;

pub use checkpoint::{Interval, Size, expected_run_time, goodput, optimal_interval};
pub use failures::FailureRate;
