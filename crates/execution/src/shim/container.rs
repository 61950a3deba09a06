//! A rank's container, as its shim sees it: podman, its monitor and the container's processes are descendants of the
//! shim. Only the container's processes have process numbers of their own.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, wait};

use super::RankEnd;
use crate::process::{descendants, kill_all, own_pid, signal_all};

/// How long podman may take to remove a container after its end, or to notice that end.
const REMOVAL_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What a shell and podman add to the number of the signal that ended a program, and the highest signal.
const SIGNAL_CODES: (i32, i32) = (128, 64);

/// Sends SIGTERM to the container's processes. Podman isn't asked: it would tell the first process only. Returns
/// whether there are any.
pub(super) fn terminate() -> bool {
    let inside = processes();
    signal_all(&inside, Signal::TERM);
    !inside.is_empty()
}

/// Kills the container's processes and gives podman the time to remove the container, until it `has_ended`.
pub(super) fn kill(has_ended: impl Fn() -> bool) {
    let inside = processes();
    kill_all(&inside);
    // Before the container's first process there is nothing to remove.
    let deadline = Instant::now() + if inside.is_empty() { Duration::ZERO } else { REMOVAL_MAX };
    while !has_ended() && Instant::now() < deadline {
        sleep(LOOK_AGAIN);
        kill_all(&processes());
    }
}

/// Waits until podman has removed the container: until this process has no child any more.
pub(super) fn await_removal() {
    let deadline = Instant::now() + REMOVAL_MAX;
    while Instant::now() < deadline {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => {
                // Podman may have been killed alone.
                kill_all(&processes());
                sleep(LOOK_AGAIN);
            }
            Err(_) => return,
        }
    }
}

/// Returns how the job's command ended, by the end of what ran its container: that code says if a signal ended the
/// command.
pub(super) fn end_of_command(end: RankEnd) -> RankEnd {
    let (base, highest) = SIGNAL_CODES;
    match end {
        RankEnd::Exit(code) if (base + 1..=base + highest).contains(&code) => RankEnd::Signal(code - base),
        end => end,
    }
}

fn processes() -> Vec<u32> {
    descendants(own_pid(), &[]).into_iter().filter(|pid| is_inside(*pid)).collect()
}

/// Reports whether a process has a number of its own in a container (proc(5), `NSpid`: one number for each nested
/// namespace, the reader's first).
fn is_inside(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    has_own_number(&status)
}

fn has_own_number(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_container_are_told_from_those_around_it() {
        assert!(has_own_number("Name:\tsh\nNSpid:\t4711\t1\nNSpgid:\t4711\t1\n"));
        assert!(!has_own_number("Name:\tconmon\nNSpid:\t4711\n") && !has_own_number(""));
        assert!(!is_inside(own_pid()) && !is_inside(u32::MAX));
    }

    #[test]
    fn a_code_above_128_is_the_signal_that_ended_the_command() {
        let cases = [(0, RankEnd::Exit(0)), (125, RankEnd::Exit(125)), (137, RankEnd::Signal(9))];
        for (code, expected) in cases {
            assert_eq!(end_of_command(RankEnd::Exit(code)), expected);
        }
        assert_eq!(end_of_command(RankEnd::Exit(193)), RankEnd::Exit(193));
        assert_eq!(end_of_command(RankEnd::Signal(15)), RankEnd::Signal(15));
    }
}
