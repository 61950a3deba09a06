//! Measures how long a process takes to start: data loaders and ranks are processes, and an overcommitted
//! machine slows each of them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// Number of processes that are started, one after another.
const STARTS: usize = 20;
/// A program that ends at once.
const PROGRAM: &str = "true";
/// Usually it takes one or two milliseconds.
const START_MAX: Duration = Duration::from_millis(50);

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    let start = || {
        let started = Instant::now();
        Command::new(PROGRAM).stdin(Stdio::null()).status().map(|_| started.elapsed())
    };
    let mut times = match (0..STARTS).map(|_| start()).collect::<Result<Vec<_>, _>>() {
        Ok(times) => times,
        Err(error) => return vec![Finding::unknown("", format!("\"{PROGRAM}\" can't be started: {error}"), "")],
    };
    times.sort_unstable();
    let median = times[STARTS / 2].as_secs_f64() * 1e3;
    let slowest = times[STARTS - 1].as_secs_f64() * 1e3;
    let reason = Reason {
        expected: &format!("a median under {} ms", START_MAX.as_millis()),
        why: "every rank and data loader worker is started so, in each restart again",
        todo: "see what slows the start of programs: security scanners, a file server under /usr, a machine that swaps",
    };
    let finding = Finding::fine(
        "",
        format!("{median:.1} ms to start and end a process (median of {STARTS}), {slowest:.1} ms the slowest"),
    );
    vec![finding.figure("start_ms", median).judged(times[STARTS / 2] > START_MAX, Verdict::Warning, reason)]
}
