//! What retention removes and when, and what it never removes.

use std::num::NonZeroU32;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use gangline_api::JobState;
use gangline_base::{Bytes, Grid, JobId, SweepRules, SweepSpec, Timestamp};
use gangline_execution::launcher::Launcher;
use gangline_execution::protocol::{FaultCause, Outcome, SupervisorSpec};
use gangline_specs::config::Retention;

use super::super::handle::Request;
use super::super::retention::{Ended, Outcome as Swept, Surroundings, Sweeper, first_time};
use super::{Supervisor, World, fault, spec};
use crate::retention::{CautiousClock, preview};
use gangline_store::model::Removal;
use gangline_store::ports::Queries as _;

const DAY: Duration = Duration::from_hours(24);
const SECOND: Duration = Duration::from_secs(1);

/// Asks the world's control plane, and stops after `patience` requests and pauses, if given.
struct Hands<'a> {
    world: &'a mut World,
    patience: Option<u32>,
}

impl Hands<'_> {
    fn tire(&mut self) -> Result<(), Ended> {
        match &mut self.patience {
            None => Ok(()),
            Some(0) => Err(Ended::Stopping),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Surroundings for Hands<'_> {
    fn remove(&mut self, removals: Vec<Removal>) -> Result<(), Ended> {
        self.tire()?;
        let (reply, answer) = sync_channel(1);
        self.world.request(Request::Remove { removals, reply });
        if answer.recv().expect("it is answered in its turn") { Ok(()) } else { Err(Ended::Refused) }
    }

    fn code_in_use(&mut self) -> Result<crate::service::code::CodeInUse, Ended> {
        self.tire()?;
        Ok(self.world.actor().code_in_use())
    }

    fn rest(&mut self, _pause: Duration) -> Result<(), Ended> {
        self.tire()
    }
}

fn sweeper(world: &mut World, policy: Retention) -> Sweeper {
    let launcher: Arc<dyn Launcher> = world.machines.clone();
    let (folder, reader) = (world.folder.path().to_owned(), world.actor().reader.clone());
    Sweeper { folder, policy, launcher, reader, checkpoints_from: JobId(0), told: None, told_end: None }
}

pub(super) fn sweep_with(world: &mut World, policy: Retention, patience: Option<u32>) -> (Result<(), Ended>, Swept) {
    let (mut sweeper, now) = (sweeper(world, policy), world.now);
    let mut outcome = Swept::default();
    let ended = sweeper.remove_due(now, &mut Hands { world, patience }, &mut outcome);
    (ended, outcome)
}

pub(super) fn clean(world: &mut World, policy: Retention) -> Swept {
    let (ended, outcome) = sweep_with(world, policy, None);
    ended.expect("nothing stops it");
    outcome
}

/// Writes the files that a rank leaves behind.
fn leave_files(spec: &SupervisorSpec) {
    std::fs::create_dir_all(spec.folder.join("logs")).expect("a folder");
    std::fs::write(spec.folder.join("spec.json"), "{}").expect("a file");
    std::fs::write(spec.folder.join("logs/rank-0.log"), vec![b'x'; 100_000]).expect("a file");
}

/// Plays an attempt that starts, leaves files and ends with `outcome`; its supervisor is gone then.
pub(super) fn attempt(world: &mut World, outcome: impl FnOnce(Timestamp) -> Outcome) -> SupervisorSpec {
    let spec = world.launch().pop().expect("it is placed");
    leave_files(&spec);
    world.pass(SECOND);
    let now = world.now;
    Supervisor::new(&spec, now).runs(now).steps(now, 3).tell(world);
    world.pass(SECOND);
    let now = world.now;
    Supervisor::new(&spec, now).ends(now, outcome(now)).tell(world);
    world.dies(&spec);
    spec
}

pub(super) fn succeed(world: &mut World, name: &str) -> (JobId, PathBuf) {
    let job = world.submit(spec(name, 1, 1));
    let spec = attempt(world, |_| Outcome::Succeeded);
    assert_eq!(world.show(job).state, JobState::Succeeded);
    (job, spec.folder.parent().expect("an attempt's folder").to_owned())
}

pub(super) fn later(world: &mut World, days: u32) {
    world.now = world.now + DAY * days;
}

fn history(world: &mut World, job: JobId) -> String {
    world.show(job).history.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn logs_go_when_they_are_old_and_the_job_says_so_and_why() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, folder) = succeed(&mut world, "old");
    let (_, last) = succeed(&mut world, "last");
    let (booked, because) = (world.ledger(job), world.show(job).because);
    later(&mut world, 29);
    assert_eq!(clean(&mut world, Retention::DEFAULT), Swept::default(), "nothing is old enough");
    assert!(folder.join("n1/logs/rank-0.log").exists());
    later(&mut world, 1);
    let swept = clean(&mut world, Retention::DEFAULT);
    assert_eq!((swept.files.entries, swept.jobs_with_files, swept.files.left), (10, 2, 0), "{swept:?}");
    assert!(swept.files.bytes >= 200_000 && swept.failure.is_none(), "{swept:?}");
    assert!(!folder.exists() && !folder.parent().expect("the job's").exists(), "the job's folder goes as well");
    assert!(!last.exists() && last.parent().expect("the job's").exists(), "that of the last id stays (A-14)");
    assert!(history(&mut world, job).contains("logs of attempt 1 were removed because retention.logs is 30d"));
    assert_eq!((world.show(job).because, world.ledger(job)), (because, booked));
    assert_eq!(clean(&mut world, Retention::DEFAULT), Swept::default(), "and only once");
    succeed(&mut world, "next");
    clean(&mut world, Retention::DEFAULT);
    assert!(!last.parent().expect("the job's").exists(), "it isn't the last any more");
}

