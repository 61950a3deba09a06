//! What is stored is measured, noted, and in the bill of the job that uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{Bytes, JobId, Timestamp};
use gangline_specs::config::{FolderPrice, Storage};
use gangline_store::codec::StorageMeasured;
use gangline_store::ports::Queries as _;
use gangline_store::rebuild::rebuild;

use super::super::handle::Request;
use super::super::storage::{Ended, Meter};
use super::{World, spec};
use crate::views::{By, Views};

const HOUR: Duration = Duration::from_secs(3_600);
const MIB: u64 = 1 << 20;

fn meter(world: &mut World, price: Option<&str>) -> Meter {
    let folder = world.folder.path().to_owned();
    let per_month = price.map(|price| price.parse().expect("a price"));
    let price_of =
        |per_month| FolderPrice { path: PathBuf::from("/"), per_month, unit: Bytes(1 << 30), month_hours: 730 };
    let rules = Storage { prices: per_month.map(price_of).into_iter().collect(), ..Storage::default() };
    let mut meter = Meter::new((folder.clone(), folder), rules, world.actor().journal.reader());
    meter.recall().expect("the read models are readable");
    meter
}

fn pass(world: &mut World, meter: &mut Meter) {
    let mut note = |notes| {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        world.request(Request::Note { notes, reply });
        if answer.recv() == Ok(true) { Ok(()) } else { Err(Ended::Refused) }
    };
    meter.pass(&mut note, &mut || true).expect("it can be measured");
}

fn all() -> (Timestamp, Timestamp) {
    (Timestamp::EPOCH, Timestamp::from_unix_nanos(u64::MAX))
}

/// Returns what is noted of jobs' checkpoints.
fn noted(world: &mut World) -> Vec<StorageMeasured> {
    let mut found = Vec::new();
    world.actor().journal.reader().storage(all(), &mut |_, measured| found.push(measured)).expect("readable");
    found.retain(|measured| measured.owner.is_some());
    found
}

fn views(world: &mut World) -> Views {
    let folder = world.folder.path().to_owned();
    Views::new(world.actor().journal.reader(), folder)
}

fn report(world: &mut World, by: By) -> api::CostReport {
    let period = Period { from: Timestamp::EPOCH, to: world.now };
    let now = world.now;
    views(world).cost_report(period, by, false, now).expect("the read models are readable")
}

fn checkpoints(group: &api::CostGroup) -> Option<&api::CostLine> {
    group.lines.iter().find(|line| line.line == "storage_checkpoints")
}

fn save(folder: &Path, mebibytes: u64) {
    fs::create_dir_all(folder).expect("writable");
    fs::write(folder.join("weights"), vec![1; usize::try_from(mebibytes * MIB).expect("small")]).expect("writable");
}

fn own_folder(world: &World, job: JobId) -> PathBuf {
    world.folder.path().join("checkpoints").join(job.to_string())
}

#[test]
fn checkpoints_cost_their_job_until_they_are_removed_and_a_start_changes_nothing() {
    let mut world = World::new(&[("n1", 2)]);
    let job = world.submit(spec("a", 1, 1));
    let folder = own_folder(&world, job);
    save(&folder, 64);
    let mut first = meter(&mut world, Some("0.73"));
    pass(&mut world, &mut first);
    pass(&mut world, &mut first);
    assert_eq!(noted(&mut world).len(), 1, "the second pass finds nothing new");
    world.pass(HOUR);
    world.cancel(job).expect("it is there");
    world.crash_and_restart();
    let mut second = meter(&mut world, Some("0.73"));
    pass(&mut world, &mut second);
    assert_eq!(noted(&mut world).len(), 1, "nor does a start");
    world.pass(HOUR);
    fs::remove_dir_all(&folder).expect("writable");
    pass(&mut world, &mut second);
    world.pass(HOUR);
    let report = report(&mut world, By::Job);
    let of_job = report.groups.iter().find(|group| group.name == job.to_string()).expect("the job's");
    let line = checkpoints(of_job).expect("it stored something");
    // 64 MiB, and the folder itself, for two hours at $0.001 for a GiB and an hour.
    let gib_hours = line.gib_hours.expect("it is stored data");
    assert!((0.125..0.126).contains(&gib_hours), "{gib_hours}");
    assert!((125_000..126_000).contains(&line.cost_nano_dollars), "{line:?}");
    assert_eq!(report.groups.iter().map(|group| group.cost_nano_dollars).sum::<i64>(), report.total.cost_nano_dollars);
    let now = world.now;
    let cost = views(&mut world).job_cost(job, now).expect("readable").expect("it is there");
    assert_eq!(checkpoints(&cost.total), Some(line), "the job's own bill has the same line");
    assert!(report.groups.iter().any(|group| group.name == "(platform)"), "the journal is stored too");
}

