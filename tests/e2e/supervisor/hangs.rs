//! Ranks that come to a stand: found, looked at, ended, and told.

use std::os::unix::fs::PermissionsExt;

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

/// A virtual environment's py-spy is found though it isn't in the node's path. The script stands for it, since a test
/// needs no network to install one: what is shown is which program is asked, and that its words are kept.
#[test]
fn the_stacks_of_a_python_rank_are_asked_of_the_ranks_own_environment() {
    let run = "mkdir -p venv/bin && cp \"$(command -v sleep)\" venv/bin/python-rank && echo begins && exec venv/bin/python-rank 600";
    let attempt = Attempt::of(run).with(|spec| {
        spec.hang_timeout_ms = Some(1_000);
        let folder = spec.workdir.join("own");
        std::fs::create_dir_all(folder.join("bin")).expect("it can be made");
        let tool = folder.join("bin/py-spy");
        std::fs::write(&tool, "#!/bin/sh\necho \"the frames of $2 $3\"\n").expect("it can be written");
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        spec.envs.insert("VIRTUAL_ENV".to_owned(), folder.display().to_string());
    });
    let attempt = attempt.launch();
    let outcome = attempt.plane.wait_for_end();
    attempt.wait_until_gone();
    assert!(
        matches!(outcome, Outcome::Fault { ref fault } if matches!(fault.cause, FaultCause::Hang { .. })),
        "{outcome:?}"
    );
    let stacks = std::fs::read_to_string(attempt.spec.folder.join("stacks.txt")).expect("the stacks are kept");
    assert!(stacks.contains("the frames of --nonblocking --pid"), "{stacks}");
}

/// Proves A-13: silence alone ends no script.
#[test]
fn a_script_that_is_merely_silent_is_left_alone() {
    let run = "for line in $(seq 1 15); do echo $line; sleep 0.02; done; sleep 2; echo done";
    let attempt = Attempt::of(run).launch();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
}
