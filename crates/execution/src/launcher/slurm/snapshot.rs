//! A snapshot of Slurm: its nodes and jobs at one time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use gangline_base::Bytes;

use super::command::{Programs, SLURM};
use super::jobs::{self, SlurmJob, Stage};
use super::nodes::{self, SlurmNode};
use super::probes::{Probes, Verdict};
use super::{SlurmOptions, pool};
use crate::launcher::{GangAllocation, LaunchError, Openness, SurveyedNode, Taken};

/// A snapshot of Slurm.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Time before the query.
    pub(super) at: Instant,
    nodes: Vec<SlurmNode>,
    jobs: Vec<SlurmJob>,
    /// The steps of all jobs, if they were queried.
    steps: Option<Vec<Step>>,
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Its id for `scancel`: `42.0`.
    pub(super) id: String,
    pub(super) job: u64,
    pub(super) name: String,
}

impl Snapshot {
    /// Queries Slurm.
    pub(super) fn take(programs: &Programs, partition: &str) -> Result<Snapshot, LaunchError> {
        let at = Instant::now();
        let nodes = match nodes::read(&programs.run("sinfo", &["--json".to_owned()])?)? {
            Some(nodes) => nodes,
            None => {
                let arguments = ["show", "nodes", "--json"].map(str::to_owned);
                nodes::read(&programs.run("scontrol", &arguments)?)?.unwrap_or_default()
            }
        };
        let nodes = in_partition(nodes, partition)?;
        let jobs = jobs::read(&programs.run("squeue", &["--json".to_owned()])?)?;
        Ok(Snapshot { at, nodes, jobs, steps: None })
    }

    /// Queries the steps too.
    pub(super) fn with_steps(self, programs: &Programs) -> Result<Snapshot, LaunchError> {
        let arguments = ["--steps", "--noheader", "--format=%i|%j"].map(str::to_owned);
        let output = programs.run("squeue", &arguments)?;
        let steps = String::from_utf8_lossy(&output).lines().filter_map(read_step).collect();
        Ok(Snapshot { steps: Some(steps), ..self })
    }

    /// Returns the nodes of the partition.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &SlurmNode> {
        self.nodes.iter()
    }

    /// Returns the jobs that aren't over.
    pub(super) fn live_jobs(&self) -> impl Iterator<Item = &SlurmJob> {
        self.jobs.iter().filter(|job| job.stage != Stage::Over)
    }

    /// Reports whether Slurm knows a job, be it over.
    pub(super) fn has_job(&self, id: u64) -> bool {
        self.jobs.iter().any(|job| job.id == id)
    }

    /// Returns what was allocated to gangs below a folder, by the gangs' folders. Jobs that this launcher has `cancelled` have no
    /// end by Slurm.
    pub(super) fn allocations(
        &self,
        gangs: &Path,
        cancelled: &BTreeSet<u64>,
    ) -> impl Iterator<Item = (PathBuf, GangAllocation)> {
        let ours = self.jobs.iter().filter(move |job| Path::new(&job.comment).starts_with(gangs));
        ours.filter_map(|job| {
            let end = job.end.filter(|_| !cancelled.contains(&job.id));
            let (from, to, is_suspended) = (job.allocated_at, job.ended_at, job.is_suspended);
            let allocation = GangAllocation { from, to, is_suspended, end };
            (from.is_some() || end.is_some()).then(|| (PathBuf::from(&job.comment), allocation))
        })
    }

    /// Returns the steps of a job, as far as they were queried.
    pub(super) fn steps_of(&self, job: u64) -> impl Iterator<Item = &Step> {
        self.steps.iter().flatten().filter(move |step| step.job == job)
    }

    /// Returns the step of a job with this name.
    pub(super) fn step(&self, job: u64, name: &str) -> Option<&Step> {
        self.steps_of(job).find(|step| step.name == name)
    }

    /// Reports whether steps were queried and none has this name.
    pub(super) fn lacks_step(&self, job: u64, name: &str) -> bool {
        self.steps.is_some() && self.step(job, name).is_none()
    }

    pub(super) fn node(&self, name: &str) -> Option<&SlurmNode> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Returns the job of a gang: by its id, or by the comment that it was submitted with.
    pub(super) fn job_of(&self, folder: &Path, id: Option<u64>) -> Option<&SlurmJob> {
        let is_it = |job: &&SlurmJob| match id {
            Some(id) => job.id == id,
            None => job.stage != Stage::Over && Path::new(&job.comment) == folder,
        };
        self.jobs.iter().find(is_it)
    }

    /// Returns the nodes as the control plane sees them.
    pub(super) fn surveyed(
        &self,
        options: &SlurmOptions,
        probes: &Probes,
        refusal: Option<&str>,
        closed: &dyn Fn(&SlurmNode) -> Option<String>,
    ) -> Vec<SurveyedNode> {
        let own = ["jobs", "pool"].map(|folder| options.folder.join(folder));
        let foreign = self.taken(|job| !own.iter().any(|own| Path::new(&job.comment).starts_with(own)));
        let surveyed = |node: &SlurmNode| {
            let (kind, accelerators) = node.accelerators();
            let taken = foreign.get(node.name.as_str()).copied().unwrap_or_default();
            let accelerators_taken = match &node.gpus {
                // A job without a CPU can't be: who holds all CPUs holds the node.
                Some(gpus) if node.cpus > 0 && taken.cpus >= node.cpus => gpus.count,
                Some(_) => taken.accelerators,
                None => taken.cpus,
            };
            let openness = match node.openness() {
                Openness::Open | Openness::Closed { .. } if probes.verdict(&node.name) == Verdict::Unreachable => {
                    Openness::Silent { because: "its slurmd doesn't answer".to_owned() }
                }
                Openness::Open => match closed(node) {
                    Some(because) => Openness::Closed { because },
                    None if options.allocation.holds_nodes() => pool::openness(options, self, &node.name, refusal),
                    None => Openness::Open,
                },
                by_slurm => by_slurm,
            };
            SurveyedNode {
                name: node.name.clone(),
                address: node.address.clone(),
                kind,
                accelerators,
                cpus: node.cpus,
                memory: Bytes(node.memory_mib << 20),
                domains: options.places.get(&node.name).cloned().unwrap_or_default(),
                openness,
                taken: Taken { accelerators: accelerators_taken, ..taken },
            }
        };
        self.nodes.iter().map(surveyed).collect()
    }

    /// Returns the resources that the counted jobs hold on each node.
    fn taken(&self, is_counted: impl Fn(&SlurmJob) -> bool) -> BTreeMap<&str, Taken> {
        let mut taken: BTreeMap<&str, Taken> = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.stage != Stage::Over && is_counted(job)) {
            for (node, gpus) in &job.nodes {
                let sum = taken.entry(node).or_default();
                sum.accelerators = sum.accelerators.saturating_add(*gpus);
                sum.cpus = sum.cpus.saturating_add(job.cpus_per_node);
                sum.memory = Bytes(sum.memory.0.saturating_add(job.memory_per_node_mib << 20));
            }
        }
        taken
    }

    /// Reports whether a killed job is still on a node, by Slurm.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        let mut leaving = self.jobs.iter().filter(|job| job.stage == Stage::Completing);
        leaving.any(|job| job.nodes.iter().any(|(on, _)| on == name))
    }
}

