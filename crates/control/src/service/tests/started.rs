//! The service with its threads, as the product starts it.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gangline_base::{JobId, JobSpec, Submitter, Timestamp};
use gangline_execution::launcher::{LaunchError, Launcher, Presence};
use gangline_execution::protocol::SupervisorSpec;

use super::super::{Error, Options, Service, StartError, Timing};
use super::spec;

use super::world::{node, submitted};
use crate::secret::Secrets;
use gangline_store::db;

/// A wait far beyond what any machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

struct Telling {
    launches: Mutex<Sender<SupervisorSpec>>,
    /// Answers whether a supervisor is present, or hangs.
    presence: fn() -> Presence,
}

impl Launcher for Telling {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        let told = self.launches.lock().expect("nobody panicked");
        // The test may be over.
        gang.iter().for_each(|spec| drop(told.send(spec.clone())));
        gang.iter().map(|_| Ok(())).collect()
    }

    fn presence(&self, _folder: &Path) -> Result<Presence, LaunchError> {
        Ok((self.presence)())
    }

    fn kill(&self, _folder: &Path) -> Result<(), LaunchError> {
        Ok(())
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    Timestamp::from_unix_nanos(u64::try_from(since.as_nanos()).expect("it is before 2554"))
}

fn options(folder: &Path, launches: Sender<SupervisorSpec>) -> Options {
    Options {
        folder: folder.to_owned(),
        journal_folder: folder.to_owned(),
        nodes: vec![node("n1", 1)],
        survey: None,
        sharing: gangline_orchestration::Configuration::default(),
        cache_quotas: std::collections::BTreeMap::new(),
        limits: gangline_orchestration::Limits::default(),
        retention: gangline_specs::config::Retention::DEFAULT,
        billing: gangline_specs::config::Billing::default(),
        launcher: Arc::new(Telling { launches: Mutex::new(launches), presence: || Presence::Running }),
        clock: now,
        user: Submitter("ada".to_owned()),
        secrets: Secrets::open(folder).expect("the folder is writable"),
        journal: db::Options::default(),
        on_journal_failure: Default::default(),
        notice_source: None,
        agent_every: None,
        courier: None,
        ended: None,
        timing: Timing::default(),
    }
}

#[test]
fn a_service_launches_what_was_submitted_and_lets_go_of_its_folder_when_it_stops() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (launches, launched) = channel();
    let service = Service::start(options(folder.path(), launches.clone())).expect("a new folder opens");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = service.handle();
    let submitted = submitted(runtime.block_on(handle.submit(spec("a", 1, 1))).expect("a sound job"));
    let spec = launched.recv_timeout(PATIENCE).expect("the gang is launched");
    assert_eq!((submitted.job.as_str(), spec.job), ("job-1", 1));
    let second = Service::start(options(folder.path(), launches.clone())).map(|_| ());
    assert!(matches!(second, Err(StartError::Journal(db::Error::InUse { .. }))), "{second:?}");
    service.stop();
    assert_eq!(runtime.block_on(handle.nodes()), Err(Error::Stopping));
    let again = Service::start(options(folder.path(), launches)).expect("the folder is free");
    let health = runtime.block_on(again.handle().health()).expect("it answers");
    assert_eq!(health.status, "ok");
    again.stop();
}

/// How far the clock of [`set_clock`] is off, in seconds.
static OFF: AtomicI64 = AtomicI64::new(0);

fn set_clock() -> Timestamp {
    let off = OFF.load(Ordering::SeqCst) * 1_000_000_000;
    Timestamp::from_unix_nanos(now().unix_nanos().checked_add_signed(off).expect("after 1970"))
}

/// A clock that jumps ahead cuts no time limit short, and when it is set right again it freezes none.
#[test]
fn a_time_limit_is_as_long_as_it_says_however_the_clock_is_set() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (launches, _launched) = channel();
    let options = Options { clock: set_clock, ..options(folder.path(), launches) };
    let service = Service::start(options).expect("a new folder opens");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limit = Duration::from_secs(2);
    let begun = Instant::now();
    let job = JobSpec { time_limit: Some(limit), ..spec("a", 1, 1) };
    runtime.block_on(service.handle().submit(job)).expect("a sound job");
    let is_over = || {
        runtime.block_on(service.handle().health()).expect("it answers");
        let job = service.views().job(JobId(1)).expect("the read models are readable");
        job.expect("it is there").because.contains("time limit")
    };
    OFF.store(3_600, Ordering::SeqCst);
    while begun.elapsed() < limit / 2 {
        assert!(!is_over(), "an hour hasn't passed");
    }
    OFF.store(0, Ordering::SeqCst);
    while !is_over() {
        assert!(begun.elapsed() < PATIENCE, "time goes on");
    }
    assert!(begun.elapsed() > limit * 9 / 10, "it had its time");
    service.stop();
}

/// Blocks for longer than any test waits.
fn hang() -> Presence {
    std::thread::sleep(10 * PATIENCE);
    Presence::Running
}

/// Proves A-13 where a shared file system hangs: only the looking threads hang with it.
#[test]
fn a_launcher_that_hangs_stops_nobody_but_who_looks_after_supervisors() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let (launches, launched) = channel();
    let launcher = Arc::new(Telling { launches: Mutex::new(launches.clone()), presence: hang });
    let lease = Duration::from_millis(1);
    let timing = Timing { heartbeat: lease, lease, ..Timing::default() };
    let options = Options { launcher, timing, ..options(folder.path(), launches) };
    let service = Service::start(options).expect("a new folder opens");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = service.handle();
    runtime.block_on(handle.submit(spec("a", 1, 1))).expect("a sound job");
    launched.recv_timeout(PATIENCE).expect("the gang is launched");
    let began = std::time::Instant::now();
    let unwell = loop {
        // The supervisor's lease is over by now, so it is being looked at.
        runtime.block_on(handle.submit(spec("b", 1, 1))).expect("a sound job");
        let health = runtime.block_on(handle.health()).expect("it answers");
        if health.status == "unwell" {
            break health.reason.unwrap_or_default();
        }
        assert!(began.elapsed() < PATIENCE, "it is never told");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(unwell.contains("a look has taken"), "{unwell}");
    service.stop();
}
