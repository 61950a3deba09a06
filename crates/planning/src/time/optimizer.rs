//! The end of a step: gradients are summed among data-parallel ranks, the optimizer updates, parameters go back.

use super::collective::Group;
use super::constants::Constant;
use super::gemm::stream;
use super::situation::Situation;
use crate::layout::{Offload, Sharding, Stack};
use crate::units::{Flops, Seconds, Volume, real};
use crate::workload::{Optimizer, Precision};

/// Bytes of a parameter as it is gathered.
const HALF: f64 = 2.0;
/// Bytes that the norm of gradients and their clearing move for each local parameter.
const CLEARING_BYTES: f64 = 4.0;
/// Newton-Schulz iterations of Muon (Jordan 2024), three products of 2 x h operations a parameter each.
const MUON_OPERATIONS: f64 = 5.0 * 3.0 * 2.0;
/// Part of a micro-batch's time behind which gradients are reduced: the backward pass.
const BACKWARD_PART: f64 = 2.0 / 3.0;

/// What one accelerator holds of the model.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    /// Elements outside experts.
    pub(super) dense: f64,
    /// Elements of experts.
    pub(super) experts: f64,
}

/// Bytes of a gradient as it is reduced: as FSDP's mixed precision has it, fp32 unless all is bf16; elsewhere as it is computed.
pub(super) fn gradient_bytes(situation: &Situation) -> f64 {
    match (situation.layout.stack, situation.workload.optimizer) {
        _ if matches!(situation.workload.precision, Precision::Fp32 | Precision::Tf32) => 4.0,
        (Stack::Fsdp, Optimizer::AdamWPureBf16) => HALF,
        (Stack::Fsdp, _) => 4.0,
        _ => HALF,
    }
}

/// Trained part of what is held: all, or adapters.
pub(super) fn trained(situation: &Situation, held: Held) -> Held {
    let Some(lora) = situation.workload.task.adapters() else { return held };
    let all = real(situation.workload.model.parameters().total);
    let part = situation.workload.model.lora_parameters(lora).map_or(0.0, real) / all;
    Held { dense: held.dense * part, experts: held.experts * part }
}

/// Whether parameters that are shared out are gathered once a step: a pipeline's stage keeps them for all its micro-batches where they
/// aren't freed (Llama 3, arXiv:2407.21783, section 3.3.2).
pub(super) const fn is_gathered_once(situation: &Situation) -> bool {
    let is_kept = matches!(situation.layout.sharding, Sharding::Parameters { reshards: false });
    is_kept && situation.layout.pipeline > 1
}

/// Exposed time of reducing gradients and gathering parameters once a step.
///
/// Replicas all-reduce; where the optimizer's state is shared out they reduce-scatter gradients and all-gather parameters
/// (arXiv:1910.02054). Experts are replicated among fewer ranks. A part hides behind the last backward pass, behind each where
/// gradients are shared out and so reduced each time; software of before 2022 hides nothing.
pub(super) fn reduction(situation: &Situation, trained: Held, micro_batch: Seconds) -> Seconds {
    let is_per_layer = matches!(situation.layout.sharding, Sharding::Parameters { .. }) && !is_gathered_once(situation);
    if !situation.passes.is_trained || is_per_layer {
        return Seconds::ZERO;
    }
    let replicas = situation.data * situation.context;
    let dense = Group::new(situation, replicas, situation.tensor);
    let cut = f64::from(situation.layout.expert_tensor.max(1));
    let expert_replicas = (replicas * situation.tensor / (situation.expert * cut)).max(1.0);
    let experts = Group::new(situation, expert_replicas, situation.expert * cut);
    let all = exchanged(situation, &dense, trained.dense) + exchanged(situation, &experts, trained.experts);
    let is_sequential = situation.is_early() && situation.layout.stack == Stack::Megatron;
    let overlap = if is_sequential { 0.0 } else { situation.constant(Constant::DataOverlap) };
    let times = if situation.layout.sharding == Sharding::Gradients { situation.micro_batches } else { 1.0 };
    all - all.min(micro_batch * (BACKWARD_PART * times)) * overlap
}

fn exchanged(situation: &Situation, group: &Group, elements: f64) -> Seconds {
    let gradients = Volume::new(elements * gradient_bytes(situation));
    match situation.layout.sharding {
        Sharding::None => group.reduce(gradients),
        Sharding::Gradients => {
            group.gather(gradients) * situation.micro_batches + group.gather(Volume::new(elements * HALF))
        }
        Sharding::Optimizer { .. } | Sharding::Parameters { .. } => {
            group.gather(gradients) + group.gather(Volume::new(elements * HALF))
        }
    }
}

/// Time of the update: the state's bytes through memory, or through the host.
pub(super) fn update(situation: &Situation, held: Held, trained: Held) -> Seconds {
    if !situation.passes.is_trained {
        return Seconds::ZERO;
    }
    let replicas = situation.data * situation.context;
    let (owners, clearing) = match situation.layout.sharding {
        Sharding::None => (1.0, held),
        Sharding::Optimizer { ranks } => (f64::from(ranks.max(1)).min(replicas), held),
        Sharding::Gradients => (replicas, trained),
        Sharding::Parameters { .. } => {
            (replicas, Held { dense: held.dense / replicas, experts: held.experts / replicas })
        }
    };
    let cut = f64::from(situation.layout.expert_tensor.max(1));
    let expert_owners = (owners * situation.tensor / (situation.expert * cut)).max(1.0);
    let own = trained.dense / owners + trained.experts / expert_owners;
    let cleared = if situation.passes.has_weight_gradients { clearing.dense + clearing.experts } else { 0.0 };
    let clearing = stream(situation, cleared * CLEARING_BYTES);
    if matches!(situation.layout.offload, Offload::Optimizer | Offload::Parameters) {
        let link = situation.cluster.accelerator.host_link * situation.constant(Constant::HostLink);
        let there_and_back = Volume::new(own * 2.0 * HALF) / link;
        return clearing + there_and_back + Seconds::new(own / situation.constant(Constant::HostUpdate));
    }
    clearing + stream(situation, own * state_bytes(situation.workload.optimizer)) + orthogonalised(situation, own)
}

/// Bytes read and written for each parameter: gradient, master copy, moments in and out, the 16-bit weight out.
const fn state_bytes(optimizer: Optimizer) -> f64 {
    match optimizer {
        Optimizer::AdamW => 4.0 * 4.0 + 3.0 * 4.0 + 2.0,
        Optimizer::AdamWPureBf16 => 4.0 * 2.0 + 3.0 * 2.0,
        Optimizer::AdamW8Bit | Optimizer::PagedAdamW8Bit => 2.0 + 2.0 * (2.0 + 1.0 + 1.0),
        Optimizer::Adafactor => 4.0 + 2.0 * 4.0,
        Optimizer::Muon => 4.0 + 2.0 * (4.0 + 4.0) + 2.0,
        Optimizer::SgdMomentum => 4.0 + 2.0 * (4.0 + 4.0) + 2.0,
    }
}

/// Muon's products.
fn orthogonalised(situation: &Situation, own: f64) -> Seconds {
    if situation.workload.optimizer != Optimizer::Muon {
        return Seconds::ZERO;
    }
    let hidden = real(situation.workload.model.hidden);
    Flops::new(own * hidden * MUON_OPERATIONS) / situation.device.head
}
