//! Spares as stored on disk: the rules, and the recorded losses. Journals from before there were spares lack
//! them: then no spares are kept, and the record of losses is empty.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{AcceleratorKind, Flavour, PoolName, Timestamp};
use gangline_orchestration::{LossHistory, LossRecord, SpareRules, SpareSizing};
use serde::{Deserialize, Serialize};

use super::spec::millis;

#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpareRulesV1 {
    nodes: BTreeMap<String, u32>,
    sizing: Option<SizingV1>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct SizingV1 {
    confidence_milli: u32,
    repair_ms: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LossHistoryV1 {
    at: Timestamp,
    lanes: Vec<LossesV1>,
}

#[derive(Serialize, Deserialize)]
struct LossesV1 {
    accelerator: String,
    pool: PoolName,
    losses: u32,
    /// Whole seconds, then nanoseconds.
    node_time: (u64, u32),
}

impl SpareRulesV1 {
    pub(super) fn is_default(&self) -> bool {
        *self == SpareRulesV1::default()
    }
}

impl From<&SpareRules> for SpareRulesV1 {
    fn from(rules: &SpareRules) -> Self {
        let sizing = |sizing: SpareSizing| SizingV1 {
            confidence_milli: sizing.confidence_milli,
            repair_ms: millis(sizing.repair),
        };
        SpareRulesV1 {
            nodes: rules.nodes.iter().map(|(kind, nodes)| (kind.0.clone(), *nodes)).collect(),
            sizing: rules.sizing.map(sizing),
        }
    }
}

impl From<SpareRulesV1> for SpareRules {
    fn from(disk: SpareRulesV1) -> Self {
        let sizing = |sizing: SizingV1| SpareSizing {
            confidence_milli: sizing.confidence_milli,
            repair: Duration::from_millis(sizing.repair_ms),
        };
        SpareRules {
            nodes: disk.nodes.into_iter().map(|(kind, nodes)| (AcceleratorKind(kind), nodes)).collect(),
            sizing: disk.sizing.map(sizing),
        }
    }
}

impl From<&LossHistory> for LossHistoryV1 {
    fn from(history: &LossHistory) -> Self {
        let losses = |(flavour, record): (&Flavour, &LossRecord)| LossesV1 {
            accelerator: flavour.accelerator.0.clone(),
            pool: flavour.pool.clone(),
            losses: record.losses,
            node_time: (record.node_time.as_secs(), record.node_time.subsec_nanos()),
        };
        LossHistoryV1 { at: history.at, lanes: history.flavours.iter().map(losses).collect() }
    }
}

impl From<LossHistoryV1> for LossHistory {
    fn from(disk: LossHistoryV1) -> Self {
        let losses = |LossesV1 { accelerator, pool, losses, node_time: (seconds, nanos) }| {
            let node_time = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(u64::from(nanos)));
            (Flavour { accelerator: AcceleratorKind(accelerator), pool }, LossRecord { losses, node_time })
        };
        LossHistory { at: disk.at, flavours: disk.lanes.into_iter().map(losses).collect() }
    }
}
