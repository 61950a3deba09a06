//! The thread that removes data older than the configured ages. It works through a plan slowly, so that
//! neither the disk nor the control thread is loaded, and may hang on a file system without hurting anybody
//! . It keeps no durable progress: the next pass, even after a restart, goes on where a pass was cut
//! short.
//!
//! Files are removed only after the job's durable record says so. The control thread removes rows, and checks
//! again in the same transaction whether the job has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, JobId, Timestamp, with_causes};
use gangline_execution::launcher::{Launcher, Presence};
use gangline_specs::config::Retention;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use tracing::{debug, info, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::clock::Stopwatch;
use super::code::CodeInUse;
use super::handle::Request;
use crate::folders::share_folder;
use crate::retention::{
    CautiousClock, DueLogs, DueLost, Plan, Planning, Removed, UNKNOWN_SINCE, Walk, name_of, open_folder, open_jobs,
    read_job_folder,
};
use gangline_store::db::{self, Reader};
use gangline_store::model::Removal;
use gangline_store::ports::Queries as _;

/// Time from the start to the first pass; a start is busy enough.
const FIRST_AFTER: Duration = Duration::from_mins(1);
/// Files removed in one burst.
const FILES_PER_BURST: u32 = 50;
/// Pause after a burst; the two limits allow 500 files a second at most.
const BURST_PAUSE: Duration = Duration::from_millis(100);
/// Removals sent to the control thread in one request.
const REMOVALS_PER_SLICE: usize = 100;
/// Pause after each such request.
const SLICE_PAUSE: Duration = Duration::from_millis(50);
/// The smallest difference from the system's clock that is logged.
const LAG_TOLD: Duration = Duration::from_hours(24);

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The service is stopping.
    #[error("the control plane stops")]
    Stopping,
    /// The journal has failed.
    #[error("the control plane can't remove rows now")]
    Refused,
    #[error(transparent)]
    Plan(#[from] crate::retention::Error),
}

impl From<db::Error> for Ended {
    fn from(error: db::Error) -> Ended {
        Ended::Plan(error.into())
    }
}

/// The services that a pass needs from outside.
pub(super) trait Surroundings {
    /// Has the control thread carry out removals; they are durable when this returns.
    fn remove(&mut self, removals: Vec<Removal>) -> Result<(), Ended>;
    /// Asks the control thread which copies of code live jobs need.
    fn code_in_use(&mut self) -> Result<CodeInUse, Ended>;
    /// Pauses, or returns an error if the service stops.
    fn rest(&mut self, pause: Duration) -> Result<(), Ended>;
}

/// What a pass has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) files: Removed,
    /// Number of jobs that lost files.
    pub(super) jobs_with_files: u64,
    pub(super) records: u64,
    pub(super) checkpoints: u64,
    /// The first thing that couldn't be removed, and why.
    pub(super) failure: Option<String>,
}

/// The state of the retention thread.
pub(super) struct Sweeper {
    pub(super) folder: PathBuf,
    pub(super) policy: Retention,
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) reader: Reader,
    /// The first job whose checkpoints may still be due for removal.
    pub(super) checkpoints_from: JobId,
    /// The last pass's failure, already logged.
    pub(super) told: Option<String>,
    /// Why the last pass ended early, already logged.
    pub(super) told_end: Option<String>,
}

/// The real surroundings: the channel to the control thread, and the stop signal.
struct Service {
    requests: SyncSender<Request>,
    stop: Receiver<()>,
}

impl Surroundings for Service {
    fn remove(&mut self, removals: Vec<Removal>) -> Result<(), Ended> {
        let (reply, answer) = sync_channel(1);
        self.requests.send(Request::Remove { removals, reply }).map_err(|_| Ended::Stopping)?;
        match answer.recv() {
            Ok(true) => self.rest(SLICE_PAUSE),
            Ok(false) => Err(Ended::Refused),
            Err(_) => Err(Ended::Stopping),
        }
    }

    fn code_in_use(&mut self) -> Result<CodeInUse, Ended> {
        let (reply, answer) = sync_channel(1);
        self.requests.send(Request::CodeInUse { reply }).map_err(|_| Ended::Stopping)?;
        answer.recv().map_err(|_| Ended::Stopping)
    }

