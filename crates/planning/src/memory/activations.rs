//! What the forward pass of a layer keeps for its backward pass, in bytes for each token of a micro-batch on one rank.
//!
//! Korthikanti 2022 (arXiv:2205.05198, section 4) with two additions: kernels that don't write scores (arXiv:2205.14135), and what eager
//! PyTorch keeps where Transformer Engine has fused kernels. A Llama layer keeps, fused, in units of tokens x bytes:
//! norms' inputs 2 x 2h and outputs 2 x 2h, q k v 2(a + 2g)d, attention's output 2ad, gate and up 4f, their product 2f.
//! Eagerly, a norm keeps its input in fp32, keys and values are repeated for every head, and the gate is kept before and after its
//! activation. A matrix keeps its input only if it, or an adapter beside it, is trained.

use super::Cut;
use super::constants::EXPERT_COPIES;
use super::states::{adapters, is_raised, width};
use crate::layout::{AttentionKernel, Recompute, Stack};
use crate::model::{Attention, DenseFeedForward, Experts, FeedForward, GroupedAttention, Layer, Norm, QkNorm};
use crate::units::real;
use crate::workload::{Lora, LoraTarget, Optimizer, Precision, Task};

/// What a layer holds, in bytes for each token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LayerBytes {
    /// From its forward to its backward pass.
    pub(crate) kept: f64,
    /// During its backward pass besides: gradients, and what is computed again.
    pub(crate) working: f64,
}

/// What this layer holds.
pub(crate) fn layer(cut: &Cut<'_>, layer: &Layer) -> LayerBytes {
    let whole = kept(cut, layer);
    let gradients = gradients(cut, layer);
    match cut.layout.recompute {
        Recompute::Full => {
            let entry = real(cut.workload.model.hidden) * entry_width(cut) / cut.sequence_parts;
            LayerBytes { kept: entry, working: whole + gradients }
        }
        Recompute::Selective => LayerBytes { kept: whole, working: gradients + scores(cut, &layer.attention) },
        Recompute::None => LayerBytes { kept: whole + scores(cut, &layer.attention), working: gradients },
    }
}

/// Bytes of the residual stream's elements.
fn entry_width(cut: &Cut<'_>) -> f64 {
    if is_raised(cut.workload, cut.layout) { 4.0 } else { width(cut.workload.precision) }
}

/// All but scores.
fn kept(cut: &Cut<'_>, layer: &Layer) -> f64 {
    norms(cut, layer) + mixing(cut, &layer.attention) + work(cut, &layer.feed_forward) + inputs(cut, layer)
}

/// Inputs of the norms: 2h each, in fp32 where an RMSNorm isn't one kernel, and then 2h more if its gain is trained. Stacks with learned
/// dropout keep masks of 1 byte (arXiv:2205.05198, equation 1).
fn norms(cut: &Cut<'_>, layer: &Layer) -> f64 {
    let hidden = real(cut.workload.model.hidden);
    let each = match layer.norm {
        Norm::Gain if cut.is_eager && cut.is_all_trained => 6.0,
        Norm::Gain if cut.is_eager => 4.0,
        _ => width(cut.workload.precision),
    };
    let is_megatron = cut.layout.stack == Stack::Megatron && cut.is_all_trained;
    let has_dropout = is_megatron && cut.workload.model.embedding.positions > 0;
    let masks = if has_dropout { 2.0 } else { 0.0 };
    (real(layer.norms) * each + masks) * hidden / cut.sequence_parts
}

/// Queries, keys, values and what comes out, without scores.
fn mixing(cut: &Cut<'_>, attention: &Attention) -> f64 {
    let width = width(cut.workload.precision);
    match attention {
        Attention::Grouped(grouped) => grouped_mixing(cut, grouped),
        Attention::Latent(latent) => {
            let query_rank = real(latent.query_rank.unwrap_or(0));
            let latents = 2.0 * query_rank + 2.0 * real(latent.kv_rank) + real(latent.rope_size);
            let head = 2.0 * real(latent.nope_size + latent.rope_size) + 2.0 * real(latent.value_size);
            width * (latents / cut.sequence_parts + real(latent.heads) * head / cut.tensor)
        }
        Attention::StateSpace(mixer) => {
            // In, convolved, scanned, gated.
            let elements = 2.0 * real(mixer.channels()) + 3.0 * real(mixer.inner()) + real(mixer.heads);
            width * elements / cut.tensor
        }
    }
}

