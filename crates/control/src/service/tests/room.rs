//! A journal with a size limit: it is compacted behind snapshots, and refuses jobs before it fails.

use std::time::Duration;

use gangline_api::{self as api, JobState};
use gangline_base::{Bytes, JobId};
use gangline_execution::protocol::Outcome;

use super::super::Error;
use super::super::handle::Request;
use super::world::submitted;
use super::{Supervisor, World, spec};
use gangline_store::db::{self, Record, Sequence};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn small() -> World {
    World::with_journal(&[("n1", 1)], db::Options { bytes_max: Bytes(4 << 20), ..db::Options::default() })
}

fn submit(world: &mut World) -> Result<JobId, Error> {
    let mut job = spec("bulky", 1, 1);
    job.program.envs.insert("DATA".to_owned(), "x".repeat(50_000));
    let answer = world.ask(|reply| Request::Submit { spec: Box::new(job), reply })?;
    Ok(submitted(answer).job.parse().expect("a job's id"))
}

/// Submits until a job is refused.
pub(super) fn fill(world: &mut World) -> (Vec<JobId>, Error) {
    let mut taken = Vec::new();
    loop {
        match submit(world) {
            Ok(job) => taken.push(job),
            Err(refusal) => return (taken, refusal),
        }
        assert!(taken.len() < 200, "the journal has a limit");
    }
}

fn health(world: &mut World) -> api::Health {
    world.ask(|reply| Request::Health { reply }).expect("questions are answered")
}

fn history(world: &mut World) -> Vec<Record> {
    let reader = world.actor().journal.reader();
    reader.history(Sequence::ZERO, 10_000).expect("it is whole")
}

/// Proves A-10 for the journal: its reserve is for existing jobs, and old records make room by themselves.
#[test]
fn a_journal_that_is_nearly_full_refuses_new_jobs_only_until_it_is_compacted() {
    let mut world = small();
    world.is_housekeeper_away = true;
    let (taken, refusal) = fill(&mut world);
    assert!(matches!(refusal, Error::JournalFull { max: Bytes(0x0040_0000), .. }), "{refusal:?}");
    let unwell = health(&mut world);
    assert_eq!(unwell.status, "unwell");
    assert!(unwell.reason.is_some_and(|reason| reason.contains("--journal-max")));
    assert!(unwell.journal_bytes * 100 > unwell.journal_bytes_max * 80, "{} bytes", unwell.journal_bytes);
    assert_eq!(world.cancel(taken[1]).map(|answer| answer.state), Ok(JobState::Cancelled), "that has its room");
    let before = history(&mut world);
    world.is_housekeeper_away = false;
    world.pass_slowly(5 * SECOND);
    assert_eq!((health(&mut world).status.as_str(), world.actor().journal.poison()), ("ok", None));
    let next = submit(&mut world).expect("there is room again");
    assert_eq!(next, JobId(taken.last().expect("some were taken").0 + 1));
    assert_eq!(history(&mut world)[..before.len()], before, "read from the archive");
    for restart in [false, true] {
        if restart {
            world.crash_and_restart();
        }
        for job in taken.iter().chain([&next]).filter(|job| **job != taken[1]) {
            assert!(!world.show(*job).state.is_final(), "{job} was promised");
        }
    }
}

#[test]
fn what_is_reserved_is_there_for_reports_ends_and_cancels() {
    let mut world = small();
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    world.is_housekeeper_away = true;
    let (taken, refusal) = fill(&mut world);
    assert!(matches!(refusal, Error::JournalFull { .. }), "{refusal:?}");
    let now = world.now;
    supervisor.ends(now, Outcome::Succeeded);
    assert!(supervisor.tell(&mut world).end_acknowledged);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    for job in taken {
        world.cancel(job).expect("it is there");
    }
    assert_eq!(world.actor().journal.poison(), None);
}

