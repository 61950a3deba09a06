//! Memory that is neither state nor activation: gathered parameters, buckets, workspaces; and what is outside the allocator.

use super::census::{Census, Stored};
use super::constants::{BUCKET, COLLECTIVES, CONTEXT, LAYERS_GATHERED, LIVE_PARAMETERS, WORKSPACE};
use super::states::{four_bits, width};
use super::{Cut, Parts};
use crate::layout::{Layout, Offload, Sharding, Stack, Step};
use crate::units::{Volume, real};
use crate::workload::{Optimizer, Task};

/// Buffers that a stage holds at its peak.
pub(crate) fn buffers(cut: &Cut<'_>, parts: &Parts<'_>, census: &Census) -> Volume {
    let kept = match cut.layout.stack {
        Stack::Megatron => fused_gradients(cut, parts) + pipeline(cut) + gathered(cut, census),
        Stack::Fsdp | Stack::Xla => gathered(cut, census) + unpacked(cut, parts),
        Stack::DeepSpeed => buckets(cut, census),
        Stack::Plain => autocast(cut, census) + unpacked(cut, parts),
    };
    Volume::new(WORKSPACE + kept + single_gradient(cut, parts))
}

/// What `nvidia-smi` shows beyond the allocator: the context, and channels for each kind of parallelism.
pub(crate) fn framework(cut: &Cut<'_>) -> Volume {
    let Layout { tensor, pipeline, context, data, .. } = *cut.layout;
    let ways: f64 = [tensor, pipeline, context, data].iter().map(|degree| if *degree > 1 { 1.0 } else { 0.0 }).sum();
    Volume::new(CONTEXT + COLLECTIVES * ways)
}

/// Transformer Engine adds weight gradients into fp32 buffers while multiplying, and gives autograd one placeholder in the weights' format
/// for each shape of matrix (`get_dummy_wgrad`); q, k and v are one matrix, gate and up too.
fn fused_gradients(cut: &Cut<'_>, parts: &Parts<'_>) -> f64 {
    if !cut.is_all_trained {
        return 0.0;
    }
    let stored = || parts.kinds().flat_map(|kind| &kind.stored);
    let is_first = |(index, matrix): &(usize, &Stored)| stored().take(*index).all(|other| other.shape != matrix.shape);
    let layers: f64 = stored().enumerate().filter(is_first).map(|(_, matrix)| matrix.elements).sum();
    let head = if parts.stage.has_head { parts.ends.words } else { 0.0 };
    width(cut.workload.precision) * (layers + head)
}

/// A micro-batch's activations and gradients on their way between stages: 2bsh each (arXiv:2104.04473, section 3.2).
fn pipeline(cut: &Cut<'_>) -> f64 {
    if cut.layout.pipeline == 1 {
        return 0.0;
    }
    2.0 * width(cut.workload.precision) * cut.tokens * real(cut.workload.model.hidden) / cut.sequence_parts
}

/// FSDP: whole layers, the one at work and the next, the ends of the model, and whole gradients of a layer on their way to their shards;
/// all layers where they aren't freed before the backward pass. Flat parameters that mix adapters and frozen weights (FSDP1) have
/// gradients of all of it; where each is freed (reshards), gradients are only of what is trained.
fn gathered(cut: &Cut<'_>, census: &Census) -> f64 {
    let Sharding::Parameters { reshards } = cut.layout.sharding else { return 0.0 };
    let words = real(cut.workload.model.vocabulary) * real(cut.workload.model.hidden) / cut.tensor;
    let ends = if cut.workload.model.embedding.is_tied { words } else { 2.0 * words };
    let layers = LAYERS_GATHERED * census.largest_layer;
    let layer_bytes = match cut.workload.task {
        Task::Qlora { is_double, .. } => four_bits(is_double),
        _ => 2.0,
    };
    let whole = if reshards { layer_bytes * layers + 2.0 * ends } else { 2.0 * (census.dense + census.experts) };
    let gradients = match (cut.is_all_trained, reshards) {
        (true, _) => census.largest_layer.max(words),
        (false, true) => 0.0,
        (false, false) => layers,
    };
    whole + 2.0 * gradients
}

/// DeepSpeed: buckets of gradients on their way (twice, to overlap), and under ZeRO-3 parameters that are kept whole.
fn buckets(cut: &Cut<'_>, census: &Census) -> f64 {
    let all = census.dense + census.experts;
    let trained = if cut.is_all_trained { all } else { census.adapters };
    let is_sharded = matches!(cut.layout.sharding, Sharding::Parameters { .. });
    let live = if is_sharded { LIVE_PARAMETERS.min(all) } else { 0.0 };
    let host = if cut.layout.offload == Offload::None { 0.0 } else { BUCKET.min(trained) };
    width(cut.workload.precision) * (2.0 * BUCKET.min(trained) + live + host)
}

/// Autocast's 16-bit copies of fp32 weights, kept until the end of the forward pass.
fn autocast(cut: &Cut<'_>, census: &Census) -> f64 {
    let has_fp32_weights =
        matches!(cut.workload.optimizer, Optimizer::AdamW | Optimizer::Muon | Optimizer::SgdMomentum);
    let is_16_bit = width(cut.workload.precision) < 4.0;
    if cut.is_all_trained && has_fp32_weights && is_16_bit { 2.0 * (census.dense + census.experts) } else { 0.0 }
}

/// The largest 4-bit matrix in 16 bits, while it is multiplied by.
fn unpacked(cut: &Cut<'_>, parts: &Parts<'_>) -> f64 {
    if !matches!(cut.workload.task, Task::Qlora { .. }) {
        return 0.0;
    }
    let hidden = cut.workload.model.hidden;
    let matrices = parts.kinds().flat_map(|kind| kind.layer.matrices(hidden));
    2.0 * real(matrices.map(|matrix| matrix.elements()).max().unwrap_or(0))
}

/// One parameter's gradient at a time, where the optimizer steps within the backward pass.
fn single_gradient(cut: &Cut<'_>, parts: &Parts<'_>) -> f64 {
    if cut.layout.step == Step::Behind || !cut.is_all_trained {
        return 0.0;
    }
    let largest = parts.kinds().flat_map(|kind| &kind.stored).map(|matrix| matrix.elements).fold(0.0, f64::max);
    width(cut.workload.precision) * largest.max(parts.ends.words)
}