fn grouped_mixing(cut: &Cut<'_>, attention: &GroupedAttention) -> f64 {
    let width = width(cut.workload.precision);
    let (queries, keys) = (real(attention.heads * attention.head_size), real(attention.kv_heads * attention.head_size));
    let repeated = if cut.is_eager { queries } else { keys };
    let normed = match attention.qk_norm {
        QkNorm::None => 0.0,
        QkNorm::PerHead | QkNorm::Full if cut.is_eager => 4.0 * (queries + keys),
        QkNorm::PerHead | QkNorm::Full => width * (queries + keys),
    };
    // A ring of context ranks keeps its output apart from what the next matrix keeps.
    let outputs = if cut.layout.context > 1 { 2.0 } else { 1.0 };
    // Values that are a view of one matrix's output keep all of it, beside the rotated queries and keys.
    let rotates = cut.workload.model.embedding.positions == 0;
    let viewed = if cut.is_eager && attention.is_fused && rotates { queries + keys } else { 0.0 };
    let sums = 4.0 * real(attention.heads);
    (width * (queries + 2.0 * repeated + outputs * queries + viewed) + normed + sums) / cut.tensor
}

/// Scores where they are written: 5as, softmax's output, dropout's mask and output (arXiv:2205.05198, section 4.1).
fn scores(cut: &Cut<'_>, attention: &Attention) -> f64 {
    let (heads, window) = match attention {
        Attention::Grouped(grouped) => (grouped.heads, grouped.window),
        Attention::Latent(latent) => (latent.heads, None),
        Attention::StateSpace(_) => return 0.0,
    };
    if cut.layout.kernel != AttentionKernel::Unfused {
        return 0.0;
    }
    let seen = window.unwrap_or(u64::MAX).min(cut.workload.sequence);
    5.0 * real(heads) * real(seen) / cut.tensor
}

/// What is between the matrices of the feed-forward work, and expert inputs and probabilities.
fn work(cut: &Cut<'_>, work: &FeedForward) -> f64 {
    match work {
        FeedForward::None => 0.0,
        FeedForward::Dense(dense) => between(cut, dense, real(dense.inner)) / cut.tensor,
        FeedForward::Experts(experts) => {
            let routed = real(experts.active) * between(cut, &experts.each, real(experts.each.inner));
            let shared = between(cut, &experts.each, real(experts.shared_inner));
            let probabilities = 8.0 * real(experts.count);
            (routed + shared) / cut.tensor + probabilities / cut.sequence_parts
        }
    }
}

/// Gate and up, or only up; eagerly the activated gate too.
fn between(cut: &Cut<'_>, dense: &DenseFeedForward, inner: f64) -> f64 {
    let tensors = match (dense.is_gated, cut.is_eager) {
        (true, true) => 3.0,
        (true, false) => 2.0,
        (false, _) => 1.0,
    };
    width(cut.workload.precision) * tensors * inner
}

/// Inputs of matrices, where they are needed for a gradient.
fn inputs(cut: &Cut<'_>, layer: &Layer) -> f64 {
    let all = Inputs::of(cut, layer);
    match &cut.workload.task {
        Task::Inference => 0.0,
        Task::Lora(_) if cut.is_eager => adapter_inputs(cut, &all),
        // bitsandbytes' 4-bit product keeps its input.
        Task::Qlora { .. } if cut.is_eager => {
            adapter_inputs(cut, &all) + width(cut.workload.precision) * (all.mixing + all.output + all.work + all.down)
        }
        Task::Lora(lora) | Task::Qlora { lora, .. } => shared_inputs(cut, lora, &all),
        Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune => {
            let bytes = match cut.workload.precision {
                Precision::Fp8 if !cut.is_eager => 1.0,
                Precision::Fp4 if !cut.is_eager => 0.5625,
                other => width(other),
            };
            // The output's input is the attention's own, where its heads lie side by side: fused, and as FlashAttention has them.
            let is_copied = cut.is_eager && cut.layout.kernel != AttentionKernel::FlashFirst;
            let output = if is_copied { all.output } else { 0.0 };
            bytes * (all.mixing + all.work + all.down + output)
        }
    }
}