/// Proves A-7 for a journal that is full: it makes room for itself and goes on.
#[test]
fn a_journal_that_failed_because_it_is_full_is_compacted_and_heals() {
    let mut world = small();
    world.is_housekeeper_away = true;
    let job = world.submit(spec("a", 1, 1));
    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.runs(now).tell(&mut world);
    let (taken, _) = fill(&mut world);
    for step in 1.. {
        supervisor.steps(now, step).saved(now, step).tell(&mut world);
        world.pass(SECOND);
        if world.actor().journal.poison().is_some() {
            break;
        }
        assert!(step < 100_000, "the journal has a limit");
    }
    let before = history(&mut world);
    world.heal();
    assert_eq!(world.actor().journal.poison(), None, "the limit is as it was");
    assert_eq!(history(&mut world)[..before.len()], before);
    supervisor.report.samples.clear();
    supervisor.ends(now, Outcome::Succeeded);
    assert!(supervisor.tell(&mut world).end_acknowledged);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    submit(&mut world).expect("there is room again");
    world.crash_and_restart();
    for job in taken.into_iter().skip(1) {
        assert!(!world.show(job).state.is_final(), "{job} was promised");
    }
}

/// Returns the names in a folder beside the journal.
fn names(world: &World, folder: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(world.folder.path().join(folder)) else { return Vec::new() };
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("it is there").file_name();
    entries.map(name).map(|name| name.to_string_lossy().into_owned()).collect()
}

/// However long a snapshot takes, the service goes on meanwhile, and the snapshot shows the instant when it
/// was taken.
#[test]
fn a_snapshot_is_written_while_requests_are_answered() {
    let mut world = small();
    world.is_housekeeper_away = true;
    for _ in 0..10 {
        submit(&mut world).expect("there is room");
    }
    assert_eq!(names(&world, "snapshots"), [""; 0], "it is on its way");
    let taken = submit(&mut world).expect("and nobody waits for it");
    let state = world.state();
    world.is_housekeeper_away = false;
    world.pass(SECOND);
    assert!(!names(&world, "snapshots").is_empty());
    world.crash_and_restart();
    assert_eq!(world.state(), state);
    assert!(!world.show(taken).state.is_final());
}

/// Tests a housekeeper that works, and one whose disk hangs.
#[test]
fn a_stop_leaves_a_snapshot_and_waits_for_it_no_longer_than_it_may() {
    for hangs in [false, true] {
        let mut world = small();
        submit(&mut world).expect("there is room");
        let (chores, taken) = std::sync::mpsc::sync_channel(1);
        let (service, requests) = std::sync::mpsc::sync_channel(4);
        let housekeeper = std::thread::spawn(move || {
            if hangs { drop(taken.recv()) } else { super::super::housekeeping::run(&taken, &service) }
        });
        let actor = world.actor();
        actor.housekeeping = super::super::housekeeping::Housekeeping::new(chores);
        actor.leave_snapshot(&requests, if hangs { Duration::from_millis(20) } else { Duration::from_secs(60) });
        let state = world.state();
        assert_eq!(names(&world, "snapshots").is_empty(), hangs);
        world.crash_and_restart();
        assert_eq!(world.state(), state, "without one the records say the same");
        housekeeper.join().expect("no panic");
    }
}

#[test]
fn a_damaged_archive_is_told_and_stops_nothing() {
    let mut world = small();
    fill(&mut world);
    world.pass_slowly(5 * SECOND);
    let archived = names(&world, "history");
    let first = archived.iter().min().expect("there was something to archive");
    let path = world.folder.path().join("history").join(first);
    let mut bytes = std::fs::read(&path).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).expect("it is ours");
    world.crash_and_restart();
    world.pass(SECOND);
    let reason = health(&mut world).reason.expect("it is told");
    assert!(reason.starts_with("the history of records 1 to ") && reason.contains(first), "{reason}");
    submit(&mut world).expect("and stops nothing");
}
