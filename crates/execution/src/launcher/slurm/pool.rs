//! A standing allocation: one Slurm job holds each whole node, and gangs run inside as steps. So a restart, a
//! swap for a spare or a resize never waits in Slurm's queue, and the engine chooses a gang's GPUs.
//!
//! One job for each node, not one for all: a failed node takes no other down, and the pool grows and shrinks
//! by nodes. A holding job is identified by its comment, `DATA/pool/NODE`; the control plane keeps no list,
//! so after a restart it finds the jobs again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::jobs::{SlurmJob, Stage};
use super::nodes::SlurmNode;
use super::record::{self, Record};
use super::script::{self, STEP_PREFIX, Slice};
use super::snapshot::Snapshot;
use super::{SLURM, SlurmLauncher, SlurmOptions};
use crate::launcher::spec::{failed, write_spec};
use crate::launcher::{LaunchError, Openness};
use crate::protocol::SupervisorSpec;

/// The script of a holding job: it waits to be cancelled. The job's steps do the work.
const HOLD: &str = "#!/bin/bash\n# Written by Gangline: holds a node for gangs. scancel --name=gangline-pool gives all back.\nexec sleep infinity\n";
/// Delay before a node is requested again after Slurm refused its holding job, or the job ended at once.
const HOLD_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// A step that doesn't exist this long after its `srun` was started never will: `srun` gives up sooner.
pub(super) const STEP_START_MAX: Duration = Duration::from_mins(1);

/// How gangs get resources from Slurm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Each attempt has a job of its own.
    #[default]
    Job,
    /// Gangs are steps in jobs that hold whole nodes.
    Pool {
        /// Number of nodes to hold; none: all of them.
        nodes: Option<u32>,
    },
}

impl Allocation {
    pub(super) fn is_pool(self) -> bool {
        matches!(self, Allocation::Pool { .. })
    }
}

/// Returns the comment of the job that holds a node.
pub(super) fn comment(options: &SlurmOptions, node: &str) -> PathBuf {
    options.folder.join("pool").join(node)
}

fn is_holder(options: &SlurmOptions, job: &SlurmJob) -> bool {
    Path::new(&job.comment).starts_with(options.folder.join("pool"))
}

/// Reports whether nodes are held for a pool.
pub(super) fn has_holders(options: &SlurmOptions, snapshot: &Snapshot) -> bool {
    snapshot.live_jobs().any(|job| is_holder(options, job))
}

/// Reports whether a job of the pool is on a node, or about to be.
pub(super) fn is_held(options: &SlurmOptions, snapshot: &Snapshot, node: &str) -> bool {
    snapshot.job_of(&comment(options, node), None).is_some()
}

/// Returns whether gangs may start on a node of a pool that is open in Slurm.
pub(super) fn openness(options: &SlurmOptions, snapshot: &Snapshot, node: &str) -> Openness {
    let because = match snapshot.job_of(&comment(options, node), None) {
        Some(job) if job.stage == Stage::Holding => return Openness::Open,
        Some(job) if job.stage == Stage::Completing => "the pool's job on it is ending".to_owned(),
        Some(job) => format!("the pool's job on it is in Slurm's queue: {}", job.reason),
        None => "the pool doesn't hold it".to_owned(),
    };
    Openness::Closed { because }
}

impl SlurmLauncher {
    /// Requests the nodes that the pool lacks, and releases those that are unreachable: the control plane
    /// treats what runs on them as dead, and Slurm then makes sure that it is.
    pub(super) fn hold(&self, snapshot: &Snapshot, limit: Option<u32>) -> Result<(), LaunchError> {
        let held = |node: &&SlurmNode| snapshot.job_of(&comment(&self.options, &node.name), None);
        let (with, mut without): (Vec<&SlurmNode>, Vec<_>) = snapshot.nodes().partition(|node| held(node).is_some());
        for job in with.iter().filter(|node| self.is_deaf(&node.name)).filter_map(held) {
            if job.stage == Stage::Holding {
                self.end_job(job)?;
            }
        }
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        without.retain(|node| node.openness() == Openness::Open && !self.is_deaf(&node.name));
        // Free nodes are available at once.
        without.sort_by_key(|node| node.cpus_used);
        for node in without.into_iter().take(limit.saturating_sub(with.len())) {
            let asked_at = self.state().held_at.get(&node.name).copied();
            if asked_at.is_some_and(|at| at >= snapshot.at || at.elapsed() < HOLD_AGAIN_AFTER) {
                continue;
            }
            let mut state = self.state();
            state.held_at.insert(node.name.clone(), Instant::now());
            state.pace.changed();
            drop(state);
            if let Err(failure) = self.hold_node(node) {
                tracing::warn!(node = node.name, failure = %gangline_base::with_causes(&failure), "Slurm doesn't give a node to the pool");
            }
        }
        Ok(())
    }