#[test]
fn failed_jobs_keep_theirs_for_longer_and_older_attempts_go_sooner() {
    let mut world = World::new(&[("n1", 1)]);
    let mut wanted = spec("fails", 1, 1);
    wanted.recovery.max_faults = 3;
    let job = world.submit(wanted);
    let mut folders = Vec::new();
    while !world.show(job).state.is_final() {
        folders.push(attempt(&mut world, |now| fault(FaultCause::Exit { code: 1 }, now)).folder);
        world.pass_slowly(Duration::from_secs(120));
    }
    assert_eq!((world.show(job).state, folders.len()), (JobState::Failed, 4));
    let policy = Retention { attempts: 2, ..Retention::DEFAULT };
    let left = |folders: &[PathBuf]| folders.iter().filter(|folder| folder.exists()).count();
    later(&mut world, 14);
    clean(&mut world, policy);
    assert_eq!((left(&folders), left(&folders[2..])), (2, 2), "the newest two stay");
    let said = "attempts up to 2 were removed because retention.older_attempts is 14d, for all but the newest 2";
    assert!(history(&mut world, job).contains(said));
    later(&mut world, 17);
    clean(&mut world, policy);
    assert_eq!(left(&folders), 2, "those of a job that failed stay for longer");
    later(&mut world, 60);
    clean(&mut world, policy);
    assert_eq!(left(&folders), 0);
    assert!(history(&mut world, job).contains("attempts up to 4 were removed because retention.failed_logs is 90d"));
}

/// Removes everything as soon as possible.
const AT_ONCE: Retention = Retention {
    logs: Some(Duration::ZERO),
    failed_logs: Some(Duration::ZERO),
    older_attempts: Some(Duration::ZERO),
    attempts: 1,
    logs_max: Some(Bytes(0)),
    jobs: Some(Duration::ZERO),
    lost: Some(Duration::ZERO),
    ..Retention::DEFAULT
};

