//! Ids, attempts and folders are used once, whatever happened to the journal; a copied data folder adopts
//! no jobs.

use std::fs;
use std::path::Path;
use std::process::Command;

use gangline_api::JobState;
use gangline_base::JobId;
use gangline_execution::protocol::{Outcome, Report, SupervisorSpec};

use super::super::StartError;
use super::{Supervisor, World, spec};
use gangline_store::db;

const DATABASE: [&str; 2] = ["journal.sqlite", "journal.sqlite-wal"];

/// Writes the files that a supervisor leaves in its share's folder.
fn supervised(spec: &SupervisorSpec) {
    fs::create_dir_all(&spec.folder).expect("the folder is writable");
    fs::write(spec.folder.join("spec.json"), serde_json::to_vec(spec).expect("it is JSON")).expect("there is room");
    fs::write(spec.folder.join("rank-0.log"), "of the lost past").expect("there is room");
}

fn run_to_its_end(world: &mut World, spec: &SupervisorSpec) {
    let now = world.now;
    supervised(spec);
    Supervisor::new(spec, now).runs(now).steps(now, 9).ends(now, Outcome::Succeeded).tell(world);
}

fn copied(from: &Path, to: &Path) {
    for name in DATABASE {
        fs::copy(from.join(name), to.join(name)).expect("the control plane is up, so both are there");
    }
}

/// Proves A-14: an older database, copied by hand over the newer one, leads to no reuse.
#[test]
fn after_the_journal_went_back_nothing_is_used_twice() {
    let mut world = World::new(&[("n1", 1)]);
    let first = world.submit(spec("first", 1, 1));
    let specs = world.launch();
    run_to_its_end(&mut world, &specs[0]);
    let waiting = world.submit(spec("waiting", 1, 1));
    let backup = tempfile::tempdir().expect("a folder");
    // The gang is placed but not reported as running.
    copied(world.folder.path(), backup.path());
    let lost = world.launch().remove(0);
    run_to_its_end(&mut world, &lost);
    let gone = world.submit(spec("gone", 1, 1));
    let of_gone = world.launch().remove(0);
    run_to_its_end(&mut world, &of_gone);
    world.crash();
    copied(backup.path(), world.folder.path());
    let refused = world.open().expect_err("what was acknowledged is missing");
    let StartError::Journal(db::Error::TailLost { last, given_out, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(given_out, gone);
    world.journal.accept_loss_after = Some(last);
    world.open().expect("the loss is accepted");
    assert_eq!(world.show(waiting).state, JobState::Starting);
    assert_eq!(world.submit(spec("new", 1, 1)), JobId(gone.0 + 1));
    let stale = world.report(&Report { epoch: 1, ..Supervisor::new(&lost, world.now).report.clone() });
    assert!(stale.stop.is_some(), "a supervisor of another epoch is told to stop");
    assert_eq!(world.show(first).state, JobState::Succeeded);
}

#[test]
fn an_attempt_that_the_journal_does_not_know_is_killed_and_put_aside() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.submit(spec("blocks", 2, 1));
    let job = world.submit(spec("waits", 1, 1));
    let blocker = world.launch().remove(0);
    let (stray, of_nobody) = {
        let attempt = |job: u64| SupervisorSpec {
            job,
            epoch: 99,
            folder: world.folder.path().join(format!("jobs/job-{job}/attempt-1/n1")),
            ..blocker.clone()
        };
        (attempt(job.0), attempt(job.0 + 5))
    };
    supervised(&stray);
    supervised(&of_nobody);
    world.crash_and_restart();
    let killed = world.machines.killed.lock().expect("nobody panicked").clone();
    assert_eq!(killed, [stray.folder.clone(), of_nobody.folder.clone()]);
    assert!(!stray.folder.exists(), "its name is free for the attempt that comes");
    let told = world.show(job);
    let history = told.history.last().expect("there is a history").text.clone();
    assert!(history.starts_with("attempt-1 of lost journal records was put aside as "), "{history}");
    assert_eq!(world.submit(spec("next", 1, 1)), JobId(job.0 + 6));
}

#[test]
fn attempts_of_two_starts_have_different_tokens_and_epochs() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.submit(spec("a", 1, 1));
    let first = world.launch().remove(0);
    world.crash_and_restart();
    world.submit(spec("b", 1, 1));
    let second = world.launch().into_iter().find(|spec| spec.job == 2).expect("it is placed");
    assert_ne!((first.epoch, &first.token), (second.epoch, &second.token));
    let again = world.launches();
    assert!(again.is_empty() || again[0].epoch == first.epoch, "an attempt keeps the epoch that it was placed in");
}

/// Proves A-14: a copy starts as a copy, adopts nothing, touches nothing of the original, and reports that.
#[test]
fn a_copy_of_a_data_folder_leaves_the_jobs_to_the_original() {
    let mut world = World::new(&[("n1", 1)]);
    let running = world.submit(spec("running", 1, 1));
    let waiting = world.submit(spec("waiting", 1, 1));
    let spec_of_it = world.launch().remove(0);
    supervised(&spec_of_it);
    let now = world.now;
    Supervisor::new(&spec_of_it, now).runs(now).tell(&mut world);
    world.stop();
    let mut copy = World::new(&[("n1", 1)]);
    copy.crash();
    let status = Command::new("sh")
        .args(["-c", "rm -rf \"$2\"/* && cp -a \"$1\"/. \"$2\"", "sh"])
        .args([world.folder.path(), copy.folder.path()])
        .status();
    assert!(status.expect("a shell runs").success());
    copy.open().expect("a copy starts");
    for job in [running, waiting] {
        let shown = copy.show(job);
        assert_eq!(shown.state, JobState::Cancelled);
        let says = |line: &gangline_api::HistoryLine| line.text.contains("of which this data folder is a copy");
        assert!(shown.history.iter().any(says), "{:?}", shown.history);
    }
    assert!(copy.machines.killed.lock().expect("nobody panicked").is_empty());
    assert!(copy.launches().is_empty());
    assert_eq!(copy.submit(spec("its own", 1, 1)), JobId(waiting.0 + 1));
    copy.crash_and_restart();
    assert_eq!(copy.show(JobId(waiting.0 + 1)).state, JobState::Starting, "it is a folder of its own from then on");
    world.open().expect("the original opens");
    assert_eq!(world.show(running).state, JobState::Running);
}
