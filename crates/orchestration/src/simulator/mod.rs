//! The simulator: a trace, a cluster and a policy in; completion times, queueing, fairness and losses out.
//!
//! Pure like the engine: text and values in, values out, a virtual clock of integral nanoseconds, every random
//! draw from a seed. The textbook policies follow their papers to the tie-break, so that published results are
//! reproduced to the last digit; the `gangline` policy is the product's own [`crate::Engine`].

mod charges;
mod faults;
mod floor;
mod gangline;
mod limits;
mod meter;
mod metrics;
mod past;
mod policy;
mod progress;
mod quirk;
mod random;
#[cfg(test)]
mod tests;
mod textbook;
mod timeline;
mod trace;
mod workload;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::PoolName;
use textbook::{
    EasyBackfill, InOrder, LeastAttainedService, Measure, Order, Placing, PriorityPreemption, ShortestRemaining,
};

use crate::{Configuration, NodeSpec};
use policy::Policy;
use random::{Draws, Purpose};
use timeline::Recorder;
use world::{Setting, World};

pub use charges::Charges;
pub use faults::{FaultSpec, FaultSpecError};
pub use limits::LimitModel;
pub use meter::Waste;
pub use metrics::{Distribution, Summary};
pub use past::Past;
pub use policy::{PolicyName, UnknownPolicy};
pub use trace::{BadRows, JOBS_MAX, TraceError, TraceFormat, TraceProblem, read_trace};
pub use workload::{JobIndex, Label, TraceJob, Workload};

/// How to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who decides.
    pub policy: PolicyName,
    /// What preemption and restarts cost.
    pub charges: Charges,
    /// Where time limits come from.
    pub limits: LimitModel,
    /// The share of jobs of high priority, drawn at random; the others are normal. Only `priority` and `gangline` know.
    pub high_share: f64,
    /// What fails.
    pub faults: FaultSpec,
    /// What every random draw comes from.
    pub seed: u64,
    /// What becomes of gangs larger than the cluster, and of jobs for queues it doesn't have.
    pub oversized: BadRows,
    /// How the cluster is shared; only the `gangline` policy knows queues.
    pub sharing: Configuration,
    /// Whether Muri's published quirk is reproduced; see [`MuriQuirk`].
    pub quirk: MuriQuirk,
}

impl Options {
    /// Whether nothing costs and nothing fails, so that preemption and moving are free.
    fn is_free(&self) -> bool {
        self.charges.are_free() && self.faults == FaultSpec::NONE
    }
}

/// Muri's simulator runs jobs 1.5 % longer than its traces say, and subtracts a model's start-up overhead from the
/// progress of every interval between two events, whether or not the job was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuriQuirk {
    /// Plain semantics.
    Without,
    /// As published.
    AsPublished,
}

/// A simulation that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// No node.
    #[error("simulate a cluster without accelerators")]
    NoCluster,
    /// A gang that no empty cluster could hold.
    #[error(
        "simulate line {line}: its gang of {gpus} accelerators fits the cluster's {available} at no time \
         (nodes of up to {largest}); leave such rows out with --skip-bad"
    )]
    Oversized {
        /// The trace's line.
        line: u32,
        /// What it asks for.
        gpus: u32,
        /// What there is.
        available: u32,
        /// The largest node.
        largest: u32,
    },
    /// Nodes of several kinds, which a trace doesn't tell apart.
    #[error("simulate nodes of {first} and {other} together: a trace doesn't say which its jobs want; keep one kind")]
    SeveralKinds {
        /// The first node's kind.
        first: String,
        /// Another's.
        other: String,
    },
    /// Nodes of several pools, which a trace doesn't tell apart either.
    #[error(
        "simulate nodes of the pools {first} and {other} together: a trace doesn't say which its jobs are for; keep one"
    )]
    SeveralPools {
        /// The first node's pool.
        first: PoolName,
        /// Another's.
        other: PoolName,
    },
    /// A job for a queue that isn't there.
    #[error(
        "simulate line {line}: its queue \"{queue}\" is none of the cluster's ({queues}); \
         leave such rows out with --skip-bad"
    )]
    UnknownQueue {
        /// The trace's line.
        line: u32,
        /// What it says.
        queue: String,
        /// Those there are.
        queues: String,
    },
    /// A policy that plans by time limits, and none are known.
    #[error("simulate {}: it plans by time limits; give it some with --limits", .0.name())]
    NoLimits(PolicyName),
    /// The quirk has its own idea of costs.
    #[error("simulate Muri's quirk with charges or faults: it reproduces a published figure, without either")]
    QuirkedCharges,
    /// Jobs wait and nothing will ever happen.
    #[error("start the job of line {line} and {waiting} waiting in all: the policy left them waiting for nothing")]
    Stuck {
        /// The oldest one's line.
        line: u32,
        /// How many wait.
        waiting: usize,
    },
    /// A picture of who ran where, by a policy that doesn't say where.
    #[error("draw {}: where preemption is free it only counts accelerators; charge for preemption with --charge on", .0.name())]
    NoPlaces(PolicyName),
    /// Jobs fail more often than they save.
    #[error(
        "finish {left} job(s): they lose work faster than they save it; fewer faults or more checkpoints would help"
    )]
    NoHeadway {
        /// How many are left.
        left: usize,
    },
}

