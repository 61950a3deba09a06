//! Why the engine refuses an event: always a value, never a change of state.

use std::fmt;
use std::path::PathBuf;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, DEPENDENCIES_MAX, GangShape, JobId, Level, Money, NodeId, QueueName, Step,
    Submitter, SweepId,
};

use crate::SWEEP_JOBS_MAX;
use crate::configuration::InvalidConfiguration;
use crate::explain::of_pool;
use crate::placement::Misplaced;

/// A refused event. The state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No job of this id is waiting or running.
    #[error("{0} is not waiting or running")]
    UnknownJob(JobId),
    /// The job holds devices, and only waiting jobs can be changed.
    #[error("{0} doesn't wait, and only a waiting job can be changed or held")]
    NotWaiting(JobId),
    /// A job would come after more jobs than it may.
    #[error("it comes after {count} jobs, and may come after {DEPENDENCIES_MAX} at most")]
    TooManyDependencies {
        /// The number of jobs.
        count: usize,
    },
    /// No node has this id.
    #[error("{0} is not known")]
    UnknownNode(NodeId),
    /// The node is lost; it can't be drained or take jobs before it joins again.
    #[error("{0} is lost")]
    LostNode(NodeId),
    /// The attempt is not the job's current one, or this share of it has already ended.
    #[error("{job} {attempt} has ended already")]
    Stale {
        /// The job.
        job: JobId,
        /// The attempt that has ended.
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
    /// The gang exceeds the limit of its queue.
    #[error("it wants {wanted} {kind} in all, and queue \"{queue}\" may have at most {limit}")]
    BeyondLimit {
        /// The queue, or one above it.
        queue: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// The number of accelerators that the gang requests.
        wanted: u32,
        /// The queue's limit: quota plus borrowing limit.
        limit: u32,
    },
    /// The configuration is invalid.
    #[error(transparent)]
    Configuration(#[from] InvalidConfiguration),
    /// A live job saves into the checkpoint folder that the job names.
    #[error("its checkpoint folder {} is in use by {holder}, which has not ended", folder.display())]
    FolderTaken {
        /// The folder.
        folder: PathBuf,
        /// The first job that uses it.
        holder: JobId,
    },
    /// The engine is at its limit of waiting jobs.
    #[error("{waiting} jobs are waiting, the most there may be")]
    QueueFull {
        /// The number of waiting jobs.
        waiting: usize,
    },
    /// A job or a sweep is too large for one journal entry.
    #[error("it takes {bytes} where it is stored, and a submission may take {limit}")]
    TooLarge {
        /// Its stored size.
        bytes: Bytes,
        /// The size limit.
        limit: Bytes,
    },
    /// A user would have more live jobs than the limit.
    #[error("{user} has {live} job(s) that wait or run, and with {more} more they would be over the limit of {limit}")]
    UserJobs {
        /// The user.
        user: Submitter,
        /// The number of live jobs.
        live: usize,
        /// The number of jobs to be added.
        more: usize,
        /// The limit.
        limit: usize,
    },
    /// The stored size of a user's live jobs, or of all live jobs, would exceed its limit.
    #[error("{} take {live} where they are stored, and with {more} more they would be over the limit of {limit}", whose_jobs(user.as_ref()))]
    Stored {
        /// The user; none if the limit is on all jobs together.
        user: Option<Submitter>,
        /// The stored size of the live jobs.
        live: Bytes,
        /// The stored size to be added.
        more: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// A node's location contradicts that of another node in the same domain.
    #[error("{0}")]
    Misplaced(Box<Misplaced>),
    /// A gang can't be divided into segments of equal size.
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
    /// A sweep has no points, or too many.
    #[error("a sweep of {points} job(s) can't be taken; it may have 1 to {SWEEP_JOBS_MAX}")]
    SweepSize {
        /// The number of points.
        points: usize,
    },
    /// A point of a sweep is refused, and with it the whole sweep.
    #[error("\"{point}\" of a sweep of {points} can't be taken, so none is: {because}")]
    SweepPoint {
        /// The point's name.
        point: String,
        /// The number of points in the sweep.
        points: usize,
        /// Why the point is refused.
        because: Box<Refusal>,
    },
    /// No decision depends on the job's metric at this step.
    #[error("step {step} of {job} is not the first at a rung of a sweep with early stopping")]
    MetricNotDue {
        /// The job.
        job: JobId,
        /// The step.
        step: Step,
    },
    /// The budget is for accelerators without a configured price.
    #[error("it has a budget, but nobody has said what an hour of {kind} costs")]
    NoPrice {
        /// The kind of accelerator.
        kind: AcceleratorKind,
    },
    /// The budget doesn't pay for a start.
    #[error("its budget of {budget} does not pay for a minute and the grace to save, which cost {least}")]
    BudgetTooSmall {
        /// The budget.
        budget: Money,
        /// The smallest sufficient budget.
        least: Money,
    },
    /// The cluster is at its limit of nodes.
    #[error("{nodes} nodes are known, the most there may be")]
    ClusterFull {
        /// The number of known nodes.
        nodes: usize,
    },
}

impl Refusal {
    /// Reports whether a rule or limit causes the refusal, rather than an inconsistency. Rules change between
    /// releases; replay keeps what older rules accepted.
    pub(crate) fn is_by_rule(&self) -> bool {
        match self {
            Refusal::UnknownJob(_) | Refusal::UnknownNode(_) | Refusal::UnknownSweep(_) | Refusal::Stale { .. } => {
                false
            }
            Refusal::SweepPoint { because, .. } => because.is_by_rule(),
            Refusal::LostNode(_)
            | Refusal::NotWaiting(_)
            | Refusal::TooManyDependencies { .. }
            | Refusal::NeverFits(_)
            | Refusal::UnknownQueue { .. }
            | Refusal::BeyondLimit { .. }
            | Refusal::Configuration(_)
            | Refusal::QueueFull { .. }
            | Refusal::FolderTaken { .. }
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

/// What a gang requests compared with what the cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The requested gang.
    pub wanted: GangShape,
    /// Nodes with accelerators of that kind.
    pub nodes_of_kind: u32,
    /// Nodes that could each take a share if ready and empty.
    pub nodes_that_fit: u32,
    /// The most accelerators of that kind on one node.
    pub accelerators_per_node_max: u32,
    /// The most CPU cores on one node of that kind; 0 if none declares them.
    pub cpus_per_node_max: u32,
    /// The most memory on one node of that kind; 0 if none declares it.
    pub memory_per_node_max: Bytes,
    /// All available kinds, with their pools.
    pub kinds: Vec<String>,
    /// The domain that could hold most of the gang, if its nodes have to be close to each other.
    pub closest: Option<DomainFit>,
}

/// How many nodes the most suitable domain offers a gang that must be within one domain, or whose segments
/// must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFit {
    /// The requested level.
    pub level: Level,
    /// The best domain; for segments it may be the whole cluster, which is none. Also none if no node names a
    /// domain of the level.
    pub domain: Option<String>,
    /// Nodes of that domain that together could hold a part of the gang.
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
    /// Describes what could be requested instead.
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
        let declared = |is_declared: bool, amount: &dyn fmt::Display| {
            if is_declared { amount.to_string() } else { "not declared".to_owned() }
        };
        format!(
            "at most {kind}:{}, cpus: {}, memory: {} on a node, and {} such node(s)",
            self.accelerators_per_node_max,
            declared(self.cpus_per_node_max > 0, &self.cpus_per_node_max),
            declared(self.memory_per_node_max > Bytes(0), &self.memory_per_node_max),
            self.nodes_of_kind
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
