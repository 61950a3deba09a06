//! Node conditions as stored on disk: status, faults, the rule of when faults make a node suspect, and
//! advance reservations.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{Bytes, JobId, NodeId, NodeName, QueueName, Timestamp};
use gangline_orchestration::{AdvanceReservation, ExternalUsage, Health, HealthPolicy, NodeCondition};
use serde::{Deserialize, Serialize};

use super::spec::millis;

/// Drains and losses. Being suspect isn't stored, because it follows from faults and the time.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusV1 {
    Ready,
    Draining,
    Lost,
    /// Lost while draining.
    DrainingLost,
}

/// The faults of one node that has had any.
#[derive(Serialize, Deserialize)]
pub(super) struct HealthV1 {
    node: NodeId,
    score: u32,
    at: Timestamp,
    is_suspect: bool,
    last_failed: Option<JobId>,
}

/// External usage of a node.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct OutsideV1 {
    is_closed: bool,
    accelerators: u32,
    cpus: u32,
    memory: Bytes,
}

#[derive(Serialize, Deserialize)]
pub(super) struct HealthPolicyV1 {
    half_life_ms: u64,
    suspect_at: NonZeroU32,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ReservationV1 {
    name: String,
    nodes: BTreeSet<NodeName>,
    from: Timestamp,
    until: Timestamp,
    queues: BTreeSet<QueueName>,
}

impl From<AdvanceReservation> for ReservationV1 {
    fn from(reservation: AdvanceReservation) -> Self {
        let AdvanceReservation { name, nodes, from, until, queues } = reservation;
        ReservationV1 { name, nodes, from, until, queues }
    }
}

impl From<ReservationV1> for AdvanceReservation {
    fn from(reservation: ReservationV1) -> Self {
        let ReservationV1 { name, nodes, from, until, queues } = reservation;
        AdvanceReservation { name, nodes, from, until, queues }
    }
}

impl From<NodeCondition> for StatusV1 {
    fn from(standing: NodeCondition) -> Self {
        match (standing.is_lost, standing.is_draining) {
            (false, false) => StatusV1::Ready,
            (false, true) => StatusV1::Draining,
            (true, false) => StatusV1::Lost,
            (true, true) => StatusV1::DrainingLost,
        }
    }
}

impl From<StatusV1> for NodeCondition {
    fn from(status: StatusV1) -> Self {
        let (is_lost, is_draining) = match status {
            StatusV1::Ready => (false, false),
            StatusV1::Draining => (false, true),
            StatusV1::Lost => (true, false),
            StatusV1::DrainingLost => (true, true),
        };
        NodeCondition { is_lost, is_draining, ..NodeCondition::default() }
    }
}

impl HealthV1 {
    /// Returns a node's faults, if it has had any; `place` is its index in the snapshot.
    pub(super) fn of((place, standing): (u32, &NodeCondition)) -> Option<HealthV1> {
        let Health { score, at, is_suspect, last_failed } = standing.health;
        let is_known = standing.health != Health::default();
        is_known.then_some(HealthV1 { node: NodeId(place), score, at, is_suspect, last_failed })
    }

    /// Returns the node and its faults.
    pub(super) fn read(self) -> (NodeId, Health) {
        let HealthV1 { node, score, at, is_suspect, last_failed } = self;
        (node, Health { score, at, is_suspect, last_failed })
    }
}

impl From<ExternalUsage> for OutsideV1 {
    fn from(outside: ExternalUsage) -> Self {
        let ExternalUsage { is_closed, accelerators, cpus, memory } = outside;
        OutsideV1 { is_closed, accelerators, cpus, memory }
    }
}

impl From<OutsideV1> for ExternalUsage {
    fn from(outside: OutsideV1) -> Self {
        let OutsideV1 { is_closed, accelerators, cpus, memory } = outside;
        ExternalUsage { is_closed, accelerators, cpus, memory }
    }
}

impl OutsideV1 {
    /// Returns a node's external usage, if it has any; `place` is its index in the snapshot.
    pub(super) fn of((place, standing): (u32, &NodeCondition)) -> Option<(NodeId, OutsideV1)> {
        (standing.outside != ExternalUsage::default()).then(|| (NodeId(place), standing.outside.into()))
    }
}

impl From<HealthPolicy> for HealthPolicyV1 {
    fn from(policy: HealthPolicy) -> Self {
        HealthPolicyV1 { half_life_ms: millis(policy.half_life), suspect_at: policy.suspect_at }
    }
}

impl From<HealthPolicyV1> for HealthPolicy {
    fn from(policy: HealthPolicyV1) -> Self {
        HealthPolicy { half_life: Duration::from_millis(policy.half_life_ms), suspect_at: policy.suspect_at }
    }
}
