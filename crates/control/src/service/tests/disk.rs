//! A full disk, and a journal whose last record is torn.

use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{Bytes, JobId, JobSpec};
use gangline_execution::protocol::{FaultCause, Outcome};
use gangline_orchestration::NodeStatus;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::super::Error;
use super::super::handle::{DrainWish, Request};
use super::{Supervisor, World, fault, spec};
use gangline_store::db;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a job that takes much room in the journal.
fn bulky() -> JobSpec {
    let mut job = spec("bulky", 1, 1);
    job.program.envs.insert("DATA".to_owned(), "x".repeat(50_000));
    job
}

/// Proves: a full disk stops changes, is reported, and hurts no running job.
#[test]
fn a_full_disk_stops_changes_and_hurts_no_running_job() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).steps(now, 1).tell(&mut world);
    let taken: Vec<JobId> = (0..5).map(|_| world.submit(bulky())).collect();
    world.actor().journal.fill_disk();
    let failure = world.ask(|reply| Request::Submit { spec: Box::new(bulky()), reply }).expect_err("there is no room");
    assert!(matches!(failure, Error::Poisoned { .. }), "{failure:?}");
    let refused = world.ask(|reply| Request::Submit { spec: Box::new(spec("small", 1, 1)), reply });
    assert!(matches!(refused, Err(Error::Poisoned { .. })));
    assert!(matches!(world.cancel(job), Err(Error::Poisoned { .. })));
    assert!(matches!(world.drain("n1", DrainWish::WhenFree), Err(Error::Poisoned { .. })));
    let health = world.ask(|reply| Request::Health { reply }).expect("questions are answered");
    assert_eq!((health.status.as_str(), health.reason.is_some()), ("poisoned", true));
    assert_eq!(world.ask(|reply| Request::Nodes { reply }).map(|list| list.nodes.len()), Ok(1));
    assert_eq!(world.show(job).state, JobState::Running, "and what is durable can be read");
    supervisor.steps(now, 2).ends(now, Outcome::Succeeded);
    for _ in 0..2 {
        let orders = supervisor.tell(&mut world);
        assert_eq!((orders.stop, orders.end_acknowledged), (None, false), "nothing is promised");
    }
    world.pass_slowly(30 * SECOND);
    world.crash_and_restart();
    assert!(supervisor.tell(&mut world).end_acknowledged);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    assert_eq!(world.sampled(job), Some(2));
    for job in taken {
        assert!(!world.show(job).state.is_final(), "{job} was promised");
    }
}

/// Proves A-7 for healing: the new state is the durable one, without anything that was answered with a
/// failure, and a gang that the launching thread still had is launched once.
#[test]
fn a_journal_that_can_be_written_again_goes_on_with_what_is_durable() {
    let mut world = World::new(&[("n1", 2)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).steps(now, 1).tell(&mut world);
    let launching = world.submit(spec("launching", 1, 1));
    let last = world.submit(bulky());
    world.actor().journal.fill_disk();
    world.ask(|reply| Request::Submit { spec: Box::new(bulky()), reply }).expect_err("there is no room");
    supervisor.steps(now, 2).tell(&mut world);
    world.actor().options.journal.bytes_max = Bytes(64 << 10);
    world.heal();
    assert!(
        world.actor().journal.poison().is_some(),
        "there is no room, and what can be archived makes none to speak of"
    );
    assert!(matches!(world.cancel(job), Err(Error::Poisoned { .. })));
    world.actor().options.journal = db::Options::default();
    world.heal();
    assert_eq!(world.actor().journal.poison(), None);
    let next = world.actor().engine.next_job_id();
    assert_eq!(next, JobId(last.0 + 1), "the failed submission isn't there");
    supervisor.ends(now, Outcome::Succeeded);
    assert!(supervisor.tell(&mut world).end_acknowledged);
    assert_eq!((world.show(job).state, world.sampled(job)), (JobState::Succeeded, Some(2)));
    let launched: Vec<u64> = world.launches().iter().map(|spec| spec.job).filter(|id| *id == launching.0).collect();
    assert_eq!(launched, [launching.0], "what the launching thread has isn't launched again");
    assert_eq!(world.submit(spec("later", 1, 1)), next);
}

/// The commit that fails answers in the same way as those after it.
#[test]
fn the_report_in_the_failing_commit_is_answered_without_a_promise() {
    let options = db::Options { bytes_max: Bytes(512 << 10), ..db::Options::default() };
    let mut world = World::with_journal(&[("n1", 1)], options);
    world.is_housekeeper_away = true;
    world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    while world.actor().journal.poison().is_none() {
        supervisor.report.samples_from += u64::try_from(supervisor.report.samples.len()).expect("a few");
        supervisor.report.samples.clear();
        let step = supervisor.report.samples_from + 1;
        supervisor.steps(now, step).saved(now, step);
        let orders = world.report(&supervisor.report);
        assert_eq!(orders.stop, None);
        assert!(orders.samples_stored <= supervisor.report.samples_from);
        world.pass(SECOND);
        assert!(step < 100_000, "the journal has a limit");
    }
}

/// Proves A-7: an end that didn't become durable is not acknowledged; otherwise its supervisor would leave
/// and the end would be lost.
#[test]
fn an_end_in_the_failing_commit_is_not_acknowledged() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    supervisor.ends(now, Outcome::Succeeded);
    world.actor().journal.fill_disk();
    let (reply, mut answer) = oneshot::channel();
    let mut requests: Vec<Request> =
        (0..20).map(|_| Request::Submit { spec: Box::new(bulky()), reply: oneshot::channel().0 }).collect();
    requests.push(Request::Report { report: Box::new(supervisor.report.clone()), reply });
    world.actor().turn(now, requests.into_iter());
    let orders = answer.try_recv().expect("it is answered").expect("with orders");
    assert_eq!((orders.end_acknowledged, orders.stop), (false, None));
    world.crash_and_restart();
    assert_eq!(world.show(job).state, JobState::Running);
    assert!(supervisor.tell(&mut world).end_acknowledged);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    assert_eq!(world.actor().engine.next_job_id(), JobId(job.0 + 1), "the others were never promised");
}

