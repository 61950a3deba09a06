//! Starting supervisors for gangs that have been placed. Launching may take time, so it has a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp, with_causes};
use gangline_execution::launcher::Launcher;
use gangline_execution::protocol::{FaultCause, PROTOCOL_VERSION, SupervisorSpec};
use gangline_orchestration::{Event, Share, ShareEnd, ShareState};
use tracing::{debug, error, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Request;
use crate::ENDPOINT_FILE;
use crate::codec::hang_timeout_ms;
use crate::model::{cause_as_fault, checkpoint_folder};

/// Launches that may wait for the launching thread.
pub(super) const LAUNCHES_MAX: usize = 65_536;
/// A rank's log is rotated at this size, so twice this is kept of each.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// The launching thread: starts each supervisor and tells the service.
pub(super) fn run(launcher: &Arc<dyn Launcher>, specs: &Receiver<SupervisorSpec>, service: &SyncSender<Request>) {
    for spec in specs {
        let failure = launcher.launch(&spec).err().map(|failure| with_causes(&failure));
        if let Some(message) = &failure {
            let (job, attempt, node) = (spec.job, spec.attempt, &spec.node);
            warn!(job, attempt, node, message, "a supervisor could not be started");
        }
        if service.send(Request::Launched { spec: Box::new(spec), failure }).is_err() {
            return;
        }
    }
}

impl Actor {
    /// Where a share's supervisor keeps its files.
    pub(super) fn share_folder(&self, job: JobId, attempt: AttemptNumber, node: &str) -> PathBuf {
        share_folder(&self.options.folder, job, attempt, node)
    }

    /// What each node of a gang is told.
    pub(super) fn supervisor_specs(&self, job: JobId, attempt: AttemptNumber, shares: &[Share]) -> Vec<SupervisorSpec> {
        let (Some(live), Some(record)) = (self.engine.job(job), self.records.get(&job)) else { return Vec::new() };
        let spec = &live.spec;
        let timing = &self.options.timing;
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
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
                    attempt: attempt.0,
                    node_rank,
                    node_count,
                    ranks_per_node: spec.gang.ranks_per_node(),
                    devices: share.devices.clone(),
                    device_kind: spec.gang.accelerator.to_string(),
                    workdir: PathBuf::from(&spec.program.workdir),
                    envs: spec.program.envs.clone(),
                    setup: spec.program.setup.clone(),
                    run: spec.program.run.clone(),
                    checkpoint_dir: Some(checkpoint_folder(&self.options.folder, job, spec.checkpoint.path.as_deref())),
                    faults: live.faults,
                    max_faults: spec.recovery.max_faults,
                    metric: self.engine.metric_of(live).map(str::to_owned),
                    high_water_step: record.high_water_step,
                    token: self.options.secrets.attempt_token(job, attempt),
                    endpoint_file: self.options.folder.join(ENDPOINT_FILE),
                    folder: self.share_folder(job, attempt, &node),
                    address: config.map_or_else(|| "127.0.0.1".to_owned(), |config| config.address.clone()),
                    heartbeat_ms: millis(timing.heartbeat),
                    orphan_after_ms: millis(timing.orphan_after),
                    hang_timeout_ms: hang_timeout_ms(spec.recovery.hang_timeout),
                    log_bytes_max: LOG_BYTES_MAX,
                    node,
                }
            })
            .collect()
    }

    pub(super) fn start_launch(&mut self, spec: SupervisorSpec) {
        let share = share_of(&spec);
        match self.launches.try_send(spec) {
            Ok(()) => self.launching.extend(share),
            Err(_) => error!("a launch was dropped; the watch will find its supervisor missing"),
        }
    }

    /// The launching thread is done with a share. Its supervisor's lease begins now.
    pub(super) fn launched(
        &mut self,
        now: Timestamp,
        spec: &SupervisorSpec,
        failure: Option<String>,
        batch: &mut Batch,
    ) {
        let Some((job, attempt, node)) = share_of(spec) else { return };
        self.launching.remove(&(job, attempt, node.clone()));
        let current = self.engine.job(job).and_then(|job| job.attempt());
        if current.is_none_or(|current| current.number != attempt) {
            return;
        }
        self.contacts.insert((job, node.clone()), now);
        let Some(message) = failure else { return };
        if self.journal.poison().is_some() {
            return;
        }
        let text = format!("could not start on {node}: {message}");
        self.share_failed(now, &LostShare { job, attempt, node, cause: FaultCause::Start { message }, text }, batch);
    }

    /// Takes in that a share's supervisor can't say any more how it ended. A share that has ended stays as it was.
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
            record.share_failed(now, node.as_str(), cause.clone());
            self.rows.jobs.insert(*job);
        }
        let end = ShareEnd::Fault { cause: cause_as_fault(cause), at: now };
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
    /// For the job's history.
    pub(super) text: String,
}

fn share_of(spec: &SupervisorSpec) -> Option<(JobId, AttemptNumber, NodeName)> {
    let node = NodeName::new(&spec.node).ok()?;
    Some((JobId(spec.job), AttemptNumber(spec.attempt), node))
}

/// Where a share's supervisor keeps its files below the data folder.
pub(crate) fn share_folder(data: &std::path::Path, job: JobId, attempt: AttemptNumber, node: &str) -> PathBuf {
    data.join("jobs").join(job.to_string()).join(attempt.to_string()).join(node)
}
