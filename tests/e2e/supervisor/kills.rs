//! SIGKILL to everything in turn: nothing is left behind, and what happened is known. Proves A-13.

use std::time::{SystemTime, UNIX_EPOCH};

use gangline_execution::launcher::Launcher;
use gangline_execution::protocol::{Fault, FaultCause, NodeState, Outcome};

use crate::fixtures::attempt::Attempt;
use crate::fixtures::{is_running, kill, wait_for};

/// A rank with a grandchild that has left its process group and its session.
const WITH_RUNAWAY: &str = "setsid sleep 1000 & echo $! > $OUT/runaway; echo $$ > $OUT/main; wait";

fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since_epoch.as_nanos()).expect("before 2554")
}

fn wait_until_dead(pids: &[u32]) {
    wait_for("processes to die", || (!pids.iter().any(|pid| is_running(*pid))).then_some(()));
}

fn fault_of(attempt: &Attempt) -> Fault {
    match attempt.plane.wait_for_end() {
        Outcome::Fault { fault } => fault,
        other => panic!("{other:?} is no fault"),
    }
}

#[test]
fn killing_the_supervisor_kills_its_ranks_and_their_runaways() {
    let attempt = Attempt::of(WITH_RUNAWAY).launch();
    let (main, runaway) = (attempt.wait_for_pid("main"), attempt.wait_for_pid("runaway"));
    assert!(is_running(main) && is_running(runaway));
    kill(attempt.supervisor());
    wait_until_dead(&[main, runaway]);
    attempt.wait_until_gone();
}

#[test]
fn an_attempt_whose_supervisor_was_killed_is_not_run_again() {
    let attempt = Attempt::of("echo run >> $OUT/runs; sleep 1000").launch();
    assert_eq!(attempt.wait_for_file("runs"), "run");
    attempt.supervisor();
    attempt.kill_supervisor();
    let reports = attempt.plane.report_count();
    attempt.start_supervisor();
    attempt.wait_until_gone();
    let log = std::fs::read_to_string(attempt.spec.folder.join("supervisor.log")).expect("it logs");
    assert!(log.contains("an earlier supervisor of this attempt died"), "{log}");
    assert_eq!(attempt.wait_for_file("runs"), "run");
    assert_eq!(attempt.plane.report_count(), reports);
}

#[test]
fn a_second_supervisor_leaves_a_running_attempt_alone() {
    let attempt = Attempt::of("echo run >> $OUT/runs; sleep 1000").launch();
    let first = attempt.supervisor();
    let mut command = std::process::Command::new(crate::fixtures::gangline());
    let second = command.arg("supervise").arg(attempt.spec.folder.join("spec.json")).output().expect("it runs");
    assert!(second.status.success(), "{second:?}");
    assert!(is_running(first));
    assert_eq!(attempt.wait_for_file("runs"), "run");
}

#[test]
fn an_end_that_was_recorded_but_not_delivered_is_delivered_by_the_next_supervisor() {
    let attempt = Attempt::of("echo run >> $OUT/runs");
    attempt.plane.order(|orders| orders.end_acknowledged = false);
    let attempt = attempt.launch();
    let first = attempt.plane.wait_for("an end", |report| matches!(report.state, NodeState::Ended { .. }));
    attempt.kill_supervisor();
    attempt.plane.order(|orders| orders.end_acknowledged = true);
    let before = attempt.plane.report_count();
    attempt.start_supervisor();
    attempt.wait_until_gone();
    let last = attempt.plane.reports().pop().expect("there are reports");
    assert!(attempt.plane.report_count() > before);
    assert_eq!((last.state, last.usage), (first.state, first.usage));
    assert_eq!(attempt.wait_for_file("runs"), "run");
}

/// How soon, in milliseconds, is for `cargo xtask bench recovery` to say.
#[test]
fn a_killed_rank_is_reported_at_once_and_not_with_the_next_heartbeat() {
    let heartbeat_ms = 50_000;
    let attempt = Attempt::of("echo $$ > $OUT/main; sleep 1000").with(|spec| spec.heartbeat_ms = heartbeat_ms).launch();
    let main = attempt.wait_for_pid("main");
    let killed_at = now();
    kill(main);
    let fault = fault_of(&attempt);
    assert_eq!((fault.rank, &fault.cause), (Some(0), &FaultCause::Signal { signal: 9 }));
    let noticed_after_ms = fault.noticed_at.saturating_sub(killed_at) / 1_000_000;
    assert!(noticed_after_ms < heartbeat_ms / 4, "noticed after {noticed_after_ms} ms");
}

#[test]
fn a_killed_shim_takes_its_rank_and_its_runaways_with_it() {
    let attempt = Attempt::of(WITH_RUNAWAY).launch();
    let (main, runaway) = (attempt.wait_for_pid("main"), attempt.wait_for_pid("runaway"));
    kill(parent_of(main));
    let fault = fault_of(&attempt);
    assert_eq!(fault.cause, FaultCause::Signal { signal: 9 });
    wait_until_dead(&[main, runaway]);
}

/// A rank so large that the kernel takes long to take it apart.
const LARGE: &str = "exec python3 -c \"import os, threading, time
kept = b'x' * (2500 << 20)
threading.Thread(target=time.sleep, args=(1000,)).start()
print(os.getpid(), file=open(os.environ['OUT'] + '/main', 'w'), flush=True)
time.sleep(1000)\"";

/// Proves A-5 where the end takes long: the devices are free only once the process that had them is gone.
#[test]
fn an_attempt_whose_shim_was_killed_ends_when_its_rank_is_gone() {
    let attempt = Attempt::of(LARGE).launch();
    let main = attempt.wait_for_pid("main");
    kill(parent_of(main));
    let fault = fault_of(&attempt);
    assert!(!is_running(main), "its memory and devices weren't free yet");
    assert_eq!(fault.cause, FaultCause::Signal { signal: 9 });
}

/// Proves A-5 where nobody is left to wait for the rank: one that is going has no environment any more.
#[test]
fn a_rank_that_is_going_is_found_though_supervisor_and_shim_are_dead() {
    let attempt = Attempt::of(LARGE).launch();
    let main = attempt.wait_for_pid("main");
    kill(attempt.supervisor());
    kill(parent_of(main));
    attempt.wait_until_gone();
    wait_for("the attempt to be fenced", || attempt.launcher.kill(&attempt.spec.folder).ok());
    assert!(!is_running(main), "its memory and devices weren't free yet");
}

fn parent_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("it has a parent");
    parent.trim().parse().expect("a process id")
}

#[test]
fn a_script_that_forks_away_leaves_nothing_behind() {
    let attempt = Attempt::of("setsid sleep 1000 & echo $! > $OUT/runaway; exit 0").launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    assert!(!is_running(attempt.wait_for_pid("runaway")), "it outlived the reported end");
}

#[test]
fn a_killed_gang_peer_stops_the_others() {
    let attempt = Attempt::of("echo $$ > $OUT/main-$RANK; sleep 1000").ranks(2).launch();
    let (first, second) = (attempt.wait_for_pid("main-0"), attempt.wait_for_pid("main-1"));
    kill(second);
    let fault = fault_of(&attempt);
    assert_eq!((fault.rank, fault.cause), (Some(1), FaultCause::Signal { signal: 9 }));
    assert!(!is_running(first), "it outlived the reported end");
}
