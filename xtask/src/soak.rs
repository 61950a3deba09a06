//! `soak`: kills, stops, fills and damages the product at random. `benches/src/soak/` does it.

use std::process::Command;

use crate::command::{PROFILE, cargo, succeeds};
use crate::test_command;

/// The options of the gate's run.
const IN_CI: [&str; 2] = ["--minutes", "2"];

/// The gate's run, of the binaries that were built with the tests; whether all held.
///
/// # Errors
/// When they can't be started.
pub(crate) fn in_ci() -> anyhow::Result<bool> {
    let mut soak = Command::new(test_command::soak()?);
    succeeds(soak.arg("soak").args(IN_CI).env("GANGLINE_BINARY", test_command::binary()?))
}

/// Runs the soak; whether all held. What goes wrong, the harness has said.
///
/// # Errors
/// When cargo can't be started.
pub(crate) fn soak(options: &[String]) -> anyhow::Result<bool> {
    let mut soak = cargo(["run", "--quiet", "--profile", PROFILE, "--bin", "gangline-benches", "--", "soak"]);
    succeeds(soak.args(options))
}
