//! The parts of the gate, in the order in which they run, each with what it needs of the parts before it.

use std::path::Path;
use std::thread::JoinHandle;

use anyhow::Context as _;

use super::steps::Steps;
use crate::command::{PROFILE, cargo, git, output, succeeds};
use crate::environment::Environment;
use crate::{deny, fuzz, python, soak, test_command, tools};

/// Cargo's answer when the trainer slips into the plain build.
const TRAINER: &str = "candle";

/// A part of the gate.
pub(super) struct Part {
    /// Its name in the table and on the command line.
    pub(super) name: &'static str,
    needs: Need,
    run: fn(&mut Gate) -> anyhow::Result<bool>,
}

/// Without what a part can't run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    Build,
    Checkout,
}

/// The part that needs Python packages.
const PYTHON: &str = "python";

/// The part that others need.
pub(super) const BUILD: Part =
    Part { name: "build", needs: Need::Nothing, run: |_| test_command::build(true).map(|()| true) };

/// End-to-end tests, fuzzing and soak take longest and say least about where a fault lies: they come late.
pub(super) const PARTS: [Part; 14] = [
    Part { name: "tools", needs: Need::Nothing, run: Gate::tools },
    Part { name: "format", needs: Need::Nothing, run: |_| format() },
    Part { name: "tidy", needs: Need::Nothing, run: |_| crate::tidy() },
    Part { name: "dependencies", needs: Need::Nothing, run: |_| deny::deny() },
    Part { name: "clippy", needs: Need::Nothing, run: |_| clippy(true) },
    BUILD,
    Part { name: "tests", needs: Need::Build, run: |_| test_command::run_tests(&["--skip", "e2e::"], true) },
    Part { name: "end-to-end", needs: Need::Build, run: |_| test_command::run_tests(&["e2e::"], true) },
    Part { name: "fuzz", needs: Need::Build, run: |_| fuzz::fuzz(&fuzz::Options::default()) },
    Part { name: PYTHON, needs: Need::Nothing, run: Gate::python },
    Part { name: "soak", needs: Need::Build, run: |_| soak::in_ci() },
    Part { name: "docs", needs: Need::Nothing, run: |_| docs() },
    Part { name: "without-demo", needs: Need::Nothing, run: |_| without_demo() },
    Part { name: "tree-unchanged", needs: Need::Checkout, run: Gate::tree_unchanged },
];

impl Part {
    /// Whether the build has to run before it.
    pub(super) fn needs_build(&self) -> bool {
        self.needs == Need::Build
    }
}

/// One run of the gate: what its parts hand on to each other.
pub(super) struct Gate {
    may_install: bool,
    /// The working tree before the first part ran.
    before: anyhow::Result<String>,
    /// Whether the part `python` runs later.
    fetches_packages: bool,
    /// Fetches the Python packages meanwhile: half of that time is the network's.
    packages: Option<JoinHandle<anyhow::Result<Environment>>>,
}

impl Gate {
    pub(super) fn new(may_install: bool, parts: &[&Part]) -> Gate {
        let fetches_packages = parts.iter().any(|part| part.name == PYTHON);
        Gate { may_install, before: tree(), fetches_packages, packages: None }
    }

    /// Runs a part, or skips it and says why.
    pub(super) fn run(&mut self, part: &Part, steps: &mut Steps) {
        match (part.needs, &self.before) {
            (Need::Build, _) if steps.has_failed(BUILD.name) => steps.skip(part.name, "the build failed"),
            (Need::Checkout, Err(error)) => steps.skip(part.name, &format!("{error:#}")),
            _ => drop(steps.run(part.name, || (part.run)(self))),
        }
    }

    fn tools(&mut self) -> anyhow::Result<bool> {
        install_tools(self.may_install)?;
        // Only where the part that needs the packages runs: it waits for them, and if this fails it tries again.
        if self.fetches_packages {
            self.packages = Some(std::thread::spawn(python::environment));
        }
        Ok(true)
    }

    fn python(&mut self) -> anyhow::Result<bool> {
        drop(self.packages.take().map(JoinHandle::join));
        python::python(false, &[])
    }

    fn tree_unchanged(&mut self) -> anyhow::Result<bool> {
        let Ok(before) = &self.before else { return Ok(false) };
        unchanged(before, &tree()?)
    }
}

fn install_tools(may_install: bool) -> anyhow::Result<()> {
    tools::ensure_components(may_install)?;
    if may_install {
        // Tests that need these skip themselves without them, which CI doesn't allow.
        let of_tests = [&tools::BROWSER, &tools::MOUNT, &tools::PYTHON, &tools::SLURM, &tools::MUNGE, &tools::NETWORKS];
        let of_shells = [&tools::ZSH, &tools::FISH, &tools::GROFF];
        tools::ensure(&[&of_tests[..], &of_shells].concat(), true)?;
    }
    tools::ensure(&[&tools::GIT, &tools::COMPILER, &tools::FUZZER_COMPILER], may_install)
}

pub(super) fn format() -> anyhow::Result<bool> {
    succeeds(&mut cargo(["fmt", "--all", "--check"]))
}

/// Warnings are errors here, and only here: an editor's build goes on.
pub(super) fn clippy(is_locked: bool) -> anyhow::Result<bool> {
    let mut command = cargo(["clippy", "--profile", PROFILE, "--workspace", "--all-targets"]);
    command.args(is_locked.then_some("--locked")).args(["--", "-D", "warnings"]);
    succeeds(&mut command)
}

fn docs() -> anyhow::Result<bool> {
    let mut command = cargo(["doc", "--profile", PROFILE, "--workspace", "--no-deps", "--locked"]);
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn without_demo() -> anyhow::Result<bool> {
    const PLAIN: [&str; 4] = ["--package", "gangline-cli", "--no-default-features", "--locked"];
    if !succeeds(cargo(["clippy", "--profile", PROFILE]).args(PLAIN).args(["--", "-D", "warnings"]))? {
        return Ok(false);
    }
    let tree = output(cargo(["tree", "--edges", "normal", "--prefix", "none"]).args(PLAIN))?;
    let trainer = tree.lines().find(|line| line.starts_with(TRAINER));
    anyhow::ensure!(trainer.is_none(), "the build without the demo has {}", trainer.unwrap_or_default());
    Ok(true)
}

/// What git sees in the working tree, ignored files too, but for cargo's own folder.
fn tree() -> anyhow::Result<String> {
    anyhow::ensure!(Path::new(".git").exists(), "not a git checkout");
    let status = ["status", "--porcelain", "--ignored", "--untracked-files=all", "--", ".", ":!target"];
    output(git().args(status)).context("look at the working tree")
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

    #[test]
    fn what_needs_the_build_is_skipped_when_that_failed() {
        let before = Err(anyhow::anyhow!("not a git checkout"));
        let mut gate = Gate { may_install: false, before, fetches_packages: false, packages: None };
        let mut steps = Steps::default();
        steps.run(BUILD.name, || Ok(false));
        let part = |name, needs| Part { name, needs, run: |_| Ok(true) };
        for (name, needs) in [("tests", Need::Build), ("docs", Need::Nothing), ("tree-unchanged", Need::Checkout)] {
            gate.run(&part(name, needs), &mut steps);
        }
        let table = steps.to_string();
        let outcomes: Vec<&str> = table.lines().filter_map(|line| line.split(" s  ").nth(1)).collect();
        assert_eq!(outcomes, ["FAILED", "skipped: the build failed", "passed", "skipped: not a git checkout"]);
    }
}
