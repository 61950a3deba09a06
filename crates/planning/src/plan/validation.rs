//! How wrong step times have been, by region: what `cargo xtask bench planning` finds when each source is predicted with constants that
//! were fitted on the others. The bench compares this table with what it finds.

use super::document::KnownError;
use crate::hardware::{Accelerator, Cluster, Generation};
use crate::workload::{Precision, Workload};

/// Measurements of one sort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    /// As the bench calls it.
    pub key: &'static str,
    /// In words.
    pub name: &'static str,
    /// How many there are.
    pub rows: u32,
    /// Half of the predictions were off by less, in percent.
    pub median_percent: f64,
    /// Nine of ten were off by less, in percent.
    pub p90_percent: f64,
}

/// Regions with measurements.
pub const REGIONS: [Region; 5] = [
    Region {
        key: "dense",
        name: "dense models on V100, A100 and H100",
        rows: 579,
        median_percent: 6.1,
        p90_percent: 17.3,
    },
    Region { key: "moe", name: "mixtures of experts", rows: 246, median_percent: 12.5, p90_percent: 41.4 },
    Region { key: "blackwell", name: "dense models on Blackwell", rows: 118, median_percent: 8.2, p90_percent: 16.9 },
    Region { key: "amd", name: "AMD's accelerators", rows: 5, median_percent: 8.8, p90_percent: 24.7 },
    Region { key: "tpu", name: "TPUs", rows: 8, median_percent: 10.2, p90_percent: 15.7 },
];

/// Peaks of memory of fine-tuning runs; 191 published runs that fitted or ran out of memory are all told rightly.
pub const MEMORY: Region = Region {
    key: "fine-tuning",
    name: "fine-tuning on one to eight cards",
    rows: 111,
    median_percent: 4.2,
    p90_percent: 17.0,
};

/// Where nobody has published anything to compare with, or too little.
const UNKNOWN: Region = Region { key: "", name: "such runs", rows: 0, median_percent: 0.0, p90_percent: 0.0 };
/// Adapters with plain PyTorch: LLaMA-Factory's five runs of Llama 2 7B on one A100 (its wiki, 2024-02) trained at 2,392 to 4,007 tokens a
/// second, where 4,155 to 4,450 are estimated.
const ADAPTERS: Region =
    Region { key: "", name: "adapters in plain PyTorch", rows: 5, median_percent: 51.0, p90_percent: 76.0 };

/// What is known of plans like this.
pub(super) fn known_error(workload: &Workload, cluster: &Cluster) -> KnownError {
    let key = key(workload.model.has_experts(), &cluster.accelerator);
    let is_plain = workload.task.adapters().is_some() && cluster.accelerators <= cluster.per_node;
    let known = REGIONS.iter().find(|region| Some(region.key) == key);
    let is_known = matches!(workload.precision, Precision::Fp16 | Precision::Bf16 | Precision::Fp8 | Precision::Fp4);
    let known = known.filter(|_| is_known);
    let region = if is_plain { &ADAPTERS } else { known.unwrap_or(&UNKNOWN) };
    region.told()
}

impl Region {
    pub(super) fn told(&self) -> KnownError {
        KnownError {
            region: self.name.to_owned(),
            rows: self.rows,
            median_percent: self.median_percent,
            p90_percent: self.p90_percent,
        }
    }
}

fn key(has_experts: bool, accelerator: &Accelerator) -> Option<&'static str> {
    // What was measured has links of its own: cards have none.
    let is_card = accelerator.link_domain <= 1;
    match accelerator.generation {
        Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4 => Some("amd"),
        Generation::Tpu => Some("tpu"),
        Generation::Turing | Generation::Ada | Generation::Other => None,
        _ if is_card => None,
        _ if has_experts => Some("moe"),
        Generation::Blackwell => Some("blackwell"),
        Generation::Volta | Generation::Ampere | Generation::Hopper => Some("dense"),
    }
}
