//! Running gangs: launchers start one supervisor for each node, the supervisor runs the ranks and reports.
//!
//! Keeps A-10 (everything has a limit), A-13 (a flaky control plane never hurts a healthy job; an orphan stops).

pub mod protocol;
