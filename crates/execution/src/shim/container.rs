//! A rank's container, as its shim sees it: podman, its monitor and the container's processes are descendants of the
//! shim; so are Docker's program and the container's processes, which name the shim as their owner. Only the container's processes have
//! process numbers of their own.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, wait};

use super::RankEnd;
use crate::cgroup::enter_group_of_this_process;
use crate::process::{descendants, kill_all, own_pid, signal_all};

/// How long podman may take to remove a container after its end, or to notice that end.
const REMOVAL_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How many processes a container of a daemon begins with: the first, what waits for the end of its input, and what waits to run the
/// job's command.
const DAEMONS_FIRST_PROCESSES: usize = 3;
/// The number of a container's first process in the container.
const FIRST: u32 = 1;
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

/// Puts the processes of a container that a daemon has started into this process's control group, where the job's limits hold; does
/// that only where the system allows it. The container's first process stays, since the daemon looks at its group. Returns whether the
/// container is there with all that it begins with.
pub(super) fn enter_own_control_group() -> bool {
    let inside = processes();
    let is_whole = inside.len() >= DAEMONS_FIRST_PROCESSES;
    if is_whole {
        let others: Vec<u32> = inside.into_iter().filter(|pid| own_number(&status(*pid)) != Some(FIRST)).collect();
        enter_group_of_this_process(&others);
    }
    is_whole
}

/// Waits until podman or Docker has removed the container: until this process has no child any more, and the container no process.
pub(super) fn await_removal() {
    let deadline = Instant::now() + REMOVAL_MAX;
    while Instant::now() < deadline {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            // What runs the container may have been killed alone.
            Ok(None) => kill_and_wait(&processes()),
            Err(_) => match processes() {
                inside if inside.is_empty() => return,
                inside => kill_and_wait(&inside),
            },
        }
    }
}

fn kill_and_wait(inside: &[u32]) {
    kill_all(inside);
    sleep(LOOK_AGAIN);
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
    descendants(own_pid(), &[]).into_iter().filter(|pid| own_number(&status(*pid)).is_some()).collect()
}

fn status(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// Returns the number that a process has in its container, by its status; none if it is in none (proc(5), `NSpid`: one number for each
/// nested namespace, the reader's first).
fn own_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().skip(1).last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_container_are_told_from_those_around_it() {
        assert_eq!(own_number("Name:\tsh\nNSpid:\t4711\t12\t1\nNSpgid:\t4711\t1\n"), Some(1));
        assert_eq!((own_number("Name:\tconmon\nNSpid:\t4711\n"), own_number("")), (None, None));
        assert_eq!((own_number(&status(own_pid())), own_number(&status(u32::MAX))), (None, None));
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
