//! Runs gangs: a launcher starts one supervisor for each node; the supervisor runs the ranks and reports to
//! the control plane.
//!
//! Keeps A-10 (everything has a limit), A-13 (a flaky control plane never hurts a healthy job; an orphan
//! stops).
//!
//! There are three kinds of processes, all of the same binary. The **supervisor** (`gangline supervise`)
//! decides and reports. A **shim** for each rank (`gangline keep-rank`) owns the rank's processes and its
//! log. `gangline exec-rank` turns into the rank itself.

pub mod agent;
mod cgroup;
mod clock;
mod container;
mod datasets;
pub mod endpoint;
pub mod files;
mod free_port;
pub mod health;
pub mod inventory;
pub mod launcher;
mod process;
mod program;
pub mod protocol;
mod rank_log;
pub mod rank_protocol;
mod shared_place;
pub mod shim;
pub mod supervisor;
pub mod timeouts;
mod trouble;
