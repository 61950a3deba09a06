//! `soak`: the product under faults of all kinds for as long as one likes, and an oracle that keeps its own record.
//!
//! Clients submit, cancel and watch by the command line. Meanwhile the control plane, supervisors, keepers and ranks are killed and stopped at random,
//! the data folder's disk fills up and has room again, and between two lives of the control plane its journal is cut,
//! rolled back or has a bit flipped. Nothing of the product is linked: this drives the built `gangline` (GANGLINE_BINARY, or the
//! target folder's). All of it happens in a folder below the target folder, which is left there if something doesn't hold.

#[cfg(feature = "soak")]
mod harness;

use std::process::Command;

use crate::command::{PROFILE, cargo, succeeds};
use crate::test_command;

/// The options of the gate's run.
const IN_CI: [&str; 2] = ["--minutes", "2"];

/// The gate's run, of the binary that the tests have; whether all held.
///
/// # Errors
/// When cargo can't be started.
pub(crate) fn in_ci() -> anyhow::Result<bool> {
    let mut command = inner();
    command.arg("soak").args(IN_CI).env("GANGLINE_BINARY", test_command::binary()?);
    succeeds(&mut command)
}

/// This program with the harness in it.
fn inner() -> Command {
    let mut command = cargo(["run", "--quiet", "--profile", PROFILE, "--bin", "xtask"]);
    command.args(["--features", "xtask/soak", "--"]);
    command
}

/// Runs the soak; whether all held. What goes wrong, the inner command has said.
///
/// # Errors
/// When cargo can't be started.
#[cfg(not(feature = "soak"))]
pub(crate) fn soak(options: &[String]) -> anyhow::Result<bool> {
    succeeds(inner().arg("soak").args(options))
}

/// Runs the soak; whether all held.
///
/// # Errors
/// When it can't be run to its end.
#[cfg(feature = "soak")]
pub(crate) fn soak(options: &[String]) -> anyhow::Result<bool> {
    harness::run(options)
}