    fn rest(&mut self, pause: Duration) -> Result<(), Ended> {
        match self.stop.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Err(Ended::Stopping),
        }
    }
}

/// Runs the thread until the other end of `stop` is dropped. `last_seen` is the last time known from before
/// this start.
pub(super) fn run(
    mut sweeper: Sweeper,
    (wall, last_seen): (fn() -> Timestamp, Timestamp),
    requests: SyncSender<Request>,
    stop: Receiver<()>,
) {
    let mut service = Service { requests, stop };
    let mut watch = Stopwatch::start();
    let noted = sweeper.reader.retention_clock().ok().flatten();
    let mut clock = CautiousClock::new(first_time(noted, last_seen, wall()), watch.elapsed());
    let mut is_lag_told = false;
    let every = sweeper.policy.every;
    let mut pause = FIRST_AFTER.min(every);
    while service.rest(pause).is_ok() {
        pause = every;
        let (shown, wall) = (wall(), watch.elapsed());
        let now = clock.at(shown, wall);
        let lag = shown.since(now);
        if lag >= LAG_TOLD && !is_lag_told {
            let days = lag.as_secs() / 86_400;
            warn!(
                days,
                "the system's clock has passed more time than the control plane has run: what is old is removed only by and by"
            );
        }
        is_lag_told = lag >= LAG_TOLD;
        let passed = service.remove(vec![Removal::Clock { at: now }]).and_then(|()| sweeper.pass(now, &mut service));
        if sweeper.tell_end(passed).is_err() {
            return;
        }
    }
}

/// Returns the time at which the cautious clock starts: the stored one, or else the journal's last time
/// before this start. A folder without a past has nothing to lose and takes the wall clock.
pub(super) fn first_time(noted: Option<Timestamp>, last_seen: Timestamp, wall: Timestamp) -> Timestamp {
    noted.unwrap_or(if last_seen == Timestamp::EPOCH { wall } else { last_seen })
}

impl Sweeper {
    /// Removes data that is due, and logs what was removed.
    pub(super) fn pass(&mut self, now: Timestamp, service: &mut dyn Surroundings) -> Result<(), Ended> {
        let mut outcome = Outcome::default();
        let ended = self.remove_due(now, service, &mut outcome);
        self.tell(&outcome);
        ended
    }

    /// Removes data that is due.
    pub(super) fn remove_due(
        &mut self,
        now: Timestamp,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        let Sweeper { reader, folder, policy, checkpoints_from, .. } = &*self;
        let checkpoints_from = *checkpoints_from;
        let plan = Planning { reader, folder, policy, now, checkpoints_from }.plan()?;
        self.remove_files(now, &plan, service, outcome)?;
        if self.remove_checkpoints(&plan.checkpoints, service, outcome)? {
            self.checkpoints_from = plan.checkpoints_from;
        }
        for (jobs, _) in plan.jobs {
            self.remove_records(jobs, service, outcome)?;
        }
        if let Some(beyond) = plan.beyond_max {
            let what = format!("the files of jobs that haven't ended are {beyond} more than retention.logs_max");
            outcome.failure.get_or_insert(what);
        }
        self.prune_code(now, service, outcome)
    }

    fn remove_files(
        &self,
        now: Timestamp,
        plan: &Plan,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        let opened = open_jobs(&self.folder);
        let Some(jobs) = opened.unwrap_or_else(|error| {
            outcome.failure.get_or_insert(format!("{}: {error}", self.folder.display()));
            None
        }) else {
            return Ok(());
        };
        for slice in plan.logs.chunks(REMOVALS_PER_SLICE) {
            let note =
                |due: &DueLogs| Removal::Logs { job: due.job, through: due.through, because: due.because.clone() };
            let notes: Vec<Removal> = slice.iter().filter(|due| !due.is_noted).map(note).collect();
            if !notes.is_empty() {
                service.remove(notes)?;
            }
            for due in slice {
                self.remove_attempts(&jobs, due, service, outcome)?;
                tidy_job(&jobs, due.job, plan.last_folder);
            }
        }
        for due in &plan.lost {
            self.remove_lost(&jobs, due, service, outcome)?;
            tidy_job(&jobs, due.job, plan.last_folder);
        }
        for job in &plan.unknown {
            mark_unknown(&jobs, *job, now, outcome);
        }
        for (job, mark) in &plan.marks {
            remove_tree(&jobs, *job, mark, service, outcome)?;
        }
        plan.bare.iter().for_each(|job| tidy_job(&jobs, *job, plan.last_folder));
        Ok(())
    }