/// Parses `42.0|gangline-job-7-attempt-2-n1`.
fn read_step(line: &str) -> Option<Step> {
    let (id, name) = line.trim().split_once('|')?;
    let job = id.split(['.', '_', '+']).next()?.parse().ok()?;
    Some(Step { id: id.to_owned(), job, name: name.to_owned() })
}

/// Returns the nodes of a partition.
fn in_partition(nodes: Vec<SlurmNode>, partition: &str) -> Result<Vec<SlurmNode>, LaunchError> {
    let known: BTreeSet<String> = nodes.iter().flat_map(|node| node.partitions.iter().cloned()).collect();
    if !known.contains(partition) {
        let known: Vec<String> = known.into_iter().collect();
        let message = format!("there is no partition \"{partition}\" with nodes; there are: {}", known.join(", "));
        return Err(LaunchError::Refused { system: SLURM, message });
    }
    Ok(nodes.into_iter().filter(|node| node.partitions.iter().any(|of| of == partition)).collect())
}

/// Returns Slurm's default partition.
pub(super) fn default_partition(programs: &Programs) -> Result<String, LaunchError> {
    let output = programs.run("sinfo", &["--noheader".to_owned(), "--format=%P".to_owned()])?;
    let text = String::from_utf8_lossy(&output);
    let found = text.lines().find_map(|line| line.trim().strip_suffix('*'));
    let message = "there is no default partition: name one with --partition".to_owned();
    found.map(str::to_owned).ok_or(LaunchError::Refused { system: SLURM, message })
}

#[cfg(test)]
impl Snapshot {
    /// Returns a snapshot of just now, for tests.
    pub(super) fn example(nodes: Vec<SlurmNode>, jobs: Vec<SlurmJob>) -> Snapshot {
        Snapshot { at: Instant::now(), nodes, jobs, steps: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_missing_only_if_steps_were_asked_for() {
        let not_asked = Snapshot::example(Vec::new(), Vec::new());
        assert!(!not_asked.lacks_step(42, "a"));
        let steps =
            ["42.0|a", "42_1.0|b", "43.batch|batch", "nonsense"].iter().filter_map(|line| read_step(line)).collect();
        let asked = Snapshot { steps: Some(steps), ..not_asked };
        assert!(!asked.lacks_step(42, "a") && !asked.lacks_step(42, "b"));
        assert!(asked.lacks_step(43, "a") && asked.lacks_step(42, "c"));
        assert_eq!((asked.steps_of(42).count(), asked.steps_of(44).count()), (2, 0));
    }
}
