//! Claims and their reasons, as stored on disk.

use std::time::Duration;

use gangline_base::{GpuSeconds, JobId, NodeId, QueueName, Timestamp};
use gangline_orchestration::{Claim, ClaimReason, ClaimRight, Decision, VictimAlternative};
use serde::{Deserialize, Serialize};

use super::spec::millis;

#[derive(Serialize, Deserialize)]
pub(super) struct ClaimDecisionV1 {
    job: JobId,
    claim: ClaimV1,
    right: RightV1,
    cost: CostV1,
    is_cheapest: bool,
    alternatives: Vec<AlternativeV1>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ClaimV1 {
    nodes: Vec<NodeId>,
    victims: Vec<JobId>,
    until: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RightV1 {
    Priority,
    Recovery,
    TimeShare { expected_ms: u64 },
    Consolidation,
    Move { by: JobId },
    Entitlement { queue: QueueName, held: u32, entitled: u32 },
    Growth { from: u32, to: u32, speed_milli: u32 },
    Shrink { from: u32, to: u32, by: JobId },
}

#[derive(Serialize, Deserialize)]
struct AlternativeV1 {
    victims: Vec<JobId>,
    cost: CostV1,
}

/// Whole GPU-seconds, then nano-GPU-seconds: the sum doesn't fit into 64 bits.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CostV1(u64, u32);

const NANOS: u128 = 1_000_000_000;

impl From<GpuSeconds> for CostV1 {
    fn from(cost: GpuSeconds) -> Self {
        let seconds = u64::try_from(cost.nanos() / NANOS).unwrap_or(u64::MAX);
        CostV1(seconds, u32::try_from(cost.nanos() % NANOS).expect("below 10^9"))
    }
}

impl From<CostV1> for GpuSeconds {
    fn from(CostV1(seconds, nanos): CostV1) -> Self {
        GpuSeconds::from_nanos(u128::from(seconds) * NANOS + u128::from(nanos))
    }
}

impl ClaimDecisionV1 {
    pub(super) fn new(job: JobId, claim: Claim, reason: ClaimReason) -> Self {
        let ClaimReason { right, cost, is_cheapest, alternatives } = reason;
        let right = match right {
            ClaimRight::Priority => RightV1::Priority,
            ClaimRight::Recovery => RightV1::Recovery,
            ClaimRight::TimeShare { expected } => RightV1::TimeShare { expected_ms: millis(expected) },
            ClaimRight::Consolidation => RightV1::Consolidation,
            ClaimRight::Move { by } => RightV1::Move { by },
            ClaimRight::Entitlement { queue, held, entitled } => RightV1::Entitlement { queue, held, entitled },
            ClaimRight::Growth { from, to, speed_milli } => RightV1::Growth { from, to, speed_milli },
            ClaimRight::Shrink { from, to, by } => RightV1::Shrink { from, to, by },
        };
        let alternatives = alternatives.into_iter();
        let alternatives =
            alternatives.map(|other| AlternativeV1 { victims: other.victims, cost: other.cost.into() }).collect();
        ClaimDecisionV1 { job, claim: claim.into(), right, cost: cost.into(), is_cheapest, alternatives }
    }
}

impl From<ClaimDecisionV1> for Decision {
    fn from(disk: ClaimDecisionV1) -> Self {
        let right = match disk.right {
            RightV1::Priority => ClaimRight::Priority,
            RightV1::Recovery => ClaimRight::Recovery,
            RightV1::TimeShare { expected_ms } => {
                ClaimRight::TimeShare { expected: Duration::from_millis(expected_ms) }
            }
            RightV1::Consolidation => ClaimRight::Consolidation,
            RightV1::Move { by } => ClaimRight::Move { by },
            RightV1::Entitlement { queue, held, entitled } => ClaimRight::Entitlement { queue, held, entitled },
            RightV1::Growth { from, to, speed_milli } => ClaimRight::Growth { from, to, speed_milli },
            RightV1::Shrink { from, to, by } => ClaimRight::Shrink { from, to, by },
        };
        let alternatives = disk.alternatives.into_iter();
        let alternatives =
            alternatives.map(|other| VictimAlternative { victims: other.victims, cost: other.cost.into() }).collect();
        let reason = ClaimReason { right, cost: disk.cost.into(), is_cheapest: disk.is_cheapest, alternatives };
        Decision::Claim { job: disk.job, claim: disk.claim.into(), reason }
    }
}

impl From<Claim> for ClaimV1 {
    fn from(Claim { nodes, victims, until }: Claim) -> Self {
        ClaimV1 { nodes, victims, until }
    }
}

impl From<ClaimV1> for Claim {
    fn from(ClaimV1 { nodes, victims, until }: ClaimV1) -> Self {
        Claim { nodes, victims, until }
    }
}
