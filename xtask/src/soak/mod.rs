//! `soak`: the product under faults of all kinds for as long as one likes, and an oracle that keeps its own record.
//!
//! Clients submit, cancel and watch by the command line. Meanwhile the control plane, supervisors, keepers and ranks are killed and stopped at random,
//! the data folder's disk fills up and has room again, and between two lives of the control plane its journal is cut,
//! rolled back or has a bit flipped. Nothing of the product is linked: this drives the built `gangline` (GANGLINE_BINARY, or the
//! target folder's). All of it happens in a folder below the target folder, which is left there if something doesn't hold.

#[cfg(feature = "soak")]
mod harness;

/// The options of the gate's run.
pub(crate) const IN_CI: [&str; 2] = ["--minutes", "2"];

/// Runs the soak; whether all held. What goes wrong, the inner command has said.
///
/// # Errors
/// When cargo can't be started.
#[cfg(not(feature = "soak"))]
pub(crate) fn soak(options: &[String]) -> anyhow::Result<bool> {
    const INNER: [&str; 7] = ["run", "--quiet", "--release", "--bin", "xtask", "--features", "xtask/soak"];
    let mut command = crate::command::cargo(INNER);
    crate::command::succeeds(command.args(["--", "soak"]).args(options))
}

/// Runs the soak; whether all held.
///
/// # Errors
/// When it can't be run to its end.
#[cfg(feature = "soak")]
pub(crate) fn soak(options: &[String]) -> anyhow::Result<bool> {
    harness::run(options)
}
