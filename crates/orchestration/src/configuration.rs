//! The cluster's configuration: queues and scheduling rules. It arrives as an event, so the journal records
//! it and replay uses the rules that were in force at the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{AcceleratorKind, GpuSeconds, Money, QueueName};

use crate::cost::RestartCosts;
use crate::placement::{self, AdvanceReservation, Fabric, HealthPolicy, InvalidFabric, InvalidReservation};
use crate::queueing::{HourQuota, QueueOrder, QueueSpec, QueueingRules};
use crate::recovery::{InvalidSpares, SpareRules};

/// The most queues in one configuration.
pub const QUEUES_MAX: usize = 10_000;
/// The queue that a job asks for which names none.
const UNNAMED: &str = "default";
/// The most queues that an error names.
const LEAVES_NAMED_MAX: usize = 16;
/// The shortest ageing.
const AGEING_MIN: Duration = Duration::from_mins(1);
/// The most levels of queues.
pub(crate) const QUEUE_DEPTH_MAX: usize = 8;

/// The cluster's configuration. The default has no queues: all jobs wait in a single queue; and no ageing, as
/// journals from before there was ageing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The queues, parents and leaves, in any order. If empty, every queue name is accepted and ignored.
    pub queues: Vec<QueueSpec>,
    /// The GPU-hours that queues may use in each period, by queue.
    pub gpu_hours: BTreeMap<QueueName, HourQuota>,
    /// The time after which past use counts half as much toward a queue's share.
    pub half_life: Duration,
    /// The order of jobs with the same priority in a queue.
    pub order: QueueOrder,
    /// The time after which a waiting job goes before every other that has not waited longer; none if waiting
    /// wins no place.
    pub ageing: Option<Duration>,
    /// The queue of jobs that name none; without it they go to the queue "default".
    pub default_queue: Option<QueueName>,
    /// Other names of queues, as a batch script writes them: `partition=gpu`.
    pub aliases: BTreeMap<String, QueueName>,
    /// List prices per accelerator-hour, by kind; budgets are metered with them.
    pub prices: BTreeMap<AcceleratorKind, Money>,
    /// When running jobs are preempted for waiting ones.
    pub preemption: PreemptionRules,
    /// The network's bandwidths; without them placements are compared only by their domains.
    pub fabric: Option<Fabric>,
    /// When faults make a node suspect; none if they never do.
    pub health: Option<HealthPolicy>,
    /// Advance reservations, in any order.
    pub reservations: Vec<AdvanceReservation>,
    /// How many nodes are kept as spares.
    pub spares: SpareRules,
}

impl Configuration {
    /// Returns a configuration without queues and with every rule enabled that shortens waits.
    #[must_use]
    pub fn shortest_waits() -> Self {
        let preemption = PreemptionRules { share_time: true, consolidate: true, ..PreemptionRules::default() };
        Configuration { order: QueueOrder::ShortestExpected, preemption, ..Configuration::default() }
    }
}

impl Configuration {
    /// Returns the names of the parts in which another configuration differs, as the configuration file calls them.
    #[must_use]
    pub fn differences(&self, other: &Configuration) -> Vec<&'static str> {
        let Configuration {
            queues,
            gpu_hours,
            half_life,
            order,
            ageing,
            default_queue,
            aliases,
            prices,
            preemption,
            fabric,
            health,
            reservations,
            spares,
        } = self;
        let parts = [
            ("queue", *queues != other.queues || *gpu_hours != other.gpu_hours),
            ("half_life", *half_life != other.half_life),
            ("order", *order != other.order),
            ("scheduling", *ageing != other.ageing || *default_queue != other.default_queue),
            ("sbatch", *aliases != other.aliases),
            ("price", *prices != other.prices),
            ("preemption", *preemption != other.preemption),
            ("fabric", *fabric != other.fabric),
            ("suspicion", *health != other.health),
            ("reservation", *reservations != other.reservations),
            ("spares", *spares != other.spares),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Returns the part that queueing needs.
    pub(crate) fn queueing(&self) -> QueueingRules {
        let (queues, half_life) = (self.queues.clone(), self.half_life);
        QueueingRules { queues, half_life, hours: self.gpu_hours.clone(), shares_time: self.preemption.share_time }
    }
}

impl Default for Configuration {
    fn default() -> Self {
        // Slurm's PriorityDecayHalfLife default (slurm.conf).
        Configuration {
            queues: Vec::new(),
            gpu_hours: BTreeMap::new(),
            half_life: Duration::from_hours(24 * 7),
            order: QueueOrder::default(),
            ageing: None,
            default_queue: None,
            aliases: BTreeMap::new(),
            prices: BTreeMap::new(),
            preemption: PreemptionRules::default(),
            fabric: None,
            health: None,
            reservations: Vec::new(),
            spares: SpareRules::default(),
        }
    }
}

/// When running jobs are preempted for waiting ones. A preempted job is asked to save first, and is then
/// requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionRules {
    /// A queue that holds less than its entitlement takes devices back from queues that hold more than theirs
    /// (Kueue's `reclaimWithinCohort: Any`). The entitlement is the quota plus a part, by weight, of what is
    /// left.
    pub reclaim: bool,
    /// Within a queue, a waiting job preempts running ones of lower priority (Kueue's `withinClusterQueue:
    /// LowerPriority`).
    pub by_priority: bool,
    /// Within a queue and a priority, a job that has run for long is preempted for one that is expected to be
    /// short.
    pub share_time: bool,
    /// Jobs on part of a node move to other nodes where that makes room for a waiting job (KAI's
    /// consolidation).
    pub consolidate: bool,
    /// The least time that an attempt runs before it can be preempted.
    pub runtime_min: Duration,
    /// The downtime of stopping and restarting a job, estimated; used for jobs without measurements.
    pub restart: RestartCosts,
}

