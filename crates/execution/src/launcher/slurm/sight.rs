//! A look at Slurm: its nodes and jobs at one time, and whether nodes answer by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use gangline_base::Bytes;

use super::command::{Programs, SLURM};
use super::jobs::{self, SlurmJob, Stage};
use super::nodes::{self, SlurmNode};
use super::{SlurmOptions, pool};
use crate::launcher::{LaunchError, Openness, SurveyedNode, Taken};

/// How long a node's slurmd may take to take a connection.
const PROBE_WAIT_MAX: Duration = Duration::from_millis(800);
/// Nodes asked in one look at most.
const PROBES_MAX: usize = 8;
/// So many times in a row a node must not answer.
const PROBES_FAILED_MIN: u32 = 2;
/// A node is asked no more once nobody has asked after it for this long.
const PROBE_INTEREST: Duration = Duration::from_secs(5);

/// What Slurm said at one time.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    /// Before it was asked.
    pub(super) at: Instant,
    nodes: Vec<SlurmNode>,
    jobs: Vec<SlurmJob>,
    /// The steps of all jobs, if they were asked for.
    pub(super) steps: Vec<Step>,
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// As `scancel` takes it: `42.0`.
    pub(super) id: String,
    pub(super) job: u64,
    pub(super) name: String,
}

impl Sight {
    /// Asks Slurm.
    pub(super) fn take(programs: &Programs, partition: &str) -> Result<Sight, LaunchError> {
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
        Ok(Sight { at, nodes, jobs, steps: Vec::new() })
    }

    /// Asks for the steps too.
    pub(super) fn with_steps(self, programs: &Programs) -> Result<Sight, LaunchError> {
        let arguments = ["--steps", "--noheader", "--format=%i|%j"].map(str::to_owned);
        let output = programs.run("squeue", &arguments)?;
        let steps = String::from_utf8_lossy(&output).lines().filter_map(read_step).collect();
        Ok(Sight { steps, ..self })
    }

