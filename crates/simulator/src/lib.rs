//! The simulator: a trace, a cluster and a policy in; completion times, queueing, fairness and losses out.
//!
//! Pure like the engine: text and values in, values out, a virtual clock of integral nanoseconds, and
//! seeded random draws. The textbook policies follow their papers down to tie-breaking, so that published
//! results are reproduced to the last digit; the `gangline` policy is the product's own
//! [`Engine`](gangline_orchestration::Engine), used through its public interface.

mod charges;
mod faults;
mod floor;
mod forecast;
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
use gangline_orchestration::{Configuration, NodeSpec};
use textbook::{
    EasyBackfill, InOrder, LeastAttainedService, Measure, Order, Placing, PriorityPreemption, ShortestRemaining,
};

use policy::Policy;
use random::{Draws, Purpose};
use timeline::Recorder;
use world::{Setting, World};

pub use charges::Charges;
pub use faults::{FaultSpec, FaultSpecError};
pub use forecast::{Sample, Scale};
pub use limits::LimitModel;
pub use meter::Waste;
pub use metrics::{Distribution, Summary};
pub use past::Past;
pub use policy::{PolicyName, UnknownPolicy};
pub use trace::{BadRows, JOBS_MAX, TraceError, TraceFormat, TraceProblem, read_trace};
pub use workload::{JobIndex, Label, TraceJob, Workload};

/// The options of a simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The scheduling policy.
    pub policy: PolicyName,
    /// The costs of preemption and restarts.
    pub charges: Charges,
    /// Where time limits come from.
    pub limits: LimitModel,
    /// The share of jobs with high priority, drawn at random; the others have normal priority. Used only by
    /// `priority` and `gangline`.
    pub high_share: f64,
    /// Which faults occur.
    pub faults: FaultSpec,
    /// The seed of every random draw.
    pub seed: u64,
    /// How to handle gangs larger than the cluster, and jobs for unknown queues.
    pub oversized: BadRows,
    /// The cluster's configuration; only the `gangline` policy uses queues.
    pub sharing: Configuration,
    /// Whether to reproduce Muri's published quirk; see [`MuriQuirk`].
    pub quirk: MuriQuirk,
}

impl Options {
    /// Reports whether nothing costs and nothing fails, so that preemption and moving are free.
    fn is_free(&self) -> bool {
        self.charges.are_free() && self.faults == FaultSpec::NONE
    }
}

/// A quirk of Muri's simulator: it runs jobs 1.5 % longer than its traces say, and subtracts a model's
/// start-up overhead from the progress of every interval between two events, whether or not the job was
/// preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuriQuirk {
    /// Plain semantics.
    Without,
    /// Muri's published semantics.
    AsPublished,
}

/// Why a simulation is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The cluster has no nodes.
    #[error("simulate a cluster without accelerators")]
    NoCluster,
    /// A gang doesn't fit even into the empty cluster.
    #[error(
        "simulate line {line}: its gang of {gpus} accelerators fits the cluster's {available} at no time \
         (nodes of up to {largest}); leave such rows out with --skip-bad"
    )]
    Oversized {
        /// The trace's line.
        line: u32,
        /// The accelerators it requests.
        gpus: u32,
        /// The accelerators of the cluster.
        available: u32,
        /// The largest node.
        largest: u32,
    },
    /// Nodes have several kinds of accelerators, which a trace doesn't distinguish.
    #[error("simulate nodes of {first} and {other} together: a trace doesn't say which its jobs want; keep one kind")]
    SeveralKinds {
        /// The first node's kind.
        first: String,
        /// The other kind.
        other: String,
    },
    /// Nodes are in several pools, which a trace doesn't distinguish.
    #[error(
        "simulate nodes of the pools {first} and {other} together: a trace doesn't say which its jobs are for; keep one"
    )]
    SeveralPools {
        /// The first node's pool.
        first: PoolName,
        /// The other pool.
        other: PoolName,
    },
    /// A job names a queue that doesn't exist.
    #[error(
        "simulate line {line}: its queue \"{queue}\" is none of the cluster's ({queues}); \
         leave such rows out with --skip-bad"
    )]
    UnknownQueue {
        /// The trace's line.
        line: u32,
        /// The queue it names.
        queue: String,
        /// The existing queues.
        queues: String,
    },
    /// The policy needs time limits, and there are none.
    #[error("simulate {}: it plans by time limits; give it some with --limits", .0.name())]
    NoLimits(PolicyName),
    /// The quirk defines its own costs, so others can't be charged.
    #[error("simulate Muri's quirk with charges or faults: it reproduces a published figure, without either")]
    QuirkedCharges,
    /// Jobs wait, but no event will ever occur.
    #[error("start the job of line {line} and {waiting} waiting in all: the policy left them waiting for nothing")]
    Stuck {
        /// The trace line of the oldest waiting job.
        line: u32,
        /// The number of waiting jobs.
        waiting: usize,
    },
    /// A timeline was requested, but the policy doesn't place jobs on nodes.
    #[error("draw {}: where preemption is free it only counts accelerators; charge for preemption with --charge on", .0.name())]
    NoPlaces(PolicyName),
    /// Jobs lose work faster than they save it.
    #[error(
        "finish {left} job(s): they lose work faster than they save it; fewer faults or more checkpoints would help"
    )]
    NoHeadway {
        /// The number of unfinished jobs.
        left: usize,
    },
}

/// Simulates a workload on a cluster.
///
/// # Errors
/// A [`SimulationError`] if the simulation is impossible or doesn't end.
pub fn simulate(workload: &Workload, nodes: &[NodeSpec], options: &Options) -> Result<Summary, SimulationError> {
    run(workload, nodes, options, None, Duration::ZERO).map(|(summary, _)| summary)
}

/// Simulates, and takes completion times and waits only of jobs submitted after so long: until then a cluster that begins empty
/// fills up. If no job comes later, all count.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_warm(
    workload: &Workload,
    nodes: &[NodeSpec],
    options: &Options,
    warm_up: Duration,
) -> Result<Summary, SimulationError> {
    run(workload, nodes, options, None, warm_up).map(|(summary, _)| summary)
}

/// Simulates, and draws which job ran where as an SVG document with this title.
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
    let (summary, recorder) = run(workload, nodes, options, Some(Recorder::default()), Duration::ZERO)?;
    let capacity: Vec<u32> = nodes.iter().map(|node| node.capacity.accelerators).collect();
    Ok((summary, recorder.unwrap_or_default().draw(title, &capacity)))
}

fn run(
    workload: &Workload,
    nodes: &[NodeSpec],
    options: &Options,
    recorder: Option<Recorder>,
    warm_up: Duration,
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
    let summary = world.summarise(&jobs, (workload.jobs.len() - jobs.len()) as u64, warm_up);
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

/// Returns the jobs that an empty cluster could hold and whose queues exist.
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

/// Returns the index of each node's narrowest domain; a node that names none has its own.
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

/// Returns the queues that take jobs; none if every name is accepted.
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

/// Parses a time: a whole number followed by s, m, h or d.
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
