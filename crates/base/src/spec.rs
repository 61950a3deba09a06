//! The validated job specification. A field exists only if something honours it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::{
    Bytes, CodeCopy, Container, Dependency, Elastic, JobId, Money, Notify, PlannedRate, PoolName, QueueName,
    TopologyRequest,
};

/// A validated job specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// The name its owner gave it; not unique.
    pub name: String,
    /// The queue it waits in.
    pub queue: QueueName,
    /// Its priority among waiting jobs.
    pub priority: Priority,
    /// The devices it needs, allocated all at once.
    pub gang: GangShape,
    /// The additional widths it may have; none if its width is fixed.
    pub elastic: Option<Elastic>,
    /// The program its ranks run.
    pub program: Program,
    /// Where it saves checkpoints, and how long a save may take when it is asked to stop.
    pub checkpoint: CheckpointPolicy,
    /// How many failures it tolerates.
    pub recovery: RecoveryPolicy,
    /// The longest one attempt may run.
    pub time_limit: Option<Duration>,
    /// The most it may cost over all attempts, at the list price of its accelerators.
    pub budget: Option<Money>,
    /// Standby nodes to keep while it runs, shared with other jobs; 0 for none.
    pub spares: u32,
    /// The datasets it reads, as its owner names them: among otherwise equal nodes, placement prefers those
    /// that may still have them cached.
    pub datasets: BTreeSet<String>,
    /// The rate that it should reach by its plan; none if its owner gave none.
    pub planned: Option<PlannedRate>,
    /// What retention never removes.
    pub pins: BTreeSet<Pin>,
    /// The jobs that have to end before it may start, at most [`crate::DEPENDENCIES_MAX`].
    pub after: BTreeSet<Dependency>,
    /// Whom it tells when it starts or ends.
    pub notify: Notify,
    /// The ended job whose work it continues, from that job's checkpoints.
    pub origin: Option<JobId>,
    /// The user who submitted it.
    pub submitter: Submitter,
}

/// A part of a job's output that its owner exempts from retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// Logs and other files of the job's attempts.
    Logs,
    /// Its displayed record. Every other pin keeps the record as well, since what is kept could not be found
    /// without it.
    Record,
    /// Its checkpoints.
    Checkpoints,
}

/// The stored size of a specification without its texts: field names and numbers.
const FIELDS_BYTES: u64 = 1_024;
/// The bytes that quotes, a colon and a comma add to a stored text.
const PUNCTUATION_BYTES: u64 = 4;
/// The stored size of a pair of numbers.
const PAIR_BYTES: u64 = 24;
/// The stored size of a dependency: a job and a word.
const DEPENDENCY_BYTES: u64 = 40;

impl JobSpec {
    /// Returns an upper bound on its stored size; limits on user submissions count this.
    #[must_use]
    pub fn stored_bytes(&self) -> Bytes {
        let JobSpec { name, queue, gang, program, checkpoint, submitter, .. } = self;
        let named = [name, queue.as_str(), &gang.accelerator.0, gang.pool.as_str(), &submitter.0];
        let optional = [program.setup.as_deref(), checkpoint.path.as_deref()];
        let code = program.code.iter().flat_map(CodeCopy::texts);
        let container = program.container.iter().flat_map(Container::texts).map(Some);
        let optional = optional.into_iter().chain(self.notify.texts()).chain(code).chain(container).flatten();
        let envs = program.envs.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let texts = named.into_iter().chain([program.workdir.as_str(), &program.run]).chain(optional).chain(envs);
        let texts: u64 = texts.chain(self.datasets.iter().map(String::as_str)).map(|text| stored_text(text).0).sum();
        let pairs = self.elastic.as_ref().map_or(0, |elastic| elastic.speed_up.points().len());
        let size = |bytes: u64, count: usize| bytes.saturating_mul(u64::try_from(count).unwrap_or(u64::MAX));
        Bytes(FIELDS_BYTES + texts + size(PAIR_BYTES, pairs) + size(DEPENDENCY_BYTES, self.after.len()))
    }
}

