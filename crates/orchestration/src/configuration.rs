//! How the cluster is to be shared: the queues and their rules. Comes in as an event, so the journal holds it and replay
//! decides by the rules of the time.
//!
//! A queue's *quota* is what it may always have, its *borrowing limit* what it may have beyond while others leave it idle,
//! its *weight* how it shares that with its siblings. The words are those of Kueue's ClusterQueue (nominalQuota,
//! borrowingLimit, fairSharing.weight); that quotas are in accelerators by kind is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AcceleratorKind, Money, QueueName};

use crate::advance::{self, AdvanceReservation, InvalidReservation};
use crate::fabric::{Fabric, InvalidFabric};
use crate::health::HealthPolicy;
use crate::order::QueueOrder;
use crate::preemption::cost::RestartCosts;
use crate::spares::{InvalidSpares, SpareRules};

/// Queues in one configuration.
pub const QUEUES_MAX: usize = 10_000;
/// Queues above one another.
pub(crate) const QUEUE_DEPTH_MAX: usize = 8;

/// How the cluster is shared. The default has no queues: all jobs wait in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The queues, parents and leaves, in any order. None: every queue name is accepted and means nothing.
    pub queues: Vec<QueueSpec>,
    /// After this time, use counts half as much against a queue's share.
    pub half_life: Duration,
    /// Who is first among jobs of one priority in one queue.
    pub order: QueueOrder,
    /// List prices of an accelerator-hour, by kind: what budgets are counted by.
    pub prices: BTreeMap<AcceleratorKind, Money>,
    /// When running jobs are stopped for waiting ones.
    pub preemption: PreemptionRules,
    /// What the network carries; none: placements are compared by their domains alone.
    pub fabric: Option<Fabric>,
    /// When faults make a node suspect; none: they never do.
    pub health: Option<HealthPolicy>,
    /// Nodes set apart for a time, in any order.
    pub reservations: Vec<AdvanceReservation>,
    /// Nodes kept for jobs that lose one.
    pub spares: SpareRules,
}

impl Configuration {
    /// No queues, and every rule on that keeps waits short: what a cluster gains if its administrator wants that.
    #[must_use]
    pub fn shortest_waits() -> Self {
        let preemption = PreemptionRules { share_time: true, consolidate: true, ..PreemptionRules::default() };
        Configuration { order: QueueOrder::ShortestExpected, preemption, ..Configuration::default() }
    }
}

impl Default for Configuration {
    fn default() -> Self {
        // Slurm's PriorityDecayHalfLife default (slurm.conf).
        Configuration {
            queues: Vec::new(),
            half_life: Duration::from_hours(24 * 7),
            order: QueueOrder::default(),
            prices: BTreeMap::new(),
            preemption: PreemptionRules::default(),
            fabric: None,
            health: None,
            reservations: Vec::new(),
            spares: SpareRules::default(),
        }
    }
}

/// When running jobs are stopped for waiting ones. What is stopped is asked to save first, and waits again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionRules {
    /// A queue that holds less than it is entitled to takes it back from queues that hold more than they are (Kueue's
    /// `reclaimWithinCohort: Any`). What a queue is entitled to is its quota, and its part by weight of what is left.
    pub reclaim: bool,
    /// Within a queue, a waiting job stops running ones of lower priority (Kueue's `withinClusterQueue: LowerPriority`).
    pub by_priority: bool,
    /// Within a queue and a priority, a job that has run for long makes room for one that is expected to be short.
    pub share_time: bool,
    /// Jobs on part of a node move to other nodes where that makes room for one that waits (KAI's consolidation).
    pub consolidate: bool,
    /// No attempt is stopped before it has run for so long.
    pub runtime_min: Duration,
    /// How long a job stands still when it is stopped and started again: an estimate, for jobs that it was not measured on.
    pub restart: RestartCosts,
}

impl PreemptionRules {
    /// Nobody is ever stopped for another.
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
    /// Whether jobs are stopped, once they have saved, for others of no better right.
    pub(crate) fn moves_equals(&self) -> bool {
        self.share_time || self.consolidate
    }
}

