//! Weights, gradients and optimizer state: bytes for each parameter, and how many parameters a rank has.
//!
//! Sources: ZeRO (Rajbhandari 2020, arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes); Megatron's distributed optimizer (`docs/dist_optimizer`:
//! 6 + 12 / D with fp32 gradients); FSDP2 with fp32 shards (torchtitan: 4 + 4 + 8); 8-bit moments (arXiv:2110.02861); NF4
//! (arXiv:2305.14314, section 3).

use super::Cut;
use super::census::Census;
use super::constants::{MOMENT_8_BIT, NF4, NF4_DOUBLE};
use crate::layout::{Gradients, Layout, LossHead, Offload, Sharding, Stack};
use crate::units::Volume;
use crate::workload::{Lora, Optimizer, Precision, Task, Workload};

/// States of the parameters that one rank of a stage has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct States {
    pub(crate) weights: Volume,
    pub(crate) gradients: Volume,
    pub(crate) optimizer: Volume,
}

/// Bytes for each parameter before any is shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bytes {
    weight: f64,
    gradient: f64,
    optimizer: f64,
}

/// States on a rank that has so many parameters.
pub(crate) fn states(cut: &Cut<'_>, census: &Census) -> States {
    let Cut { workload, layout, .. } = *cut;
    let shares = Shares::of(layout);
    match &workload.task {
        Task::Inference => States { weights: frozen(cut, census, &shares), ..States::default() },
        Task::Lora(_) | Task::Qlora { .. } => {
            let mut states = trained(adapter_bytes(workload.optimizer), (census.adapters, 0.0), &shares);
            states.weights += frozen(cut, census, &shares);
            offloaded(states, layout)
        }
        Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune => {
            let mut bytes = bytes(workload, layout);
            if workload.optimizer == Optimizer::Adafactor {
                bytes.optimizer += 4.0 * census.edges / (census.dense + census.experts);
            }
            offloaded(trained(bytes, (census.dense, census.experts), &shares), layout)
        }
    }
}

fn trained(bytes: Bytes, (dense, experts): (f64, f64), shares: &Shares) -> States {
    let both = |of_dense: f64, of_experts: f64| dense / of_dense + experts / of_experts;
    States {
        weights: Volume::new(bytes.weight * both(shares.weights.0, shares.weights.1)),
        gradients: Volume::new(bytes.gradient * both(shares.gradients.0, shares.gradients.1)),
        optimizer: Volume::new(bytes.optimizer * both(shares.optimizer.0, shares.optimizer.1)),
    }
}

/// What the host holds isn't here.
fn offloaded(states: States, layout: &Layout) -> States {
    match layout.offload {
        Offload::None | Offload::Activations => states,
        Offload::Optimizer => States { weights: states.weights, ..States::default() },
        Offload::Parameters => States::default(),
    }
}

/// Weights that aren't trained: 16 bits, or 4 bits where a layer multiplies by them.
///
/// Hugging Face's k-bit training raises what isn't in 4 bits to fp32 (peft's `prepare_model_for_kbit_training`); software that trains
/// purely in bf16, and FSDP, keep it in 16 bits.
fn frozen(cut: &Cut<'_>, census: &Census, shares: &Shares) -> Volume {
    let Cut { workload, layout, .. } = *cut;
    let all = census.dense / shares.weights.0 + census.experts / shares.weights.1;
    match workload.task {
        Task::Qlora { is_double, .. } => {
            let linear = census.linear / shares.weights.0;
            let other = if is_raised(workload, layout) { 4.0 } else { 2.0 };
            Volume::new(linear * four_bits(is_double) + (all - linear) * other)
        }
        _ => Volume::new(all * width(workload.precision)),
    }
}

/// Whether embedding, head and hidden states are in fp32: Hugging Face's k-bit training raises them, Unsloth doesn't.
pub(crate) fn is_raised(workload: &Workload, layout: &Layout) -> bool {
    let is_hugging_face = layout.stack == Stack::Plain && matches!(layout.loss, LossHead::Full | LossHead::Chunked);
    is_hugging_face && matches!(workload.task, Task::Qlora { .. }) && workload.optimizer != Optimizer::AdamWPureBf16
}

/// Bytes of a weight in 4-bit NormalFloat.
pub(crate) const fn four_bits(is_double: bool) -> f64 {
    if is_double { NF4_DOUBLE } else { NF4 }
}

