//! The rules of the queues.
//!
//! A queue's *quota* is what it may always use, its *borrowing limit* what it may use beyond the quota while
//! others leave it idle, and its *weight* its part of idle capacity relative to its siblings. The terms are
//! those of Kueue's ClusterQueue (nominalQuota, borrowingLimit, fairSharing.weight); unlike there, quotas are
//! in accelerators by kind.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AcceleratorKind, QueueName};

use crate::queueing::hours::HourQuota;

/// The rules of one queue. Jobs wait only in queues without children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// The queue's unique name.
    pub name: QueueName,
    /// The parent queue; none at the top level.
    pub parent: Option<QueueName>,
    /// Its part, relative to its siblings, of the capacity that no quota covers.
    pub weight: NonZeroU32,
    /// Accelerators it may always use, by kind.
    pub quota: BTreeMap<AcceleratorKind, u32>,
    /// Accelerators it may use beyond its quota, by kind; unlisted kinds have no limit.
    pub borrowing_limit: BTreeMap<AcceleratorKind, u32>,
}

impl QueueSpec {
    /// Returns the most accelerators of a kind that the queue may use at once, if limited.
    #[must_use]
    pub fn limit(&self, kind: &AcceleratorKind) -> Option<u32> {
        self.borrowing_limit.get(kind).map(|borrowed| self.quota_of(kind).saturating_add(*borrowed))
    }

    /// Returns the accelerators of a kind that the queue may always use.
    #[must_use]
    pub fn quota_of(&self, kind: &AcceleratorKind) -> u32 {
        self.quota.get(kind).copied().unwrap_or(0)
    }
}

/// What queueing needs of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct QueueingRules {
    /// The queues, parents and leaves, in any order.
    pub(crate) queues: Vec<QueueSpec>,
    /// The time after which past use counts half as much.
    pub(crate) half_life: Duration,
    /// The GPU-hours that queues may use.
    pub(crate) hours: BTreeMap<QueueName, HourQuota>,
    /// Whether jobs that have run for long make room for peers.
    pub(crate) shares_time: bool,
}
