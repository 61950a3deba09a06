//! The parts of the gate, in the order in which they run, each with what it needs of the parts before it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use anyhow::Context as _;

use super::beside::{Companion, Companions, Program};
use super::steps::Steps;
use crate::command::{PROFILE, cargo, git, output, succeeds};
use crate::environment::{self, Environment};
use crate::{deny, fuzz, python, soak, test_command, tools};

/// Cargo's answer when the trainer slips into the plain build.
const TRAINER: &str = "candle";

/// A part of the gate.
pub(super) struct Part {
    /// Its name in the table and on the command line.
    pub(super) name: &'static str,
    needs: Need,
    /// Beside which part it runs, if that one runs too.
    pub(super) beside: Option<Companion>,
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
/// The part of the tests that mostly wait: for processes, leases and heartbeats.
const END_TO_END: &str = "end-to-end";
/// Gets what the end-to-end tests leave of the processor.
const BESIDE_TESTS: Option<Companion> = Some(Companion { part: END_TO_END, niceness: "10" });
/// Waits most of the time, and isn't to wait longer.
const BESIDE_PYTHON: Option<Companion> = Some(Companion { part: PYTHON, niceness: "0" });

/// The part that others need.
pub(super) const BUILD: Part = Part { name: "build", needs: Need::Nothing, beside: None, run: Gate::build };

/// End-to-end tests, fuzzing and soak take longest and say least about where a fault lies: they come late.
pub(super) const PARTS: [Part; 14] = [
    Part { name: "tools", needs: Need::Nothing, beside: None, run: Gate::tools },
    Part { name: "format", needs: Need::Nothing, beside: None, run: |_| format() },
    Part { name: "tidy", needs: Need::Nothing, beside: None, run: |_| crate::tidy() },
    Part { name: "dependencies", needs: Need::Nothing, beside: None, run: |_| deny::deny() },
    Part { name: "clippy", needs: Need::Nothing, beside: None, run: |_| clippy(true) },
    BUILD,
    Part {
        name: "tests",
        needs: Need::Build,
        beside: None,
        run: |_| test_command::run_tests(&["--skip", "e2e::"], true).and_then(none_failed),
    },
    Part { name: END_TO_END, needs: Need::Build, beside: None, run: Gate::end_to_end },
    Part { name: "docs", needs: Need::Nothing, beside: BESIDE_TESTS, run: |_| docs() },
    Part { name: "without-demo", needs: Need::Nothing, beside: BESIDE_TESTS, run: |_| without_demo() },
    Part { name: "fuzz", needs: Need::Build, beside: BESIDE_TESTS, run: |_| fuzz::in_ci() },
    Part { name: PYTHON, needs: Need::Nothing, beside: None, run: Gate::python },
    Part { name: "soak", needs: Need::Build, beside: BESIDE_PYTHON, run: |_| soak::in_ci() },
    Part { name: "tree-unchanged", needs: Need::Checkout, beside: None, run: Gate::tree_unchanged },
];

impl Part {
    /// Whether the build has to run before it.
    pub(super) fn needs_build(&self) -> bool {
        self.needs == Need::Build
    }