/// Bytes of weights and activations.
pub(crate) const fn width(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 | Precision::Tf32 => 4.0,
        Precision::Fp16 | Precision::Bf16 | Precision::Fp8 | Precision::Fp4 => 2.0,
    }
}

/// Adapters are in fp32 under autocast, in bf16 where everything is.
const fn adapter_bytes(optimizer: Optimizer) -> Bytes {
    match optimizer {
        Optimizer::AdamWPureBf16 => Bytes { weight: 2.0, gradient: 2.0, optimizer: 4.0 },
        _ => Bytes { weight: 4.0, gradient: 4.0, optimizer: 8.0 },
    }
}

/// Bytes for each trained parameter, by optimizer, format and software. Weights in 8 bits, as they are and transposed, take what 16-bit
/// ones do (Transformer Engine with `fp8_param_gather`).
fn bytes(workload: &Workload, layout: &Layout) -> Bytes {
    let moments = match workload.optimizer {
        Optimizer::AdamW => 8.0,
        Optimizer::AdamWPureBf16 => return Bytes { weight: 2.0, gradient: 2.0, optimizer: 4.0 },
        Optimizer::AdamW8Bit => 2.0 * MOMENT_8_BIT,
        // Paged moments leave when others need the room; Adafactor's rows and columns are added by the caller.
        Optimizer::PagedAdamW8Bit | Optimizer::Adafactor => 0.0,
        Optimizer::Muon | Optimizer::SgdMomentum => 4.0,
    };
    let has_master = matches!(workload.optimizer, Optimizer::AdamW | Optimizer::Muon | Optimizer::SgdMomentum);
    if width(workload.precision) > 2.0 {
        return Bytes { weight: 4.0, gradient: 4.0, optimizer: moments };
    }
    match layout.stack {
        _ if !has_master => Bytes { weight: 2.0, gradient: 2.0, optimizer: moments },
        Stack::Megatron => {
            let gradient = if layout.gradients == Gradients::Fp32 { 4.0 } else { 2.0 };
            Bytes { weight: 2.0, gradient, optimizer: 4.0 + moments }
        }
        Stack::DeepSpeed => Bytes { weight: 2.0, gradient: 2.0, optimizer: 4.0 + moments },
        // The weights are the fp32 ones; 16-bit copies are made layer by layer, or by autocast (`buffers`).
        Stack::Fsdp | Stack::Xla | Stack::Plain => Bytes { weight: 4.0, gradient: 4.0, optimizer: moments },
    }
}

/// What a step needs besides: PyTorch's AdamW takes the root of all second moments at once (`_foreach_sqrt`); fused optimizers, and those
/// that go parameter by parameter, take nothing.
pub(crate) fn step_copies(cut: &Cut<'_>, states: &States) -> Volume {
    let is_at_once = matches!(cut.workload.optimizer, Optimizer::AdamW | Optimizer::AdamWPureBf16);
    match cut.layout.stack {
        Stack::Fsdp | Stack::Plain if is_at_once => states.gradients,
        _ => Volume::ZERO,
    }
}

/// Among how many ranks weights, gradients and optimizer state are shared: outside experts, and of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares {
    pub(crate) weights: (f64, f64),
    pub(crate) gradients: (f64, f64),
    pub(crate) optimizer: (f64, f64),
}

impl Shares {
    /// An expert has t c D / (e e_t) replicas, all else c D.
    pub(crate) fn of(layout: &Layout) -> Shares {
        let replicas = f64::from(layout.data) * f64::from(layout.context);
        let ranks = replicas * f64::from(layout.tensor);
        let of_expert = (ranks / (f64::from(layout.expert) * f64::from(layout.expert_tensor))).max(1.0);
        let (none, all) = ((1.0, 1.0), (replicas, of_expert));
        let (weights, gradients, optimizer) = match layout.sharding {
            Sharding::None => (none, none, none),
            Sharding::Optimizer { ranks } => {
                let part = f64::from(ranks) / replicas;
                (none, none, (f64::from(ranks), (of_expert * part).max(1.0)))
            }
            Sharding::Gradients => (none, all, all),
            Sharding::Parameters { .. } => (all, all, all),
        };
        Shares { weights, gradients, optimizer }
    }
}

/// The adapters that a task trains.
pub(crate) const fn adapters(task: &Task) -> Option<&Lora> {
    match task {
        Task::Lora(lora) | Task::Qlora { lora, .. } => Some(lora),
        _ => None,
    }
}