#[test]
fn nothing_of_a_job_that_has_not_ended_is_touched_however_old_it_is() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("requeued", 1, 1));
    let first = attempt(&mut world, |now| fault(FaultCause::Exit { code: 1 }, now));
    std::fs::create_dir_all(first.folder.join("../../lost-1-attempt-1")).expect("a folder");
    // The job is to be started again.
    let now = world.now;
    later(&mut world, 1_000);
    assert_eq!(clean(&mut world, AT_ONCE).files.entries, 0);
    world.now = now;
    let second = world.launch().pop().expect("it is placed again");
    leave_files(&second);
    let now = world.now;
    Supervisor::new(&second, now).runs(now).steps(now, 5).tell(&mut world);
    world.pass(SECOND);
    later(&mut world, 1_000);
    let swept = clean(&mut world, AT_ONCE);
    world.now = now + SECOND;
    assert_eq!((swept.files.entries, swept.records), (0, 0));
    assert!(swept.failure.expect("it is told").contains("jobs that haven't ended"), "more than logs_max");
    assert!([&first, &second].iter().all(|spec| spec.folder.join("logs/rank-0.log").exists()));
    // The control thread checks every removal again, whatever is requested.
    let before = world.stored(job);
    let jobs = job..JobId(job.0 + 1);
    let removals = vec![
        Removal::Logs { job, through: 9, because: "asked".to_owned() },
        Removal::Checkpoints { job, because: "asked".to_owned() },
        Removal::Jobs { jobs },
    ];
    Hands { world: &mut world, patience: None }.remove(removals).expect("it is answered");
    assert_eq!(world.stored(job), before);
}

#[test]
fn a_supervisor_that_may_still_run_keeps_its_files() {
    let mut world = World::new(&[("n1", 1)]);
    let (_, folder) = succeed(&mut world, "lingers");
    world.machines.dead.lock().expect("no test panics while it holds this").clear();
    later(&mut world, 100);
    let swept = clean(&mut world, Retention::DEFAULT);
    assert_eq!((swept.files.entries, swept.files.left), (0, 1));
    assert_eq!(swept.failure.as_deref(), Some("job-1, attempt-1: its supervisor on n1 may still run"));
    assert!(folder.join("n1/logs/rank-0.log").exists());
}

#[test]
fn over_the_limit_the_job_that_ended_first_loses_its_files_first() {
    let mut world = World::new(&[("n1", 1)]);
    let folders: Vec<PathBuf> = ["a", "b", "c"].map(|name| succeed(&mut world, name).1).into();
    let policy = Retention { logs_max: Some(Bytes(250_000)), ..Retention::DEFAULT };
    clean(&mut world, policy);
    let left: Vec<bool> = folders.iter().map(|folder| folder.exists()).collect();
    assert_eq!(left, [false, true, true]);
    let said = "because retention.logs_max is 244.1 KiB, and of all jobs with files it ended first";
    assert!(history(&mut world, JobId(1)).contains(said), "{}", history(&mut world, JobId(1)));
    assert_eq!(clean(&mut world, policy).files.entries, 0, "the rest fits");
}

#[test]
fn a_pass_that_was_cut_short_is_gone_on_with_after_a_restart() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, folder) = succeed(&mut world, "cut");
    (0..300).for_each(|name| std::fs::write(folder.join(format!("n1/logs/{name}")), "x").expect("a file"));
    let outside = world.folder.path().join("outside");
    std::fs::write(&outside, "kept").expect("a file");
    symlink(&outside, folder.join("n1/logs/link")).expect("a link");
    later(&mut world, 30);
    // The patience covers the note and one burst of files.
    let (ended, swept) = sweep_with(&mut world, Retention::DEFAULT, Some(2));
    assert!(matches!(ended, Err(Ended::Stopping)) && swept.files.entries < 300, "{swept:?}");
    assert!(folder.exists());
    world.crash_and_restart();
    assert!(history(&mut world, job).contains("were removed"), "it was said before the first file went");
    clean(&mut world, Retention::DEFAULT);
    assert!(!folder.exists() && outside.exists());
    assert_eq!(history(&mut world, job).matches("were removed").count(), 1);
    // If it stops before anything is noted, nothing is removed.
    let (_, folder) = succeed(&mut world, "uncut");
    later(&mut world, 30);
    assert!(sweep_with(&mut world, Retention::DEFAULT, Some(0)).0.is_err());
    assert!(folder.join("n1/logs/rank-0.log").exists());
}

