//! The what-if analysis of stragglers: how much faster a gang would have been without its slow operations, and which
//! ranks, stages and kinds of operations cost the rest.
//!
//! The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25,
//! <https://arxiv.org/abs/2505.05713>), whose authors' program (<https://github.com/ByteDance-Seed/StragglerAnalysis>,
//! Apache-2.0) is the reference for every detail that the paper leaves open. A [`Trace`] is a step's operations on every
//! worker. Its first step says which operation waits for which (`graph`); with that, all steps are replayed at once with
//! durations of our choice (`replay`): as measured, without waits; all operations of a kind alike, which is the ideal; and
//! alike but for those of one rank, stage or kind, whose share of the slowdown that is. [`analyse`] does all of it. [`analyse_gang`] asks the same
//! of what every job has: the phases of the steps that its ranks report.
//!
//! Keeps A-1 (no I/O, no clock: bytes come in, values go out) and A-10 ([`OPERATIONS_MAX`], [`FILE_BYTES_MAX`],
//! [`RANKS_MAX`] and [`LINE_BYTES_MAX`] bound what a trace may hold).

mod analysis;
mod error;
mod gang;
mod gang_timeline;
mod graph;
mod grid;
mod layout;
mod operation;
mod parquet;
mod pattern;
mod pipeline;
mod read;
mod replay;
mod text;
mod timeline;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

pub use analysis::{Analysis, Cause, Explained, Share, StepTime, Worker, analyse};
pub use error::TraceError;
pub use gang::{GangAnalysis, GangStep, RankStep, analyse_gang};
pub use gang_timeline::gang_timeline;
pub use layout::Layout;
pub use operation::{Kind, Operation};
pub use read::{FILE_BYTES_MAX, OPERATIONS_MAX, RANKS_MAX, Trace, read};
pub use text::LINE_BYTES_MAX;
pub use timeline::timeline;
