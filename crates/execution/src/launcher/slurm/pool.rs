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

/// The script of a job that holds a node of the pool: it waits to be cancelled.
const HOLD: &str =
    "#!/bin/bash\n# Written by Gangline: holds nodes for gangs, until it is cancelled.\nexec sleep infinity\n";
/// Delay before a node is requested again after Slurm refused its holding job, or the job ended at once.
pub(super) const HOLD_AGAIN_AFTER: Duration = Duration::from_secs(10);

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
    /// Gangs are steps in jobs that hold whole nodes, which are asked for in Slurm's queue while a gang waits for them.
    Queue,
}

impl Allocation {
    /// Reports whether gangs are steps in jobs that hold whole nodes.
    pub(super) fn holds_nodes(self) -> bool {
        !matches!(self, Allocation::Job)
    }
}

/// Returns the comment of the job that holds a node.
pub(super) fn comment(options: &SlurmOptions, node: &str) -> PathBuf {
    options.folder.join("pool").join(node)
}

/// Reports whether a job holds whole nodes for gangs.
pub(super) fn is_holder(options: &SlurmOptions, job: &SlurmJob) -> bool {
    Path::new(&job.comment).starts_with(options.folder.join("pool"))
}

/// Reports whether nodes are held for a pool.
pub(super) fn has_holders(options: &SlurmOptions, snapshot: &Snapshot) -> bool {
    snapshot.live_jobs().any(|job| is_holder(options, job))
}

/// Returns the job that holds a node, or will hold it once it runs.
pub(super) fn holder<'a>(options: &SlurmOptions, snapshot: &'a Snapshot, node: &str) -> Option<&'a SlurmJob> {
    let own = comment(options, node);
    let is_on = |job: &SlurmJob| Path::new(&job.comment) == own || job.nodes.iter().any(|(name, _)| name == node);
    snapshot.live_jobs().find(|job| is_holder(options, job) && is_on(job))
}

/// Reports whether the pool has the node of a holding job, or will have it. A job that is ending may do so for long where its node is
/// lost: another node takes its place meanwhile.
fn counts(job: &SlurmJob) -> bool {
    job.stage != Stage::Completing
}

/// Returns how many nodes the pool lacks if it is to have so many, or all.
fn lacking(limit: Option<u32>, held: usize) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)).saturating_sub(held)
}

/// Reports whether gangs run in a job that holds nodes.
pub(super) fn has_gangs(snapshot: &Snapshot, job: &SlurmJob) -> bool {
    snapshot.steps_of(job.id).any(|step| step.name.starts_with(STEP_PREFIX))
}

/// Returns whether gangs may start on a node that is open in Slurm. `refusal` is why Slurm refused the last request for nodes.
pub(super) fn openness(options: &SlurmOptions, snapshot: &Snapshot, node: &str, refusal: Option<&str>) -> Openness {
    let because = match holder(options, snapshot, node) {
        Some(job) if job.stage == Stage::Holding => return Openness::Open,
        Some(job) if job.stage == Stage::Completing => "the pool's job on it is ending".to_owned(),
        Some(job) => format!("the pool's job on it is in Slurm's queue: {}", job.reason),
        None if options.allocation == Allocation::Queue => not_allocated(options, snapshot, refusal),
        None => "the pool doesn't hold it".to_owned(),
    };
    Openness::Closed { because }
}

/// Says that Slurm hasn't allocated a node to Gangline, and what it says of the requests.
fn not_allocated(options: &SlurmOptions, snapshot: &Snapshot, refusal: Option<&str>) -> String {
    let mut requests = snapshot.live_jobs().filter(|job| is_holder(options, job) && job.stage == Stage::Pending);
    let of_queue = match (requests.next(), refusal) {
        (Some(first), _) => {
            let gang = Path::new(&first.comment).file_name().unwrap_or_default().to_string_lossy();
            format!(": job {} in its queue asks for nodes for {gang} ({})", first.id, first.reason)
        }
        (None, Some(refusal)) => format!(": {refusal}"),
        (None, None) => String::new(),
    };
    format!("Slurm hasn't allocated it to Gangline{of_queue}")
}

/// A job to submit that holds whole nodes.
#[derive(Debug)]
pub(super) struct Holding<'a> {
    pub(super) name: &'static str,
    pub(super) comment: PathBuf,
    /// What it runs; the job's steps do the work.
    pub(super) script: &'a str,
    /// The node, or one like those that are wanted.
    pub(super) node: &'a SlurmNode,
    pub(super) is_this_node: bool,
    pub(super) count: u32,
    /// How long the gang may run; none: until it is cancelled.
    pub(super) time_limit: Option<Duration>,
}