#[test]
fn files_stay_while_the_journal_cannot_say_that_they_go() {
    let mut world = World::new(&[("n1", 1)]);
    let (_, folder) = succeed(&mut world, "poisoned");
    later(&mut world, 30);
    let database = rusqlite::Connection::open(world.folder.path().join("journal.sqlite")).expect("it is there");
    let refuse = "CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'full'); END";
    database.execute_batch(refuse).expect("nobody writes");
    drop(database);
    let (ended, swept) = sweep_with(&mut world, Retention::DEFAULT, None);
    assert!(matches!(ended, Err(Ended::Refused)) && swept.files.entries == 0, "{swept:?}");
    assert!(folder.join("n1/logs/rank-0.log").exists());
}

/// A clock that is a year ahead at a start, or is set so later, makes nothing old.
#[test]
fn a_clock_that_jumps_ahead_removes_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    let (_, folder) = succeed(&mut world, "kept");
    world.stop();
    later(&mut world, 365);
    world.open().expect("it opens");
    let (wall, last_seen) = (world.now, world.actor().last_seen);
    assert!(wall.since(last_seen) >= DAY * 365, "known from before this start");
    let noted = world.actor().reader.retention_clock().expect("readable");
    let mut clock = CautiousClock::new(first_time(noted, last_seen, wall), Duration::ZERO);
    let at = |world: &mut World, now| {
        world.now = now;
        Hands { world, patience: None }.remove(vec![Removal::Clock { at: now }]).expect("it is noted");
        clean(world, Retention::DEFAULT).files.entries
    };
    // Ten days later the clock is still wrong; another start then believes it.
    let later = clock.at(wall + DAY * 10, DAY * 10);
    assert_eq!(at(&mut world, later), 0);
    world.now = wall + DAY * 10;
    world.crash_and_restart();
    let noted = world.actor().reader.retention_clock().expect("readable");
    let mut clock = CautiousClock::new(first_time(noted, world.actor().last_seen, world.now), Duration::ZERO);
    let later = clock.at(wall + DAY * 12, DAY * 2);
    assert_eq!(at(&mut world, later), 0);
    assert!(folder.exists());
    // A clock that is not corrected within two weeks counts as intended.
    let later = clock.at(wall + DAY * 18, DAY * 8);
    assert_eq!(at(&mut world, later), 5);
    assert_eq!(first_time(None, Timestamp::EPOCH, wall), wall, "a new folder has nothing to lose");
}

#[test]
fn folders_that_no_job_claims_go_a_while_after_they_were_seen() {
    let mut world = World::new(&[("n1", 1)]);
    let (_, folder) = succeed(&mut world, "known");
    let jobs = folder.join("../..");
    let lost = folder.with_file_name(format!("lost-{}-attempt-1", (world.now).unix_nanos()));
    let make = |path: &Path| {
        std::fs::create_dir_all(path.join("n1/logs")).expect("a folder");
        std::fs::write(path.join("n1/logs/rank-0.log"), "x").expect("a file");
    };
    make(&lost);
    make(&jobs.join("job-7/attempt-1"));
    make(&jobs.join("job-9/attempt-1"));
    make(&jobs.join("job-007/attempt-1"));
    make(&jobs.join("mine"));
    symlink(jobs.join("mine"), jobs.join("job-8")).expect("a link");
    let keeping = Retention { logs: None, failed_logs: None, jobs: None, ..Retention::DEFAULT };
    later(&mut world, 29);
    clean(&mut world, keeping);
    assert!(lost.exists(), "it was put aside 29 days ago");
    later(&mut world, 1);
    clean(&mut world, keeping);
    assert!(!lost.exists() && folder.exists());
    assert!(jobs.join("job-7/attempt-1").exists(), "that nobody knows job-7 was seen yesterday first");
    later(&mut world, 29);
    for share in ["job-7/attempt-1/n1", "job-9/attempt-1/n1"] {
        world
            .machines
            .dead
            .lock()
            .expect("no test panics while it holds this")
            .insert(world.folder.path().join("jobs").join(share));
    }
    clean(&mut world, keeping);
    assert!(!jobs.join("job-7").exists());
    assert!(jobs.join("job-9").exists() && !jobs.join("job-9/attempt-1").exists(), "the last id's folder stays (A-14)");
    assert!(["job-007/attempt-1", "mine/n1", "job-8/n1"].iter().all(|theirs| jobs.join(theirs).exists()));
}

