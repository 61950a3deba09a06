//! Ranks that hang: found, looked at, ended, and told.

use gangline_execution::protocol::{FaultCause, Outcome};

use crate::fixtures::attempt::Attempt;

#[test]
fn of_ranks_that_come_to_a_stand_the_one_that_was_stopped_is_blamed() {
    let run = "echo rank $RANK begins; if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 600";
    let attempt = Attempt::of(run).ranks(2).with(|spec| spec.hang_timeout_ms = Some(1_000)).launch();
    let outcome = attempt.plane.wait_for_end();
    attempt.wait_until_gone();
    let Outcome::Fault { fault } = outcome else { panic!("{outcome:?}") };
    assert_eq!(fault.rank, Some(1));
    let FaultCause::Hang { silent_ms, limit_ms } = fault.cause else { panic!("{fault:?}") };
    assert!(silent_ms >= 1_000 && limit_ms == 1_000, "{fault:?}");
    assert!(
        fault.last_lines.iter().any(|line| line.starts_with("rank 1: ") && line.contains("was stopped")),
        "{fault:?}"
    );
    assert!(fault.last_lines.iter().any(|line| line.starts_with("rank 0: sleep (")), "{fault:?}");
    let stacks = std::fs::read_to_string(attempt.spec.folder.join("stacks.txt")).expect("the stacks are kept");
    assert!(stacks.contains("thread "), "{stacks}");
}

/// Proves A-13: silence alone ends no script.
#[test]
fn a_script_that_is_merely_silent_is_left_alone() {
    let run = "for line in $(seq 1 15); do echo $line; sleep 0.02; done; sleep 2; echo done";
    let attempt = Attempt::of(run).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
}
