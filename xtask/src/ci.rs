//! `ci`, the gate, and `quick`, what one runs between two edits.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::command::{cargo, output, succeeds};
use crate::deny;
use crate::fuzz;
use crate::python;
use crate::soak;
use crate::steps::Steps;
use crate::test_command;
use crate::tools;

/// The crates whose tests need nothing but a processor.
const PURE: [&str; 7] = [
    "gangline-base",
    "gangline-accounting",
    "gangline-coding",
    "gangline-diagnosis",
    "gangline-orchestration",
    "gangline-planning",
    "gangline-telemetry",
];

/// Cargo's answer when the trainer slips into the plain build.
const TRAINER: &str = "candle";

/// Runs everything that must hold before a change is shared; true if it does.
///
/// # Errors
/// None: what goes wrong in a step is printed and fails it.
pub(crate) fn ci(may_install: bool) -> anyhow::Result<bool> {
    let mut steps = Steps::default();
    steps.run("tools", || {
        tools::ensure_components(may_install)?;
        if may_install {
            // Tests that need these skip themselves without them, which CI doesn't allow.
            let of_tests =
                [&tools::BROWSER, &tools::MOUNT, &tools::PYTHON, &tools::SLURM, &tools::MUNGE, &tools::NETWORKS];
            tools::ensure(&of_tests, true)?;
        }
        tools::ensure(&[&tools::GIT, &tools::COMPILER, &tools::FUZZER_COMPILER], may_install).map(|()| true)
    });
    let before = tree();
    // Half of that time is the network's. If it fails, the step that needs them tries again and says why.
    let packages = std::thread::spawn(python::environment);
    steps.run("format", format);
    steps.run("tidy", crate::tidy);
    steps.run("dependencies", deny::deny);
    steps.run("clippy", || clippy(true));
    if steps.run("build", || test_command::build(true).map(|()| true)) {
        // The demo and the crashes take longest and say least about where a fault lies: last.
        steps.run("tests", || test_command::run_tests(&["--skip", "e2e::"], true));
        steps.run("end-to-end", || test_command::run_tests(&["e2e::"], true));
        steps.run("fuzz", || fuzz::fuzz(&fuzz::Options::default()));
    } else {
        steps.skip("tests", "the build failed");
        steps.skip("end-to-end", "the build failed");
        steps.skip("fuzz", "the build failed");
    }
    steps.run("python", || {
        drop(packages.join());
        python::python(false, &[])
    });
    steps.run("soak", || soak::soak(&soak::IN_CI.map(str::to_owned)));
    steps.run("docs", docs);
    steps.run("without the demo", without_demo);
    match before {
        Ok(before) => {
            steps.run("tree unchanged", || unchanged(&before, &tree()?));
        }
        Err(error) => steps.skip("tree unchanged", &format!("{error:#}")),
    }
    Ok(steps.finish())
}

/// Format, tidy, clippy and the tests of the pure crates; true if all pass.
///
/// # Errors
/// None: what goes wrong in a step is printed and fails it.
pub(crate) fn quick() -> anyhow::Result<bool> {
    let mut steps = Steps::default();
    steps.run("format", format);
    steps.run("tidy", crate::tidy);
    steps.run("clippy", || clippy(false));
    steps.run("tests of the pure crates", || {
        let packages = PURE.iter().flat_map(|package| ["--package", package]);
        succeeds(cargo(["test", "--release", "--quiet", "--no-fail-fast"]).args(packages))
    });
    Ok(steps.finish())
}

fn format() -> anyhow::Result<bool> {
    succeeds(&mut cargo(["fmt", "--all", "--check"]))
}

/// Warnings are errors here, and only here: an editor's build goes on.
fn clippy(is_locked: bool) -> anyhow::Result<bool> {
    let mut command = cargo(["clippy", "--release", "--workspace", "--all-targets", "--features", "xtask/bench"]);
    command.args(is_locked.then_some("--locked")).args(["--", "-D", "warnings"]);
    succeeds(&mut command)
}

fn docs() -> anyhow::Result<bool> {
    let mut command = cargo(["doc", "--release", "--workspace", "--no-deps", "--locked"]);
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn without_demo() -> anyhow::Result<bool> {
    const PLAIN: [&str; 4] = ["--package", "gangline-cli", "--no-default-features", "--locked"];
    if !succeeds(cargo(["clippy", "--release"]).args(PLAIN).args(["--", "-D", "warnings"]))? {
        return Ok(false);
    }
    let tree = output(cargo(["tree", "--edges", "normal", "--prefix", "none"]).args(PLAIN))?;
    let trainer = tree.lines().find(|line| line.starts_with(TRAINER));
    anyhow::ensure!(trainer.is_none(), "the build without the demo has {}", trainer.unwrap_or_default());
    Ok(true)
}

/// What git sees in the working tree, ignored files too, but for cargo's own folder. Whoever owns the checkout: on a CI
/// machine that is often somebody else.
fn tree() -> anyhow::Result<String> {
    anyhow::ensure!(Path::new(".git").exists(), "not a git checkout");
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "status", "--porcelain", "--ignored", "--untracked-files=all"]);
    output(git.args(["--", ".", ":!target"])).context("look at the working tree")
}

fn unchanged(before: &str, after: &str) -> anyhow::Result<bool> {
    let new: Vec<&str> = after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
    anyhow::ensure!(before == after, "the steps changed the tree:\n{}", new.join("\n"));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_writes_into_the_tree_is_found_and_named() {
        assert!(unchanged(" M a.rs\n", " M a.rs\n").unwrap());
        let error = unchanged(" M a.rs\n", " M a.rs\n?? b.log\n").unwrap_err();
        assert!(error.to_string().ends_with("\n?? b.log"), "{error}");
        assert!(unchanged(" M a.rs\n", "").is_err());
    }
}