/// Plays one job's life, up to a number of steps: submitted, placed, running, failed, running again, ended.
fn live(world: &mut World, steps: usize) -> JobId {
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut first = Supervisor::new(&world.launch()[0], now);
    let mut second = None;
    for step in 0..steps {
        world.pass(SECOND);
        let now = world.now;
        match step {
            0 => drop(first.runs(now).steps(now, 5).saved(now, 5).tell(world)),
            1 => drop(first.ends(now, fault(FaultCause::Exit { code: 1 }, now)).tell(world)),
            2 => {
                let mut supervisor = Supervisor::new(&world.launch()[0], now);
                supervisor.runs(now).steps(now, 9).tell(world);
                second = Some(supervisor);
            }
            3 => drop(second.as_mut().map(|second| second.saved(now, 9).tell(world))),
            _ => drop(second.as_mut().map(|second| second.ends(now, Outcome::Succeeded).tell(world))),
        }
    }
    job
}

/// Proves for a torn last record: whichever record it was, the read models follow the journal
/// back, the decision is made again, and nothing is booked twice.
#[test]
fn a_torn_last_record_of_any_kind_is_survived() {
    for steps in 0..=5 {
        let mut world = World::new(&[("n1", 1)]);
        let job = live(&mut world, steps);
        world.crash();
        tear(&world);
        world.open().expect("a torn last record is put aside");
        assert_eq!(world.actor().journal.poison(), None, "after {steps} steps");
        finish(&mut world, job);
        let (shown, booked) = world.stored(job).expect("the job is there");
        assert_eq!(shown.state, JobState::Succeeded, "after {steps} steps");
        let numbers: Vec<u32> = booked.iter().map(|row| row.attempt).collect();
        assert_eq!(numbers, (1..=shown.attempts.len()).map(|n| u32::try_from(n).expect("few")).collect::<Vec<_>>());
        for row in &booked {
            assert_eq!(u128::from(row.nanos.iter().sum::<u64>()), row.to.since(row.from).as_nanos());
        }
        world.crash_and_restart();
        assert_eq!(world.stored(job).map(|(_, booked)| booked), Some(booked));
    }
}

/// Removes the last record and the anchor written after it, as a disk does that lost both.
pub(super) fn tear(world: &World) {
    for name in ["journal.anchor", "high-water"] {
        std::fs::remove_file(world.folder.path().join(name)).expect("there is an anchor");
    }
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    let sql = "UPDATE records SET checksum = zeroblob(32) WHERE sequence = (SELECT max(sequence) FROM records)";
    assert_eq!(connection.execute(sql, []).expect("the statement is sound"), 1);
}

/// Removes the last record without a trace.
fn lose_last(world: &World) {
    let connection = Connection::open(world.folder.path().join("journal.sqlite")).expect("the database opens");
    let sql = "DELETE FROM records WHERE sequence = (SELECT max(sequence) FROM records)";
    assert_eq!(connection.execute(sql, []).expect("the statement is sound"), 1);
}

/// Brings the job to its end, whatever its state after the loss.
fn finish(world: &mut World, job: JobId) {
    world.pass(SECOND);
    let now = world.now;
    let Some(attempt) = world.actor().engine.job(job).and_then(|job| job.attempt().cloned()) else { return };
    let specs = world.actor().supervisor_specs(job, attempt.number, &attempt.shares);
    Supervisor::new(&specs[0], now).ends(now, Outcome::Succeeded).tell(world);
    if let Some(spec) = world.launches().into_iter().find(|spec| spec.attempt > attempt.number.0) {
        Supervisor::new(&spec, now).ends(now, Outcome::Succeeded).tell(world);
    }
}

#[test]
fn a_job_whose_submission_was_lost_is_forgotten_with_all_its_rows() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("first", 1, 1));
    let second = world.submit(spec("second", 1, 1));
    world.crash();
    tear(&world);
    world.open().expect("a torn last record is put aside");
    assert!(world.stored(second).is_none());
    let again = world.submit(spec("another", 1, 1));
    assert_eq!(again, JobId(second.0 + 1), "a lost job's id may live on in folders and supervisors");
    assert_eq!(world.show(again).name, "another");
}

#[test]
fn a_drain_that_was_lost_is_not_shown() {
    let mut world = World::new(&[("n1", 1)]);
    world.drain("n1", DrainWish::WhenFree).expect("the node is there");
    world.crash();
    // What the node offers since is in a record after the drain's.
    lose_last(&world);
    tear(&world);
    world.open().expect("a torn last record is put aside");
    let status = world.actor().engine.cluster().nodes().next().map(|node| node.status);
    assert_eq!(status, Some(NodeStatus::Ready));
}
