//! What is removed when: logs, curves and records of jobs that have ended, by the configuration's `[retention]`. What is due is
//! decided here, from what is durable; the service's thread `retention` removes it.
//!
//! Never removed: anything of a job that hasn't ended, what its job file keeps, the ledger, the journal; and checkpoints only where the
//! configuration says so, the newest good one never.

mod checkpoints;
mod clock;
mod plan;
mod preview;
mod thinning;
mod tree;

pub(crate) use checkpoints::{DueCheckpoints, keep_newest};
pub(crate) use clock::CautiousClock;
pub use plan::Error;
pub(crate) use plan::{DueLogs, DueLost, Plan, Planning, UNKNOWN_SINCE, name_of, open_jobs, read_job_folder};
pub use preview::{Due, Preview, preview};
pub(crate) use thinning::points_to_remove;
pub(crate) use tree::{Removed, Walk, names, open_folder};