/// Elements of a token that go into the layer's matrices.
struct Inputs {
    /// Into queries, keys and values.
    mixing: f64,
    /// Into the output.
    output: f64,
    /// Into gate and up, of experts too.
    work: f64,
    /// Into down.
    down: f64,
}

impl Inputs {
    fn of(cut: &Cut<'_>, layer: &Layer) -> Inputs {
        let hidden = real(cut.workload.model.hidden);
        let output = match &layer.attention {
            Attention::Grouped(grouped) => real(grouped.heads * grouped.head_size),
            Attention::Latent(latent) => real(latent.heads * latent.value_size),
            Attention::StateSpace(mixer) => real(mixer.inner()),
        };
        let (work, down) = match &layer.feed_forward {
            FeedForward::None => (0.0, 0.0),
            FeedForward::Dense(dense) => (hidden / cut.sequence_parts, real(dense.inner)),
            FeedForward::Experts(experts) => routed_inputs(cut, experts, hidden),
        };
        Inputs { mixing: hidden / cut.sequence_parts, output: output / cut.tensor, work, down: down / cut.tensor }
    }
}

/// A token's copies for its experts, and what is shared.
fn routed_inputs(cut: &Cut<'_>, experts: &Experts, hidden: f64) -> (f64, f64) {
    let copies = real(experts.active);
    let down = copies * real(experts.each.inner) + real(experts.shared_inner);
    (hidden / cut.sequence_parts + copies * hidden / cut.tensor, down)
}

/// Inputs that adapters share among those with the same: fused, each is kept once.
fn shared_inputs(cut: &Cut<'_>, lora: &Lora, all: &Inputs) -> f64 {
    use LoraTarget::{Down, Gate, GateUp, Key, Output, Query, QueryKeyValue, StateIn, StateOut, Up, Value};
    let kept = |targets: &[LoraTarget], input: f64| {
        if targets.iter().any(|target| lora.targets.contains(target)) { input } else { 0.0 }
    };
    let mixing = kept(&[Query, Key, Value, QueryKeyValue, StateIn], all.mixing) + kept(&[Output, StateOut], all.output);
    let work = kept(&[Gate, Up, GateUp], all.work) + kept(&[Down], all.down);
    width(cut.workload.precision) * (mixing + work)
}

/// Each adapter's input, eagerly: in fp32 where adapters are (PEFT's `autocast_adapter_dtype`); in bf16 with a byte for dropout's mask.
fn adapter_inputs(cut: &Cut<'_>, all: &Inputs) -> f64 {
    let Some(lora) = adapters(&cut.workload.task) else { return 0.0 };
    let bytes = match cut.workload.optimizer {
        Optimizer::AdamWPureBf16 => 3.0,
        _ => 4.0,
    };
    let input = |target: &LoraTarget| match target {
        LoraTarget::Query | LoraTarget::Key | LoraTarget::Value | LoraTarget::QueryKeyValue | LoraTarget::StateIn => {
            all.mixing
        }
        LoraTarget::Output | LoraTarget::StateOut => all.output,
        LoraTarget::Gate | LoraTarget::Up | LoraTarget::GateUp => all.work,
        LoraTarget::Down => all.down,
    };
    bytes * lora.targets.iter().map(input).sum::<f64>()
}

/// Gradients that live while a layer goes backward: of its output and of its inner matrices' outputs; of experts, copies of their routed
/// inputs before and after each exchange.
fn gradients(cut: &Cut<'_>, layer: &Layer) -> f64 {
    if cut.workload.task == Task::Inference {
        return 0.0;
    }
    let hidden = real(cut.workload.model.hidden);
    let width = width(cut.workload.precision);
    let matrices = |dense: &DenseFeedForward| if dense.is_gated { 2.0 } else { 1.0 };
    let inner = match &layer.feed_forward {
        FeedForward::None => 0.0,
        FeedForward::Dense(dense) => matrices(dense) * real(dense.inner),
        FeedForward::Experts(experts) => EXPERT_COPIES * real(experts.active) * hidden,
    };
    width * (hidden / cut.sequence_parts + inner / cut.tensor)
}