    fn hold_node(&self, node: &SlurmNode) -> Result<(), LaunchError> {
        let folder = self.options.folder.join("pool");
        fs::create_dir_all(&folder).map_err(|source| failed("create", &folder, source))?;
        let script = record::write_script(&folder, HOLD)?;
        let mut arguments = vec![
            "--parsable".to_owned(),
            "--no-requeue".to_owned(),
            "--job-name=gangline-pool".to_owned(),
            format!("--comment={}", comment(&self.options, &node.name).display()),
            "--nodes=1".to_owned(),
            "--ntasks=1".to_owned(),
            format!("--nodelist={}", node.name),
            "--exclusive".to_owned(),
            "--mem=0".to_owned(),
            format!("--chdir={}", folder.display()),
            "--output=/dev/null".to_owned(),
        ];
        arguments.extend(Slice::whole(node).gres.map(|gres| format!("--gres={gres}")));
        // A holding job runs until it is cancelled, or as long as the partition lets it.
        arguments.extend(self.limits().time(None).map(|time| format!("--time={time}")));
        arguments.extend(script::account(&self.options.job));
        arguments.push(script.display().to_string());
        self.programs.run("sbatch", &arguments).map(|_| ())
    }

    /// Releases idle nodes that an earlier control plane held.
    pub(super) fn release(&self, snapshot: &Snapshot) -> Result<(), LaunchError> {
        let is_left = |job: &&SlurmJob| is_holder(&self.options, job) && job.stage != Stage::Completing;
        let is_idle = |job: &&SlurmJob| !snapshot.steps_of(job.id).any(|step| step.name.starts_with(STEP_PREFIX));
        snapshot.live_jobs().filter(is_left).filter(is_idle).try_for_each(|job| self.end_job(job))
    }

    /// Starts the supervisor of a share as a step of the job that holds its node. `srun` runs independently:
    /// neither it nor the step depends on the control plane.
    pub(super) fn start_step(&self, spec: &SupervisorSpec) -> Result<(), LaunchError> {
        if record::is_announced(&spec.folder) {
            return Ok(());
        }
        let snapshot = match self.state().snapshot.clone() {
            Some(snapshot) => snapshot,
            None => self.look()?,
        };
        let holder = snapshot.job_of(&comment(&self.options, &spec.node), None);
        let held = snapshot.node(&spec.node).zip(holder.filter(|job| job.stage == Stage::Holding));
        let message = || format!("the pool doesn't hold {} now", spec.node);
        let (node, job) = held.ok_or_else(|| LaunchError::Unavailable { system: SLURM, message: message() })?;
        write_spec(&SupervisorSpec { keeps_visible_devices: false, address: node.address.clone(), ..spec.clone() })?;
        let text = script::script(std::slice::from_ref(spec), &Slice::whole(node), &self.options.program, Some(job.id));
        let path = record::write_script(&spec.folder, &text)?;
        Record { job: job.id }.write(&spec.folder)?;
        record::announce(&spec.folder)?;
        let mut state = self.state();
        state.waiting_since.insert(spec.folder.clone(), Instant::now());
        state.pace.changed();
        drop(state);
        let mut command = Command::new("setsid");
        command.args(["--fork", "/bin/bash"]).arg(&path).env_clear().envs(self.programs.environment());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.status().and_then(|status| match status.success() {
            true => Ok(()),
            false => Err(std::io::Error::other(format!("setsid: {status}"))),
        });
        started.map_err(|source| LaunchError::Start { program: path, source })
    }
}
