//! A run of named steps, each timed, with a table at the end, and below it what the failed ones said. A step that fails doesn't hide what comes after it, unless
//! that needs the step.

use std::fmt;
use std::time::{Duration, Instant};

use super::processors::Reading;

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// With its error, if it has one.
    Failed(Option<String>),
    Skipped(String),
}

/// A step that is over.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) took: Duration,
    /// The share of that time in which the processors were busy; none where it isn't known, or where the step ran beside
    /// another.
    pub(super) busy: Option<f64>,
    outcome: Outcome,
}

impl Step {
    /// Whether it passed.
    pub(super) fn has_passed(&self) -> bool {
        self.outcome == Outcome::Passed
    }
}

/// The steps so far.
pub(super) struct Steps {
    began: Instant,
    done: Vec<Step>,
}

impl Steps {
    /// No step yet; the clock runs.
    pub(super) fn begin() -> Steps {
        Steps { began: Instant::now(), done: Vec::new() }
    }

    /// Runs a step and remembers how it went; true if it passed.
    pub(super) fn run(&mut self, name: &'static str, step: impl FnOnce() -> anyhow::Result<bool>) -> bool {
        eprintln!("\n== {name}");
        let (started, then) = (Instant::now(), Reading::now());
        let result = step();
        let busy = Reading::now().zip(then).and_then(|(now, then)| now.busy_since(then));
        self.end(name, started.elapsed(), busy, result)
    }

    /// Remembers how a step went that ran elsewhere; true if it passed.
    pub(super) fn add(&mut self, name: &'static str, took: Duration, result: anyhow::Result<bool>) -> bool {
        self.end(name, took, None, result)
    }

    fn end(&mut self, name: &'static str, took: Duration, busy: Option<f64>, result: anyhow::Result<bool>) -> bool {
        let outcome = match result {
            Ok(true) => Outcome::Passed,
            Ok(false) => Outcome::Failed(None),
            Err(error) => {
                eprintln!("error: {error:#}");
                Outcome::Failed(Some(format!("{error:#}")))
            }
        };
        eprintln!("== {name}: {outcome} in {:.1} s", took.as_secs_f64());
        let is_passed = outcome == Outcome::Passed;
        self.done.push(Step { name, took, busy, outcome });
        is_passed
    }

    /// Notes a step that can't run.
    pub(super) fn skip(&mut self, name: &'static str, why: &str) {
        eprintln!("\n== {name}: skipped: {why}");
        self.done.push(Step { name, took: Duration::ZERO, busy: None, outcome: Outcome::Skipped(why.to_owned()) });
    }

    /// The time since they began: less than their sum where some ran side by side.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the step of that name ran and failed.
    pub(super) fn has_failed(&self, name: &str) -> bool {
        self.ran().any(|step| step.name == name && !step.has_passed())
    }

    /// True if no step failed. A skipped step is no failure: what it waited for is one.
    pub(super) fn have_passed(&self) -> bool {
        self.ran().all(Step::has_passed)
    }

    /// The steps that ran.
    pub(super) fn ran(&self) -> impl Iterator<Item = &Step> {
        self.done.iter().filter(|step| !matches!(step.outcome, Outcome::Skipped(_)))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Failed(_) => f.write_str("FAILED"),
            Outcome::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { name, took, busy, outcome } in &self.done {
            let busy = busy.map_or(String::new(), |busy| format!("{:.0} % busy", 100.0 * busy));
            writeln!(f, "{name:<28} {:>8.1} s  {busy:>10}  {outcome}", took.as_secs_f64())?;
        }
        write!(f, "{:<28} {:>8.1} s", "from start to end", self.elapsed().as_secs_f64())?;
        for step in &self.done {
            if let Outcome::Failed(Some(error)) = &step.outcome {
                write!(f, "\n\n{}: {error}", step.name)?;
            }
        }
        Ok(())
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
        let outcomes: Vec<_> = table.lines().map(|line| line.rsplit("  ").next().unwrap_or("").trim()).collect();
        assert_eq!(outcomes[..4], ["FAILED", "FAILED", "passed", "skipped: it needs the first"]);
        assert!(table.ends_with("\n\nsecond: no such file"), "{table}");
        assert!(!steps.have_passed() && steps.has_failed("second") && !steps.has_failed("fourth"));
    }

    #[test]
    fn a_run_without_failures_passes() {
        let mut steps = Steps::begin();
        steps.run("only", || Ok(true));
        assert!(steps.have_passed());
    }
}