impl SlurmLauncher {
    /// Requests the nodes that the pool lacks, and releases those that are unreachable: the control plane
    /// treats what runs on them as dead, and Slurm then makes sure that it is.
    pub(super) fn hold(&self, snapshot: &Snapshot, limit: Option<u32>) -> Result<(), LaunchError> {
        let held = |node: &&SlurmNode| holder(&self.options, snapshot, &node.name);
        let (with, mut without): (Vec<&SlurmNode>, Vec<_>) = snapshot.nodes().partition(|node| held(node).is_some());
        for job in with.iter().filter(|node| self.is_deaf(&node.name)).filter_map(held) {
            if job.stage == Stage::Holding {
                self.end_job(job)?;
            }
        }
        let counted = with.iter().filter(|node| !self.is_deaf(&node.name)).filter_map(held).filter(|job| counts(job));
        let lacking = lacking(limit, counted.count());
        without.retain(|node| node.openness() == Openness::Open && !self.is_deaf(&node.name));
        // Free nodes are available at once.
        without.sort_by_key(|node| node.cpus_used);
        for node in without.into_iter().take(lacking) {
            let asked_at = self.state().held_at.get(&node.name).copied();
            if asked_at.is_some_and(|at| at >= snapshot.at || at.elapsed() < HOLD_AGAIN_AFTER) {
                continue;
            }
            let mut state = self.state();
            state.held_at.insert(node.name.clone(), Instant::now());
            state.pace.changed();
            drop(state);
            let holding = Holding {
                name: "gangline-pool",
                comment: comment(&self.options, &node.name),
                script: HOLD,
                node,
                is_this_node: true,
                count: 1,
                time_limit: None,
            };
            if let Err(failure) = self.submit_holder(&holding) {
                tracing::warn!(node = node.name, failure = %gangline_base::with_causes(&failure), "Slurm doesn't give a node to the pool");
            }
        }
        Ok(())
    }

    /// Submits a job that holds nodes until it is cancelled, or as long as the partition lets it.
    pub(super) fn submit_holder(&self, holding: &Holding<'_>) -> Result<(), LaunchError> {
        let folder = holding.comment.parent().unwrap_or(&self.options.folder);
        fs::create_dir_all(folder).map_err(|source| failed("create", folder, source))?;
        let script = record::write_script(folder, holding.script)?;
        let mut arguments = vec![
            "--parsable".to_owned(),
            "--no-requeue".to_owned(),
            format!("--job-name={}", holding.name),
            format!("--comment={}", holding.comment.display()),
            format!("--nodes={}", holding.count),
            format!("--ntasks={}", holding.count),
            "--ntasks-per-node=1".to_owned(),
            "--exclusive".to_owned(),
            // What runs on the other nodes outlives a node that fails.
            "--no-kill".to_owned(),
            "--mem=0".to_owned(),
            format!("--chdir={}", folder.display()),
            "--output=/dev/null".to_owned(),
        ];
        arguments.extend(holding.is_this_node.then(|| format!("--nodelist={}", holding.node.name)));
        arguments.extend(Slice::whole(holding.node).gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(self.limits("").time(holding.time_limit).map(|time| format!("--time={time}")));
        arguments.extend(script::account(&self.options.job));
        arguments.push(script.display().to_string());
        self.programs.run("sbatch", &arguments).map(|_| ())
    }

    /// Releases idle nodes that an earlier control plane held.
    pub(super) fn release(&self, snapshot: &Snapshot) -> Result<(), LaunchError> {
        let is_left = |job: &&SlurmJob| is_holder(&self.options, job) && job.stage != Stage::Completing;
        let is_idle = |job: &&SlurmJob| !has_gangs(snapshot, job);
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
        let holder = holder(&self.options, &snapshot, &spec.node);
        let is_kept = |job: &&SlurmJob| job.stage == Stage::Holding && !self.state().given_back.contains(&job.id);
        let held = snapshot.node(&spec.node).zip(holder.filter(is_kept));
        let message = || format!("no job of Gangline holds {} now", spec.node);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_holding_job_is_ending_is_replaced() {
        let stages = [Stage::Holding, Stage::Pending, Stage::Completing];
        let counted = stages.into_iter().filter(|stage| counts(&SlurmJob::example(1, *stage))).count();
        assert_eq!((counted, lacking(Some(3), counted), lacking(Some(2), counted)), (2, 1, 0));
        assert_eq!((lacking(Some(1), 2), lacking(None, 2)), (0, usize::MAX - 2), "no more than there are");
    }
}