/// Simulates a workload on a cluster.
///
/// # Errors
/// A [`SimulationError`] if it can't be, or has no end.
pub fn simulate(workload: &Workload, nodes: &[NodeSpec], options: &Options) -> Result<Summary, SimulationError> {
    run(workload, nodes, options, None).map(|(summary, _)| summary)
}

/// Simulates, and draws who ran where as an SVG document with this title.
///
/// # Errors
/// As [`simulate`], and [`SimulationError::NoPlaces`].
pub fn simulate_and_draw(
    workload: &Workload,
    nodes: &[NodeSpec],
    options: &Options,
    title: &str,
) -> Result<(Summary, String), SimulationError> {
    if options.policy == PolicyName::Las && options.is_free() {
        return Err(SimulationError::NoPlaces(options.policy));
    }
    let (summary, recorder) = run(workload, nodes, options, Some(Recorder::default()))?;
    let capacity: Vec<u32> = nodes.iter().map(|node| node.capacity.accelerators).collect();
    Ok((summary, recorder.unwrap_or_default().draw(title, &capacity)))
}

fn run(
    workload: &Workload,
    nodes: &[NodeSpec],
    options: &Options,
    recorder: Option<Recorder>,
) -> Result<(Summary, Option<Recorder>), SimulationError> {
    let capacity: Vec<u32> = nodes.iter().map(|node| node.capacity.accelerators).collect();
    if capacity.iter().all(|gpus| *gpus == 0) {
        return Err(SimulationError::NoCluster);
    }
    let has_quirk = options.quirk == MuriQuirk::AsPublished;
    if has_quirk && !options.is_free() {
        return Err(SimulationError::QuirkedCharges);
    }
    let limits = options.limits.limits(workload, options.seed);
    check_kinds(nodes)?;
    check_pools(nodes)?;
    let jobs = fitting(workload, &capacity, options)?;
    if options.policy.needs_limits() && jobs.iter().any(|job| limits[job.index()].is_none()) {
        return Err(SimulationError::NoLimits(options.policy));
    }
    let is_high = |job: JobIndex| Draws::new(options.seed, Purpose::Priorities, job.0).uniform() < options.high_share;
    let mut policy = policy_of(options, nodes, &capacity, workload);
    let count = u32::try_from(capacity.len()).expect("a cluster has fewer than 2^32 nodes");
    let mut world = World::new(Setting {
        workload,
        charges: options.charges,
        limits,
        is_high: workload.indices().map(is_high).collect(),
        has_quirk,
        is_clairvoyant: options.policy.is_clairvoyant(),
        capacity,
        racks: racks(nodes),
        faults: faults::Faults::new(options.faults, options.seed, count),
    });
    world.recorder = recorder;
    world.run(&jobs, policy.as_mut())?;
    let summary = world.summarise(&jobs, (workload.jobs.len() - jobs.len()) as u64);
    Ok((summary, world.recorder))
}

fn check_kinds(nodes: &[NodeSpec]) -> Result<(), SimulationError> {
    let mut kinds = nodes.iter().map(|node| &node.capacity.accelerator.0);
    let Some(first) = kinds.next() else { return Ok(()) };
    match kinds.find(|kind| *kind != first) {
        None => Ok(()),
        Some(other) => Err(SimulationError::SeveralKinds { first: first.clone(), other: other.clone() }),
    }
}

