//! Reading what `cargo test` prints: the sum over all its binaries, and what skipped itself and why.
//!
//! The harness is run with `--show-output`, because a test that skips itself says so in its output ("skipped: no GPU").
//! That output is read and not shown again. What failed tests say is kept as well, to be repeated where a long log ends.

use std::fmt;

/// Tests that are named as the slowest.
const SLOWEST_SHOWN: usize = 15;
/// Lines that are kept of what a failed test says, and characters of each.
const FAILURE_LINES: usize = 25;
const FAILURE_COLUMNS: usize = 300;

/// The sum so far.
#[derive(Debug, Default)]
pub(crate) struct TestReport {
    passed: usize,
    failed: usize,
    failures: Vec<Failure>,
    /// Test and reason.
    skips: Vec<String>,
    ignored: usize,
    /// Tests with the seconds that they took, where the harness says so.
    times: Vec<(String, f64)>,
    part: Part,
    current_test: String,
}

/// Where in the harness's output we are.
#[derive(Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Running,
    OutputOfPassed,
    OutputOfFailed,
}

/// What a failed test said.
#[derive(Debug)]
struct Failure {
    test: String,
    lines: Vec<String>,
}

impl Failure {
    /// Returns the beginning of it: from the first panic on, if there is one.
    fn excerpt(&self) -> String {
        let lines = &self.lines;
        let from = lines.iter().position(|line| line.contains(" panicked at ")).unwrap_or(0);
        let shown = lines[from..].iter().filter(|line| !line.trim().is_empty()).take(FAILURE_LINES);
        let cut = |line: &String| format!("\n  {}", line.chars().take(FAILURE_COLUMNS).collect::<String>());
        format!("{}{}", self.test, shown.map(cut).collect::<String>())
    }
}

impl TestReport {
    /// Takes in a line; true if it should be shown.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.add_result(rest);
            self.part = Part::Running;
        } else if line == "successes:" {
            self.part = Part::OutputOfPassed;
        } else if line == "failures:" {
            // The second such line begins the list of their names.
            self.part = if self.part == Part::OutputOfFailed { Part::Running } else { Part::OutputOfFailed };
        } else if let Some(name) = line.strip_prefix("---- ") {
            self.current_test = name.trim_end_matches([' ', '-']).trim_end_matches(" stdout").to_owned();
            if self.part == Part::OutputOfFailed {
                self.failures.push(Failure { test: self.current_test.clone(), lines: Vec::new() });
            }
        } else if self.part == Part::OutputOfFailed {
            self.failures.last_mut().into_iter().for_each(|failure| failure.lines.push(line.to_owned()));
        } else if let Some(why) = line.trim_start().strip_prefix("skipped: ") {
            self.skips.push(format!("{}: {why}", self.current_test));
        } else if let Some((name, why)) = ignored(line) {
            self.ignored += 1;
            self.skips.push(format!("{name}: {why}"));
        } else if let Some(time) = time(line) {
            self.times.push(time);
        }
        self.part != Part::OutputOfPassed
    }

    /// The tests that took longest, with their seconds.
    pub(crate) fn slowest(&self) -> Vec<(&str, f64)> {
        let mut times: Vec<(&str, f64)> = self.times.iter().map(|(name, took)| (name.as_str(), *took)).collect();
        times.sort_by(|one, other| other.1.total_cmp(&one.1));
        times.truncate(SLOWEST_SHOWN);
        times
    }

    /// Tests that didn't run, or ended themselves early, each with its reason.
    pub(crate) fn skips(&self) -> &[String] {
        &self.skips
    }

    /// The failed tests, each with the beginning of what it said.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.iter().map(Failure::excerpt).collect()
    }

    /// Whether any test passed: a filter that matches nothing proves nothing.
    pub(crate) fn has_passes(&self) -> bool {
        self.passed > 0
    }

    fn add_result(&mut self, rest: &str) {
        let counts = rest.split(['.', ';']).filter_map(|part| part.trim().split_once(' '));
        for (count, what) in counts {
            match (count.parse::<usize>(), what) {
                (Ok(count), "passed") => self.passed += count,
                (Ok(count), "failed") => self.failed += count,
                _ => {}
            }
        }
    }
}

/// `test NAME ... ok <1.234s>`.
fn time(line: &str) -> Option<(String, f64)> {
    let (name, state) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, took) = state.strip_suffix("s>")?.split_once('<')?;
    Some((name.to_owned(), took.parse().ok()?))
}

/// `test NAME ... ignored, WHY`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, state) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let why = state.strip_prefix("ignored")?;
    Some((name, why.strip_prefix(", ").unwrap_or("no reason given")))
}

impl fmt::Display for TestReport {
    /// A test that skipped itself counts as skipped, though the harness says that it passed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.passed.saturating_sub(self.skips.len() - self.ignored);
        write!(f, "{passed} passed, {} failed, {} skipped", self.failed, self.skips.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a ... ok
test b ... ok
test c ... ignored, needs a network
test d ... FAILED

successes:

---- b stdout ----
skipped: no GPU here


successes:
    a
    b

failures:

---- d stdout ----
left is 1

failures:
    d

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn report(output: &str) -> (TestReport, String) {
        let mut report = TestReport::default();
        let shown = output.lines().filter(|line| report.read(line)).collect::<Vec<_>>().join("\n");
        (report, shown)
    }

    #[test]
    fn results_are_summed_over_binaries() {
        let (report, _) = report(&format!("{OUTPUT}{OUTPUT}"));
        assert_eq!(report.to_string(), "2 passed, 2 failed, 4 skipped");
        assert!(report.failed == 2 && report.has_passes());
    }

    #[test]
    fn what_skipped_itself_says_why() {
        assert_eq!(report(OUTPUT).0.skips(), ["c: needs a network", "b: no GPU here"]);
    }

    #[test]
    fn output_of_passed_tests_is_read_and_not_shown() {
        let (_, shown) = report(OUTPUT);
        assert!(!shown.contains("no GPU") && !shown.contains("successes:"));
        assert!(shown.contains("left is 1") && shown.contains("test d ... FAILED") && shown.ends_with("0.00s"));
    }

    #[test]
    fn the_slowest_tests_are_those_that_took_longest() {
        let (report, _) = report("test a ... ok <0.250s>\ntest b ... FAILED <12.5s>\ntest c ... ok\ntest d ... ok <x>");
        assert_eq!(report.slowest(), [("b", 12.5), ("a", 0.25)]);
    }

    #[test]
    fn what_a_failed_test_says_is_kept_from_its_panic_on() {
        assert_eq!(report(OUTPUT).0.failures(), ["d\n  left is 1"]);
        let said = "a line before\n\nthread 'd' panicked at d.rs:1:2:\n".to_owned() + &"x".repeat(2 * FAILURE_COLUMNS);
        let (report, _) = report(&OUTPUT.replace("left is 1", &(said + &"\nand so on".repeat(FAILURE_LINES))));
        let kept = report.failures().concat();
        let lines: Vec<&str> = kept.lines().collect();
        assert_eq!(lines[..2], ["d", "  thread 'd' panicked at d.rs:1:2:"]);
        assert_eq!(lines[2].len(), 2 + FAILURE_COLUMNS);
        assert_eq!((lines[3], lines.len()), ("  and so on", 1 + FAILURE_LINES));
    }

    #[test]
    fn no_output_is_no_pass() {
        let (report, _) = report("");
        assert!(!report.has_passes() && report.failed == 0);
        assert_eq!(report.to_string(), "0 passed, 0 failed, 0 skipped");
    }
}
