//! The cuts worth trying, with what the recipes of their software turn on: those of Megatron-Bridge hide tensor parallelism behind the
//! products, those of torchtitan compile.

use crate::hardware::{Cluster, Generation};
use crate::layout::{AttentionKernel, Layout, LossHead, Offload, Recompute, Sharding, Stack};
use crate::model::{FeedForward, Model};
use crate::workload::{Precision, Task, Workload};

/// The largest tensor parallelism that is tried, even where fast links join more.
const TENSOR_MAX: u32 = 16;
/// The most pipeline stages that are tried.
const PIPELINE_MAX: u32 = 64;
/// The largest micro-batch that is tried.
const MICRO_BATCH_MAX: u32 = 16;
/// Shorter pieces of a sequence than this aren't cut further.
const CONTEXT_TOKENS_MIN: u64 = 4_096;
/// The largest expert parallelism that is tried.
const EXPERT_MAX: u32 = 64;

/// Layouts to look at: the product of what is listed, as far as it makes sense.
#[derive(Clone, Debug)]
pub struct Space {
    accelerators: u32,
    layers: u32,
    batch: u64,
    tensors: Vec<u32>,
    contexts: Vec<u32>,
    experts: Vec<u32>,
    styles: Vec<Style>,
    offload: Offload,
    /// Whether accelerators have links of their own, which kernels can use beside products.
    has_links: bool,
    /// Whether there are kernels that fuse experts: those for 8 bits on Blackwell.
    fuses_experts: bool,
}

/// A stack with what it shares out and how it computes the loss.
#[derive(Clone, Copy, Debug)]
struct Style {
    stack: Stack,
    sharding: Share,
    loss: LossHead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Nothing,
    Optimizer,
    Gradients,
    Parameters { reshards: bool },
}

impl Space {
    /// Everything on the accelerators, with any software that people train such a task with, or a given one.
    #[must_use]
    pub fn usual(workload: &Workload, cluster: &Cluster, stack: Option<Stack>) -> Space {
        let domain = cluster.per_node.max(cluster.linked().min(cluster.accelerators));
        let limit = domain.min(TENSOR_MAX);
        let contexts_max = u32::try_from(workload.sequence / CONTEXT_TOKENS_MIN).unwrap_or(u32::MAX).max(1);
        Space {
            accelerators: cluster.accelerators,
            layers: u32::try_from(workload.model.layer_count()).unwrap_or(u32::MAX),
            batch: workload.global_batch,
            tensors: powers_of_two(limit),
            contexts: powers_of_two(contexts_max.min(cluster.accelerators)),
            experts: powers_of_two(experts(&workload.model).min(EXPERT_MAX).min(cluster.accelerators)),
            styles: styles(&workload.task, cluster.accelerators, stack),
            offload: Offload::None,
            has_links: cluster.linked() > 1,
            fuses_experts: cluster.accelerator.generation == Generation::Blackwell
                && workload.precision == Precision::Fp8
                && workload.model.has_experts(),
        }
    }

    /// The optimizer's state, and the update, in the host's memory.
    #[must_use]
    pub fn offloading(workload: &Workload, cluster: &Cluster, stack: Option<Stack>) -> Space {
        Space { offload: Offload::Optimizer, ..Space::usual(workload, cluster, stack) }
    }

    /// Calls `look` with each layout; not all of them can be.
    pub fn each(&self, look: &mut impl FnMut(&Layout)) {
        for style in &self.styles {
            for tensor in self.tensors.iter().copied().filter(|tensor| self.accelerators.is_multiple_of(*tensor)) {
                self.each_of_tensor(style, tensor, look);
            }
        }
    }

    fn each_of_tensor(&self, style: &Style, tensor: u32, look: &mut impl FnMut(&Layout)) {
        let rest = self.accelerators / tensor;
        for context in self.contexts.iter().copied().filter(|context| rest.is_multiple_of(*context)) {
            let ranks = rest / context;
            let is_cut = style.stack == Stack::Megatron;
            let stages_max = if is_cut { PIPELINE_MAX.min(self.layers) } else { 1 };
            for pipeline in (1..=stages_max.min(ranks)).filter(|stages| ranks.is_multiple_of(*stages)) {
                let data = ranks / pipeline;
                if self.batch.is_multiple_of(u64::from(data)) {
                    let layout = Layout { tensor, context, pipeline, data, ..self.base(style, data * context, tensor) };
                    self.each_of_cut(&layout, look);
                }
            }
        }
    }

