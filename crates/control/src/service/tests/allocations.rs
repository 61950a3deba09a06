//! Where the launcher's own system allocates nodes, it is told which gangs lack some; what it allocated is booked, and nothing before
//! or after.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gangline_base::{JobId, JobSpec, Submitter, Timestamp};
use gangline_execution::launcher::GangAllocation;
use gangline_execution::protocol::{Outcome, SupervisorSpec};
use gangline_orchestration::JobChange;
use gangline_store::rebuild::rebuild;

use super::super::handle::Request;
use super::{Supervisor, World, spec};

const SECOND: Duration = Duration::from_secs(1);

/// A world whose launcher allocates, with a job of two slots that has been placed, and the spec of its supervisor.
fn placed() -> (World, JobId, SupervisorSpec) {
    let mut world = World::new(&[("n1", 2)]);
    world.machines.allocates.store(true, Ordering::Relaxed);
    let job = world.submit(spec("waits", 1, 2));
    let launched = world.launch().remove(0);
    (world, job, launched)
}

/// Lets the launcher's system say since when and until when a gang has its nodes.
fn surveyed(world: &mut World, share: &SupervisorSpec, from: Timestamp, to: Option<Timestamp>) {
    let gang = share.folder.parent().expect("a share is below its gang").to_path_buf();
    let allocations = vec![(gang, GangAllocation { from: Some(from), to, is_suspended: false, end: None })];
    world.request(Request::Surveyed { survey: Err("not now".to_owned()), allocations });
}

/// The seconds that a job's only attempt is booked for, from its placement and in all.
fn booked(world: &mut World, job: JobId, placed: Timestamp) -> (f64, f64) {
    let booked = world.ledger(job).remove(0);
    (booked.from.since(placed).as_secs_f64(), booked.to.since(booked.from).as_secs_f64())
}

/// The books are the same when they are made again from the journal.
fn is_made_again_alike(world: &mut World) {
    world.stop();
    let found = rebuild(world.folder.path(), true).expect("nobody holds the folder");
    assert_eq!(found.differences, Vec::<String>::new());
}

#[test]
fn time_in_the_queue_of_the_launchers_system_is_shown_and_not_booked() {
    let (mut world, job, launched) = placed();
    let placed = world.now;
    world.pass(10 * SECOND);
    let shown = world.show(job).attempts[0].allocation.expect("it waits for one");
    assert_eq!((shown.from, shown.to), (None, None));
    let allocated = world.now;
    surveyed(&mut world, &launched, allocated, None);
    world.pass(SECOND);
    let mut supervisor = Supervisor::new(&launched, world.now);
    supervisor.runs(world.now).worked(8_000_000_000).tell(&mut world);
    assert_eq!(world.show(job).attempts[0].allocation.and_then(|shown| shown.from).map(|at| at.0), Some(allocated));
    world.pass(4 * SECOND);
    supervisor.ends(world.now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(booked(&mut world, job, placed), (10.0, 5.0));
    is_made_again_alike(&mut world);
}

/// Proves that the first supervisor's start is taken for the allocation's where no survey came in between.
#[test]
fn without_a_survey_the_supervisors_start_counts() {
    let (mut world, job, launched) = placed();
    let placed = world.now;
    world.pass(7 * SECOND);
    let mut supervisor = Supervisor::new(&launched, world.now);
    supervisor.runs(world.now).tell(&mut world);
    world.pass(2 * SECOND);
    supervisor.ends(world.now, Outcome::Succeeded).tell(&mut world);
    assert_eq!(booked(&mut world, job, placed), (7.0, 2.0));
    is_made_again_alike(&mut world);
}

#[test]
fn a_gang_that_never_left_that_queue_costs_nothing() {
    let (mut world, job, launched) = placed();
    let placed = world.now;
    world.pass(30 * SECOND);
    world.cancel(job).expect("it is live");
    world.dies(&launched);
    world.pass_slowly(30 * SECOND);
    assert_eq!(world.show(job).state, gangline_api::JobState::Cancelled);
    let (_, seconds) = booked(&mut world, job, placed);
    assert!(seconds.abs() < f64::EPSILON, "{seconds} s");
    is_made_again_alike(&mut world);
}

/// The control plane was away for an hour: the nodes went back to that system long before the attempt's end was seen.
#[test]
fn what_is_booked_ends_with_the_allocation() {
    let check = |released_after: Option<Duration>, expected: f64| {
        let (mut world, job, launched) = placed();
        let placed = world.now;
        surveyed(&mut world, &launched, placed, None);
        let mut supervisor = Supervisor::new(&launched, world.now);
        supervisor.runs(world.now).tell(&mut world);
        world.pass(5 * SECOND);
        let ended = world.now;
        world.pass(3_600 * SECOND);
        if let Some(after) = released_after {
            surveyed(&mut world, &launched, placed, Some(ended + after));
        }
        supervisor.ends(ended, Outcome::Succeeded).tell(&mut world);
        assert_eq!(booked(&mut world, job, placed), (0.0, expected));
        is_made_again_alike(&mut world);
    };
    check(Some(SECOND), 6.0);
    // A supervisor without a control plane leaves after half a minute.
    check(None, 35.0);
}

/// Asked for are the nodes of gangs that more nodes would let start, first in line first.
#[test]
fn the_launcher_is_told_which_gangs_lack_nodes() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    let running = world.submit(spec("runs", 2, 2));
    drop(world.launch());
    let two = world.submit(spec("two", 2, 2));
    let one = world.submit(JobSpec { time_limit: Some(60 * SECOND), ..spec("one", 1, 1) });
    let held = world.submit(spec("held", 1, 1));
    let hold = vec![JobChange::Hold];
    let change = |reply| Request::Change { job: held, changes: hold, by: Submitter("ada".to_owned()), reply };
    world.ask(change).expect("it waits");
    world.pass(2 * SECOND);
    assert_eq!(*world.machines.wanted.lock().expect("nobody panics"), None, "this launcher asks for none");
    *world.machines.wanted.lock().expect("nobody panics") = Some(Vec::new());
    let gangs = |world: &mut World| -> Vec<(String, u32, Option<Duration>)> {
        world.pass(2 * SECOND);
        let wanted = world.machines.wanted.lock().expect("nobody panics").clone().unwrap_or_default();
        wanted.into_iter().map(|gang| (gang.gang, gang.nodes, gang.time_limit)).collect()
    };
    assert_eq!(gangs(&mut world), [(two.to_string(), 2, None), (one.to_string(), 1, Some(60 * SECOND))]);
    world.cancel(two).expect("it waits");
    assert_eq!(gangs(&mut world), [(one.to_string(), 1, Some(60 * SECOND))]);
    world.cancel(one).expect("it waits");
    assert_eq!(gangs(&mut world), []);
    assert_eq!(world.show(running).state, gangline_api::JobState::Starting);
}

#[test]
fn a_suspension_is_told_once_and_so_is_its_end() {
    let (mut world, job, launched) = placed();
    let gang = launched.folder.parent().expect("a share is below its gang").to_path_buf();
    for is_suspended in [false, true, true, false, false] {
        let allocation = GangAllocation { from: Some(world.now), to: None, is_suspended, end: None };
        let allocations = vec![(gang.clone(), allocation)];
        world.request(Request::Surveyed { survey: Err("not now".to_owned()), allocations });
    }
    world.pass(SECOND);
    let history = world.show(job).history;
    let count = |words: &str| history.iter().filter(|line| line.text.starts_with(words)).count();
    assert_eq!((count("Slurm has suspended its job"), count("Slurm has resumed its job")), (1, 1), "{history:#?}");
}
