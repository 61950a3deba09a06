//! `ci`, the gate, and `quick`, what one runs between two edits.

mod beside;
mod parts;
mod processors;
mod steps;
mod times;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use anyhow::Context as _;

use self::parts::{BUILD, Gate, PARTS, Part};
use self::steps::Steps;
use crate::command::{PROFILE, cargo, succeeds};
use crate::tidy::PURE;

/// What of the gate runs, and how often.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Install missing tools with apt-get (as CI=true does).
    #[arg(long)]
    install: bool,
    /// Run only these parts, separated by commas, and the build if one of them needs it.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Run the parts this many times, and say which runs failed: a flaky test shows itself.
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZeroU32,
    /// Run nothing: print what each part took in the last runs.
    #[arg(long, exclusive = true)]
    times: bool,
}

/// Runs everything that must hold before a change is shared, or the parts that were asked for; true if all passed each
/// time. What each part took is kept (`--times` prints it).
///
/// # Errors
/// When there is no part of a name, or the times can't be kept or read. What goes wrong in a part is printed and fails it.
pub(crate) fn ci(options: &Options) -> anyhow::Result<bool> {
    if options.times {
        return times::print().map(|()| true);
    }
    let parts = chosen(&options.only)?;
    let mut runs = Runs::default();
    for run in 1..=options.repeat.get() {
        if options.repeat.get() > 1 {
            eprintln!("\n==== run {run} of {}", options.repeat);
        }
        let (mut gate, mut steps) = (Gate::new(options.install || crate::tools::is_ci(), &parts), Steps::begin());
        parts.iter().for_each(|part| gate.run(part, &mut steps));
        println!("\n{steps}");
        times::keep(&steps)?;
        runs.add(&steps);
    }
    if options.repeat.get() > 1 {
        println!("\n{}", runs.summary());
    }
    Ok(runs.have_passed())
}

/// Runs one part alone, without what it needs, and keeps nothing; true if it passed.
///
/// # Errors
/// When there is no such part, or the part breaks off.
pub(crate) fn part(name: &str) -> anyhow::Result<bool> {
    let parts = chosen(&[name.to_owned()])?;
    let part = parts.into_iter().find(|part| part.name == name).context("the part is among those chosen")?;
    part.run_alone()
}

/// The parts of these names, in the gate's order; all if there are no names.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Part>> {
    let all = || PARTS.iter().map(|part| part.name);
    for name in names {
        let list = all().collect::<Vec<_>>().join(", ");
        anyhow::ensure!(all().any(|part| part == name), "there is no part {name:?} of the gate; its parts are {list}");
    }
    let is_named = |part: &Part| names.iter().any(|name| name == part.name);
    let needs_build = PARTS.iter().any(|part| is_named(part) && part.needs_build());
    let is_chosen = |part: &&Part| names.is_empty() || is_named(part) || (needs_build && part.name == BUILD.name);
    Ok(PARTS.iter().filter(is_chosen).collect())
}

/// The runs so far.
#[derive(Default)]
struct Runs {
    count: usize,
    /// For each part, the runs in which it failed, from 1.
    failures: BTreeMap<&'static str, Vec<usize>>,
    /// The parts in the order in which they ran.
    parts: Vec<&'static str>,
}

impl Runs {
    fn add(&mut self, steps: &Steps) {
        self.count += 1;
        for step in steps.ran() {
            let (part, has_passed) = (step.name, step.has_passed());
            if !self.parts.contains(&part) {
                self.parts.push(part);
            }
            if !has_passed {
                self.failures.entry(part).or_default().push(self.count);
            }
        }
    }

    fn have_passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// A line a part: in which of the runs it failed, and how often.
    fn summary(&self) -> String {
        let line = |part: &&str| {
            let Some(failed) = self.failures.get(*part) else {
                return format!("{part:<16} failed in none of {} runs", self.count);
            };
            let which: Vec<String> = failed.iter().map(ToString::to_string).collect();
            format!("{part:<16} FAILED in {} of {} runs: {}", failed.len(), self.count, which.join(", "))
        };
        self.parts.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Format, tidy, clippy and the tests of the pure crates; true if all pass.
///
/// # Errors
/// None: what goes wrong in a step is printed and fails it.
pub(crate) fn quick() -> anyhow::Result<bool> {
    let mut steps = Steps::begin();
    steps.run("format", parts::format);
    steps.run("tidy", crate::tidy);
    steps.run("clippy", || parts::clippy(false));
    steps.run("tests of the pure crates", || {
        // Their tests need nothing but a processor.
        let names = PURE.iter().map(|folder| folder.replace("crates/", "gangline-"));
        let packages = names.flat_map(|package| ["--package".to_owned(), package]);
        succeeds(cargo(["test", "--profile", PROFILE, "--quiet", "--no-fail-fast"]).args(packages))
    });
    println!("\n{steps}");
    Ok(steps.have_passed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<&'static str> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        chosen(&only).unwrap().iter().map(|part| part.name).collect()
    }

    #[test]
    fn only_the_named_parts_run_in_the_order_of_the_gate() {
        assert_eq!(names(&["tidy", "format"]), ["format", "tidy"]);
        assert_eq!(names(&["end-to-end", "docs"]), ["build", "end-to-end", "docs"]);
        assert_eq!(names(&[]).len(), PARTS.len());
    }

    #[test]
    fn an_unknown_part_is_refused_with_the_list() {
        let error = chosen(&["format".to_owned(), "lint".to_owned()]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no part \"lint\"") && error.contains("tools, format, tidy"), "{error}");
    }

    #[test]
    fn runs_that_failed_are_named_and_counted() {
        let mut runs = Runs::default();
        for run in 1..=4 {
            let mut steps = Steps::begin();
            steps.run("format", || Ok(true));
            steps.run("tests", || Ok(run % 2 == 1));
            runs.add(&steps);
        }
        let summary = "format           failed in none of 4 runs\ntests            FAILED in 2 of 4 runs: 2, 4";
        assert_eq!(runs.summary(), summary);
        assert!(!runs.have_passed());
    }
}
