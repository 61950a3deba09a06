//! What each accelerator holds, by pipeline stage and by component.
//!
//! [`estimate`] adds up, for each stage, states (`states`), activations of the micro-batches in flight (`stages`, `activations`), the
//! loss head (`head`) and buffers (`buffers`) at the moment when they are most; then what the allocator reserves beyond that, and what
//! lies outside it. Constants are in one table (`constants`). Pure.

mod activations;
mod buffers;
mod census;
pub mod constants;
mod head;
mod stages;
mod states;

use census::{Ends, Kind};
use constants::{DRIVERS_PART, FRAGMENTATION, FRAGMENTATION_OF_EXPERTS};
use stages::{Stage, deal, kinds};

use crate::hardware::Cluster;
use crate::layout::{Layout, LossHead, Offload, Recompute, Stack, Step};
use crate::model::Attention;
use crate::units::{Volume, real};
use crate::workload::{Task, Workload};

/// What each stage's accelerators hold at most, estimated.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// One for each pipeline stage, in order; all accelerators of a stage hold the same.
    pub stages: Vec<StageMemory>,
    /// What an accelerator has.
    pub capacity: Volume,
}

/// What an accelerator of one stage holds when it holds most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageMemory {
    /// The stage, from 0.
    pub stage: u32,
    /// Parameters.
    pub weights: Volume,
    /// Gradients, as far as they are there at that moment.
    pub gradients: Volume,
    /// The optimizer's state.
    pub optimizer: Volume,
    /// What forward passes have kept, and what the backward pass works on; while serving, keys and values of all sequences.
    pub activations: Volume,
    /// Logits, their copies and gradients.
    pub loss_head: Volume,
    /// Gathered parameters, buckets and workspaces.
    pub buffers: Volume,
    /// Reserved by the allocator beyond what is allocated.
    pub fragmentation: Volume,
    /// Outside the allocator: the driver's context, communication channels.
    pub framework: Volume,
}

impl StageMemory {
    /// What `torch.cuda.max_memory_allocated` says.
    #[must_use]
    pub fn allocated(&self) -> Volume {
        self.weights + self.gradients + self.optimizer + self.activations + self.loss_head + self.buffers
    }

    /// What `torch.cuda.max_memory_reserved` says.
    #[must_use]
    pub fn reserved(&self) -> Volume {
        self.allocated() + self.fragmentation
    }

    /// What `nvidia-smi` shows.
    #[must_use]
    pub fn occupied(&self) -> Volume {
        self.reserved() + self.framework
    }

    /// The least that must be there: when memory is short, the allocator frees what it holds in reserve and tries again.
    #[must_use]
    pub fn needed(&self) -> Volume {
        self.allocated() + self.framework
    }
}

impl MemoryEstimate {
    /// The stage that holds most; nothing where there are no stages.
    #[must_use]
    pub fn fullest(&self) -> StageMemory {
        let stages = self.stages.iter().copied();
        stages.max_by(|a, b| a.occupied().get().total_cmp(&b.occupied().get())).unwrap_or_default()
    }

    /// What a driver leaves to programs.
    #[must_use]
    pub fn usable(&self) -> Volume {
        self.capacity * (1.0 - DRIVERS_PART)
    }

    /// Whether every stage runs: what it needs is there, though the allocator may have to tidy up. This is what is checked against
    /// published runs that fitted or ran out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.stages.iter().all(|stage| stage.needed() <= self.usable())
    }

    /// Whether every stage runs at ease: fragmentation has room too.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.stages.iter().all(|stage| stage.occupied() <= self.usable())
    }
}

/// What all parts of an estimate need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) layout: &'a Layout,
    /// t.
    pub(crate) tensor: f64,
    /// Parts into which activations between matrices are cut along the sequence: t with sequence parallelism.
    pub(crate) sequence_parts: f64,
    /// Tokens of a micro-batch on a rank: b s / c.
    pub(crate) tokens: f64,
    /// Whether kernels are those of eager PyTorch; a compiler fuses them.
    pub(crate) is_eager: bool,
    /// Whether the model's own parameters are trained.
    pub(crate) is_all_trained: bool,
}

impl<'a> Cut<'a> {
    fn of(workload: &'a Workload, layout: &'a Layout) -> Self {
        let tensor = f64::from(layout.tensor);
        Cut {
            workload,
            layout,
            tensor,
            sequence_parts: if layout.is_sequence_parallel { tensor } else { 1.0 },
            tokens: f64::from(layout.micro_batch) * real(workload.sequence) / f64::from(layout.context),
            is_eager: !(is_fused(layout) || layout.is_compiled),
            is_all_trained: matches!(workload.task, Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune),
        }
    }
}

/// Whether norms, rotations and gates are one kernel each: Transformer Engine, XLA; Liger and Unsloth, which fuse the loss too.
const fn is_fused(layout: &Layout) -> bool {
    matches!(layout.stack, Stack::Megatron | Stack::Xla) || matches!(layout.loss, LossHead::Fused | LossHead::Streamed)
}

