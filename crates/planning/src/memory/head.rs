//! The loss head: logits, their copies and gradients, in bytes for each token and word.
//!
//! Full: 16-bit logits, an fp32 copy, its log-softmax, and the gradient of that, all alive when the backward pass begins (PyTorch's
//! `cross_entropy` behind `logits.float()`: 2 + 4 + 4 + 4); Megatron's vocabulary-parallel one works in place (2 + 4). Fused: the logits
//! are overwritten with their gradients (2; Transformer Engine, Liger arXiv:2410.10989). Chunked: 16-bit logits, log-softmax and 16-bit
//! gradients, and fp32 copies of one chunk (torchtune's `CEWithChunkedOutputLoss`). Streamed: one chunk only.

use super::Cut;
use super::census::padded_vocabulary;
use super::constants::LOSS_CHUNKS;
use super::stages::Stage;
use super::states::{is_raised, width};
use crate::layout::{LossHead, Stack};
use crate::units::{Volume, real};
use crate::workload::{Optimizer, Task};

/// What the head of a stage holds when the backward pass begins; nothing on other stages and while serving.
pub(crate) fn head(cut: &Cut<'_>, stage: &Stage) -> Volume {
    if !stage.has_head || cut.workload.task == Task::Inference {
        return Volume::ZERO;
    }
    let words = real(padded_vocabulary(&cut.workload.model, cut.layout)) / cut.tensor;
    let logits = cut.tokens * words * bytes(cut) * real(1 + stage.further);
    // The final norm's input and output, cut along the sequence, and its output and gradient gathered for the head's matrix.
    let hidden = real(cut.workload.model.hidden) * cut.tokens * width(cut.workload.precision);
    Volume::new(logits + 2.0 * hidden + 2.0 * hidden / cut.sequence_parts)
}

/// Bytes for each logit.
fn bytes(cut: &Cut<'_>) -> f64 {
    let logit = if is_raised(cut.workload, cut.layout) { 4.0 } else { width(cut.workload.precision) };
    let is_pure = cut.workload.optimizer == Optimizer::AdamWPureBf16;
    match (cut.layout.loss, cut.layout.stack) {
        (LossHead::Full, Stack::Megatron | Stack::Xla) => logit + 4.0,
        (LossHead::Full, _) => logit + 12.0,
        // In bf16 throughout, nothing is copied to fp32 (litgpt).
        (LossHead::Chunked, Stack::Plain) if is_pure => 3.0 * logit,
        (LossHead::Chunked, _) => 2.0 * logit + 4.0 + 8.0 / LOSS_CHUNKS,
        (LossHead::Fused, _) => logit,
        (LossHead::Streamed, _) => (logit + 4.0) / LOSS_CHUNKS,
    }
}