    /// Runs it in a gate of its own.
    pub(super) fn run_alone(&'static self) -> anyhow::Result<bool> {
        (self.run)(&mut Gate::new(crate::tools::is_ci(), &[self]))
    }
}

/// One run of the gate: what its parts hand on to each other.
pub(super) struct Gate {
    may_install: bool,
    /// Runs parts beside others.
    program: Program,
    chosen: Vec<&'static Part>,
    /// The program of the end-to-end tests, once it is built.
    end_to_end: Option<PathBuf>,
    /// The working tree before the first part ran.
    before: anyhow::Result<String>,
    /// Whether the part `python` runs later.
    fetches_packages: bool,
    /// Fetches the Python packages meanwhile: half of that time is the network's.
    packages: Option<JoinHandle<anyhow::Result<Environment>>>,
}

impl Gate {
    pub(super) fn new(may_install: bool, parts: &[&'static Part]) -> Gate {
        let fetches_packages = parts.iter().any(|part| part.name == PYTHON);
        Gate {
            may_install,
            program: Program {
                path: std::env::current_exe().unwrap_or_default(),
                logs: environment::target().unwrap_or_default(),
            },
            chosen: parts.to_vec(),
            end_to_end: None,
            before: tree(),
            fetches_packages,
            packages: None,
        }
    }

    /// Runs a part with those beside it, or skips what can't run and says why. A part that runs beside another ran with that one.
    pub(super) fn run(&mut self, part: &'static Part, steps: &mut Steps) {
        let is_beside = |part: &Part, other: &str| part.beside.is_some_and(|beside| beside.part == other);
        if self.chosen.iter().any(|other| is_beside(part, other.name)) {
            return;
        }
        let companions = self.chosen.iter().copied().filter(|other| is_beside(other, part.name));
        let (able, unable): (Vec<&Part>, Vec<&Part>) =
            companions.partition(|other| self.obstacle(other, steps).is_none());
        let companions = Companions::start(&self.program, able);
        match self.obstacle(part, steps) {
            Some(why) => steps.skip(part.name, &why),
            None => drop(steps.run(part.name, || (part.run)(self))),
        }
        companions.finish(steps);
        for part in unable {
            let why = self.obstacle(part, steps).unwrap_or_default();
            steps.skip(part.name, &why);
        }
    }

    /// Why a part can't run.
    fn obstacle(&self, part: &Part, steps: &Steps) -> Option<String> {
        match (part.needs, &self.before) {
            (Need::Build, _) if steps.has_failed(BUILD.name) => Some("the build failed".to_owned()),
            (Need::Checkout, Err(error)) => Some(format!("{error:#}")),
            _ => None,
        }
    }

    fn build(&mut self) -> anyhow::Result<bool> {
        self.end_to_end = Some(test_command::build(true)?);
        Ok(true)
    }

    /// Started without cargo, which would wait for the parts that compile beside it.
    fn end_to_end(&mut self) -> anyhow::Result<bool> {
        let program = self.end_to_end.as_ref().context("the build says where the tests are")?;
        test_command::run_end_to_end(program, true).and_then(none_failed)
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
        let of_tests = [&tools::BROWSER, &tools::PYTHON, &tools::SLURM, &tools::MUNGE, &tools::NETWORKS];
        let of_shells = [&tools::ZSH, &tools::FISH, &tools::GROFF];
        let of_disks = [&tools::MOUNT, &tools::MKFS];
        let of_sites =
            [&tools::ALERTMANAGER, &tools::PROMETHEUS, &tools::VICTORIA_METRICS, &tools::SLURMDBD, &tools::MARIADB];
        let of_containers = [&tools::PODMAN, &tools::CRUN, &tools::DOCKER, &tools::BUSYBOX];
        tools::ensure(&[&of_tests[..], &of_shells, &of_disks, &of_sites, &of_containers].concat(), true)?;
    }
    tools::ensure(&[&tools::GIT, &tools::COMPILER, &tools::FUZZER_COMPILER], may_install)
}

/// Makes the failures of tests an error, so that the gate repeats them where its long log ends.
fn none_failed(failures: Vec<String>) -> anyhow::Result<bool> {
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(true)
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

/// Takes what clippy compiled: cargo compiles our crates once more if it isn't called as clippy calls it.
fn docs() -> anyhow::Result<bool> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let mut command = cargo(["doc", "--profile", PROFILE, "--workspace", "--no-deps", "--locked"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", Path::new(sysroot.trim()).join("bin/clippy-driver"));
    command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Lints the binary without the trainer and without S3. The whole workspace is asked for, so that others' code is taken as it is there.
fn without_demo() -> anyhow::Result<bool> {
    const BINARY: [&str; 5] = ["--workspace", "--bin", "gangline", "--no-default-features", "--locked"];
    const PACKAGE: [&str; 4] = ["--package", "gangline-cli", "--no-default-features", "--locked"];
    if !succeeds(cargo(["clippy", "--profile", PROFILE]).args(BINARY).args(["--", "-D", "warnings"]))? {
        return Ok(false);
    }
    let tree = output(cargo(["tree", "--edges", "normal", "--prefix", "none"]).args(PACKAGE))?;
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

    const TESTS: Part = Part { name: "tests", needs: Need::Build, beside: None, run: |_| Ok(true) };
    const DOCS: Part = Part { name: "docs", needs: Need::Nothing, beside: None, run: |_| Ok(true) };
    const TREE: Part = Part { name: "tree-unchanged", needs: Need::Checkout, beside: None, run: |_| Ok(true) };
    const COMPANION: Part = Part {
        name: "companion",
        needs: Need::Nothing,
        beside: Some(Companion { part: "docs", niceness: "0" }),
        run: |_| Ok(true),
    };

    fn outcomes(chosen: &[&'static Part], program: &str, mut steps: Steps) -> Vec<String> {
        let before = Err(anyhow::anyhow!("not a git checkout"));
        let program = Program { path: program.into(), logs: std::env::temp_dir() };
        let mut gate = Gate { before, program, ..Gate::new(false, chosen) };
        chosen.iter().for_each(|part| gate.run(part, &mut steps));
        let table = steps.to_string();
        table
            .lines()
            .filter(|line| line.contains(" s  "))
            .filter_map(|line| line.rsplit("  ").next())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn what_needs_the_build_is_skipped_when_that_failed() {
        let mut steps = Steps::begin();
        steps.run(BUILD.name, || Ok(false));
        let outcomes = outcomes(&[&TESTS, &DOCS, &TREE], "true", steps);
        assert_eq!(outcomes, ["FAILED", "skipped: the build failed", "passed", "skipped: not a git checkout"]);
    }

    #[test]
    fn a_part_runs_once_in_a_process_beside_another_or_alone_without_it() {
        let both = |program| outcomes(&[&DOCS, &COMPANION], program, Steps::begin());
        assert_eq!(both("true"), ["passed", "passed"]);
        assert_eq!(both("false"), ["passed", "FAILED"]);
        assert_eq!(outcomes(&[&COMPANION], "false", Steps::begin()), ["passed"]);
    }

    #[test]
    fn each_part_that_runs_beside_another_names_one_that_comes_before_it() {
        for (at, part) in PARTS.iter().enumerate() {
            let is_before = |beside: Companion| PARTS[..at].iter().any(|other| other.name == beside.part);
            assert!(part.beside.is_none_or(is_before), "{}", part.name);
        }
    }
}