impl PreemptionRules {
    /// Rules under which no job is preempted.
    pub const OFF: PreemptionRules = PreemptionRules {
        reclaim: false,
        by_priority: false,
        share_time: false,
        consolidate: false,
        runtime_min: Duration::ZERO,
        restart: RestartCosts { save: Duration::ZERO, requeue: Duration::ZERO, restore: Duration::ZERO },
    };
}

impl PreemptionRules {
    /// Reports whether a job may be preempted, once it has saved, for another job of equal right.
    pub(crate) fn moves_equals(&self) -> bool {
        self.share_time || self.consolidate
    }
}

impl Default for PreemptionRules {
    fn default() -> Self {
        // The sum is close to the 62 s that Tiresias (NSDI 2019) measured on average for a preemption; Sia
        // (SOSP 2023) has 25 to 250 s.
        let restart = RestartCosts {
            save: Duration::from_secs(20),
            requeue: Duration::from_secs(10),
            restore: Duration::from_secs(30),
        };
        PreemptionRules {
            reclaim: true,
            by_priority: true,
            share_time: false,
            consolidate: false,
            runtime_min: Duration::from_mins(5),
            restart,
        }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfiguration {
    /// Two queues have the same name.
    #[error("there are two queues named \"{queue}\"")]
    Duplicate {
        /// The duplicate name.
        queue: QueueName,
    },
    /// A queue names a parent that does not exist.
    #[error("queue \"{queue}\" belongs to \"{parent}\", which is not a queue here")]
    UnknownParent {
        /// The queue.
        queue: QueueName,
        /// The unknown parent.
        parent: QueueName,
    },
    /// A queue is its own ancestor or nested too deeply.
    #[error(
        "queue \"{queue}\" has more than {QUEUE_DEPTH_MAX} queues above it: is one of them its own parent, directly or not?"
    )]
    Cycle {
        /// The queue.
        queue: QueueName,
    },
    /// The children's quotas add up to more than their parent's quota.
    #[error(
        "the queues in \"{parent}\" have a quota of {children} {kind} in all, but \"{parent}\" itself only {own}: raise its quota or lower theirs"
    )]
    ChildrenOverParent {
        /// The parent.
        parent: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// The sum of the children's quotas.
        children: u64,
        /// The parent's own quota.
        own: u32,
    },
    /// The network's bandwidths are inconsistent.
    #[error(transparent)]
    Fabric(#[from] InvalidFabric),
    /// The reservations are inconsistent.
    #[error(transparent)]
    Reservation(#[from] InvalidReservation),
    /// The rules for spares are invalid.
    #[error(transparent)]
    Spares(#[from] InvalidSpares),
    /// A job would be overdue as soon as it waits.
    #[error(
        "a job has to wait for at least a minute before it is overdue: raise scheduling.ageing, or turn it \"off\""
    )]
    Ageing,
    /// A default queue, or another name, leads to a queue that takes no jobs.
    #[error("{what} names \"{queue}\", which is no queue that takes jobs; queues that take jobs: {queues}")]
    NoLeaf {
        /// What names the queue.
        what: String,
        /// The queue.
        queue: QueueName,
        /// The first few queues that take jobs.
        queues: String,
    },
    /// A queue that isn't there has GPU-hours, or one has none at all.
    #[error("the GPU-hours of queue \"{queue}\" are none, or there is no such queue")]
    GpuHours {
        /// The queue.
        queue: QueueName,
    },
    /// A half-life is too short, so use or faults would be forgotten at once.
    #[error("the half-life of use, and that of nodes' faults, has to be at least a second")]
    HalfLife,
    /// There are more queues than supported.
    #[error("{count} queues are more than the {QUEUES_MAX} there may be")]
    TooManyQueues {
        /// The number of queues.
        count: usize,
    },
}

