//! What the HTTP API says, version 1 (`/api/v1`). Wire types only: versioned by their path, documented by the
//! OpenAPI document, and used by the command line and the page alike.
//!
//! Times are RFC 3339 in UTC, durations are seconds, sizes are bytes, money is nano-dollars.

mod error;
mod explain;
mod job;
mod node;
mod submit;
mod sweep;
mod time;
mod token;

pub use error::{ErrorBody, ErrorDetail, Problem};
pub use explain::{Blocker, Explanation, HistoryLine, Placement};
pub use job::{
    Attempt, BucketLine, Checkpoints, Diagnosis, Fault, Gang, Job, JobList, JobState, Point, Price, Progress, Rank,
    Recovery, RecoveryLine, Series, Share, Usage,
};
pub use node::{Drain, Health, Node, NodeList, Queue, QueueList, Slot};
pub use submit::{Answer, CancelAnswer, DryRun, LogChunk, SubmitRequest, Submitted};
pub use sweep::{
    Budget, CancelSweepAnswer, EarlyStop, JobSweep, MetricPoint, Parameter, Sweep, SweepPoint, SweepSubmitted,
};
pub use time::Time;
pub use token::{PageLink, TokenRotated};
