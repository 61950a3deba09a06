//! Why the engine refuses an event: always a value, never a change of state.

use std::fmt;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, GangShape, JobId, Level, Money, NodeId, QueueName, Step, Submitter, SweepId,
};

use crate::SWEEP_JOBS_MAX;
use crate::configuration::InvalidConfiguration;
use crate::explain::of_pool;
use crate::topology::Misplaced;

/// A refused event. The state is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No job of this id is waiting or running.
    #[error("{0} is not waiting or running")]
    UnknownJob(JobId),
    /// No node has this id.
    #[error("{0} is not known")]
    UnknownNode(NodeId),
    /// The node is gone; it can't be drained or take jobs again before it joins.
    #[error("{0} is lost")]
    LostNode(NodeId),
    /// The attempt named is not the job's current one, or that share of it has already ended.
    #[error("{job} {attempt} has ended already")]
    Stale {
        /// The job.
        job: JobId,
        /// The attempt that is over.
        attempt: AttemptNumber,
    },
    /// The gang could not be placed even if every known node were ready and empty.
    #[error("no node could ever hold it: {0}")]
    NeverFits(Box<Fit>),
    /// No queue of this name takes jobs.
    #[error("there is no queue \"{queue}\" for jobs")]
    UnknownQueue {
        /// The name.
        queue: QueueName,
        /// Queues that take jobs.
        queues: Vec<QueueName>,
    },
    /// The gang is larger than its queue may ever be.
    #[error("it wants {wanted} {kind} in all, and queue \"{queue}\" may have at most {limit}")]
    BeyondLimit {
        /// The queue, or one above it.
        queue: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// Accelerators the gang wants.
        wanted: u32,
        /// Accelerators the queue may have, quota and borrowing together.
        limit: u32,
    },
    /// The queues contradict each other.
    #[error(transparent)]
    Configuration(#[from] InvalidConfiguration),
    /// The queue is at its limit.
    #[error("{waiting} jobs are waiting, the most there may be")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// A job or a sweep is larger than what one entry of the journal takes.
    #[error("it takes {bytes} where it is stored, and a submission may take {limit}")]
    TooLarge {
        /// What it takes.
        bytes: Bytes,
        /// What it may.
        limit: Bytes,
    },
    /// A user has as many live jobs as one may have.
    #[error("{user} has {live} job(s) that wait or run, and with {more} more they would be over the limit of {limit}")]
    UserJobs {
        /// The user.
        user: Submitter,
        /// How many there are.
        live: usize,
        /// How many were to come.
        more: usize,
        /// How many there may be.
        limit: usize,
    },
    /// What a user's live jobs, or all of them, take where they are stored is at its limit.
    #[error("{} take {live} where they are stored, and with {more} more they would be over the limit of {limit}", whose_jobs(user.as_ref()))]
    Stored {
        /// The user; none if it is all jobs together.
        user: Option<Submitter>,
        /// What they take.
        live: Bytes,
        /// What was to come.
        more: Bytes,
        /// What they may take.
        limit: Bytes,
    },
    /// A node says it is where another node of the same domain says that the domain isn't.
    #[error("{0}")]
    Misplaced(Box<Misplaced>),
    /// A gang can't be cut into segments of equal size.
    #[error("{nodes} node(s) can't be cut into segments of {segment}; ask for a multiple of {segment} nodes")]
    UnevenSegments {
        /// The gang's nodes.
        nodes: u32,
        /// A segment's nodes.
        segment: u32,
    },
    /// No sweep of this id has a job that is waiting or running.
    #[error("{0} has no job that is waiting or running")]
    UnknownSweep(SweepId),
    /// A sweep without a point, or with too many.
    #[error("a sweep of {points} job(s) can't be taken; it may have 1 to {SWEEP_JOBS_MAX}")]
    SweepSize {
        /// How many.
        points: usize,
    },
    /// A point of a sweep can't be taken, so none is.
    #[error("\"{point}\" of a sweep of {points} can't be taken, so none is: {because}")]
    SweepPoint {
        /// The point's name.
        point: String,
        /// How many there are.
        points: usize,
        /// Why not.
        because: Box<Refusal>,
    },
    /// Nothing depends on the job's metric at this step.
    #[error("step {step} of {job} is not the first at a rung of a sweep with early stopping")]
    MetricNotDue {
        /// The job.
        job: JobId,
        /// The step.
        step: Step,
    },
    /// A budget for accelerators that nobody has said the price of.
    #[error("it has a budget, but nobody has said what an hour of {kind} costs")]
    NoPrice {
        /// The kind of accelerator.
        kind: AcceleratorKind,
    },
    /// A budget that doesn't pay for a start.
    #[error("its budget of {budget} does not pay for a minute and the grace to save, which cost {least}")]
    BudgetTooSmall {
        /// The budget.
        budget: Money,
        /// What has to be paid for at least.
        least: Money,
    },
    /// The cluster is at its limit.
    #[error("{nodes} nodes are known, the most there may be")]
    ClusterFull {
        /// How many are known.
        nodes: usize,
    },
}

