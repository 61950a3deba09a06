//! Starting supervisors for placed gangs, on a thread of its own, since launching may take time. If the
//! system that starts a gang is unavailable for a while, the launch is repeated at no cost to the job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeName, Program, Timestamp, with_causes};
use gangline_execution::endpoint::ENDPOINT_FILE;
use gangline_execution::launcher::{LaunchError, Launcher};
use gangline_execution::protocol::{
    AgentSpec, CACHE_QUOTA, ContainerSpec, FaultCause, PROTOCOL_VERSION, SupervisorSpec,
};
use gangline_orchestration::{Event, Share, ShareEnd, ShareState};
use tracing::{debug, error, info, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Request;
use super::looks::ShareKey;
use super::troubles::Kind;
use crate::code;
use crate::folders::{checkpoint_folder, share_folder};
use crate::reported::{cause_as_fault, cause_record};
use gangline_store::codec::hang_timeout_ms;

/// Gangs that may wait for the launching thread.
pub(super) const LAUNCHES_MAX: usize = 65_536;
/// Size at which a rank's log is rotated; twice this is kept of each.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Pause after the first failed try to start a gang, when the launcher's system lacks something or doesn't
/// answer; doubled each time.
const RELAUNCH_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between two tries.
const RELAUNCH_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Tries, about a minute in all, after which a partly started gang is placed again as a whole. Otherwise the
/// patience of the started supervisors would run out, which would count as the job's fault.
const TRIES_BESIDE_PEERS: u32 = 6;

/// The outcome of launching one share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaunchOutcome {
    Started,
    /// The launch failed and may be tried again later.
    Later(String),
    Failed(String),
}

impl From<Result<(), LaunchError>> for LaunchOutcome {
    fn from(launched: Result<(), LaunchError>) -> Self {
        match launched {
            Ok(()) => LaunchOutcome::Started,
            Err(failure) if failure.is_platforms() => LaunchOutcome::Later(with_causes(&failure)),
            Err(failure) => LaunchOutcome::Failed(with_causes(&failure)),
        }
    }
}

/// Runs the launching thread: starts each gang and tells the service.
pub(super) fn run(
    data: &Path,
    launcher: &Arc<dyn Launcher>,
    gangs: &Receiver<Vec<SupervisorSpec>>,
    service: &SyncSender<Request>,
) {
    for gang in gangs {
        let launched = match unpack_code(data, &gang) {
            Ok(()) => launcher.launch(&gang).into_iter().map(LaunchOutcome::from).collect(),
            Err(failure) => {
                let outcome = LaunchOutcome::from(Err(failure));
                vec![outcome; gang.len()]
            }
        };
        let outcomes: Vec<LaunchOutcome> = launched;
        for (spec, outcome) in gang.iter().zip(&outcomes) {
            if let LaunchOutcome::Failed(message) | LaunchOutcome::Later(message) = outcome {
                let (job, attempt, node) = (spec.job, spec.attempt, &spec.node);
                warn!(job, attempt, node, message, "a supervisor could not be started");
            }
        }
        if service.send(Request::Launched { gang: gang.into_iter().zip(outcomes).collect() }).is_err() {
            return;
        }
    }
}

/// Unpacks the copy of the code in which a gang is to run, if it runs in one.
fn unpack_code(data: &Path, gang: &[SupervisorSpec]) -> Result<(), LaunchError> {
    let Some(spec) = gang.first() else { return Ok(()) };
    let failed =
        |source| LaunchError::Folder { doing: "unpack the job's code into", path: spec.workdir.clone(), source };
    code::unpack(data, &spec.workdir).map_err(failed)
}

impl Actor {
    /// Returns the folder of a share's supervisor.
    pub(super) fn share_folder(&self, job: JobId, attempt: AttemptNumber, node: &str) -> PathBuf {
        share_folder(&self.options.folder, job, attempt, node)
    }

