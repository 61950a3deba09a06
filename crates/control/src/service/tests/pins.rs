//! Data that a job's owner keeps is never removed, and checkpoints are removed only on request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{Bytes, JobId, JobSpec, Pin, Step};
use gangline_execution::protocol::Outcome;
use gangline_specs::config::Retention;
use gangline_storage::{DataType, Options, Store, Tensor};

use super::retention::{attempt, clean, later, sweep_with};
use super::{World, spec};
use crate::retention::preview;

const DAY: Duration = Duration::from_hours(24);
/// Removes everything after a while, checkpoints included.
const ALL: Retention =
    Retention { checkpoints: Some(DAY.saturating_mul(60)), logs_max: Some(Bytes(1)), ..Retention::DEFAULT };

fn pinned(name: &str, pins: &[Pin]) -> JobSpec {
    JobSpec { pins: pins.iter().copied().collect(), ..spec(name, 1, 1) }
}

fn saving(name: &str, folder: &Path) -> JobSpec {
    let mut job = spec(name, 1, 1);
    job.checkpoint.path = Some(folder.display().to_string());
    job
}

fn run(world: &mut World, job: JobSpec) -> JobId {
    let job = world.submit(job);
    attempt(world, |_| Outcome::Succeeded);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    job
}

fn save(folder: &Path, steps: &[u64]) {
    let store = Store::open(folder, Options { keep: None, ..Options::writer(0, 1, 1) }).expect("a folder");
    for step in steps {
        let data = step.to_le_bytes().to_vec();
        let tensor = Tensor { name: "weight".to_owned(), data_type: DataType::U8, shape: vec![8], data };
        store.save(Step(*step), &[tensor.as_view()], &BTreeMap::new()).expect("queued").wait().expect("there is room");
    }
}

fn steps(folder: &Path) -> Vec<u64> {
    let store = Store::open(folder, Options::reader()).expect("a folder");
    store.list().expect("readable").iter().map(|listed| listed.step.0).collect()
}

fn folder(world: &World, name: &str) -> PathBuf {
    world.folder.path().join("stores").join(name)
}

#[test]
fn what_a_job_file_keeps_outlives_every_age() {
    let mut world = World::new(&[("n1", 1)]);
    let pins = [&[][..], &[Pin::Logs], &[Pin::Record], &[Pin::Checkpoints]];
    let jobs: Vec<JobId> = pins.iter().map(|pins| run(&mut world, pinned("kept", pins))).collect();
    run(&mut world, spec("last", 1, 1));
    later(&mut world, 1_000);
    world.crash_and_restart();
    clean(&mut world, ALL);
    clean(&mut world, ALL);
    let left: Vec<(bool, bool)> = jobs
        .iter()
        .map(|job| {
            let log = world.folder.path().join(format!("jobs/{job}/attempt-1/n1/logs/rank-0.log"));
            (log.exists(), world.stored(*job).is_some())
        })
        .collect();
    let expected = [(false, false), (true, true), (false, true), (false, true)];
    assert_eq!(left, expected);
}

#[test]
fn checkpoints_stay_unless_the_configuration_says_otherwise_and_the_newest_good_one_always() {
    let mut world = World::new(&[("n1", 1)]);
    let (own, bad) = (folder(&world, "own"), folder(&world, "bad"));
    save(&own, &[1, 2, 3]);
    save(&bad, &[1, 2, 3]);
    // The newest is damaged, so the one before it is the newest good one.
    let shard =
        std::fs::read_dir(bad.join("step-0000000003")).expect("it is there").flatten().map(|entry| entry.path());
    let shard = shard.into_iter().find(|path| path.extension().is_some_and(|found| found == "safetensors"));
    let shard = shard.expect("a shard");
    let mut bytes = std::fs::read(&shard).expect("it is there");
    *bytes.last_mut().expect("it has bytes") ^= 1;
    std::fs::write(&shard, bytes).expect("it is ours");
    let jobs = [run(&mut world, saving("own", &own)), run(&mut world, saving("bad", &bad))];
    later(&mut world, 300);
    clean(&mut world, Retention::DEFAULT);
    assert_eq!((steps(&own), steps(&bad)), (vec![1, 2, 3], vec![1, 2, 3]), "nobody asked for it");
    let shown = preview(world.folder.path(), &ALL, world.now).expect("readable");
    let due = shown.due.iter().find(|due| due.rule == "checkpoints").expect("it is due");
    assert_eq!((due.jobs, due.entries, due.bytes.is_some_and(|bytes| bytes > 0)), (2, 4, true));
    assert_eq!(steps(&own), [1, 2, 3], "a preview changes nothing");
    assert_eq!(clean(&mut world, ALL).checkpoints, 3);
    assert_eq!((steps(&own), steps(&bad)), (vec![3], vec![2, 3]));
    let told = world.show(jobs[0]).history.iter().map(|line| line.text.clone()).collect::<Vec<_>>();
    let line = "checkpoints older than the newest good one are removed because retention.checkpoints is 60d";
    assert!(told.iter().any(|told| told == line), "{told:?}");
    assert_eq!(clean(&mut world, ALL).checkpoints, 0, "and only once");
}

#[test]
fn a_folder_that_another_job_needs_is_left_alone() {
    let mut world = World::new(&[("n1", 1)]);
    let names = ["live", "inner", "young", "linked", "kept", "free"];
    let folders: Vec<PathBuf> = names.iter().map(|name| folder(&world, name)).collect();
    for folder in &folders {
        save(folder, &[1, 2]);
        run(&mut world, saving("old", folder));
    }
    let link = folder(&world, "another-name");
    std::os::unix::fs::symlink(&folders[3], &link).expect("a link");
    run(&mut world, JobSpec { pins: [Pin::Checkpoints].into(), ..saving("keeps", &folders[4]) });
    later(&mut world, 59);
    run(&mut world, saving("young", &folders[2]));
    later(&mut world, 1);
    world.drain("n1", super::super::DrainWish::WhenFree).expect("the node is there");
    for path in [folders[0].clone(), folders[1].join("below/it"), link] {
        world.submit(saving("waits", &path));
    }
    clean(&mut world, ALL);
    let left: Vec<usize> = folders.iter().map(|folder| steps(folder).len()).collect();
    assert_eq!(left, [2, 2, 2, 2, 2, 1]);
    later(&mut world, 60);
    clean(&mut world, ALL);
    assert_eq!(steps(&folders[2]), [2], "nobody needs it any more");
}

#[test]
fn where_a_record_cannot_be_read_no_checkpoint_goes() {
    let mut world = World::new(&[("n1", 1)]);
    let own = folder(&world, "own");
    save(&own, &[1, 2]);
    run(&mut world, saving("own", &own));
    run(&mut world, spec("another", 1, 1));
    later(&mut world, 100);
    let database = rusqlite::Connection::open(world.folder.path().join("journal.sqlite")).expect("it opens");
    database.execute("UPDATE jobs SET sum = x'0000000000000000' WHERE job = 2", []).expect("it is ours");
    let (ended, swept) = sweep_with(&mut world, ALL, None);
    ended.expect("nothing stops it");
    assert_eq!((swept.checkpoints, steps(&own)), (0, vec![1, 2]));
}
