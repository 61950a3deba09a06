//! Retention: when logs and records of ended jobs are removed, by the configuration's `[retention]`.
//! This module decides from durable state what is due; the service's thread `retention` removes it.
//!
//! Never removed: data of a job that hasn't ended, data that the job file keeps, the ledger, and the journal.
//! Checkpoints are removed only if the configuration asks for it, and never the newest good one.

mod checkpoints;
mod clock;
mod plan;
mod preview;
mod tree;

pub(crate) use checkpoints::{DueCheckpoints, keep_newest};
pub(crate) use clock::CautiousClock;
pub use plan::Error;
pub(crate) use plan::{DueLogs, DueLost, Plan, Planning, UNKNOWN_SINCE, name_of, open_jobs, read_job_folder, shown};
pub use preview::{Due, Preview, preview};
pub(crate) use tree::{Removed, Walk, names, open_folder};
