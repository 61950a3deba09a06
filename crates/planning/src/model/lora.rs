//! Low-rank adapters, and how many parameters they train (Hu 2021, arXiv:2106.09685).

use std::num::NonZeroU64;

use super::matrices::{Matrix, Role};
use super::{Attention, FeedForward, Layer, Model};

/// Greatest rank that is counted.
const RANK_MAX: u64 = 1 << 16;

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

/// Why adapters can't be counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// The rank is nothing an adapter can have.
    #[error("lora rank {rank} is not possible: choose 1 to {RANK_MAX}, usually 8 to 64")]
    Rank {
        /// The rank.
        rank: u64,
    },
    /// No matrix is targeted.
    #[error("lora has no target: name matrices such as q_proj and v_proj")]
    NoTarget,
    /// The model has no such matrix.
    #[error("{model} has no matrix for the lora target {target:?}: choose others, or all-linear")]
    NotThere {
        /// The model's name.
        model: String,
        /// The target.
        target: LoraTarget,
    },
}

impl Model {
    /// Parameters that adapters of this kind train: of each targeted matrix r (d_in + d_out), and what the form adds or leaves out.
    ///
    /// A mixture's experts have an adapter each, as PEFT gives them to experts that are modules of their own. Where a model stores several
    /// matrices as one, [`LoraTarget::QueryKeyValue`] and [`LoraTarget::GateUp`] are that one, as PEFT sees it; the single ones are
    /// slices of it with adapters of their own, as litgpt has them.
    ///
    /// # Errors
    /// [`LoraError`] if the rank or a target is impossible for this model.
    pub fn lora_parameters(&self, lora: &Lora) -> Result<u64, LoraError> {
        if lora.rank == 0 || lora.rank > RANK_MAX {
            return Err(LoraError::Rank { rank: lora.rank });
        }
        let mut targets = lora.targets.clone();
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() {
            return Err(LoraError::NoTarget);
        }
        let mut sum = 0;
        for target in targets {
            let of_group = |layer: &Layer| -> u64 {
                let adapted = adapted(layer, self.hidden, target);
                adapted.into_iter().map(|matrix| matrix.copies * adapter(matrix, lora)).sum()
            };
            let trained: u64 = self.layers.iter().map(|group| group.count * of_group(&group.layer)).sum();
            if trained == 0 {
                return Err(LoraError::NotThere { model: self.name.clone(), target });
            }
            sum += trained;
        }
        Ok(sum)
    }

    /// Every matrix in the model's layers that may have an adapter (PEFT's `all-linear`): all but head and router.
    #[must_use]
    pub fn all_linear(&self) -> Vec<LoraTarget> {
        let fused = self.layers.iter().map(|group| fused(&group.layer));
        let (is_attention_fused, is_work_fused) = fused.fold((false, false), |all, one| (all.0 | one.0, all.1 | one.1));
        let is_single = |target: &LoraTarget| match target {
            LoraTarget::Query | LoraTarget::Key | LoraTarget::Value => !is_attention_fused,
            LoraTarget::QueryKeyValue => is_attention_fused,
            LoraTarget::Gate | LoraTarget::Up => !is_work_fused,
            LoraTarget::GateUp => is_work_fused,
            LoraTarget::Output | LoraTarget::Down | LoraTarget::StateIn | LoraTarget::StateOut => true,
        };
        let is_there = |target: &LoraTarget| {
            self.layers.iter().any(|group| !adapted(&group.layer, self.hidden, *target).is_empty())
        };
        LoraTarget::ALL.into_iter().filter(is_single).filter(is_there).collect()
    }
}

/// Whether attention's, and the work's, matrices are stored as one.
fn fused(layer: &Layer) -> (bool, bool) {
    let attention = matches!(&layer.attention, Attention::Grouped(attention) if attention.is_fused);
    (attention, matches!(&layer.feed_forward, FeedForward::Dense(dense) if dense.is_fused))
}

/// The matrices of a layer that a target means.
fn adapted(layer: &Layer, hidden: u64, target: LoraTarget) -> Vec<Matrix> {
    let (is_attention_fused, is_work_fused) = fused(layer);
    let all = layer.matrices(hidden);
    let of = |roles: &[Role]| all.into_iter().filter(|matrix| roles.contains(&matrix.role)).collect::<Vec<_>>();
    match target {
        LoraTarget::Query => of(&[Role::QueryLatent, Role::Query]),
        LoraTarget::Key => of(&[Role::Key]),
        LoraTarget::Value => of(&[Role::Value]),
        LoraTarget::Output => of(&[Role::Output]),
        LoraTarget::Gate => of(&[Role::Gate, Role::SharedGate, Role::ExpertGate]),
        LoraTarget::Up => of(&[Role::Up, Role::SharedUp, Role::ExpertUp]),
        LoraTarget::Down => of(&[Role::Down, Role::SharedDown, Role::ExpertDown]),
        LoraTarget::StateIn => of(&[Role::StateIn]),
        LoraTarget::StateOut => of(&[Role::StateOut]),
        LoraTarget::QueryKeyValue if is_attention_fused => joined(&of(&[Role::Query, Role::Key, Role::Value])),
        LoraTarget::GateUp if is_work_fused => joined(&of(&[Role::Gate, Role::Up])),
        LoraTarget::QueryKeyValue | LoraTarget::GateUp => Vec::new(),
    }
}

/// Matrices with the same inputs as the one that stores them.
fn joined(parts: &[Matrix]) -> Vec<Matrix> {
    let outputs = parts.iter().map(|matrix| matrix.outputs).sum();
    parts.first().map(|first| Matrix { outputs, ..*first }).into_iter().collect()
}

/// What one adapter trains: down r x d_in, up d_out x r, and by form.
const fn adapter(matrix: Matrix, lora: &Lora) -> u64 {
    let (down, up) = (lora.rank * matrix.inputs, lora.rank * matrix.outputs);
    match lora.form {
        LoraForm::Plain => down + up,
        LoraForm::WeightDecomposed => down + up + matrix.outputs,
        LoraForm::FrozenDown => up,
        LoraForm::FrozenUp => down,
        LoraForm::BlockDiagonal { blocks } if is_cut_by_inputs(matrix.role) => down / blocks.get() + up,
        LoraForm::BlockDiagonal { blocks } => down + up / blocks.get(),
    }
}

/// Whether tensor parallelism cuts such a matrix along its inputs (arXiv:1909.08053, section 3).
const fn is_cut_by_inputs(role: Role) -> bool {
    matches!(role, Role::Output | Role::Down | Role::SharedDown | Role::ExpertDown | Role::StateOut)
}
