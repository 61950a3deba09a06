//! Attribution: why a job is slower than it could be, from what its ranks measured.
//!
//! Causes are looked for in a fixed order, from those that are seen directly (data, checkpoints) to those that explain why a
//! rank is slow (garbage collection, memory, clocks, other load). In synchronous training every rank waits for the slowest
//! one, so a gang loses what its worst rank loses; and at a collective the rank that comes last waits least, so the least
//! time of any rank is what communication itself costs. Pure: measurements come in, a verdict goes out.

mod judge;
mod straggler;
#[cfg(test)]
mod tests;

pub use judge::{Cause, Kind, Observed, RankObserved, Verdict, tokens_per_second, why};
pub use straggler::{RankWork, Slowness, Straggler, stragglers};