impl Default for PreemptionRules {
    fn default() -> Self {
        // Together what Tiresias (NSDI 2019) measured for a preemption on average, 62 s; Sia (SOSP 2023) has 25 to 250 s.
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

/// A queue. Jobs wait in queues without children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Its name, unique among all.
    pub name: QueueName,
    /// The queue it belongs to; none at the top.
    pub parent: Option<QueueName>,
    /// Its part beside its siblings' of what nobody's quota covers.
    pub weight: NonZeroU32,
    /// Accelerators it may always have, by kind.
    pub quota: BTreeMap<AcceleratorKind, u32>,
    /// Accelerators it may have beyond its quota, by kind; a kind that isn't here has no limit.
    pub borrowing_limit: BTreeMap<AcceleratorKind, u32>,
}

impl QueueSpec {
    /// The most accelerators of a kind it may have at once, if that is bounded.
    #[must_use]
    pub fn limit(&self, kind: &AcceleratorKind) -> Option<u32> {
        self.borrowing_limit.get(kind).map(|borrowed| self.quota_of(kind).saturating_add(*borrowed))
    }

    /// The accelerators of a kind it may always have.
    #[must_use]
    pub fn quota_of(&self, kind: &AcceleratorKind) -> u32 {
        self.quota.get(kind).copied().unwrap_or(0)
    }
}

/// Why a configuration makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfiguration {
    /// Two queues have one name.
    #[error("there are two queues named \"{queue}\"")]
    Duplicate {
        /// The name.
        queue: QueueName,
    },
    /// A parent isn't among the queues.
    #[error("queue \"{queue}\" belongs to \"{parent}\", which is not a queue here")]
    UnknownParent {
        /// The queue.
        queue: QueueName,
        /// Its parent.
        parent: QueueName,
    },
    /// A queue is above itself, or too deep.
    #[error(
        "queue \"{queue}\" has more than {QUEUE_DEPTH_MAX} queues above it: is one of them its own parent, directly or not?"
    )]
    Cycle {
        /// The queue.
        queue: QueueName,
    },
    /// The children are promised more than their parent has.
    #[error(
        "the queues in \"{parent}\" have a quota of {children} {kind} in all, but \"{parent}\" itself only {own}: raise its quota or lower theirs"
    )]
    ChildrenOverParent {
        /// The parent.
        parent: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// The children's quotas.
        children: u64,
        /// Its own.
        own: u32,
    },
    /// The network's bandwidths contradict each other.
    #[error(transparent)]
    Fabric(#[from] InvalidFabric),
    /// Reservations contradict each other.
    #[error(transparent)]
    Reservation(#[from] InvalidReservation),
    /// The rules for spares make no sense.
    #[error(transparent)]
    Spares(#[from] InvalidSpares),
    /// Use or faults would at once be forgotten.
    #[error("the half-life of use, and that of nodes' faults, has to be at least a second")]
    HalfLife,
    /// More queues than are supported.
    #[error("{count} queues are more than the {QUEUES_MAX} there may be")]
    TooManyQueues {
        /// How many.
        count: usize,
    },
}

impl Configuration {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// The first [`InvalidConfiguration`].
    pub fn check(&self) -> Result<(), InvalidConfiguration> {
        if self.queues.len() > QUEUES_MAX {
            return Err(InvalidConfiguration::TooManyQueues { count: self.queues.len() });
        }
        let forgetting = self.health.map(|policy| policy.half_life);
        if forgetting.into_iter().chain([self.half_life]).any(|half_life| half_life < Duration::from_secs(1)) {
            return Err(InvalidConfiguration::HalfLife);
        }
        self.fabric.as_ref().map_or(Ok(()), Fabric::check)?;
        let mut by_name: BTreeMap<&QueueName, &QueueSpec> = BTreeMap::new();
        for queue in &self.queues {
            if by_name.insert(&queue.name, queue).is_some() {
                return Err(InvalidConfiguration::Duplicate { queue: queue.name.clone() });
            }
        }
        for queue in &self.queues {
            check_ancestors(queue, &by_name)?;
        }
        advance::check(self)?;
        self.spares.check()?;
        self.queues.iter().try_for_each(|parent| self.check_children(parent))
    }

    /// A parent that says nothing of a kind is bounded by its own parent at most, and promises what its children do.
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
