//! `test`: sets itself up, runs every test of the workspace, and ends with one line that sums them up.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::Context as _;
use cargo_metadata::TargetKind;

use crate::command::{self, PROFILE, cargo};
use crate::environment;
use crate::programs;
use crate::test_report::TestReport;

/// The target of the end-to-end tests, in `tests/`.
const END_TO_END: &str = "all";
/// Those of them that need a Slurm.
const ON_SLURM: [&str; 8] = [
    "e2e::accounts::",
    "e2e::agents::",
    "e2e::allocations::",
    "e2e::machines::",
    "e2e::pool::",
    "e2e::queue::",
    "e2e::refusals::",
    "e2e::slurm::",
];

/// Builds the binary that the end-to-end tests run, then runs all tests that the filters let through.
///
/// # Errors
/// When the binary doesn't build or cargo can't be started.
pub(crate) fn test(filters: &[String], is_ci: bool) -> anyhow::Result<bool> {
    build(is_ci)?;
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    let failures = run_tests(&filters, is_ci)?;
    failures.iter().for_each(|failure| eprintln!("\nerror: {failure}"));
    Ok(failures.is_empty())
}

/// Builds `target/ci/gangline`, the soak and the tests in one go, and returns the program of the end-to-end tests. Apart, what they
/// share would be compiled twice, because tests ask for more features of it.
///
/// # Errors
/// When it doesn't build.
pub(crate) fn build(is_locked: bool) -> anyhow::Result<PathBuf> {
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
    programs::built(command.args(is_locked.then_some("--locked")), |target| {
        target.name == END_TO_END && target.kind.contains(&TargetKind::Test)
    })
}

/// Where [`build`] puts the soak.
///
/// # Errors
/// Outside the file system.
pub(crate) fn soak() -> anyhow::Result<PathBuf> {
    Ok(environment::target()?.join(PROFILE).join("gangline-benches"))
}

/// Where [`build`] puts the product's binary.
///
/// # Errors
/// Outside the file system.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    Ok(environment::target()?.join(PROFILE).join("gangline"))
}

/// Runs the tests, shows cargo's output as it comes, then the skips, then the sum. Returns what failed, with what
/// it said. In CI a skip is a failure: there, everything that a test needs is installed.
///
/// # Errors
/// When cargo can't be started.
pub(crate) fn run_tests(filters: &[&str], is_ci: bool) -> anyhow::Result<Vec<String>> {
    let mut command = cargo(["test", "--profile", PROFILE, "--workspace", "--no-fail-fast"]);
    command.args(is_ci.then_some("--locked")).args(["--", "--show-output"]).args(filters).stdout(Stdio::piped());
    Ok(harness(&mut command, std::io::stdout().lock())?.conclude(is_ci))
}

/// Runs the end-to-end tests by their program, and names the slowest. They wait more than they compute, so twice as many run at a
/// time as there are processors. Those on a Slurm run beside, one after another: they share one, and would hold the others' threads
/// while they wait for it.
///
/// # Errors
/// When the program can't be started.
pub(crate) fn run_end_to_end(program: &Path, is_ci: bool) -> anyhow::Result<Vec<String>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    let mut on_slurm = end_to_end(program, 1);
    on_slurm.args(ON_SLURM);
    let mut others = end_to_end(program, threads);
    others.arg("e2e::").args(ON_SLURM.iter().flat_map(|filter| ["--skip", filter]));
    let beside = std::thread::spawn(move || {
        let mut shown = Vec::new();
        harness(&mut on_slurm, &mut shown).map(|ran| (ran, shown))
    });
    let others = harness(&mut others, std::io::stdout().lock());
    let (on_slurm, shown) = beside.join().expect("nothing in the thread panics")?;
    println!("{}", String::from_utf8_lossy(&shown));
    Ok([others?, on_slurm].iter().flat_map(|ran| ran.conclude(is_ci)).collect())
}

/// The program of the end-to-end tests, which still lacks its filters.
fn end_to_end(program: &Path, threads: usize) -> Command {
    let mut command = Command::new(program);
    command.args(["--show-output", "--test-threads", &threads.to_string()]);
    // Says how long each test took. The harness takes it for unstable, and takes it with this variable only.
    command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    command.current_dir("tests").stdout(Stdio::piped());
    command
}

/// A run of tests that is over.
struct Ran {
    report: TestReport,
    status: ExitStatus,
}

/// Runs tests and shows the harness's output as it comes.
fn harness(command: &mut Command, shown: impl Write) -> anyhow::Result<Ran> {
    eprintln!("$ {}", command::line(command));
    let mut child = command.spawn().context("start the tests")?;
    let output = child.stdout.take().context("read the output of the tests")?;
    let report = read(output, shown)?;
    Ok(Ran { report, status: child.wait().context("wait for the tests")? })
}

impl Ran {
    /// Sums the tests up, and returns what failed.
    fn conclude(&self, is_ci: bool) -> Vec<String> {
        let Ran { report, status } = self;
        for (name, took) in report.slowest() {
            println!("slow: {took:>6.1} s  {name}");
        }
        for skip in report.skips() {
            println!("skipped: {skip}");
        }
        println!("{report}");
        let mut failures = report.failures();
        if !status.success() && failures.is_empty() {
            failures.push(format!("the run failed beside the tests: {status}"));
        }
        if is_ci && !report.skips().is_empty() {
            failures.push(format!("in CI a skipped test is a failure: {}", report.skips().join("; ")));
        }
        if !report.has_passes() {
            failures.push("no test ran".to_owned());
        }
        failures
    }
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
