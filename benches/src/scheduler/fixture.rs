//! Clusters and gangs to measure with.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobId, JobSpec, Launch, Level,
    NodeId, NodeName, PoolName, Priority, Program, QueueName, RecoveryPolicy, Submitter, Timestamp, TopologyRequest,
};
use gangline_orchestration::{Decision, Engine, Event, Limits, Location, NodeCapacity, NodeSpec, ShareEnd};

/// Accelerators of a node.
pub(super) const GPUS: u32 = 8;
/// Nodes of a rack, racks of a block: as many as of NVIDIA's DGX SuperPOD scalable unit of 32 nodes.
pub(super) const RACK: u32 = 32;
pub(super) const BLOCK: u32 = 1_024;

fn kind() -> AcceleratorKind {
    AcceleratorKind("H100".to_owned())
}

/// A node of racks and blocks of so many nodes.
pub(super) fn node(index: u32, gpus: u32, rack: u32, block: u32) -> Result<NodeSpec> {
    let name = NodeName::new(&format!("n{index:06}"))?;
    let capacity = NodeCapacity {
        pool: PoolName::default(),
        accelerator: kind(),
        accelerators: gpus,
        cpus: 96,
        memory: Bytes(1 << 40),
    };
    let location = [(Level::Rack, format!("r{}", index / rack)), (Level::Block, format!("b{}", index / block))];
    let location = location.into_iter().collect::<Location>();
    Ok(NodeSpec { name, capacity, location, layout: Default::default() })
}

/// An engine with so many nodes of eight in racks and blocks.
pub(super) fn cluster(nodes: u32) -> Result<Engine> {
    let mut engine = Engine::new(Limits::UNLIMITED);
    for index in 0..nodes {
        engine.apply(Timestamp::EPOCH, &Event::NodeJoined(node(index, GPUS, RACK, BLOCK)?))?;
    }
    Ok(engine)
}

/// A gang.
#[derive(Clone, Debug)]
pub(super) struct Gang {
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) queue: String,
    pub(super) priority: u16,
    pub(super) limit: Option<Duration>,
    pub(super) topology: TopologyRequest,
}

impl Gang {
    pub(super) fn of(nodes: u32, gpus: u32) -> Self {
        let topology = TopologyRequest::default();
        Gang { nodes, gpus, queue: "bench".to_owned(), priority: 500, limit: None, topology }
    }

    pub(super) fn spec(&self) -> Result<Arc<JobSpec>> {
        let positive = |number| NonZeroU32::new(number).context("a gang has nodes and accelerators");
        Ok(Arc::new(JobSpec {
            name: "bench".to_owned(),
            queue: QueueName::new(&self.queue)?,
            priority: Priority::new(self.priority).context("a priority is at most 1000")?,
            gang: GangShape {
                pool: PoolName::default(),
                nodes: positive(self.nodes)?,
                accelerator: kind(),
                accelerators_per_node: positive(self.gpus)?,
                cpus_per_node: 0,
                memory_per_node: Bytes(0),
                launch: Launch::PerAccelerator,
                topology: self.topology,
            },
            budget: None,
            spares: 0,
            datasets: Default::default(),
            planned: None,
            pins: Default::default(),
            after: Default::default(),
            notify: Default::default(),
            origin: None,
            elastic: None,
            program: Program {
                workdir: "/".to_owned(),
                code: None,
                container: None,
                envs: BTreeMap::new(),
                setup: None,
                run: "true".to_owned(),
            },
            checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(30) },
            recovery: RecoveryPolicy {
                max_faults: 10,
                no_progress_limit: 3,
                hang_timeout: HangTimeout::Learned,
                evicts_stragglers: false,
            },
            time_limit: self.limit,
            submitter: Submitter("bench".to_owned()),
        }))
    }
}

/// A job that holds devices: what ends it.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) job: JobId,
    pub(super) attempt: AttemptNumber,
    nodes: Vec<NodeId>,
}

impl Running {
    /// What the supervisors report when it starts and when its work is done.
    pub(super) fn started(&self) -> impl Iterator<Item = Event> + '_ {
        let (job, attempt) = (self.job, self.attempt);
        self.nodes.iter().map(move |node| Event::ShareStarted { job, attempt, node: *node })
    }

    pub(super) fn ended(&self, end: &ShareEnd) -> impl Iterator<Item = Event> + '_ {
        let (job, attempt, end) = (self.job, self.attempt, end.clone());
        self.nodes.iter().map(move |node| Event::ShareEnded { job, attempt, node: *node, end: end.clone() })
    }
}

/// The jobs that these decisions start.
pub(super) fn placed(decisions: &[Decision]) -> impl Iterator<Item = Running> + '_ {
    decisions.iter().filter_map(|decision| match decision {
        Decision::Place { job, attempt, shares, .. } => {
            Some(Running { job: *job, attempt: *attempt, nodes: shares.iter().map(|share| share.node).collect() })
        }
        _ => None,
    })
}

/// A repeatable sequence of numbers (Knuth's MMIX generator).
pub(super) struct Draws(pub(super) u64);

impl Draws {
    /// A number below `end`.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap_or(0) % end
    }
}
