//! How ranks end, and what that makes of the attempt.

use gangline_execution::protocol::{Fault, FaultCause, NodeState, Outcome};

use crate::fixtures::attempt::Attempt;

fn outcome_of(run: &str) -> Outcome {
    let attempt = Attempt::of(run).launch();
    let outcome = attempt.plane.wait_for_end();
    attempt.wait_until_gone();
    assert!(matches!(attempt.recorded_end().state, NodeState::Ended { outcome: recorded, .. } if recorded == outcome));
    outcome
}

fn fault_in(outcome: Outcome) -> Fault {
    match outcome {
        Outcome::Fault { fault } | Outcome::DoNotRestart { fault } => fault,
        other => panic!("{other:?} has no fault"),
    }
}

#[test]
fn a_rank_that_exits_0_has_succeeded() {
    assert_eq!(outcome_of("true"), Outcome::Succeeded);
}

#[test]
fn exit_code_93_asks_not_to_be_restarted() {
    let outcome = outcome_of("echo hopeless; exit 93");
    assert!(matches!(outcome, Outcome::DoNotRestart { .. }), "{outcome:?}");
    assert_eq!(fault_in(outcome).last_lines, ["hopeless"]);
}

#[test]
fn exit_code_94_asks_to_be_requeued() {
    assert_eq!(outcome_of("exit 94"), Outcome::Requeue);
}

#[test]
fn any_other_exit_code_is_a_fault_with_its_last_words() {
    let fault = fault_in(outcome_of("seq 1 8; echo oops >&2; exit 1"));
    assert_eq!((fault.rank, fault.cause), (Some(0), FaultCause::Exit { code: 1 }));
    // Two threads read the two streams: only the order within each is certain.
    let (errors, output): (Vec<String>, Vec<String>) = fault.last_lines.into_iter().partition(|line| line == "oops");
    assert_eq!((errors.len(), output.join(" ").as_str()), (1, "1 2 3 4 5 6 7 8"));
    assert!(fault.last_sign_of_life <= fault.noticed_at);
}

#[test]
fn last_words_are_the_last_ten_lines() {
    let fault = fault_in(outcome_of("seq 1 30; exit 2"));
    assert_eq!(fault.last_lines.join(" "), "21 22 23 24 25 26 27 28 29 30");
}

#[test]
fn a_command_that_does_not_exist_is_a_fault_that_says_so() {
    let fault = fault_in(outcome_of("no-such-command --at-all"));
    assert_eq!(fault.cause, FaultCause::Exit { code: 127 });
    assert!(fault.last_lines[0].contains("no-such-command"), "{:?}", fault.last_lines);
}

#[test]
fn the_first_failure_by_time_is_the_root_cause() {
    let rank_0 = "trap 'exit 5' TERM; echo > $OUT/ready; while :; do sleep 0.01; done";
    let rank_1 = "until [ -e $OUT/ready ]; do sleep 0.01; done; echo rank 1 was first; exit 7";
    let attempt = Attempt::of(&format!("if [ $RANK = 0 ]; then {rank_0}; else {rank_1}; fi")).ranks(2).launch();
    let fault = fault_in(attempt.plane.wait_for_end());
    assert_eq!((fault.rank, fault.cause), (Some(1), FaultCause::Exit { code: 7 }));
    assert_eq!(fault.last_lines, ["rank 1 was first"]);
}

#[test]
fn a_gang_that_saved_is_requeued_once_all_have_left() {
    let late = "until [ -e $OUT/left ]; do sleep 0.01; done; echo done > $OUT/late; exit 94";
    let run = format!("if [ $RANK = 0 ]; then echo > $OUT/left; exit 94; else {late}; fi");
    let attempt = Attempt::of(&run).ranks(2).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Requeue);
    assert_eq!(attempt.wait_for_file("late"), "done");
}

#[test]
fn setup_runs_once_before_the_ranks() {
    let attempt = Attempt::of("cat $OUT/made-by-setup; [ -e $OUT/made-by-setup ]").ranks(2);
    let attempt = attempt.with(|spec| spec.setup = Some("echo made for $GANGLINE_JOB_ID >> $OUT/made-by-setup".into()));
    let attempt = attempt.launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    assert_eq!(attempt.wait_for_file("made-by-setup"), "made for job-7");
    assert!(attempt.log("rank-1.log").ends_with(" O made for job-7\n"), "{}", attempt.log("rank-1.log"));
}

#[test]
fn a_failed_setup_is_the_fault_and_no_rank_runs() {
    let attempt = Attempt::of("echo > $OUT/ran").with(|spec| spec.setup = Some("echo no wheel >&2; exit 3".into()));
    let attempt = attempt.launch();
    let fault = fault_in(attempt.plane.wait_for_end());
    assert_eq!((fault.rank, fault.cause), (None, FaultCause::Setup { code: 3 }));
    assert_eq!(fault.last_lines, ["no wheel"]);
    assert!(attempt.log("setup.log").ends_with(" E no wheel\n"));
    assert!(!attempt.out("ran").exists());
}

#[test]
fn a_folder_that_is_not_there_is_a_fault_that_names_it() {
    let attempt = Attempt::of("true").with(|spec| spec.workdir = "/no/such/folder".into()).launch();
    let fault = fault_in(attempt.plane.wait_for_end());
    let FaultCause::Start { message } = &fault.cause else { panic!("{fault:?}") };
    assert!(message.contains("/no/such/folder"), "{message}");
}

#[test]
fn device_time_sums_to_wall_time_times_devices() {
    let attempt = Attempt::of("true").ranks(3).launch();
    let ended = attempt.plane.wait_for("an end", |report| matches!(report.state, NodeState::Ended { .. }));
    let NodeState::Ended { at, .. } = ended.state else { panic!("{ended:?}") };
    let booked: u64 = ended.usage.0.values().sum();
    assert_eq!(booked, (at - ended.started_at) * 3);
}