    fn base(&self, style: &Style, replicas: u32, tensor: u32) -> Layout {
        let sharding = match style.sharding {
            Share::Nothing => Sharding::None,
            Share::Optimizer if replicas == 1 => Sharding::None,
            Share::Optimizer => Sharding::Optimizer { ranks: replicas },
            Share::Gradients => Sharding::Gradients,
            Share::Parameters { reshards } => Sharding::Parameters { reshards },
        };
        Layout {
            is_sequence_parallel: tensor > 1,
            is_tensor_overlapped: tensor > 1 && self.has_links && style.stack == Stack::Megatron,
            is_compiled: style.stack == Stack::Fsdp,
            has_fused_experts: self.fuses_experts && style.stack == Stack::Megatron,
            sharding,
            stack: style.stack,
            loss: style.loss,
            kernel: AttentionKernel::Flash,
            offload: self.offload,
            ..Layout::default()
        }
    }

    fn each_of_cut(&self, cut: &Layout, look: &mut impl FnMut(&Layout)) {
        for expert in &self.experts {
            for virtual_stages in virtual_stages(self.layers, cut.pipeline) {
                self.each_of_batch(&Layout { expert: *expert, virtual_stages, ..*cut }, look);
            }
        }
    }

    fn each_of_batch(&self, cut: &Layout, look: &mut impl FnMut(&Layout)) {
        let share = self.batch / u64::from(cut.data);
        let possible = |micro_batch: &u32| share.is_multiple_of(u64::from(*micro_batch));
        for micro_batch in powers_of_two(MICRO_BATCH_MAX).into_iter().take_while(possible) {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                look(&Layout { micro_batch, recompute, ..*cut });
            }
        }
    }
}

/// The given stack, or those that people train such a task with.
fn styles(task: &Task, accelerators: u32, stack: Option<Stack>) -> Vec<Style> {
    let usual = usual_styles(task, accelerators);
    let Some(stack) = stack else { return usual };
    let of_stack: Vec<Style> = usual.into_iter().filter(|style| style.stack == stack).collect();
    if !of_stack.is_empty() {
        return of_stack;
    }
    let sharding = match stack {
        Stack::Plain => Share::Nothing,
        Stack::Megatron => Share::Optimizer,
        Stack::Fsdp | Stack::DeepSpeed | Stack::Xla => Share::Parameters { reshards: true },
    };
    vec![Style { stack, sharding, loss: LossHead::Chunked }]
}

fn usual_styles(task: &Task, accelerators: u32) -> Vec<Style> {
    let plain = |loss| Style { stack: Stack::Plain, sharding: Share::Nothing, loss };
    let sharded = |sharding| Style { stack: Stack::Fsdp, sharding, loss: LossHead::Chunked };
    let megatron = Style { stack: Stack::Megatron, sharding: Share::Optimizer, loss: LossHead::Fused };
    let fully = Share::Parameters { reshards: true };
    match task {
        Task::Inference => vec![Style { stack: Stack::Megatron, sharding: Share::Nothing, loss: LossHead::Fused }],
        _ if accelerators == 1 => vec![plain(LossHead::Full), plain(LossHead::Chunked), plain(LossHead::Streamed)],
        Task::Lora(_) | Task::Qlora { .. } => {
            vec![Style { stack: Stack::Fsdp, sharding: Share::Nothing, loss: LossHead::Chunked }, sharded(fully)]
        }
        Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune => {
            vec![sharded(fully), sharded(Share::Parameters { reshards: false }), sharded(Share::Gradients), megatron]
        }
    }
}

/// Interleavings that are tried of so many layers on so many stages: none, one layer a chunk, and a few between.
fn virtual_stages(layers: u32, pipeline: u32) -> Vec<u32> {
    if pipeline < 2 {
        return vec![1];
    }
    // Embedding and head may take the place of a layer or two: 126 layers on 16 stages are 8 for most.
    let each = layers.div_ceil(pipeline);
    let mut all: Vec<u32> = (1..=each).filter(|chunks| each.is_multiple_of(*chunks)).collect();
    if all.len() > 4 {
        all = vec![all[0], all[all.len() / 2], all[all.len() - 2], all[all.len() - 1]];
    }
    all
}

fn experts(model: &Model) -> u32 {
    let count = model.layers.iter().map(|group| match group.layer.feed_forward {
        FeedForward::Experts(experts) => experts.count,
        FeedForward::Dense(_) | FeedForward::None => 1,
    });
    u32::try_from(count.max().unwrap_or(1)).unwrap_or(u32::MAX)
}

fn powers_of_two(limit: u32) -> Vec<u32> {
    (0..32).map(|bits| 1_u32 << bits).take_while(|power| *power <= limit).collect()
}