/// Returns the stored size of a text, including quotes and escapes.
pub(crate) fn stored_text(text: &str) -> Bytes {
    let stored = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        // Stored as `\u00` and two digits.
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

/// A priority from 0 to 1000; higher priorities are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u16);

impl Priority {
    /// The highest priority.
    pub const MAX: u16 = 1_000;
    /// `low` in a job file.
    pub const LOW: Priority = Priority(250);
    /// `normal`, the default.
    pub const NORMAL: Priority = Priority(500);
    /// `high`.
    pub const HIGH: Priority = Priority(750);
    /// `urgent`.
    pub const URGENT: Priority = Priority(Priority::MAX);

    /// Builds a priority, if `value` is at most [`Priority::MAX`].
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value <= Priority::MAX { Some(Priority(value)) } else { None }
    }

    /// Returns the number.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// A type of accelerator as the inventory names it: `H100`, `A100`, or `cpu` for the slots of a machine
/// without accelerators.
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

/// A resource flavour: accelerators of one type in one pool, for which jobs compete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flavour {
    /// The accelerator type.
    pub accelerator: AcceleratorKind,
    /// The pool.
    pub pool: PoolName,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flavour { accelerator, pool } = self;
        if pool.is_default() { write!(f, "{accelerator}") } else { write!(f, "{accelerator} of pool {pool}") }
    }
}

/// The nodes and devices a gang needs, all or nothing. Amounts are per node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangShape {
    /// The number of nodes.
    pub nodes: NonZeroU32,
    /// The pool of its nodes.
    pub pool: PoolName,
    /// The accelerator type.
    pub accelerator: AcceleratorKind,
    /// Accelerators per node.
    pub accelerators_per_node: NonZeroU32,
    /// CPU cores per node, in addition to cores that are themselves slots.
    pub cpus_per_node: u32,
    /// Memory per node.
    pub memory_per_node: Bytes,
    /// How ranks are launched on a node.
    pub launch: Launch,
    /// How close to each other its nodes have to be.
    pub topology: TopologyRequest,
}

impl GangShape {
    /// Returns the resource flavour for which it competes.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        Flavour { accelerator: self.accelerator.clone(), pool: self.pool.clone() }
    }

    /// Reports whether both gangs compete for the same flavour.
    #[must_use]
    pub fn competes_with(&self, other: &GangShape) -> bool {
        self.accelerator == other.accelerator && self.pool == other.pool
    }

    /// Returns the number of devices of the whole gang.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.nodes.get().saturating_mul(self.accelerators_per_node.get())
    }

    /// Returns the same shape with another number of nodes.
    #[must_use]
    pub fn of_nodes(&self, nodes: NonZeroU32) -> GangShape {
        GangShape { nodes, ..self.clone() }
    }

    /// Returns the number of ranks per node.
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
    /// One rank per accelerator; each sees only its own device.
    PerAccelerator,
    /// One process per node; it sees all the job's devices there.
    PerNode,
}

/// The program that the ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The working directory, as an absolute path; of code from git, the repository's address.
    pub workdir: String,
    /// The copy of the code in which it runs; none: it runs in the working directory itself.
    pub code: Option<CodeCopy>,
    /// The image in which setup and ranks run; none: they run on the node itself.
    pub container: Option<Container>,
    /// Environment variables in addition to those of torchrun and Gangline.
    pub envs: BTreeMap<String, String>,
    /// A shell command that runs once on each node before the ranks start.
    pub setup: Option<String>,
    /// The shell command that each rank runs.
    pub run: String,
}

/// Where a job saves checkpoints and how long a save may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// The checkpoint folder, as an absolute path. Kept between attempts. [`CheckpointPolicy::JOB`] in it stands for
    /// the job's id.
    pub path: Option<String>,
    /// Whether other live jobs may use the folder too.
    pub is_shared: bool,
    /// The time from the request to save and stop until SIGKILL.
    pub grace: Duration,
}

impl CheckpointPolicy {
    /// The part of a path that stands for the job's id, so that each job of a sweep has a folder of its own.
    pub const JOB: &str = "{job}";
    /// The time from being asked to save and stop to being killed, of a job that names none.
    pub const GRACE_DEFAULT: Duration = Duration::from_secs(30);
}

/// How often a job may fail before it is stopped for good. Preemptions and resizes don't count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// The most faults in total.
    pub max_faults: u32,
    /// The most faults in a row without a newer checkpoint.
    pub no_progress_limit: u32,
    /// When ranks without progress are considered hung.
    pub hang_timeout: HangTimeout,
    /// Whether the job leaves a node on which a rank is slower than its peers, if another node is available.
    pub evicts_stragglers: bool,
}

/// When running ranks that make no progress are considered hung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HangTimeout {
    /// After a multiple of the step time, or of the time between lines of output, observed so far.
    #[default]
    Learned,
    /// After this long without a step, a phase change or a line of output.
    After(Duration),
    /// Never.
    Never,
}