impl Refusal {
    /// Whether a rule or a limit refuses what would make sense otherwise. Rules change from one release to the next; what was
    /// accepted before they did stays accepted.
    pub(crate) fn is_by_rule(&self) -> bool {
        match self {
            Refusal::UnknownJob(_) | Refusal::UnknownNode(_) | Refusal::UnknownSweep(_) | Refusal::Stale { .. } => {
                false
            }
            Refusal::SweepPoint { because, .. } => because.is_by_rule(),
            Refusal::LostNode(_)
            | Refusal::NeverFits(_)
            | Refusal::UnknownQueue { .. }
            | Refusal::BeyondLimit { .. }
            | Refusal::Configuration(_)
            | Refusal::QueueFull { .. }
            | Refusal::Misplaced(_)
            | Refusal::UnevenSegments { .. }
            | Refusal::SweepSize { .. }
            | Refusal::MetricNotDue { .. }
            | Refusal::NoPrice { .. }
            | Refusal::BudgetTooSmall { .. }
            | Refusal::TooLarge { .. }
            | Refusal::UserJobs { .. }
            | Refusal::Stored { .. }
            | Refusal::ClusterFull { .. } => true,
        }
    }
}

fn whose_jobs(user: Option<&Submitter>) -> String {
    user.map_or_else(|| "all jobs together".to_owned(), |user| format!("the jobs of {user}"))
}

/// What a gang wants beside what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// What it wants.
    pub wanted: GangShape,
    /// Nodes with accelerators of that kind.
    pub nodes_of_kind: u32,
    /// Nodes that could each take a share, were they ready and empty.
    pub nodes_that_fit: u32,
    /// The most accelerators of that kind one node has.
    pub accelerators_per_node_max: u32,
    /// The most CPU cores a node of that kind has.
    pub cpus_per_node_max: u32,
    /// The most memory a node of that kind has.
    pub memory_per_node_max: Bytes,
    /// All kinds there are, with their pools.
    pub kinds: Vec<String>,
    /// The domain that could hold most of it, if it wants its nodes close to each other.
    pub closest: Option<DomainFit>,
}

/// What the most suitable domain could hold of a gang that is bound to one, or to segments in one each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFit {
    /// The level asked for.
    pub level: Level,
    /// The best domain: of that level, or the whole cluster (none) for segments. None too if no node names the level.
    pub domain: Option<String>,
    /// Nodes of it that together could hold a part of the gang.
    pub nodes: u32,
}

impl fmt::Display for DomainFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.domain {
            _ if self.level == Level::Node => f.write_str("at most 1 in one node"),
            _ if self.nodes == 0 => write!(f, "none in one known {}", self.level),
            Some(domain) => write!(f, "at most {} in one {} ({domain})", self.nodes, self.level),
            None => write!(f, "at most {} in segments within one {}", self.nodes, self.level),
        }
    }
}

impl Fit {
    /// What could be asked for instead.
    #[must_use]
    pub fn what_would_fit(&self) -> String {
        let kind = &self.wanted.accelerator;
        if self.kinds.is_empty() {
            return "no node has joined yet".to_owned();
        }
        if self.nodes_of_kind == 0 {
            return format!("accelerators here: {}", self.kinds.join(", "));
        }
        if let Some(closest) = self.closest.as_ref().filter(|_| self.nodes_that_fit >= self.wanted.nodes.get()) {
            return format!("{closest}; ask for fewer nodes or for a wider level");
        }
        if self.nodes_that_fit > 0 {
            let per_node = self.wanted.accelerators_per_node;
            return format!("at most num_nodes: {} with {kind}:{per_node} each", self.nodes_that_fit);
        }
        format!(
            "at most {kind}:{}, cpus: {}, memory: {} on a node, and {} such node(s)",
            self.accelerators_per_node_max, self.cpus_per_node_max, self.memory_per_node_max, self.nodes_of_kind
        )
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = &self.wanted;
        let (pool, kind) = (of_pool(wanted), &wanted.accelerator);
        write!(f, "it wants {} node(s){pool} with {kind}:{}", wanted.nodes, wanted.accelerators_per_node)?;
        if wanted.cpus_per_node > 0 {
            write!(f, ", {} cpus", wanted.cpus_per_node)?;
        }
        if wanted.memory_per_node > Bytes(0) {
            write!(f, ", {}", wanted.memory_per_node)?;
        }
        write!(
            f,
            " each; {} of {} node(s){pool} with {kind} could take a share",
            self.nodes_that_fit, self.nodes_of_kind
        )?;
        match &self.closest {
            Some(closest) => write!(f, "; {closest}"),
            None => Ok(()),
        }
    }
}