    /// Returns the specs for the supervisors of a gang, one per node.
    pub(super) fn supervisor_specs(&self, job: JobId, attempt: AttemptNumber, shares: &[Share]) -> Vec<SupervisorSpec> {
        let (Some(live), Some(record)) = (self.engine.job(job), self.records.get(&job)) else { return Vec::new() };
        let spec = &self.engine.own_spec(live);
        let current = live.attempt().filter(|current| current.number == attempt);
        let epoch = current.map_or(self.engine.epoch(), |current| current.epoch);
        let timing = &self.options.timing;
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut envs = spec.program.envs.clone();
        if let Some(quota) = self.options.cache_quota(&record.queue) {
            envs.insert(CACHE_QUOTA.to_owned(), quota);
        }
        let node_count = u32::try_from(shares.len()).expect("a gang has fewer than 2^32 nodes");
        (0..)
            .zip(shares)
            .map(|(node_rank, share)| {
                let node = self.node_name(share.node);
                let config = self.options.nodes.iter().find(|config| config.name.as_str() == node);
                SupervisorSpec {
                    version: PROTOCOL_VERSION,
                    job: job.0,
                    job_name: spec.name.clone(),
                    queue: record.queue.to_string(),
                    attempt: attempt.0,
                    epoch: epoch.0,
                    node_rank,
                    node_count,
                    ranks_per_node: spec.gang.ranks_per_node(),
                    devices: share.devices.clone(),
                    device_kind: spec.gang.accelerator.to_string(),
                    keeps_visible_devices: false,
                    cpus: share.cpus,
                    memory_bytes: share.memory.0,
                    time_limit_ms: spec.time_limit.map(millis),
                    workdir: self.workdir(job, &spec.program),
                    envs: envs.clone(),
                    container: spec.program.container.as_ref().map(ContainerSpec::from),
                    setup: spec.program.setup.clone(),
                    run: spec.program.run.clone(),
                    checkpoint_dir: Some(checkpoint_folder(&self.options.folder, job, spec.checkpoint.path.as_deref())),
                    faults: live.faults,
                    max_faults: spec.recovery.max_faults,
                    metric: self.engine.metric_of(live).map(str::to_owned),
                    high_water_step: record.high_water_step,
                    restore_below: live.rollback.and_then(|rollback| rollback.below).map(|step| step.0),
                    skip_data_through: live
                        .rollback
                        .filter(|rollback| rollback.skips_data)
                        .map(|rollback| rollback.until.map_or(record.high_water_step, |step| step.0)),
                    token: self.options.secrets.attempt_token(job, attempt, epoch),
                    endpoint_file: self.options.folder.join(ENDPOINT_FILE),
                    folder: self.share_folder(job, attempt, &node),
                    address: config.map_or_else(|| "127.0.0.1".to_owned(), |config| config.address.clone()),
                    heartbeat_ms: millis(timing.heartbeat),
                    orphan_after_ms: millis(timing.orphan_after),
                    notice_source: self.options.notice_source.clone(),
                    hang_timeout_ms: hang_timeout_ms(spec.recovery.hang_timeout),
                    end_wait_ms: None,
                    agent: self.agent_spec(&node),
                    log_bytes_max: LOG_BYTES_MAX,
                    node,
                }
            })
            .collect()
    }

    /// Returns what a supervisor needs to start an agent for its node; none if supervisors start no agents.
    fn agent_spec(&self, node: &str) -> Option<AgentSpec> {
        let (every, name) = (self.options.agent_every?, NodeName::new(node).ok()?);
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        Some(AgentSpec { token: self.options.secrets.agent_token(&name), every_ms })
    }

    /// Returns the folder in which a job runs: its own, or that of its copy of the code.
    fn workdir(&self, job: JobId, program: &Program) -> PathBuf {
        match &program.code {
            Some(code) => code::folder_of(&self.options.folder, job, code),
            None => PathBuf::from(&program.workdir),
        }
    }

    pub(super) fn start_launch(&mut self, gang: Vec<SupervisorSpec>) {
        let shares: Vec<_> = gang.iter().filter_map(share_of).collect();
        match self.launches.try_send(gang) {
            Ok(()) => self.launching.extend(shares),
            Err(_) => error!("a launch was dropped; the watch will find its supervisors missing"),
        }
    }

