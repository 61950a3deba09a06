//! What is to be done with a model: the task, its numbers' formats, and the batch.

use crate::model::Model;
pub use crate::model::lora::{Lora, LoraForm, LoraTarget};

/// A training (or serving) task.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What is trained.
    pub model: Model,
    /// Which of its parameters are.
    pub task: Task,
    /// Tokens of a sequence (s).
    pub sequence: u64,
    /// Sequences of an optimizer step.
    pub global_batch: u64,
    /// Format of the matrix products.
    pub precision: Precision,
    /// What turns gradients into updates.
    pub optimizer: Optimizer,
}

/// Which parameters are trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// All, from the beginning.
    Pretrain,
    /// All, from a checkpoint, on much data.
    ContinualPretrain,
    /// All, from a checkpoint, on little data.
    FullFinetune,
    /// Low-rank adapters beside frozen weights (Hu 2021, arXiv:2106.09685).
    Lora(Lora),
    /// The same with the frozen weights in 4 bits (Dettmers 2023, arXiv:2305.14314).
    Qlora {
        /// The adapters.
        lora: Lora,
        /// Whether the scales are quantised too.
        is_double: bool,
    },
    /// None: serving.
    Inference,
}

impl Task {
    /// The adapters, if only those are trained.
    #[must_use]
    pub const fn adapters(&self) -> Option<&Lora> {
        match self {
            Task::Lora(lora) | Task::Qlora { lora, .. } => Some(lora),
            Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune | Task::Inference => None,
        }
    }
}

/// Format of the matrix products' inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// fp32 outside the matrix units.
    Fp32,
    /// fp32 in memory, tf32 in the matrix units.
    Tf32,
    /// fp16.
    Fp16,
    /// bf16.
    Bf16,
    /// fp8 with a scale for each tensor or block (Micikevicius 2022, arXiv:2209.05433).
    Fp8,
    /// 4-bit floating point in blocks.
    Fp4,
}

/// What turns gradients into updates, by what it keeps for each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// AdamW with fp32 moments and an fp32 master copy.
    AdamW,
    /// AdamW with weights, gradients and moments in bf16.
    AdamWPureBf16,
    /// AdamW with 8-bit moments (Dettmers 2021, arXiv:2110.02861).
    AdamW8Bit,
    /// The same, which may page its moments to the host.
    PagedAdamW8Bit,
    /// Adafactor: rows and columns (Shazeer 2018, arXiv:1804.04235).
    Adafactor,
    /// Muon: one momentum (Jordan 2024).
    Muon,
    /// Stochastic gradient descent with momentum.
    SgdMomentum,
}
