//! Stopping in order: a message, SIGTERM, the grace, SIGKILL.

use std::time::{Duration, Instant};

use gangline_execution::protocol::{NodeState, Outcome};

use crate::fixtures::attempt::{Attempt, Speaker};
use crate::fixtures::{PATIENCE, is_running};

/// Longer than any test may take: what waits for this is never reached.
const LONG_GRACE_MS: u64 = 600_000;

#[test]
fn a_rank_that_saves_on_sigterm_is_requeued() {
    let attempt = Attempt::of("trap 'exit 94' TERM; echo > $OUT/ready; while :; do sleep 0.01; done").launch();
    attempt.wait_for_file("ready");
    attempt.order_stop(LONG_GRACE_MS);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
}

#[test]
fn a_trainer_below_a_shell_may_save_after_the_shell_died_of_sigterm() {
    let trainer =
        "trap 'sleep 0.2; echo saved > $OUT/saved; exit 94' TERM; echo > $OUT/ready; while :; do sleep 0.01; done";
    let attempt = Attempt::of("sh $OUT/trainer; echo the shell went on");
    std::fs::write(attempt.out("trainer"), trainer).expect("the script can be written");
    let attempt = attempt.launch();
    attempt.wait_for_file("ready");
    attempt.order_stop(LONG_GRACE_MS);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
    assert_eq!(attempt.wait_for_file("saved"), "saved");
    assert!(!attempt.log("rank-0.log").contains("the shell went on"));
}

#[test]
fn a_rank_that_dies_of_sigterm_is_stopped() {
    let attempt = Attempt::of("echo > $OUT/ready; sleep 1000").launch();
    attempt.wait_for_file("ready");
    attempt.order_stop(LONG_GRACE_MS);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Stopped);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_the_grace() {
    let attempt = Attempt::of("trap '' TERM; echo $$ > $OUT/main; while :; do sleep 0.01; done").launch();
    let main = attempt.wait_for_pid("main");
    attempt.order_stop(400);
    let ordered_at = Instant::now();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Stopped);
    let took = ordered_at.elapsed();
    assert!(took >= Duration::from_millis(400) && took < PATIENCE, "{took:?}");
    assert!(!is_running(main));
}

#[test]
fn a_connected_rank_is_asked_first_and_sigterm_waits() {
    let run = "trap 'exit 1' TERM; echo $GANGLINE_SOCKET > $OUT/socket; until [ -e $OUT/saved ]; do sleep 0.01; done; exit 94";
    let attempt = Attempt::of(run).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"step":1}"#);
    attempt.plane.wait_for("a step", |report| report.ranks[0].step == Some(1));
    attempt.order_stop(LONG_GRACE_MS);
    let order = speaker.hear();
    assert_eq!(order, r#"{"order":"save_and_stop","grace_ms":600000,"reason":"a test says so"}"#);
    std::fs::write(attempt.out("saved"), "").expect("the file can be written");
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
}

#[test]
fn a_connected_rank_that_does_not_react_gets_sigterm_before_the_grace_is_over() {
    let run = "trap 'exit 94' TERM; echo $GANGLINE_SOCKET > $OUT/socket; while :; do sleep 0.01; done";
    let attempt = Attempt::of(run).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"step":1}"#);
    // A rank whose connection isn't taken yet would get SIGTERM at once.
    attempt.plane.wait_for("a step", |report| report.ranks[0].step == Some(1));
    attempt.order_stop(6_000);
    assert!(speaker.hear().contains("save_and_stop"));
    let told_at = Instant::now();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
    assert!(told_at.elapsed() >= Duration::from_millis(4_200), "{:?}", told_at.elapsed());
}

#[test]
fn a_rank_that_connects_after_the_order_is_told_too() {
    let trap = "trap 'echo > $OUT/terminated' TERM; echo $GANGLINE_SOCKET > $OUT/socket";
    let attempt = Attempt::of(&format!("{trap}; until [ -e $OUT/saved ]; do sleep 0.01; done; exit 94")).launch();
    attempt.wait_for_file("socket");
    attempt.order_stop(LONG_GRACE_MS);
    attempt.wait_for_file("terminated");
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    assert!(speaker.hear().contains("save_and_stop"));
    std::fs::write(attempt.out("saved"), "").expect("the file can be written");
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
}

#[test]
fn setup_can_be_stopped_and_no_rank_runs_then() {
    let attempt = Attempt::of("echo > $OUT/ran").with(|spec| spec.setup = Some("echo > $OUT/ready; sleep 1000".into()));
    let attempt = attempt.launch();
    attempt.wait_for_file("ready");
    attempt.order_stop(LONG_GRACE_MS);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Stopped);
    assert!(!attempt.out("ran").exists());
}

#[test]
fn sigterm_to_the_supervisor_is_told_as_such() {
    let attempt = Attempt::of("echo > $OUT/ready; sleep 1000").launch();
    attempt.wait_for_file("ready");
    let running = attempt.plane.wait_for("running ranks", |report| matches!(report.state, NodeState::Running { .. }));
    crate::fixtures::signal(running.supervisor_pid, rustix::process::Signal::TERM);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Terminated);
}

#[test]
fn sigterm_to_the_supervisor_stops_its_ranks_in_order() {
    let attempt = Attempt::of("trap 'exit 94' TERM; echo > $OUT/ready; while :; do sleep 0.01; done").launch();
    attempt.wait_for_file("ready");
    let running = attempt.plane.wait_for("running ranks", |report| matches!(report.state, NodeState::Running { .. }));
    let pid = i32::try_from(running.supervisor_pid).expect("process ids are small");
    let supervisor = rustix::process::Pid::from_raw(pid).expect("not zero");
    rustix::process::kill_process(supervisor, rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
}