    /// Reports whether the launching thread has yet to start a share, or the start is to be repeated.
    pub(super) fn is_launching(&self, spec: &SupervisorSpec) -> bool {
        share_of(spec).is_some_and(|share| self.launching.contains(&share))
    }

    /// Takes in the outcome of a gang's launch. The leases of its supervisors begin now.
    pub(super) fn launched(&mut self, now: Timestamp, gang: Vec<(SupervisorSpec, LaunchOutcome)>, batch: &mut Batch) {
        let mut later = Vec::new();
        for (spec, outcome) in gang {
            let Some(share) = share_of(&spec) else { continue };
            if !self.is_current(&share) {
                self.launching.remove(&share);
                continue;
            }
            let (job, attempt, node) = share.clone();
            match outcome {
                LaunchOutcome::Later(message) => {
                    self.troubles.note(now, &node, Kind::Launch, format!("supervisors can't be started: {message}"));
                    self.note_wait(now, job, &message);
                    later.push(spec);
                    continue;
                }
                LaunchOutcome::Failed(message) if self.journal.poison().is_none() => {
                    let text = format!("could not start on {node}: {message}");
                    let lost = LostShare { job, attempt, node, cause: FaultCause::Start { message }, text };
                    self.share_failed(now, &lost, batch);
                }
                LaunchOutcome::Started => self.troubles.clear(&share.2, Kind::Launch),
                LaunchOutcome::Failed(_) => {}
            }
            self.launching.remove(&share);
            self.contacts.hear(share.0, share.2, now, &self.options.timing);
        }
        self.launch_later(now, later, batch);
    }

    /// Schedules another try for shares that could not be started, through no fault of the job. After the last
    /// try, ends them if other shares of the gang were started.
    fn launch_later(&mut self, now: Timestamp, later: Vec<SupervisorSpec>, batch: &mut Batch) {
        let Some((job, ..)) = later.first().and_then(share_of) else { return };
        let tries = &mut self.runtimes.of(job).failed_starts;
        *tries += 1;
        let pause = RELAUNCH_PAUSE.saturating_mul(1 << (*tries - 1).min(16)).min(RELAUNCH_PAUSE_MAX);
        let is_last = *tries >= TRIES_BESIDE_PEERS;
        let peers = self.engine.job(job).and_then(|job| job.attempt()).map_or(0, |current| current.shares.len());
        if !is_last || peers <= later.len() {
            self.relaunches.push((now + pause, later));
            return;
        }
        for share in later.iter().filter_map(share_of) {
            self.launching.remove(&share);
            let text = format!("could not be started on {} in time, through no fault of its own", share.2);
            self.share_not_started(now, &share, (ShareEnd::Unable, text), batch);
        }
    }

    /// Retries launches that are due, and withdraws those that are no longer wanted.
    pub(super) fn relaunch(&mut self, now: Timestamp, batch: &mut Batch) {
        let (due, later) = std::mem::take(&mut self.relaunches).into_iter().partition(|(at, _)| *at <= now);
        self.relaunches = later;
        let due: Vec<(Timestamp, Vec<SupervisorSpec>)> = due;
        for (_, gang) in due {
            let (wanted, unwanted): (Vec<_>, Vec<_>) = gang.into_iter().partition(|spec| self.is_wanted(spec));
            for share in unwanted.iter().filter_map(share_of) {
                self.launching.remove(&share);
                self.share_withdrawn(now, &share, batch);
            }
            if !wanted.is_empty() {
                self.start_launch(wanted);
            }
        }
    }

    fn is_wanted(&self, spec: &SupervisorSpec) -> bool {
        let current = self.engine.job(JobId(spec.job)).and_then(|job| job.attempt());
        current.is_some_and(|current| current.number.0 == spec.attempt && current.stop.is_none())
    }

    fn is_current(&self, (job, attempt, _): &(JobId, AttemptNumber, NodeName)) -> bool {
        let current = self.engine.job(*job).and_then(|job| job.attempt());
        current.is_some_and(|current| current.number == *attempt)
    }

