//! `test`: sets itself up, runs every test of the workspace, and ends with one line that sums them up.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context as _;

use crate::command::{self, PROFILE, cargo, run};
use crate::environment;
use crate::test_report::TestReport;

/// Builds the binary that the end-to-end tests run, then runs all tests that the filters let through.
///
/// # Errors
/// When the binary doesn't build or cargo can't be started.
pub(crate) fn test(filters: &[String], is_ci: bool) -> anyhow::Result<bool> {
    build(is_ci)?;
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    run_tests(&filters, is_ci)
}

/// Builds `target/ci/gangline` and the tests in one go: apart, what they share would be compiled twice, because tests
/// ask for more features of it.
///
/// # Errors
/// When it doesn't build.
pub(crate) fn build(is_locked: bool) -> anyhow::Result<()> {
    let mut command = cargo([
        "build",
        "--profile",
        PROFILE,
        "--workspace",
        "--bin",
        "gangline",
        "--bin",
        "gangline-benches",
        "--tests",
    ]);
    run(command.args(is_locked.then_some("--locked")))
}

/// Where [`build`] puts the product's binary.
///
/// # Errors
/// Outside the file system.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    Ok(environment::target()?.join(PROFILE).join("gangline"))
}

/// Runs the tests, shows cargo's output as it comes, then the skips, then the sum; true if nothing failed. In CI a skip
/// is a failure: there, everything that a test needs is installed.
///
/// # Errors
/// When cargo can't be started.
pub(crate) fn run_tests(filters: &[&str], is_ci: bool) -> anyhow::Result<bool> {
    let mut command = cargo(["test", "--profile", PROFILE, "--workspace", "--no-fail-fast"]);
    command.args(is_ci.then_some("--locked")).args(["--", "--show-output"]).args(filters).stdout(Stdio::piped());
    eprintln!("$ {}", command::line(&command));
    let mut child = command.spawn().context("start cargo test")?;
    let output = child.stdout.take().context("read the output of cargo test")?;
    let report = read(output, std::io::stdout().lock())?;
    let status = child.wait().context("wait for cargo test")?;
    for skip in report.skips() {
        println!("skipped: {skip}");
    }
    if !status.success() && !report.has_failures() {
        eprintln!("error: cargo test failed beside the tests: {status}");
    }
    if is_ci && !report.skips().is_empty() {
        eprintln!("error: in CI a skipped test is a failure");
    }
    if !report.has_passes() {
        eprintln!("error: no test ran");
    }
    println!("{report}");
    Ok(status.success() && report.has_passes() && (report.skips().is_empty() || !is_ci))
}

/// Lines are shown whole as they come; what isn't UTF-8 is shown as well as it can be.
fn read(output: impl Read, mut shown: impl Write) -> anyhow::Result<TestReport> {
    let mut report = TestReport::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        if report.read(&line) {
            writeln!(shown, "{line}")?;
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_not_text_is_read_on() {
        let output = b"\xff\xfe\ntest result: ok. 3 passed; 0 failed; 0 ignored".as_slice();
        let mut shown = Vec::new();
        assert_eq!(read(output, &mut shown).unwrap().to_string(), "3 passed, 0 failed, 0 skipped");
        assert!(String::from_utf8(shown).unwrap().starts_with("\u{fffd}\u{fffd}\ntest result"));
    }
}