fn check_pools(nodes: &[NodeSpec]) -> Result<(), SimulationError> {
    let mut pools = nodes.iter().map(|node| &node.capacity.pool);
    let Some(first) = pools.next() else { return Ok(()) };
    match pools.find(|pool| *pool != first) {
        None => Ok(()),
        Some(other) => Err(SimulationError::SeveralPools { first: first.clone(), other: other.clone() }),
    }
}

/// The jobs that an empty cluster could hold, sent to queues that it has.
fn fitting(workload: &Workload, capacity: &[u32], options: &Options) -> Result<Vec<JobIndex>, SimulationError> {
    let floor = floor::Floor::new(capacity);
    let leaves = leaves(&options.sharing);
    let mut verdicts: BTreeMap<u32, bool> = BTreeMap::new();
    let mut jobs = Vec::with_capacity(workload.jobs.len());
    for index in workload.indices() {
        let job = &workload.jobs[index.index()];
        let queue = workload.label(job.queue);
        let is_known = leaves.is_empty() || leaves.contains(queue);
        let fits = *verdicts.entry(job.gpus).or_insert_with(|| floor.find(job.gpus).is_some());
        if fits && is_known {
            jobs.push(index);
        } else if options.oversized == BadRows::Skip {
            continue;
        } else if fits {
            let queues: Vec<&str> = leaves.into_iter().collect();
            let (line, queue, queues) = (job.line, queue.to_owned(), queues.join(", "));
            return Err(SimulationError::UnknownQueue { line, queue, queues });
        } else {
            let (available, largest) = (capacity.iter().sum(), capacity.iter().copied().max().unwrap_or(0));
            return Err(SimulationError::Oversized { line: job.line, gpus: job.gpus, available, largest });
        }
    }
    Ok(jobs)
}

/// The number of each node's narrowest domain; a node that names none is one by itself.
fn racks(nodes: &[NodeSpec]) -> Vec<u32> {
    let names = |node: &NodeSpec| node.location.iter().next().map(|(_, name)| name.to_owned());
    if nodes.iter().all(|node| names(node).is_none()) {
        return Vec::new();
    }
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    let of_node = |(next, node): (u32, &NodeSpec)| match names(node) {
        None => next,
        Some(name) => *numbers.entry(name).or_insert(next),
    };
    (0..).zip(nodes).map(of_node).collect()
}

/// The queues that take jobs; none if every name is accepted.
fn leaves(sharing: &Configuration) -> BTreeSet<&str> {
    let parents: BTreeSet<_> = sharing.queues.iter().filter_map(|queue| queue.parent.as_ref()).collect();
    sharing
        .queues
        .iter()
        .map(|queue| &queue.name)
        .filter(|name| !parents.contains(name))
        .map(|name| name.as_str())
        .collect()
}

fn policy_of(options: &Options, nodes: &[NodeSpec], capacity: &[u32], workload: &Workload) -> Box<dyn Policy> {
    let jobs = workload.jobs.len();
    let placing = if options.is_free() { Placing::Anew } else { Placing::Sticky };
    match options.policy {
        PolicyName::Fifo => Box::new(InOrder::new(Order::Submission, capacity, workload)),
        PolicyName::Sjf => Box::new(InOrder::new(Order::Duration, capacity, workload)),
        PolicyName::Srtf => Box::new(ShortestRemaining::new(Measure::Time, placing, capacity, jobs)),
        PolicyName::Srsf => Box::new(ShortestRemaining::new(Measure::Service, placing, capacity, jobs)),
        PolicyName::Las => Box::new(LeastAttainedService::new(placing, capacity, jobs)),
        PolicyName::EasyBackfill => Box::new(EasyBackfill::new(capacity, jobs)),
        PolicyName::Priority => Box::new(PriorityPreemption::new(capacity, jobs)),
        PolicyName::Gangline => Box::new(gangline::Gangline::new(nodes, &options.sharing)),
    }
}

/// A time as people type it: a whole number and s, m, h or d.
#[must_use]
pub fn parse_span(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let number = text[..text.len() - 1].parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(number) * unit))
}
