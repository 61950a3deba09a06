//! How a run is cut among accelerators, and what it does again to save memory.
//!
//! [`Layout::check`](check) says which rule an impossible cut breaks; [`Layout::parse`](text) reads `tp=8,pp=2,dp=8,mbs=1`. Pure.

pub mod check;
mod shown;
pub mod text;

pub use check::LayoutFault;
pub use text::{LayoutTextError, STACKS};

/// A cut. The product of tensor, pipeline, context and data parallelism is the number of accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tensor parallelism (t): each matrix among so many (Shoeybi 2019, arXiv:1909.08053).
    pub tensor: u32,
    /// Whether activations between matrices are cut along the sequence too (Korthikanti 2022, arXiv:2205.05198).
    pub is_sequence_parallel: bool,
    /// Whether products are cut so that tensor parallelism's communication runs behind them (Transformer Engine's user buffers, which
    /// NeMo's recipes turn on; MegaScale, arXiv:2402.15627; asynchronous tensor parallelism).
    pub is_tensor_overlapped: bool,
    /// Pipeline stages (p).
    pub pipeline: u32,
    /// Chunks of layers that a stage has, interleaved (v; Narayanan 2021, arXiv:2104.04473).
    pub virtual_stages: u32,
    /// Context parallelism (c): each sequence among so many.
    pub context: u32,
    /// Expert parallelism (e), inside data parallelism.
    pub expert: u32,
    /// Tensor parallelism inside an expert.
    pub expert_tensor: u32,
    /// Data parallelism (D).
    pub data: u32,
    /// What data-parallel ranks share out among themselves.
    pub sharding: Sharding,
    /// Sequences of a micro-batch (b).
    pub micro_batch: u32,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// What lies in the host's memory.
    pub offload: Offload,
    /// The software that runs it.
    pub stack: Stack,
    /// Whether a compiler fuses element-wise work (torch.compile); Megatron and XLA have fused kernels anyway.
    pub is_compiled: bool,
    /// Whether experts' products take their activations, casts and permutation into one kernel, their exchange runs behind another
    /// micro-batch, and whole steps are launched at once (Megatron-Bridge 0.5.1: CuTeDSL fused grouped GEMM, 1F1B overlap of the
    /// all-to-all, full-iteration CUDA graphs; on Blackwell).
    pub has_fused_experts: bool,
    /// How attention is computed.
    pub kernel: AttentionKernel,
    /// How the loss is computed from logits.
    pub loss: LossHead,
    /// When the optimizer steps.
    pub step: Step,
    /// What Megatron sums gradients in.
    pub gradients: Gradients,
}

/// One accelerator with plain PyTorch, one sequence at a time, and attention in tiles.
impl Default for Layout {
    fn default() -> Self {
        Layout {
            tensor: 1,
            is_sequence_parallel: false,
            is_tensor_overlapped: false,
            pipeline: 1,
            virtual_stages: 1,
            context: 1,
            expert: 1,
            expert_tensor: 1,
            data: 1,
            sharding: Sharding::None,
            micro_batch: 1,
            recompute: Recompute::None,
            offload: Offload::None,
            stack: Stack::Plain,
            is_compiled: false,
            has_fused_experts: false,
            kernel: AttentionKernel::Flash,
            loss: LossHead::Full,
            step: Step::Behind,
            gradients: Gradients::Fp32,
        }
    }
}

impl Layout {
    /// Accelerators that it takes: t x p x c x D. Experts are spread inside these.
    #[must_use]
    pub const fn accelerators(&self) -> u64 {
        let model = (self.tensor as u64).saturating_mul(self.pipeline as u64);
        model.saturating_mul(self.context as u64).saturating_mul(self.data as u64)
    }

    /// Micro-batches of a step (m), at least 1: global batch / (D x b).
    #[must_use]
    pub const fn micro_batches(&self, global_batch: u64) -> u64 {
        let at_once = self.data as u64 * self.micro_batch as u64;
        match global_batch.checked_div(at_once) {
            None | Some(0) => 1,
            Some(whole) => whole,
        }
    }
}

/// What data-parallel ranks share out (Rajbhandari 2020, arXiv:1910.02054).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharding {
    /// Nothing: each has everything.
    None,
    /// Optimizer state, among so many ranks (all, or those of a node).
    Optimizer {
        /// Ranks that share one copy.
        ranks: u32,
    },
    /// And gradients.
    Gradients,
    /// And parameters: ZeRO-3, FSDP.
    Parameters {
        /// Whether a layer's parameters are freed between forward and backward.
        reshards: bool,
    },
}

/// What the backward pass computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention's core.
    Selective,
    /// Each layer.
    Full,
}

/// What lies in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offload {
    /// Nothing.
    None,
    /// The optimizer's state, which is updated there, and gradients.
    Optimizer,
    /// Parameters too, which come layer by layer (FSDP, ZeRO-3).
    Parameters,
    /// Activations that are kept for the backward pass.
    Activations,
}

/// Software, by how it keeps states and overlaps communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// Megatron-LM, NeMo, Megatron-Bridge.
    Megatron,
    /// PyTorch FSDP: llm-foundry, torchtitan.
    Fsdp,
    /// DeepSpeed.
    DeepSpeed,
    /// One accelerator, plain PyTorch: Hugging Face, litgpt.
    Plain,
    /// XLA: MaxText, Paxml.
    Xla,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionKernel {
    /// Scores are written to memory.
    Unfused,
    /// Tiles that stay on the chip, first generation (Dao 2022, arXiv:2205.14135; the Triton kernel that MPT used).
    FlashFirst,
    /// Tiles, second generation or later (Dao 2023, arXiv:2307.08691; cuDNN).
    Flash,
}

/// How the loss is computed from logits, by what of them it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossHead {
    /// From all logits at once, with copies in fp32.
    Full,
    /// From all logits, a chunk of tokens in fp32 at a time (torchtune).
    Chunked,
    /// In one kernel that overwrites the logits with their gradients (Transformer Engine, Liger).
    Fused,
    /// Together with the head's matrix, so that never all logits exist (Liger's fused linear, Unsloth; arXiv:2410.10989).
    Streamed,
}

/// When the optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Behind the backward pass, when all gradients are there.
    Behind,
    /// Parameter by parameter within the backward pass, so that gradients never are all there (Lv 2023, arXiv:2306.09782).
    Within,
}

/// What gradients are summed in, where weights are in 16 bits and their fp32 copies are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gradients {
    /// fp32 (`accumulate_allreduce_grads_in_fp32`).
    Fp32,
    /// 16 bits (NeMo's and Megatron-Bridge's performance recipes: `grad_reduce_in_fp32=False`).
    Half,
}