#[test]
fn a_folder_of_several_jobs_is_the_last_ones_and_a_changed_price_counts_from_then_on() {
    let mut world = World::new(&[("n1", 2)]);
    let shared = tempfile::tempdir().expect("the temporary folder is writable");
    save(shared.path(), 1);
    let mut asked = spec("a", 1, 2);
    // The first job waits behind another one, and so is gone as soon as it is cancelled.
    world.submit(spec("b", 1, 2));
    asked.checkpoint.path = Some(shared.path().to_string_lossy().into_owned());
    let first = world.submit(asked.clone());
    let mut unpriced = meter(&mut world, None);
    pass(&mut world, &mut unpriced);
    world.pass(HOUR);
    world.cancel(first).expect("it is there");
    let second = world.submit(asked);
    pass(&mut world, &mut unpriced);
    world.pass(HOUR);
    let mut priced = meter(&mut world, Some("0.10"));
    pass(&mut world, &mut priced);
    let owners: Vec<(JobId, bool)> = noted(&mut world)
        .iter()
        .filter_map(|measured| Some((measured.owner.as_ref()?.job, measured.price.is_some())))
        .collect();
    assert_eq!(owners, [(first, false), (second, false), (second, true)]);
    let report = report(&mut world, By::Job);
    let group = report.groups.iter().find(|group| group.name == first.to_string()).expect("the first job's");
    assert!(group.unpriced_gib_hours > 0.0 && group.cost == "not priced", "{group:?}");
}

/// A file system that is away isn't an empty one.
#[test]
fn what_cannot_be_measured_keeps_its_size() {
    let mut world = World::new(&[("n1", 2)]);
    let mount = tempfile::tempdir().expect("the temporary folder is writable");
    let folder = mount.path().join("fs/gpt");
    save(&folder, 1);
    let mut asked = spec("a", 1, 1);
    asked.checkpoint.path = Some(folder.to_string_lossy().into_owned());
    world.submit(asked);
    let mut meter = meter(&mut world, None);
    pass(&mut world, &mut meter);
    world.pass(HOUR);
    fs::rename(mount.path().join("fs"), mount.path().join("away")).expect("writable");
    pass(&mut world, &mut meter);
    assert_eq!(noted(&mut world).len(), 1, "nothing is noted");
    fs::rename(mount.path().join("away"), mount.path().join("fs")).expect("writable");
    save(&folder, 2);
    pass(&mut world, &mut meter);
    assert_eq!(noted(&mut world).len(), 2);
}

/// A pass that was cut short leaves nothing out, not even a job that had ended before it.
#[test]
fn what_a_pass_did_not_come_to_is_measured_by_the_next_one() {
    let mut world = World::new(&[("n1", 2)]);
    // The job waits behind another one, and so has ended as soon as it is cancelled.
    world.submit(spec("b", 1, 2));
    let job = world.submit(spec("a", 1, 2));
    world.cancel(job).expect("it is there");
    save(&own_folder(&world, job), 1);
    let mut meter = meter(&mut world, None);
    let refused = meter.pass(&mut |_| Err(Ended::Refused), &mut || true);
    assert!(matches!(refused, Err(Ended::Refused)));
    pass(&mut world, &mut meter);
    assert_eq!(noted(&mut world).len(), 1);
}

/// Proves A-3 for storage: the read model follows from the journal.
#[test]
fn what_was_stored_is_made_again_from_the_journal() {
    let mut world = World::new(&[("n1", 2)]);
    let job = world.submit(spec("a", 1, 1));
    let folder = own_folder(&world, job);
    let mut meter = meter(&mut world, Some("0.10"));
    for mebibytes in 1..5 {
        save(&folder, mebibytes);
        pass(&mut world, &mut meter);
        world.pass(HOUR);
    }
    let before = noted(&mut world);
    assert_eq!(before.len(), 4);
    world.stop();
    let change = |sql| world.database().execute(sql, []).expect("the statement is sound") as u64;
    let deleted = change("DELETE FROM storage WHERE from_unix_nanos = (SELECT min(from_unix_nanos) FROM storage)");
    let damaged = change("UPDATE storage SET entry = zeroblob(9)");
    assert!(deleted > 0 && damaged > 2, "{deleted} {damaged}");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!(made.noted.remade, deleted + damaged, "{:?}", made.differences);
    world.open().expect("the folder opens again");
    assert_eq!(noted(&mut world), before);
}
