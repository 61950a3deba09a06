//! What is to be done with a model: the task, its numbers' formats, and the batch.

use std::num::NonZeroU64;

use crate::model::Model;

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

/// Low-rank adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Their rank (r).
    pub rank: u64,
    /// The matrices that have one.
    pub targets: Vec<LoraTarget>,
    /// What is trained of each.
    pub form: LoraForm,
}

/// What is trained of an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoraForm {
    /// Both matrices.
    #[default]
    Plain,
    /// And the length of each output (DoRA, arXiv:2402.09353).
    WeightDecomposed,
    /// Only the one to the outputs (LoRA-FA, arXiv:2308.03303).
    FrozenDown,
    /// Only the one from the inputs.
    FrozenUp,
    /// Both, the one on the side that tensor parallelism cuts in so many blocks (BD-LoRA, as in PEFT).
    BlockDiagonal {
        /// Blocks: ranks that serve the adapter.
        blocks: NonZeroU64,
    },
}

/// A matrix that may have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoraTarget {
    /// `q_proj`; of latent attention both matrices of the queries.
    Query,
    /// `k_proj`; of latent attention `kv_a_proj_with_mqa`.
    Key,
    /// `v_proj`; of latent attention `kv_b_proj`.
    Value,
    /// The matrix that stores the three: `query_key_value`, `qkv_proj`, `c_attn`, `Wqkv`.
    QueryKeyValue,
    /// `o_proj`.
    Output,
    /// `gate_proj`, of shared work and experts too.
    Gate,
    /// `up_proj`, likewise.
    Up,
    /// The matrix that stores the two: `gate_up_proj`.
    GateUp,
    /// `down_proj`, likewise.
    Down,
    /// `in_proj` of a state-space layer.
    StateIn,
    /// `out_proj` of a state-space layer.
    StateOut,
}

impl LoraTarget {
    /// Every one.
    pub const ALL: [LoraTarget; 11] = [
        LoraTarget::Query,
        LoraTarget::Key,
        LoraTarget::Value,
        LoraTarget::QueryKeyValue,
        LoraTarget::Output,
        LoraTarget::Gate,
        LoraTarget::Up,
        LoraTarget::GateUp,
        LoraTarget::Down,
        LoraTarget::StateIn,
        LoraTarget::StateOut,
    ];

    /// The matrix that a module of this name is, in the families that are known; also `q`, `v` and the like.
    #[must_use]
    pub fn named(name: &str) -> Option<LoraTarget> {
        Some(match name.rsplit('.').next().unwrap_or(name) {
            "q" | "query" | "q_proj" | "q_b_proj" => LoraTarget::Query,
            "k" | "key" | "k_proj" | "kv_a_proj_with_mqa" => LoraTarget::Key,
            "v" | "value" | "v_proj" | "kv_b_proj" => LoraTarget::Value,
            "qkv" | "query_key_value" | "qkv_proj" | "c_attn" | "Wqkv" | "wqkv" => LoraTarget::QueryKeyValue,
            "o" | "output" | "o_proj" | "out_proj" | "dense" | "wo" => LoraTarget::Output,
            "gate" | "gate_proj" | "w1" => LoraTarget::Gate,
            "up" | "up_proj" | "w3" | "fc1" | "c_fc" | "dense_h_to_4h" => LoraTarget::Up,
            "gate_up_proj" => LoraTarget::GateUp,
            "down" | "down_proj" | "w2" | "fc2" | "dense_4h_to_h" => LoraTarget::Down,
            "in_proj" => LoraTarget::StateIn,
            _ => return None,
        })
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