    /// Removes the files of a job's attempts, as far as its durable record says that they are removed.
    fn remove_attempts(
        &self,
        jobs: &OwnedFd,
        due: &DueLogs,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        let noted = self.reader.kept(due.job)?;
        let noted = noted.filter(|kept| kept.ended_at.is_some()).map_or(0, |kept| kept.removed.logs_through());
        let Ok(found) = read_job_folder(jobs, due.job) else { return Ok(()) };
        outcome.jobs_with_files += 1;
        for attempt in found.attempts.range(..=noted.min(due.through)) {
            self.remove_attempt(jobs, (due.job, AttemptNumber(*attempt)), service, outcome)?;
        }
        Ok(())
    }

    /// Removes an attempt's folder, unless a supervisor may still use it.
    fn remove_attempt(
        &self,
        jobs: &OwnedFd,
        (job, attempt): (JobId, AttemptNumber),
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        let name = name_of(attempt);
        if let Some(about) = self.still_about(jobs, job, attempt) {
            outcome.files.left += 1;
            outcome.failure.get_or_insert(format!("{job}, {attempt}: {about}"));
            return Ok(());
        }
        remove_tree(jobs, job, &name, service, outcome)
    }

    /// Returns why a folder must stay although its attempt is over.
    fn still_about(&self, jobs: &OwnedFd, job: JobId, attempt: AttemptNumber) -> Option<String> {
        let folder = open_folder(jobs, &name_of(job)).and_then(|job| open_folder(&job, &name_of(attempt))).ok()?;
        for (node, _) in crate::retention::names(&folder).ok()?.into_iter().filter(|(_, is_folder)| *is_folder) {
            let Ok(node) = node.into_string() else { continue };
            let share = share_folder(&self.folder, job, attempt, &node);
            match self.launcher.presence(&share) {
                Ok(Presence::Gone | Presence::Withdrawn | Presence::Unable { .. }) => {}
                Ok(_) => return Some(format!("its supervisor on {node} may still run")),
                Err(failure) => {
                    return Some(format!(
                        "whether its supervisor on {node} runs isn't known: {}",
                        with_causes(&failure)
                    ));
                }
            }
        }
        None
    }

    fn remove_lost(
        &self,
        jobs: &OwnedFd,
        due: &DueLost,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        // A restore may have brought the job's record back; then the job may not have ended.
        let is_live = self.reader.kept(due.job);
        if is_live?.is_some_and(|kept| kept.ended_at.is_none()) {
            return Ok(());
        }
        outcome.jobs_with_files += 1;
        let number = due.name.to_str().ok().and_then(|name| name.strip_prefix("attempt-")?.parse().ok());
        match number.map(AttemptNumber) {
            Some(attempt) => self.remove_attempt(jobs, (due.job, attempt), service, outcome)?,
            None => remove_tree(jobs, due.job, &due.name, service, outcome)?,
        }
        Ok(())
    }

    /// Reports whether the job has ended by its durable record.
    pub(super) fn has_ended(&self, job: JobId) -> Result<bool, Ended> {
        let kept = self.reader.kept(job)?;
        Ok(kept.is_some_and(|kept| kept.ended_at.is_some()))
    }

    /// Removes the records of a range of jobs.
    fn remove_records(
        &self,
        jobs: std::ops::Range<JobId>,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        outcome.records += jobs.end.0 - jobs.start.0;
        service.remove(vec![Removal::Jobs { jobs }])
    }

