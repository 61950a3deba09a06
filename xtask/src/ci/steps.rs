//! A run of named steps, each timed, with a table at the end. A step that fails doesn't hide what comes after it, unless
//! that needs the step.

use std::fmt;
use std::time::{Duration, Instant};

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped(String),
}

/// The steps so far.
pub(super) struct Steps {
    began: Instant,
    done: Vec<(&'static str, Duration, Outcome)>,
}

impl Steps {
    /// No step yet; the clock runs.
    pub(super) fn begin() -> Steps {
        Steps { began: Instant::now(), done: Vec::new() }
    }

    /// Runs a step and remembers how it went; true if it passed.
    pub(super) fn run(&mut self, name: &'static str, step: impl FnOnce() -> anyhow::Result<bool>) -> bool {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let result = step();
        self.add(name, started.elapsed(), result)
    }

    /// Remembers how a step went that ran elsewhere; true if it passed.
    pub(super) fn add(&mut self, name: &'static str, took: Duration, result: anyhow::Result<bool>) -> bool {
        let outcome = match result {
            Ok(true) => Outcome::Passed,
            Ok(false) => Outcome::Failed,
            Err(error) => {
                eprintln!("error: {error:#}");
                Outcome::Failed
            }
        };
        eprintln!("== {name}: {outcome} in {:.1} s", took.as_secs_f64());
        self.done.push((name, took, outcome.clone()));
        outcome == Outcome::Passed
    }

    /// Notes a step that can't run.
    pub(super) fn skip(&mut self, name: &'static str, why: &str) {
        eprintln!("\n== {name}: skipped: {why}");
        self.done.push((name, Duration::ZERO, Outcome::Skipped(why.to_owned())));
    }

    /// The time since they began: less than their sum where some ran side by side.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the step of that name ran and failed.
    pub(super) fn has_failed(&self, name: &str) -> bool {
        self.ran().any(|(step, _, has_passed)| step == name && !has_passed)
    }

    /// True if no step failed. A skipped step is no failure: what it waited for is one.
    pub(super) fn have_passed(&self) -> bool {
        self.ran().all(|(_, _, has_passed)| has_passed)
    }

    /// The steps that ran: each with how long it took and whether it passed.
    pub(super) fn ran(&self) -> impl Iterator<Item = (&'static str, Duration, bool)> {
        let ran = self.done.iter().filter(|(_, _, outcome)| !matches!(outcome, Outcome::Skipped(_)));
        ran.map(|(name, took, outcome)| (*name, *took, *outcome == Outcome::Passed))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Failed => f.write_str("FAILED"),
            Outcome::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, took, outcome) in &self.done {
            writeln!(f, "{name:<28} {:>8.1} s  {outcome}", took.as_secs_f64())?;
        }
        write!(f, "{:<28} {:>8.1} s", "from start to end", self.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_run_and_hides_nothing() {
        let mut steps = Steps::begin();
        assert!(!steps.run("first", || Ok(false)));
        assert!(!steps.run("second", || anyhow::bail!("no such file")));
        assert!(steps.run("third", || Ok(true)));
        steps.skip("fourth", "it needs the first");
        let table = steps.to_string();
        let outcomes: Vec<_> = table.lines().map(|line| line.split(" s  ").nth(1).unwrap_or("").trim()).collect();
        assert_eq!(outcomes, ["FAILED", "FAILED", "passed", "skipped: it needs the first", ""]);
        assert!(!steps.have_passed() && steps.has_failed("second") && !steps.has_failed("fourth"));
    }

    #[test]
    fn a_run_without_failures_passes() {
        let mut steps = Steps::begin();
        steps.run("only", || Ok(true));
        assert!(steps.have_passed());
    }
}
