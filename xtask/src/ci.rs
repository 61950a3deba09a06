//! `ci`, the gate, and `quick`, what one runs between two edits.

use std::path::Path;
use std::process::Command;

use crate::command::{cargo, output, run};
use crate::steps::Steps;
use crate::test_command;
use crate::tools;

/// The crates whose tests need nothing but a processor.
const PURE: [&str; 4] = ["gangline-base", "gangline-accounting", "gangline-orchestration", "gangline-telemetry"];

/// Cargo's answer when the trainer slips into the plain build.
const TRAINER: &str = "candle";

/// Runs everything that must hold before a change is shared; true if it does.
///
/// # Errors
/// None: what goes wrong in a step is printed and fails it.
pub(crate) fn ci(may_install: bool) -> anyhow::Result<bool> {
    let mut steps = Steps::default();
    let has_git = steps.run("tools", || tools::ensure(&[&tools::GIT], may_install).map(|()| true));
    let before = tree();
    steps.run("format", format);
    steps.run("tidy", crate::tidy);
    steps.run("clippy", || clippy(true));
    if steps.run("build", || test_command::build(true).map(|()| true)) {
        // The demo and the crashes take longest and say least about where a fault lies: last.
        steps.run("tests", || test_command::run_tests(&["--skip", "e2e::"], true));
        steps.run("end-to-end", || test_command::run_tests(&["e2e::"], true));
    } else {
        steps.skip("tests", "the build failed");
        steps.skip("end-to-end", "the build failed");
    }
    steps.run("docs", docs);
    steps.run("without the demo", without_demo);
    if has_git {
        steps.run("tree unchanged", || unchanged(before, tree()));
    } else {
        steps.skip("tree unchanged", "no git");
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
        run(cargo(["test", "--release", "--quiet", "--no-fail-fast"]).args(packages)).map(|()| true)
    });
    Ok(steps.finish())
}

fn format() -> anyhow::Result<bool> {
    run(&mut cargo(["fmt", "--all", "--check"])).map(|()| true)
}

/// Warnings are errors here, and only here: an editor's build goes on.
fn clippy(is_locked: bool) -> anyhow::Result<bool> {
    let mut command = cargo(["clippy", "--release", "--workspace", "--all-targets", "--features", "xtask/bench"]);
    command.args(is_locked.then_some("--locked")).args(["--", "-D", "warnings"]);
    run(&mut command).map(|()| true)
}

fn docs() -> anyhow::Result<bool> {
    let mut command = cargo(["doc", "--release", "--workspace", "--no-deps", "--locked"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings")).map(|()| true)
}

fn without_demo() -> anyhow::Result<bool> {
    const PLAIN: [&str; 4] = ["--package", "gangline-cli", "--no-default-features", "--locked"];
    run(cargo(["check", "--release"]).args(PLAIN))?;
    let tree = output(cargo(["tree", "--edges", "normal", "--prefix", "none"]).args(PLAIN))?;
    let trainer = tree.lines().find(|line| line.starts_with(TRAINER));
    anyhow::ensure!(trainer.is_none(), "the build without the demo has {}", trainer.unwrap_or_default());
    Ok(true)
}

/// What git sees in the working tree, ignored files too, but for cargo's own folder.
fn tree() -> anyhow::Result<String> {
    let mut git = Command::new("git");
    git.args(["status", "--porcelain", "--ignored", "--untracked-files=all", "--", ".", ":!target"]);
    anyhow::ensure!(Path::new(".git").exists(), "not a git checkout");
    output(&mut git)
}

fn unchanged(before: anyhow::Result<String>, after: anyhow::Result<String>) -> anyhow::Result<bool> {
    let (before, after) = (before?, after?);
    let new = after.lines().filter(|line| !before.lines().any(|old| old == *line));
    let new: Vec<&str> = new.collect();
    anyhow::ensure!(before == after, "the steps wrote into the tree:\n{}", new.join("\n"));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_writes_into_the_tree_is_found_and_named() {
        let tree = |text: &str| Ok(text.to_owned());
        assert!(unchanged(tree(" M a.rs\n"), tree(" M a.rs\n")).unwrap());
        let error = unchanged(tree(" M a.rs\n"), tree(" M a.rs\n?? b.log\n")).unwrap_err();
        assert!(error.to_string().ends_with("\n?? b.log"), "{error}");
        assert!(unchanged(tree(" M a.rs\n"), tree("")).is_err());
    }
}