    /// The nodes of the partition.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &SlurmNode> {
        self.nodes.iter()
    }

    /// The jobs that aren't over.
    pub(super) fn live_jobs(&self) -> impl Iterator<Item = &SlurmJob> {
        self.jobs.iter().filter(|job| job.stage != Stage::Over)
    }

    /// The step of a job with this name.
    pub(super) fn step(&self, job: u64, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.job == job && step.name == name)
    }

    pub(super) fn node(&self, name: &str) -> Option<&SlurmNode> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// The job of a gang: by its id, or by the comment that it was submitted with.
    pub(super) fn job_of(&self, folder: &Path, id: Option<u64>) -> Option<&SlurmJob> {
        let is_it = |job: &&SlurmJob| match id {
            Some(id) => job.id == id,
            None => job.stage != Stage::Over && Path::new(&job.comment) == folder,
        };
        self.jobs.iter().find(is_it)
    }

    /// The nodes as a control plane sees them.
    pub(super) fn surveyed(&self, options: &SlurmOptions, probes: &Probes) -> Vec<SurveyedNode> {
        let own = ["jobs", "pool"].map(|folder| options.folder.join(folder));
        let foreign = self.taken(|job| !own.iter().any(|own| Path::new(&job.comment).starts_with(own)));
        let surveyed = |node: &SlurmNode| {
            let (kind, accelerators) = node.accelerators();
            let taken = foreign.get(node.name.as_str()).copied().unwrap_or_default();
            let accelerators_taken = if node.gpus.is_some() { taken.accelerators } else { taken.cpus };
            let openness = match node.openness() {
                Openness::Open | Openness::Closed { .. } if probes.verdict(&node.name) == Verdict::Unreachable => {
                    Openness::Silent { because: "its slurmd doesn't answer".to_owned() }
                }
                Openness::Open if options.allocation.is_pool() => pool::openness(options, self, &node.name),
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

    /// What some jobs hold of each node.
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

    /// Whether the slurmd of each of these nodes takes a connection.
    pub(super) fn probe(&self, names: &[String]) -> Vec<(String, bool)> {
        let answers = |name: &String| {
            let address = self.node(name).and_then(SlurmNode::slurmd)?;
            Some((name.clone(), TcpStream::connect_timeout(&address, PROBE_WAIT_MAX).is_ok()))
        };
        std::thread::scope(|scope| {
            let asked: Vec<_> = names.iter().take(PROBES_MAX).map(|name| scope.spawn(move || answers(name))).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
        })
    }

    /// Whether a job that was killed still is on a node, by Slurm.
    fn is_leaving(&self, name: &str) -> bool {
        let mut leaving = self.jobs.iter().filter(|job| job.stage == Stage::Completing);
        leaving.any(|job| job.nodes.iter().any(|(on, _)| on == name))
    }
}

/// `42.0|gangline-job-7-attempt-2-n1`.
fn read_step(line: &str) -> Option<Step> {
    let (id, name) = line.trim().split_once('|')?;
    let job = id.split(['.', '_', '+']).next()?.parse().ok()?;
    Some(Step { id: id.to_owned(), job, name: name.to_owned() })
}

/// The nodes of a partition.
fn in_partition(nodes: Vec<SlurmNode>, partition: &str) -> Result<Vec<SlurmNode>, LaunchError> {
    let known: BTreeSet<String> = nodes.iter().flat_map(|node| node.partitions.iter().cloned()).collect();
    if !known.contains(partition) {
        let known: Vec<String> = known.into_iter().collect();
        let message = format!("there is no partition \"{partition}\" with nodes; there are: {}", known.join(", "));
        return Err(LaunchError::Refused { system: SLURM, message });
    }
    Ok(nodes.into_iter().filter(|node| node.partitions.iter().any(|of| of == partition)).collect())
}

/// Slurm's default partition.
pub(super) fn default_partition(programs: &Programs) -> Result<String, LaunchError> {
    let output = programs.run("sinfo", &["--noheader".to_owned(), "--format=%P".to_owned()])?;
    let text = String::from_utf8_lossy(&output);
    let found = text.lines().find_map(|line| line.trim().strip_suffix('*'));
    let message = "there is no default partition: name one with --partition".to_owned();
    found.map(str::to_owned).ok_or(LaunchError::Refused { system: SLURM, message })
}

/// Whether nodes answer whose supervisors are silent. Slurm's own word takes minutes: SlurmdTimeout is 300 s by default.
#[derive(Debug, Default)]
pub(super) struct Probes {
    nodes: BTreeMap<String, Probe>,
}

#[derive(Debug)]
struct Probe {
    asked_at: Instant,
    failures: u32,
    has_answered: bool,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It wasn't asked yet, or hasn't answered only once.
    Unknown,
    Answers,
    /// It has not answered several times in a row.
    Unreachable,
}

impl Probes {
    /// Somebody wants to know whether a node answers.
    pub(super) fn ask(&mut self, node: &str) {
        let probe = self.nodes.entry(node.to_owned()).or_insert(Probe {
            asked_at: Instant::now(),
            failures: 0,
            has_answered: false,
        });
        probe.asked_at = Instant::now();
    }

    /// The nodes to be asked.
    pub(super) fn due(&mut self) -> Vec<String> {
        self.nodes.retain(|_, probe| probe.failures > 0 || probe.asked_at.elapsed() <= PROBE_INTEREST);
        self.nodes.keys().cloned().collect()
    }

    /// Takes in who answered. A node that didn't stays unreachable until what was killed there meanwhile is gone.
    pub(super) fn answered(&mut self, answers: Vec<(String, bool)>, sight: &Sight) {
        for (name, has_answered) in answers {
            let Some(probe) = self.nodes.get_mut(&name) else { continue };
            let was_unreachable = probe.failures >= PROBES_FAILED_MIN;
            probe.has_answered = has_answered;
            if !has_answered {
                probe.failures = probe.failures.saturating_add(1);
            } else if !(was_unreachable && sight.is_leaving(&name)) {
                probe.failures = 0;
            }
        }
    }

    /// Whether a node answers, as far as it was asked.
    pub(super) fn verdict(&self, node: &str) -> Verdict {
        match self.nodes.get(node) {
            Some(probe) if probe.failures >= PROBES_FAILED_MIN => Verdict::Unreachable,
            Some(probe) if probe.has_answered => Verdict::Answers,
            Some(_) | None => Verdict::Unknown,
        }
    }
}
