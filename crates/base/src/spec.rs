//! What a job asks for, after validation at the border. A field is here only if something honours it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::{Bytes, Elastic, Money, PoolName, QueueName, TopologyRequest};

/// A validated job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// What its owner calls it; not unique.
    pub name: String,
    /// The queue it waits in.
    pub queue: QueueName,
    /// Its place among the waiting.
    pub priority: Priority,
    /// The devices it needs, all at once.
    pub gang: GangShape,
    /// The widths it may have beyond its gang's; none: it has that one always.
    pub elastic: Option<Elastic>,
    /// What its ranks run.
    pub program: Program,
    /// Where it saves, and how long it may take to do so when asked to stop.
    pub checkpoint: CheckpointPolicy,
    /// How often it may fail.
    pub recovery: RecoveryPolicy,
    /// The longest one attempt may run.
    pub time_limit: Option<Duration>,
    /// The most it may cost, all attempts together, at the list price of its accelerators.
    pub budget: Option<Money>,
    /// Standby nodes to keep while it runs, shared with other jobs' (0: none).
    pub spares: u32,
    /// What it reads, as its owner names it: nodes that may still have it are preferred among equals.
    pub datasets: BTreeSet<String>,
    /// What of it no retention policy removes.
    pub pins: BTreeSet<Pin>,
    /// Who sent it.
    pub submitter: Submitter,
}

/// Something that a job leaves and that stays however old it gets, because its owner said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// Logs and other files of its attempts.
    Logs,
    /// All points of its curve.
    Samples,
    /// What is shown of it. Every other pin keeps this as well: without it nobody would find what stays.
    Record,
    /// Its checkpoints.
    Checkpoints,
}

/// What a specification takes where it is stored besides its texts: the names of its fields, and its numbers.
const FIELDS_BYTES: u64 = 960;
/// What quotes, a colon and a comma add to a text.
const PUNCTUATION_BYTES: u64 = 4;
/// What a pair of numbers takes.
const PAIR_BYTES: u64 = 24;

impl JobSpec {
    /// What it takes where it is stored, at most: limits on what users send are counted in this.
    #[must_use]
    pub fn stored_bytes(&self) -> Bytes {
        let JobSpec { name, queue, gang, program, checkpoint, submitter, .. } = self;
        let named = [name, queue.as_str(), &gang.accelerator.0, gang.pool.as_str(), &submitter.0];
        let optional = [&program.setup, &checkpoint.path].into_iter().flatten().map(String::as_str);
        let envs = program.envs.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let texts = named.into_iter().chain([program.workdir.as_str(), &program.run]).chain(optional).chain(envs);
        let texts: u64 = texts.chain(self.datasets.iter().map(String::as_str)).map(|text| stored_text(text).0).sum();
        let pairs = self.elastic.as_ref().map_or(0, |elastic| elastic.speed_up.points().len());
        Bytes(FIELDS_BYTES + texts + PAIR_BYTES * u64::try_from(pairs).unwrap_or(u64::MAX))
    }
}

/// What a text takes where it is stored, with quotes and what has to be escaped.
pub(crate) fn stored_text(text: &str) -> Bytes {
    let stored = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        // Written as \u00 and two digits.
        0..=0x1f => 6,
        _ => 1,
    };
    Bytes(text.bytes().map(stored).sum::<u64>() + PUNCTUATION_BYTES)
}

/// The user on whose behalf a job runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Submitter(pub String);

impl fmt::Display for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 0 to 1000, higher first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u16);

impl Priority {
    /// The highest.
    pub const MAX: u16 = 1_000;
    /// `low` in a job file.
    pub const LOW: Priority = Priority(250);
    /// `normal`, the default.
    pub const NORMAL: Priority = Priority(500);
    /// `high`.
    pub const HIGH: Priority = Priority(750);
    /// `urgent`.
    pub const URGENT: Priority = Priority(Priority::MAX);

    /// A priority, if it is at most [`Priority::MAX`].
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value <= Priority::MAX { Some(Priority(value)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// A type of accelerator as inventory names it: `H100`, `A100`, or `cpu` for slots of a machine without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcceleratorKind(pub String);

impl AcceleratorKind {
    /// The kind of a CPU slot.
    pub const CPU: &'static str = "cpu";
}

impl fmt::Display for AcceleratorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Accelerators that jobs compete for: those of one type in one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The type.
    pub accelerator: AcceleratorKind,
    /// The pool.
    pub pool: PoolName,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lane { accelerator, pool } = self;
        if pool.is_default() { write!(f, "{accelerator}") } else { write!(f, "{accelerator} of pool {pool}") }
    }
}

/// The nodes and devices a gang needs, all or nothing. The amounts are for each node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangShape {
    /// How many nodes.
    pub nodes: NonZeroU32,
    /// The pool they are in.
    pub pool: PoolName,
    /// The type of accelerator.
    pub accelerator: AcceleratorKind,
    /// How many accelerators on each node.
    pub accelerators_per_node: NonZeroU32,
    /// CPU cores on each node, beside those that are slots themselves.
    pub cpus_per_node: u32,
    /// Memory on each node.
    pub memory_per_node: Bytes,
    /// How many ranks a node runs.
    pub launch: Launch,
    /// How close to each other the nodes have to be.
    pub topology: TopologyRequest,
}

impl GangShape {
    /// What it competes for.
    #[must_use]
    pub fn lane(&self) -> Lane {
        Lane { accelerator: self.accelerator.clone(), pool: self.pool.clone() }
    }

    /// Whether both are of one lane.
    #[must_use]
    pub fn competes_with(&self, other: &GangShape) -> bool {
        self.accelerator == other.accelerator && self.pool == other.pool
    }

    /// Devices of the whole gang.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.nodes.get().saturating_mul(self.accelerators_per_node.get())
    }

    /// The same on another number of nodes.
    #[must_use]
    pub fn of_nodes(&self, nodes: NonZeroU32) -> GangShape {
        GangShape { nodes, ..self.clone() }
    }

    /// Ranks on each node.
    #[must_use]
    pub fn ranks_per_node(&self) -> u32 {
        match self.launch {
            Launch::PerAccelerator => self.accelerators_per_node.get(),
            Launch::PerNode => 1,
        }
    }
}

/// How a node's ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launch {
    /// One rank for each accelerator; each sees its own device.
    PerAccelerator,
    /// One process for each node; it sees all the job's devices there.
    PerNode,
}

/// What the ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The folder they start in: absolute.
    pub workdir: String,
    /// Environment variables beside torchrun's and Gangline's.
    pub envs: BTreeMap<String, String>,
    /// A shell command run once on each node before the ranks.
    pub setup: Option<String>,
    /// The shell command of each rank.
    pub run: String,
}

/// Where a job saves and how long it may take to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// The folder of its checkpoints: absolute. Kept between attempts.
    pub path: Option<String>,
    /// From being asked to save and stop to SIGKILL.
    pub grace: Duration,
}

/// How often a job may fail before it is stopped for good. Preemptions and resizes are not counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// Faults in all.
    pub max_faults: u32,
    /// Faults in a row without a newer checkpoint.
    pub no_progress_limit: u32,
    /// When ranks that show no progress are given up.
    pub hang_timeout: HangTimeout,
    /// It leaves a node on which a rank is slower than its peers, if there is another.
    pub evicts_stragglers: bool,
}

/// When ranks that run but show no progress are taken to have hung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HangTimeout {
    /// After a multiple of the steps' time, or of the time between lines of output, that was seen so far.
    #[default]
    Learned,
    /// After so long without a step, a phase or a line of output.
    After(Duration),
    /// Never.
    Never,
}
