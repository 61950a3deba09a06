//! Runs each check in a process of its own, and abandons those that hang.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::{Check, Expectations};
use crate::health::{Finding, Reason, Verdict};
use crate::program::{self, Limits};

/// Number of checks that run at once, if they only look.
const AT_ONCE_MAX: usize = 4;
/// Maximum size of a check's result.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of the quoted error output of a check that returned no result.
const WORDS_BYTES_MAX: usize = 300;

/// Called with each check as it begins.
pub type Progress<'a> = dyn FnMut(&Check) + Send + 'a;

/// Runs checks in processes.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The program whose `check NAME` runs one check: this binary.
    pub program: PathBuf,
    /// Maximum time for a check, if it is less than the check's own time-out.
    pub timeout: Option<Duration>,
}

/// The end of a check's process.
enum Ended {
    Answered(Vec<u8>),
    Broke(String),
    Late,
}

impl Guard {
    /// Runs checks: first those that only look, several at once, then those that measure, one by one. Ends
    /// shortly after `limit` at the latest; checks without time left are reported as unknown. Findings are in
    /// the order of the checks.
    pub fn run(
        &self,
        checks: &[&Check],
        expectations: &Expectations,
        limit: Duration,
        progress: &mut Progress<'_>,
    ) -> Vec<Finding> {
        let ends_at = Instant::now() + limit;
        let progress = Mutex::new(progress);
        let run = |check: &Check| {
            let left = ends_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return vec![named(check, Finding::unknown("", "no time was left for it", "run it by itself"))];
            }
            (progress.lock().expect("no one panics while telling of progress"))(check);
            self.run_one(check, expectations, left)
        };
        let numbered = || checks.iter().copied().enumerate();
        let looks: Vec<(usize, &Check)> = numbered().filter(|(_, check)| !check.measures).collect();
        let next = Mutex::new(looks.into_iter());
        let work = || {
            let take = || next.lock().expect("no one panics while taking the next check").next();
            std::iter::from_fn(take).map(|(at, check)| (at, run(check))).collect::<Vec<_>>()
        };
        let mut found: Vec<(usize, Vec<Finding>)> = thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_ONCE_MAX).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("a worker doesn't panic")).collect()
        });
        found.extend(numbered().filter(|(_, check)| check.measures).map(|(at, check)| (at, run(check))));
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().flat_map(|(_, findings)| findings).collect()
    }

    fn run_one(&self, check: &Check, expectations: &Expectations, left: Duration) -> Vec<Finding> {
        let timeout = check.timeout.min(self.timeout.unwrap_or(check.timeout)).min(left);
        let findings = match self.ask(check, expectations, timeout) {
            Ok(Ended::Answered(answer)) => {
                serde_json::from_slice(&answer).map_err(|error| format!("its answer makes no sense: {error}"))
            }
            Ok(Ended::Broke(words)) => Err(format!("it failed: {words}")),
            Ok(Ended::Late) => return vec![named(check, hung(timeout))],
            Err(error) => Err(format!("it can't be started: {error}")),
        };
        findings.unwrap_or_else(|error| vec![named(check, Finding::unknown("", error, "report this"))])
    }

    /// Starts the check's process, and waits for its result or the time-out.
    fn ask(&self, check: &Check, expectations: &Expectations, timeout: Duration) -> io::Result<Ended> {
        let question = serde_json::to_vec(expectations)?;
        let limits = Limits { time: timeout, output: ANSWER_BYTES_MAX, errors: ANSWER_BYTES_MAX };
        let ran = program::run(Command::new(&self.program).args(["check", check.name]), question, limits)?;
        Ok(match ran.status {
            Some(status) if status.success() => Ended::Answered(ran.output),
            Some(status) => {
                let words = String::from_utf8_lossy(&ran.errors);
                let words = words.trim();
                Ended::Broke(format!("{status}: {}", &words[..words.floor_char_boundary(WORDS_BYTES_MAX)]))
            }
            None => Ended::Late,
        })
    }
}

fn hung(timeout: Duration) -> Finding {
    Finding::fine("", format!("no answer in {:.1} s", timeout.as_secs_f64())).wrong(
        Verdict::Hung,
        Reason {
            expected: "an answer",
            why: "what it asked (a driver, a disk, a file server) doesn't answer, and a rank that asks it would hang as well",
            todo: "look for processes in state D and for the last lines of dmesg; drain the node and reboot it if it stays so",
        },
    )
}

fn named(check: &Check, finding: Finding) -> Finding {
    Finding { check: check.name.to_owned(), ..finding }
}

#[cfg(test)]
mod tests {
    use super::super::{CHECKS, before_start};
    use super::*;

    fn guard(program: &str, timeout: Option<Duration>) -> Guard {
        Guard { program: PathBuf::from(program), timeout }
    }

    fn verdicts(guard: &Guard) -> Vec<Verdict> {
        before_start(guard, &Expectations::default()).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn a_program_that_is_no_check_makes_every_finding_unknown() {
        let count = CHECKS.iter().filter(|check| check.is_before_start).count();
        // It ends without an answer, it fails, it talks for ever, it isn't there.
        for program in ["true", "false", "yes", "/nowhere"] {
            assert_eq!(verdicts(&guard(program, None)), vec![Verdict::Unknown; count], "{program}");
        }
    }

    #[test]
    fn checks_that_hang_are_given_up_in_time_and_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("check");
        // A shell writes it, so that no other test's child holds it open while it is started.
        let script = "printf '#!/bin/sh\\necho $$ >> \"$0.started\"\\nkill -STOP $$\\n' > check && chmod 755 check";
        let written = Command::new("sh").args(["-c", script]).current_dir(folder.path()).status();
        assert!(written.is_ok_and(|status| status.success()));
        let path = program.to_str().expect("text");
        let started = Instant::now();
        let found = before_start(&guard(path, Some(Duration::from_secs(1))), &Expectations::default());
        assert!(started.elapsed() < Duration::from_secs(30), "it waited {:?}", started.elapsed());
        assert!(!found.is_empty() && found.iter().all(|finding| finding.verdict == Verdict::Hung), "{found:?}");
        let pids = std::fs::read_to_string(program.with_extension("started")).expect("they had started");
        let is_stopped = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        // Each had its time-out to be killed after; a signal takes a moment to arrive.
        let ends_at = Instant::now() + Duration::from_secs(10);
        while pids.lines().any(is_stopped) {
            assert!(Instant::now() < ends_at, "a check is left behind: {pids}");
            thread::yield_now();
        }
    }
}
