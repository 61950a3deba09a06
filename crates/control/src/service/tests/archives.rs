//! What jobs push to archives of checkpoints is in their bills: what it takes there, and the requests.

use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{Bytes, JobId, Timestamp};
use gangline_execution::protocol::{DatasetReads, Outcome};
use gangline_specs::config::Config;
use gangline_store::ports::Queries as _;
use gangline_store::rebuild::rebuild;

use super::{Supervisor, World, spec};
use crate::views::{By, Views};

const HOUR: Duration = Duration::from_secs(3_600);
const GIB: u64 = 1 << 30;
const ARCHIVE: &str = "s3://bucket/run";
/// A GiB costs $0.001 an hour, and 1,000 PUTs $5.
const BILLING: &str = "[[storage.price]]\npath = 's3://bucket'\nusd_per_gib_month = '0.73'\n\
    [[storage.requests]]\naddress = 's3://bucket'\nusd_per_1000 = '0.4'\nusd_per_1000_writes = '5'\n";

fn world() -> World {
    let mut world = World::new(&[("n1", 1)]);
    priced(&mut world);
    world
}

fn priced(world: &mut World) {
    world.actor().options.billing = Config::parse(BILLING).expect("a sound file").billing;
}

/// Runs a job for an hour; its archive holds so many bytes from the job's start on.
fn push(world: &mut World, archive: &str, bytes: u64) -> JobId {
    let job = world.submit(spec("pushes", 1, 1));
    let launched = world.launch().remove(0);
    let now = world.now;
    let mut supervisor = Supervisor::new(&launched, now);
    supervisor.report.archives = [(archive.to_owned(), Bytes(bytes))].into();
    let reads = DatasetReads { get: 3, list: 2, put: 40, ..DatasetReads::default() };
    supervisor.report.dataset_reads = [(archive.to_owned(), reads)].into();
    supervisor.runs(now).tell(world);
    supervisor.tell(world);
    world.pass(HOUR);
    let now = world.now;
    supervisor.ends(now, Outcome::Succeeded).tell(world);
    world.pass(Duration::from_secs(1));
    job
}

fn report(world: &mut World, by: By) -> api::CostReport {
    let (folder, now) = (world.folder.path().to_owned(), world.now);
    let views = Views::new(world.actor().journal.reader(), folder);
    views.cost_report(Period { from: Timestamp::EPOCH, to: now }, by, false, now).expect("readable")
}

/// Returns the lines of the archive and what they cost, in micro-dollars.
fn archived(group: &api::CostGroup) -> Vec<(&str, i64)> {
    let of_archives = group.lines.iter().filter(|line| line.line == "storage_archives" || line.requests.is_some());
    of_archives.map(|line| (line.line.as_str(), line.cost_nano_dollars / 1_000)).collect()
}

fn group<'a>(report: &'a api::CostReport, name: &JobId) -> &'a api::CostGroup {
    let name = name.to_string();
    report.groups.iter().find(|group| group.name == name).unwrap_or_else(|| panic!("no {name} in {report:?}"))
}

#[test]
fn an_archive_costs_the_last_job_that_pushed_to_it_and_goes_on_after_its_end() {
    let mut world = world();
    let first = push(&mut world, ARCHIVE, 100 * GIB);
    world.pass(HOUR);
    world.crash_and_restart();
    priced(&mut world);
    let second = push(&mut world, ARCHIVE, 150 * GIB);
    world.pass(HOUR);
    let report = report(&mut world, By::Job);
    // 100 GiB for two hours and a second; 3 GETs at $0.0004, no price for 2 LISTs, and 40 PUTs at $0.005.
    let of_first =
        [("storage_archives", 200_027), ("requests", 1_200), ("list_requests", 0), ("write_requests", 200_000)];
    assert_eq!(archived(group(&report, &first)), of_first);
    let of_second =
        [("storage_archives", 300_041), ("requests", 1_200), ("list_requests", 0), ("write_requests", 200_000)];
    assert_eq!(archived(group(&report, &second)), of_second);
    let (folder, now) = (world.folder.path().to_owned(), world.now);
    let views = Views::new(world.actor().journal.reader(), folder);
    for (job, expected) in [(first, of_first), (second, of_second)] {
        let cost = views.job_cost(job, now).expect("readable").expect("it is there");
        assert_eq!(archived(&cost.total), expected, "the job's own bill has the same");
    }
}

#[test]
fn a_price_counts_from_the_start_that_brings_it_and_two_nodes_that_push_do_not_flood_the_journal() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    priced(&mut world);
    let job = world.submit(spec("pushes", 2, 1));
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    for (supervisor, bytes) in gang.iter_mut().zip([GIB, 2 * GIB]) {
        supervisor.report.archives = [(ARCHIVE.to_owned(), Bytes(bytes))].into();
        supervisor.runs(now).tell(&mut world);
    }
    let noted = |world: &mut World| {
        let found = world.actor().journal.reader().storage_in(ARCHIVE).expect("readable");
        found.into_iter().map(|(_, measured)| (measured.bytes.0 / GIB, measured.price.is_some())).collect::<Vec<_>>()
    };
    for _ in 0..30 {
        world.pass(Duration::from_secs(1));
        for supervisor in &mut gang {
            supervisor.tell(&mut world);
        }
    }
    assert_eq!(noted(&mut world), [(2, true)], "what a node said once is no news any more");
    for bytes in 3..6 {
        gang[0].report.archives = [(ARCHIVE.to_owned(), Bytes(bytes * GIB))].into();
        gang[0].tell(&mut world);
    }
    assert_eq!(noted(&mut world), [(2, true), (3, true)], "the rest has to wait");
    world.pass(Duration::from_secs(10));
    let now = world.now;
    gang[0].tell(&mut world);
    gang[0].report.archives = [(ARCHIVE.to_owned(), Bytes(6 * GIB))].into();
    for supervisor in &mut gang {
        supervisor.ends(now, Outcome::Succeeded).tell(&mut world);
    }
    assert_eq!(noted(&mut world), [(2, true), (3, true), (6, true)], "what an attempt says last is noted at once");
    assert!(world.show(job).state.is_final());
    world.pass(HOUR);
    world.crash_and_restart();
    assert_eq!(noted(&mut world), [(2, true), (3, true), (6, true), (6, false)], "this start brings no prices");
    world.pass(HOUR);
    world.crash_and_restart();
    assert_eq!(noted(&mut world).len(), 4, "nor does the next one, and nothing has changed");
}

#[test]
fn what_is_noted_of_an_archive_is_made_again_from_the_journal() {
    let mut world = world();
    let job = push(&mut world, ARCHIVE, 100 * GIB);
    push(&mut world, "/lustre/archive", GIB);
    let before = report(&mut world, By::Job);
    assert_eq!(before.total.lines.iter().filter(|line| line.line == "storage_archives").count(), 1);
    world.stop();
    world.database().execute("DELETE FROM storage WHERE archived_by IS NOT NULL", []).expect("it is sound");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    assert_eq!(made.differences, [format!("what was stored in {ARCHIVE} is damaged or missing")]);
    world.open().expect("the folder opens again");
    let after = report(&mut world, By::Job);
    assert_eq!(archived(group(&after, &job)), archived(group(&before, &job)));
    push(&mut world, ARCHIVE, 100 * GIB);
    let lines = report(&mut world, By::Job);
    assert!(archived(group(&lines, &job)).iter().any(|(line, _)| *line == "storage_archives"));
}