#[test]
fn records_go_last_and_what_the_jobs_cost_stays() {
    let mut world = World::new(&[("n1", 2)]);
    let (job, _) = succeed(&mut world, "old");
    let values = ["1", "2"].map(str::to_owned).to_vec();
    let rules = SweepRules { max_parallel: NonZeroU32::new(1), early_stop: None };
    let sweep =
        SweepSpec { job: Arc::new(spec("sweep", 1, 1)), grid: Grid::new(vec![("SEED".to_owned(), values)]), rules };
    world.ask(|reply| Request::SubmitSweep { sweep: Box::new(sweep), reply }).expect("it is taken");
    attempt(&mut world, |_| Outcome::Succeeded);
    later(&mut world, 200);
    attempt(&mut world, |_| Outcome::Succeeded);
    let (last, _) = succeed(&mut world, "last");
    let booked: Vec<_> = (1..=4).map(|job| world.ledger(JobId(job))).collect();
    assert!(booked.iter().all(|rows| rows.len() == 1));
    let known = |world: &mut World| -> Vec<bool> { (1..=4).map(|job| world.stored(JobId(job)).is_some()).collect() };
    later(&mut world, 200);
    clean(&mut world, Retention::DEFAULT);
    assert_eq!(known(&mut world), [true; 4], "as long as there are files");
    clean(&mut world, Retention::DEFAULT);
    assert_eq!(known(&mut world), [false, true, true, true], "a sweep's go together");
    later(&mut world, 200);
    let shown = preview(world.folder.path(), &Retention::DEFAULT, world.now).expect("readable");
    assert!(shown.due.iter().any(|due| due.rule == "jobs" && due.entries == 2), "{shown:?}");
    clean(&mut world, Retention::DEFAULT);
    assert_eq!(known(&mut world), [false, false, false, true], "the newest stays (A-14)");
    let kept: Vec<_> = (1..=4).map(|job| world.actor().reader.bookings(JobId(job)).expect("readable")).collect();
    assert_eq!(kept, booked);
    world.crash_and_restart();
    assert_eq!(world.submit(spec("next", 1, 1)), JobId(last.0 + 1));
    let gone = world.ask(|reply| Request::Explain { job, reply }).expect_err("it is gone");
    assert_eq!(gone.to_string(), "job-1 has already ended");
}

#[test]
fn a_preview_says_what_a_pass_does_and_changes_nothing() {
    let mut world = World::new(&[("n1", 1)]);
    let (job, folder) = succeed(&mut world, "old");
    let ended_at = world.show(job).ended_at.expect("it has ended");
    later(&mut world, 30);
    let before = world.stored(job);
    let (data, now) = (world.folder.path().to_owned(), world.now);
    let shown = preview(&data, &Retention::DEFAULT, now).expect("readable");
    assert_eq!(world.stored(job), before);
    assert!(folder.join("n1/logs/rank-0.log").exists());
    let swept = clean(&mut world, Retention::DEFAULT);
    let due: Vec<(&str, Range<u64>, Option<u64>)> =
        shown.due.iter().map(|due| (due.rule.as_str(), due.jobs..due.entries, due.bytes)).collect();
    assert_eq!(due, [("logs", 1..swept.files.entries, Some(swept.files.bytes))]);
    assert!(shown.due.iter().all(|due| (due.oldest, due.newest) == (ended_at, ended_at)));
    assert_eq!(preview(&data, &Retention::DEFAULT, now).expect("readable").due, []);
}
