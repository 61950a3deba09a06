//! What is known of nodes beside what they have, on disk: their status, their faults, when faults count, and for whom and
//! when they are reserved.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{Bytes, JobId, NodeId, NodeName, QueueName, Timestamp};
use gangline_orchestration::{AdvanceReservation, Health, HealthPolicy, Outside, Standing};
use serde::{Deserialize, Serialize};

use super::spec::millis;

/// A drain and a loss; being suspect follows from faults and the time.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusV1 {
    Ready,
    Draining,
    Lost,
    /// Lost while it was drained.
    DrainingLost,
}

/// The faults of one node that has had some.
#[derive(Serialize, Deserialize)]
pub(super) struct HealthV1 {
    node: NodeId,
    score: u32,
    at: Timestamp,
    is_suspect: bool,
    last_failed: Option<JobId>,
}

/// What others do with a node.
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

impl From<Standing> for StatusV1 {
    fn from(standing: Standing) -> Self {
        match (standing.is_lost, standing.is_draining) {
            (false, false) => StatusV1::Ready,
            (false, true) => StatusV1::Draining,
            (true, false) => StatusV1::Lost,
            (true, true) => StatusV1::DrainingLost,
        }
    }
}

impl From<StatusV1> for Standing {
    fn from(status: StatusV1) -> Self {
        let (is_lost, is_draining) = match status {
            StatusV1::Ready => (false, false),
            StatusV1::Draining => (false, true),
            StatusV1::Lost => (true, false),
            StatusV1::DrainingLost => (true, true),
        };
        Standing { is_lost, is_draining, ..Standing::default() }
    }
}

impl HealthV1 {
    /// The node, by its place in the snapshot, if it has had faults.
    pub(super) fn of((place, standing): (u32, &Standing)) -> Option<HealthV1> {
        let Health { score, at, is_suspect, last_failed } = standing.health;
        let is_known = standing.health != Health::default();
        is_known.then_some(HealthV1 { node: NodeId(place), score, at, is_suspect, last_failed })
    }

    /// Which node, and its faults.
    pub(super) fn read(self) -> (NodeId, Health) {
        let HealthV1 { node, score, at, is_suspect, last_failed } = self;
        (node, Health { score, at, is_suspect, last_failed })
    }
}

impl From<Outside> for OutsideV1 {
    fn from(outside: Outside) -> Self {
        let Outside { is_closed, accelerators, cpus, memory } = outside;
        OutsideV1 { is_closed, accelerators, cpus, memory }
    }
}

impl From<OutsideV1> for Outside {
    fn from(outside: OutsideV1) -> Self {
        let OutsideV1 { is_closed, accelerators, cpus, memory } = outside;
        Outside { is_closed, accelerators, cpus, memory }
    }
}

impl OutsideV1 {
    /// The node, by its place in the snapshot, if others do anything with it.
    pub(super) fn of((place, standing): (u32, &Standing)) -> Option<(NodeId, OutsideV1)> {
        (standing.outside != Outside::default()).then(|| (NodeId(place), standing.outside.into()))
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
