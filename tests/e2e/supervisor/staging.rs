//! Saves that ranks had copied when they were killed: the supervisor finishes them. The ranks are this program again, with
//! [`IS_RANK`] in its environment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_execution::protocol::NodeState;
use gangline_storage::{DataType, DiskAct, Options, Step, Store, TensorView};

use crate::fixtures::attempt::Attempt;
use crate::fixtures::kill;

const IS_RANK: &str = "GANGLINE_TEST_IS_RANK";
/// Far longer than the test.
const FOR_EVER: Duration = Duration::from_secs(600);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the supervisor sets {name}"))
}

/// A rank that copies a save, says so, and never comes to write it. If this process is to be one it never comes back.
fn be_a_rank_if_told() {
    if std::env::var_os(IS_RANK).is_none() {
        return;
    }
    let number = |name| variable(name).parse::<u32>().expect("a number");
    let rank = number("RANK");
    let hang = |act, _: &Path| {
        if act == DiskAct::CreateFile {
            std::thread::sleep(FOR_EVER);
        }
        Ok(())
    };
    let staging = variable("GANGLINE_STAGING_DIR");
    let options = Options {
        staging: Some(PathBuf::from(&staging)),
        disk_hook: Some(Arc::new(hang)),
        ..Options::writer(rank, number("WORLD_SIZE"), number("GANGLINE_ATTEMPT").into())
    };
    let store = Store::open(variable("GANGLINE_CHECKPOINT_DIR"), options).expect("the store opens");
    let view = |name, data| TensorView { name, data_type: DataType::U8, shape: &[4], data, part_of: None };
    let tensors = [view("a", &[1, 2, 3, 4]), view("b", &[5, 6, 7, 8])];
    let _pending = store.save(Step(7), &tensors, &std::collections::BTreeMap::new()).expect("it is copied");
    let told = format!("{} {staging}\n", std::process::id());
    std::fs::write(Path::new(&variable("OUT")).join(format!("copied-{rank}")), told).expect("the test's folder");
    std::thread::sleep(FOR_EVER);
}

#[test]
fn a_job_that_wants_no_staging_folder_has_none() {
    let say = "echo \"[$GANGLINE_STAGING_DIR]\" > $OUT/staging";
    let told = Attempt::of(say).launch().wait_for_file("staging");
    assert!(told.starts_with("[/dev/shm/gangline-"), "{told}");
    let without =
        Attempt::of(say).with(|spec| drop(spec.envs.insert("GANGLINE_STAGING_DIR".to_owned(), String::new())));
    assert_eq!(without.launch().wait_for_file("staging"), "[]");
}

/// Proves A-6: a fault between the copy and the disk costs nothing, and what is finished is whole.
#[test]
fn a_save_that_all_ranks_had_copied_when_one_was_killed_is_finished_and_reported() {
    be_a_rank_if_told();
    let program = std::env::current_exe().expect("this program");
    let test =
        "e2e::supervisor::staging::a_save_that_all_ranks_had_copied_when_one_was_killed_is_finished_and_reported";
    let attempt = Attempt::of(&format!("exec {} {test} --exact", program.display())).ranks(2);
    let checkpoints = attempt.out("checkpoints");
    let attempt = attempt.with(|spec| {
        spec.checkpoint_dir = Some(checkpoints.clone());
        spec.envs.insert(IS_RANK.to_owned(), "1".to_owned());
    });
    let attempt = attempt.launch();
    let told = [0, 1].map(|rank| attempt.wait_for_file(&format!("copied-{rank}")));
    let (pid, staging) = told[0].split_once(' ').expect("a pid and a folder");
    let reader = || Store::open(&checkpoints, Options::reader()).expect("the folder is there");
    assert_eq!(reader().latest().expect("it can be read").checkpoint, None, "nothing is on disk");
    kill(pid.parse().expect("a pid"));
    let end = attempt.plane.wait_for("the end", |report| matches!(report.state, NodeState::Ended { .. }));
    let checkpoint = end.checkpoint.expect("it is reported");
    assert_eq!((checkpoint.step, end.checkpoints), (7, 1));
    let latest = reader().latest().expect("it can be read").checkpoint.expect("it is whole");
    assert_eq!((latest.step, latest.tensors.len(), latest.writer), (Step(7), 2, 3));
    assert!(!Path::new(staging).exists(), "the memory is given back");
}
