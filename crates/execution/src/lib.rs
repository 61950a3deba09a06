//! Running gangs: launchers start one supervisor for each node, the supervisor runs the ranks and reports.
//!
//! Keeps A-10 (everything has a limit), A-13 (a flaky control plane never hurts a healthy job; an orphan stops).
//!
//! Three kinds of processes, all of them the one binary: the **supervisor** (`gangline supervise`) decides and reports, a
//! **keeper** (`gangline keep-rank`) for each rank owns the rank's processes and its log, and `gangline exec-rank` is
//! what turns into the rank itself.

mod cgroup;
pub mod checks;
mod clock;
pub mod endpoint;
pub mod fabric;
pub mod files;
pub mod inventory;
pub mod keeper;
pub mod launcher;
mod process;
mod program;
pub mod protocol;
mod rank_log;
pub mod rank_protocol;
mod shared_place;
pub mod supervisor;
pub mod timeouts;
mod trouble;
