//! Starting supervisors for gangs that have been placed. Launching may take time, so it has a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use gangline_base::{AttemptNumber, JobId, JobSpec, NodeName, Timestamp};
use gangline_execution::launcher::Launcher;
use gangline_execution::protocol::{PROTOCOL_VERSION, SupervisorSpec};
use gangline_orchestration::{Event, FaultCause, Share, ShareEnd};
use tracing::{debug, error, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::handle::Request;
use crate::ENDPOINT_FILE;

/// Launches that may wait for the launching thread.
pub(super) const LAUNCHES_MAX: usize = 65_536;
/// A rank's log is rotated at this size, so twice this is kept of each.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// The launching thread: starts each supervisor and tells the service of failures.
pub(super) fn run(launcher: &Arc<dyn Launcher>, specs: &Receiver<SupervisorSpec>, service: &SyncSender<Request>) {
    for spec in specs {
        if let Err(failure) = launcher.launch(&spec) {
            let message = failure.to_string();
            let (job, attempt, node) = (spec.job, spec.attempt, &spec.node);
            warn!(job, attempt, node, message, "a supervisor could not be started");
            if service.send(Request::LaunchFailed { spec: Box::new(spec), message }).is_err() {
                return;
            }
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
        let node_count = spec.gang.nodes.get();
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
                    checkpoint_dir: Some(self.checkpoint_folder(job, spec)),
                    faults: live.faults,
                    max_faults: spec.recovery.max_faults,
                    high_water_step: record.high_water_step,
                    token: self.options.secrets.attempt_token(job, attempt),
                    endpoint_file: self.options.folder.join(ENDPOINT_FILE),
                    folder: self.share_folder(job, attempt, &node),
                    address: config.map_or_else(|| "127.0.0.1".to_owned(), |config| config.address.clone()),
                    heartbeat_ms: millis(timing.heartbeat),
                    orphan_after_ms: millis(timing.orphan_after),
                    log_bytes_max: LOG_BYTES_MAX,
                    node,
                }
            })
            .collect()
    }

    /// Where a job saves: where it says, or a folder of its own in the data folder.
    fn checkpoint_folder(&self, job: JobId, spec: &JobSpec) -> PathBuf {
        let own = || self.options.folder.join("checkpoints").join(job.to_string());
        spec.checkpoint.path.as_ref().map_or_else(own, PathBuf::from)
    }

    pub(super) fn start_launch(&self, spec: SupervisorSpec) {
        if self.launches.try_send(spec).is_err() {
            error!("a launch was dropped; the watch will find its supervisor missing");
        }
    }

    pub(super) fn launch_failed(&mut self, now: Timestamp, spec: &SupervisorSpec, message: String, batch: &mut Batch) {
        if self.journal.poison().is_some() {
            return;
        }
        let (job, attempt) = (JobId(spec.job), AttemptNumber(spec.attempt));
        let Some(node) = NodeName::new(&spec.node).ok().and_then(|name| self.engine.node_id(&name)) else { return };
        let end = ShareEnd::Fault { cause: FaultCause::Start, at: now };
        if let Some(record) = self.records.get_mut(&job) {
            record.note(now, format!("could not start on {}: {message}", spec.node));
        }
        if let Err(refusal) = self.apply(now, Event::ShareEnded { job, attempt, node, end }, batch) {
            debug!(%job, %refusal, "a failed launch came too late");
        }
    }
}

/// Where a share's supervisor keeps its files below the data folder.
pub(crate) fn share_folder(data: &std::path::Path, job: JobId, attempt: AttemptNumber, node: &str) -> PathBuf {
    data.join("jobs").join(job.to_string()).join(attempt.to_string()).join(node)
}