    /// Logs why a pass ended early, if the reason is new. Returns an error if the service stops.
    fn tell_end(&mut self, passed: Result<(), Ended>) -> Result<(), Ended> {
        let why = match passed {
            Ok(()) => None,
            Err(Ended::Stopping) => return Err(Ended::Stopping),
            Err(ended) => Some(with_causes(&ended)),
        };
        if let Some(why) = why.as_ref().filter(|why| self.told_end.as_ref() != Some(why)) {
            warn!("what is old stays until a later pass: {why}");
        }
        self.told_end = why;
        Ok(())
    }

    /// Logs one line for a pass, and one for a failure if that is new.
    fn tell(&mut self, outcome: &Outcome) {
        let Outcome { files, jobs_with_files, records, checkpoints, failure } = outcome;
        if files.entries + records + checkpoints > 0 {
            let (files, bytes) = (files.entries, Bytes(files.bytes));
            info!(files, %bytes, jobs = jobs_with_files, records, checkpoints, "removed what was old");
        } else {
            debug!("nothing was old");
        }
        if let Some(failure) = failure.as_ref().filter(|failure| self.told.as_ref() != Some(failure)) {
            warn!(left = files.left, "something old can't be removed: {failure}");
        }
        self.told.clone_from(failure);
    }
}

/// Removes a file or folder from a job's folder.
fn remove_tree(
    jobs: &OwnedFd,
    job: JobId,
    name: &std::ffi::CStr,
    service: &mut dyn Surroundings,
    outcome: &mut Outcome,
) -> Result<(), Ended> {
    let Ok(folder) = open_folder(jobs, &name_of(job)) else { return Ok(()) };
    let (mut burst, mut ended) = (0, None);
    let mut ask = || {
        burst += 1;
        if burst % FILES_PER_BURST != 0 {
            return Ok(());
        }
        service.rest(BURST_PAUSE).map_err(|why| {
            ended = Some(why);
            io::Error::other("stopped")
        })
    };
    let mut walk = Walk::removing(&mut ask);
    // Fails only if `ask` stopped the walk; `ended` then holds the reason.
    let _ = walk.tree(folder.as_fd(), name);
    let (removed, failure) = (walk.removed, walk.failure);
    outcome.files.add(removed);
    if let Some(failure) = failure {
        outcome.failure.get_or_insert(format!("{job}, {}: {failure}", name.to_string_lossy()));
    }
    ended.map_or(Ok(()), Err)
}

/// Removes a job's folder if it is empty, except the last job's folder.
fn tidy_job(jobs: &OwnedFd, job: JobId, last_folder: Option<JobId>) {
    let Ok(found) = read_job_folder(jobs, job) else { return };
    if found.attempts.is_empty()
        && let Ok(folder) = open_folder(jobs, &name_of(job))
    {
        // A mark that can't be removed now is tried again with the next removal in this folder.
        for (_, mark) in &found.marks {
            let _ = unlinkat(&folder, mark, AtFlags::empty());
        }
    }
    if last_folder != Some(job) {
        // Fails if the folder isn't empty, which then stays.
        let _ = unlinkat(jobs, name_of(job), AtFlags::REMOVEDIR);
    }
}

/// Notes in the folder of an unknown job since when the job is unknown.
fn mark_unknown(jobs: &OwnedFd, job: JobId, now: Timestamp, outcome: &mut Outcome) {
    let name = name_of(format!("{UNKNOWN_SINCE}{}", now.unix_nanos()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let marked = open_folder(jobs, &name_of(job))
        .and_then(|folder| Ok(openat(&folder, &name, flags, Mode::from_raw_mode(0o600))?));
    if let Err(error) = marked {
        outcome.failure.get_or_insert(format!("{job}: {error}"));
    }
}

impl Actor {
    /// Removes rows with the next commit, which follows at once.
    pub(super) fn remove(&mut self, removals: Vec<Removal>, reply: SyncSender<bool>, batch: &mut Batch) {
        if self.journal.poison().is_none() {
            self.rows.removals.extend(removals);
        }
        batch.answers.push(Box::new(move |committed| {
            // The thread may have been told to stop.
            let _ = reply.send(committed.is_ok());
        }));
    }
}