/// Estimates what each accelerator holds.
///
/// The layout should have passed [`Layout::check`]; of one that hasn't, the estimate is finite but means nothing.
#[must_use]
pub fn estimate(workload: &Workload, layout: &Layout, cluster: &Cluster) -> MemoryEstimate {
    let cut = Cut::of(workload, layout);
    let micro_batches = layout.micro_batches(workload.global_batch);
    let (layers, of_group) = kinds(&workload.model);
    let layers: Vec<Kind<'_>> = layers.into_iter().map(|layer| Kind::of(&cut, layer)).collect();
    let ends = Ends::of(&cut);
    let stages = deal(&workload.model, &of_group, layout, micro_batches);
    let last = of_group.last().map(|kind| &layers[*kind]);
    let of = |stage: &Stage| of_stage(&cut, &Parts { layers: &layers, last, ends: &ends, stage }, micro_batches);
    MemoryEstimate { stages: stages.iter().map(of).collect(), capacity: cluster.accelerator.memory }
}

/// A stage, and what its layers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    layers: &'a [Kind<'a>],
    /// What the model's last layer is.
    pub(crate) last: Option<&'a Kind<'a>>,
    pub(crate) ends: &'a Ends,
    pub(crate) stage: &'a Stage,
}

impl<'a> Parts<'a> {
    /// The kinds of layers that the stage has.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'a Kind<'a>> {
        self.counted().map(|(kind, _)| kind)
    }

    /// The same with how many it has.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&'a Kind<'a>, f64)> {
        let layers = self.layers;
        self.stage.layers.iter().map(move |(kind, count)| (&layers[*kind], *count))
    }
}

fn of_stage(cut: &Cut<'_>, parts: &Parts<'_>, micro_batches: u64) -> StageMemory {
    let stage = parts.stage;
    let census = census::census(cut, parts);
    let states = states::states(cut, &census);
    let (activations, working) = activations_of(cut, parts);
    let head = head::head(cut, stage);
    let (activations, loss_head) =
        if working > head { (activations + working, Volume::ZERO) } else { (activations, head) };
    let mut memory = StageMemory {
        stage: stage.index,
        weights: states.weights,
        optimizer: states.optimizer,
        gradients: states.gradients,
        activations,
        loss_head,
        buffers: buffers::buffers(cut, parts, &census),
        fragmentation: (activations + loss_head) * fragmentation(parts),
        framework: buffers::framework(cut),
    };
    if cut.layout.step == Step::Within {
        memory.gradients = Volume::ZERO;
        return memory;
    }
    let is_kept = matches!(cut.layout.stack, Stack::Megatron | Stack::Xla | Stack::DeepSpeed) || micro_batches > 1;
    let at_loss = activations + loss_head + if is_kept { states.gradients } else { Volume::ZERO };
    let copies = states::step_copies(cut, &states);
    if at_loss < states.gradients + copies {
        memory.activations = Volume::ZERO;
        memory.loss_head = Volume::ZERO;
        memory.fragmentation = Volume::ZERO;
        memory.buffers += copies;
    } else if !is_kept {
        memory.gradients = Volume::ZERO;
    }
    memory
}

/// What the stage's layers keep of all micro-batches in flight, and what the one that goes backward works on.
fn activations_of(cut: &Cut<'_>, parts: &Parts<'_>) -> (Volume, Volume) {
    let stage = parts.stage;
    if cut.workload.task == Task::Inference {
        return (Volume::new(keys_and_values(cut, parts)), Volume::ZERO);
    }
    let mut kept = 0.0;
    let mut working: f64 = 0.0;
    for (kind, count) in parts.counted() {
        kept += count * kind.bytes.kept;
        working = working.max(kind.bytes.working);
    }
    if let (true, Some(last)) = (stage.further > 0, parts.last) {
        kept += real(stage.further) * last.bytes.kept;
    }
    if cut.layout.offload == Offload::Activations {
        // One layer's come back for its backward pass; under full recompute that is in what is worked on already.
        let largest = parts.kinds().map(|kind| kind.bytes.kept).fold(0.0, f64::max);
        working += if cut.layout.recompute == Recompute::Full { 0.0 } else { largest };
        kept = 0.0;
    }
    (Volume::new(kept * stage.in_flight * cut.tokens), Volume::new(working * cut.tokens))
}

/// Keys and values of every sequence, in 16 bits: 2 x 2gd for each layer; the latent and its rotary part of latent attention.
fn keys_and_values(cut: &Cut<'_>, parts: &Parts<'_>) -> f64 {
    let sequences = real(cut.workload.global_batch) / f64::from(cut.layout.data);
    let each = |attention: &Attention| match attention {
        Attention::Grouped(grouped) => {
            let seen = grouped.window.unwrap_or(u64::MAX).min(cut.workload.sequence);
            4.0 * real(grouped.kv_heads * grouped.head_size) * real(seen) / cut.tensor
        }
        Attention::Latent(latent) => 2.0 * real(latent.kv_rank + latent.rope_size) * real(cut.workload.sequence),
        Attention::StateSpace(mixer) => 4.0 * real(mixer.inner() * mixer.state) / cut.tensor,
    };
    sequences * parts.counted().map(|(kind, count)| count * each(&kind.layer.attention)).sum::<f64>()
}

fn fragmentation(parts: &Parts<'_>) -> f64 {
    if parts.kinds().any(Kind::has_experts) { FRAGMENTATION_OF_EXPERTS } else { FRAGMENTATION }
}

#[cfg(test)]
mod tests;