    /// Shows why a gang that isn't started yet waits.
    pub(super) fn note_wait(&mut self, now: Timestamp, job: JobId, why: &str) {
        let wait = &mut self.runtimes.of(job).wait;
        if wait.as_deref() == Some(why) {
            return;
        }
        *wait = Some(why.to_owned());
        info!(%job, why, "a gang waits to be started");
        if let Some(record) = self.records.get_mut(&job) {
            record.note(now, format!("waits to be started: {why}"));
            self.rows.jobs.insert(job);
        }
    }

    /// Ends a share that was taken out of the queue of the launcher's system.
    pub(super) fn share_withdrawn(&mut self, now: Timestamp, share: &ShareKey, batch: &mut Batch) {
        let text = format!("could not be started on {} in time, and waits again", share.2);
        self.share_not_started(now, share, (ShareEnd::Withdrawn, text), batch);
    }

    /// Ends a share that was never started. That is no fault of the job: it is requeued, unless it was to
    /// stop anyway.
    pub(super) fn share_not_started(
        &mut self,
        now: Timestamp,
        (job, attempt, node): &ShareKey,
        (end, text): (ShareEnd, String),
        batch: &mut Batch,
    ) {
        let Some(current) = self.engine.job(*job).and_then(|job| job.attempt()) else { return };
        let Some(id) = self.engine.node_id(node).filter(|_| current.number == *attempt) else { return };
        let is_live = current.share_index(id).is_some_and(|at| !matches!(current.states[at], ShareState::Ended(_)));
        if !is_live {
            return;
        }
        let end = if current.stop.is_some() { ShareEnd::Stopped } else { end };
        if end == ShareEnd::Withdrawn {
            self.await_explanation(now, (*job, *attempt, node.as_str()));
        }
        let event = Event::ShareEnded { job: *job, attempt: *attempt, node: id, end };
        if let Err(refusal) = self.apply(now, event, batch) {
            error!(%job, %refusal, "a share that was never started could not end");
        }
        // The note follows the decisions, so that it is the reason shown.
        if let Some(record) = self.records.get_mut(job).filter(|record| !record.state.is_final()) {
            record.note(now, text);
            self.rows.jobs.insert(*job);
        }
    }

    /// Ends a share whose supervisor can no longer report how it ended. A share that has ended stays as it
    /// was.
    pub(super) fn share_failed(&mut self, now: Timestamp, lost: &LostShare, batch: &mut Batch) {
        let LostShare { job, attempt, node, cause, text } = lost;
        let Some(id) = self.engine.node_id(node) else { return };
        let current = self.engine.job(*job).and_then(|job| job.attempt()).filter(|current| current.number == *attempt);
        let is_live = current.is_some_and(|current| {
            let index = current.share_index(id);
            index.is_some_and(|index| !matches!(current.states[index], ShareState::Ended(_)))
        });
        if !is_live {
            debug!(%job, %node, "a share's failure came too late");
            return;
        }
        if let Some(record) = self.records.get_mut(job) {
            record.note(now, text.clone());
            record.share_failed(now, node.as_str(), cause_record(cause.clone()));
            self.rows.jobs.insert(*job);
        }
        let end = ShareEnd::fault(cause_as_fault(cause), now);
        let event = Event::ShareEnded { job: *job, attempt: *attempt, node: id, end };
        if let Err(refusal) = self.apply(now, event, batch) {
            error!(%job, %refusal, "a live share could not end");
        }
    }
}

/// A share that ended without a report of its own.
pub(super) struct LostShare {
    pub(super) job: JobId,
    pub(super) attempt: AttemptNumber,
    pub(super) node: NodeName,
    pub(super) cause: FaultCause,
    /// The text for the job's history.
    pub(super) text: String,
}

fn share_of(spec: &SupervisorSpec) -> Option<(JobId, AttemptNumber, NodeName)> {
    let node = NodeName::new(&spec.node).ok()?;
    Some((JobId(spec.job), AttemptNumber(spec.attempt), node))
}