impl Configuration {
    /// Validates the configuration.
    ///
    /// # Errors
    /// The first [`InvalidConfiguration`] found.
    pub fn check(&self) -> Result<(), InvalidConfiguration> {
        if self.queues.len() > QUEUES_MAX {
            return Err(InvalidConfiguration::TooManyQueues { count: self.queues.len() });
        }
        let forgetting = self.health.map(|policy| policy.half_life);
        if forgetting.into_iter().chain([self.half_life]).any(|half_life| half_life < Duration::from_secs(1)) {
            return Err(InvalidConfiguration::HalfLife);
        }
        if self.ageing.is_some_and(|ageing| ageing < AGEING_MIN) {
            return Err(InvalidConfiguration::Ageing);
        }
        self.fabric.as_ref().map_or(Ok(()), Fabric::check)?;
        let mut by_name: BTreeMap<&QueueName, &QueueSpec> = BTreeMap::new();
        for queue in &self.queues {
            if by_name.insert(&queue.name, queue).is_some() {
                return Err(InvalidConfiguration::Duplicate { queue: queue.name.clone() });
            }
        }
        let is_wrong =
            |(name, quota): &(&QueueName, &HourQuota)| quota.limit == GpuSeconds::ZERO || !by_name.contains_key(name);
        if let Some((queue, _)) = self.gpu_hours.iter().find(is_wrong) {
            return Err(InvalidConfiguration::GpuHours { queue: queue.clone() });
        }
        for queue in &self.queues {
            check_ancestors(queue, &by_name)?;
        }
        self.check_names()?;
        placement::check_reservations(self)?;
        self.spares.check()?;
        self.queues.iter().try_for_each(|parent| self.check_children(parent))
    }

    /// Checks that the default queue and the other names lead to queues that take jobs.
    fn check_names(&self) -> Result<(), InvalidConfiguration> {
        let default = self.default_queue.iter().map(|queue| ("scheduling.default_queue".to_owned(), queue));
        let aliases = self.aliases.iter().map(|(alias, queue)| (format!("sbatch.{alias}"), queue));
        let leaves: BTreeSet<&QueueName> = self.leaves().collect();
        match default.chain(aliases).find(|(_, queue)| !self.queues.is_empty() && !leaves.contains(queue)) {
            None => Ok(()),
            Some((what, queue)) => {
                let named: Vec<&str> = leaves.into_iter().map(QueueName::as_str).take(LEAVES_NAMED_MAX).collect();
                Err(InvalidConfiguration::NoLeaf { what, queue: queue.clone(), queues: named.join(", ") })
            }
        }
    }

    /// Returns the queues that take jobs: those without children.
    fn leaves(&self) -> impl Iterator<Item = &QueueName> {
        let parents: BTreeSet<&QueueName> = self.queues.iter().filter_map(|queue| queue.parent.as_ref()).collect();
        self.queues.iter().map(|queue| &queue.name).filter(move |name| !parents.contains(name))
    }

    /// Returns the queue of a job that asks for this one: the default queue if the job names none, which is to
    /// ask for "default", and no queue has that name.
    #[must_use]
    pub fn queue_for(&self, asked: &QueueName) -> QueueName {
        let is_unnamed = asked.as_str() == UNNAMED && self.queues.iter().all(|queue| queue.name != *asked);
        self.default_queue.clone().filter(|_| is_unnamed).unwrap_or_else(|| asked.clone())
    }

    /// Checks that children's quotas don't exceed the quotas that their parent names. A parent without a quota
    /// for a kind is bounded only by its ancestors.
    fn check_children(&self, parent: &QueueSpec) -> Result<(), InvalidConfiguration> {
        let children = || self.queues.iter().filter(|queue| queue.parent.as_ref() == Some(&parent.name));
        let kinds: BTreeSet<&AcceleratorKind> = parent.quota.keys().collect();
        for kind in kinds {
            let promised: u64 = children().map(|child| u64::from(child.quota_of(kind))).sum();
            let own = parent.quota_of(kind);
            if promised > u64::from(own) {
                let (parent, kind) = (parent.name.clone(), kind.clone());
                return Err(InvalidConfiguration::ChildrenOverParent { parent, kind, children: promised, own });
            }
        }
        Ok(())
    }
}

fn check_ancestors(queue: &QueueSpec, by_name: &BTreeMap<&QueueName, &QueueSpec>) -> Result<(), InvalidConfiguration> {
    let mut current = queue;
    for _ in 0..QUEUE_DEPTH_MAX {
        let Some(parent) = &current.parent else { return Ok(()) };
        let unknown = || InvalidConfiguration::UnknownParent { queue: current.name.clone(), parent: parent.clone() };
        current = by_name.get(parent).ok_or_else(unknown)?;
    }
    Err(InvalidConfiguration::Cycle { queue: queue.name.clone() })
}
