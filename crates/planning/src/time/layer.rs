//! One layer on one micro-batch: linear layers, attention's core, element-wise work, and the communication inside the layer.
//!
//! Backward, a linear layer has two more products (inputs' and weights' gradients); a frozen weight has none of its own (LoRA,
//! arXiv:2106.09685: 2/3 of the operations). Full recompute runs the forward pass again, selective recompute attention's core
//! (Korthikanti 2022, arXiv:2205.05198). With 8-bit formats only linear layers are narrow; their inputs and gradients are cast
//! (arXiv:2209.05433).

use super::collective::{self, Dispatch, Group};
use super::constants::Constant;
use super::gemm::{self, Linear, Product, stream};
use super::mixer::{self, Mixer};
use super::situation::Situation;
use crate::layout::{Recompute, Sharding, Stack};
use crate::model::{Attention, DenseFeedForward, Experts, FeedForward, Layer};
use crate::units::{Seconds, Volume, real};
use crate::workload::LoraTarget;

/// Bytes of a 16-bit element.
const HALF: f64 = 2.0;
/// Bytes that norms, residual sums and dropout of a layer move forward for each element of the residual stream, fused: norm reads and
/// writes (2 x 4), residual reads two and writes one (2 x 6), and 4 for what is kept.
const STREAM_BYTES: f64 = 24.0;
/// Bytes that an adapter moves for each element in and out: read or written thrice in 16 bits, and once in fp32 for dropout.
const ADAPTER_BYTES: f64 = 3.0 * HALF + 4.0;
/// Part of the kernels that a compiler leaves to launch.
const COMPILED: f64 = 0.125;
/// Elements of an adapter-free 4-bit weight: read packed, written in 16 bits.
const UNPACK_BYTES: f64 = 0.5 + HALF;

/// A layer's times for one micro-batch on one accelerator, and what it holds there.
#[derive(Clone, Copy, Default)]
pub(super) struct LayerTime {
    /// Forward, computed.
    pub(super) forward: Seconds,
    /// Backward, with what is recomputed.
    pub(super) backward: Seconds,
    /// What launching takes longer than computing.
    pub(super) launch: Seconds,
    /// Exposed communication of tensor parallelism, both ways.
    pub(super) tensor: Seconds,
    /// Of context parallelism.
    pub(super) context: Seconds,
    /// Of expert parallelism.
    pub(super) expert: Seconds,
    /// Of gathering and scattering this layer's parameters and gradients, where they are shared out.
    pub(super) shard: Seconds,
    /// Weights of this accelerator outside experts.
    pub(super) weights: f64,
    /// Weights of its experts.
    pub(super) expert_weights: f64,
}

impl LayerTime {
    /// All of it.
    pub(super) fn total(&self) -> Seconds {
        self.forward + self.backward + self.launch + self.tensor + self.context + self.expert + self.shard
    }
}

/// What the work on each token adds to a layer.
#[derive(Clone, Copy, Default)]
struct Work {
    linear: Linear,
    /// Bytes of element-wise kernels, forward.
    bytes: f64,
    /// Elements cast to 8 bits, forward.
    cast: f64,
    weights: f64,
    expert_weights: f64,
    /// Seconds of all exchanges among experts, both ways.
    exchange: Seconds,
    /// All-reduces among tensor-parallel ranks, forward.
    reduces: f64,
    kernels: f64,
}

/// The layer's times.
pub(super) fn time(situation: &Situation, layer: &Layer) -> LayerTime {
    let hidden = real(situation.workload.model.hidden);
    let mixer = mixer::mixer(situation, &layer.attention, hidden);
    let work = work(situation, &layer.feed_forward, hidden);
    let mut linear = mixer.linear;
    linear += work.linear;
    let weights = mixer.weights + work.weights;
    let all_weights = weights + work.expert_weights;

    let adapters = adapters(situation, layer, hidden);
    let bytes = situation.tokens * hidden * STREAM_BYTES / situation.sequence_cut + mixer.bytes + work.bytes + adapters;
    let elementwise = stream(situation, bytes * situation.elementwise());
    let cast = cast(situation, mixer.cast + work.cast);
    let unpack = if situation.passes.is_packed { stream(situation, all_weights * UNPACK_BYTES) } else { Seconds::ZERO };
    let forward = linear.forward + mixer.forward + elementwise + cast + unpack;

    let mut time = LayerTime { forward, weights, expert_weights: work.expert_weights, ..LayerTime::default() };
    if situation.passes.is_trained {
        let gradients =
            linear.inputs + if situation.passes.has_weight_gradients { linear.weights } else { Seconds::ZERO };
        let own =
            gradients + mixer.backward + elementwise * 2.0 + cast * 1.5 + unpack + accumulate(situation, all_weights);
        time.backward = own + recomputed(situation, &time, mixer.forward, linear.forward / 2.0 + elementwise);
    }
    communicate(situation, &mut time, &mixer, &work);
    let is_one_graph = situation.layout.has_fused_experts;
    let kernels = if is_one_graph { 0.0 } else { launches(situation, work.kernels) };
    let launch = Seconds::new(situation.constant(Constant::Launch)) * kernels;
    let behind = (launch - time.forward).max(Seconds::ZERO);
    let behind_backward = (launch * 2.0 - time.backward).max(Seconds::ZERO);
    time.launch = behind + if situation.passes.is_trained { behind_backward } else { Seconds::ZERO };
    time
}

/// Bytes that low-rank adapters move forward: each reads its matrix's inputs and reads and writes its outputs, besides casts and
/// dropout; their products are small (arXiv:2106.09685).
fn adapters(situation: &Situation, layer: &Layer, hidden: f64) -> f64 {
    let Some(lora) = situation.workload.task.adapters() else { return 0.0 };
    let (heads, keys) = match &layer.attention {
        Attention::Grouped(attention) => {
            (real(attention.heads * attention.head_size), real(attention.kv_heads * attention.head_size))
        }
        Attention::Latent(attention) => (real(attention.heads * attention.value_size), real(attention.kv_rank)),
        Attention::StateSpace(mixer) => (real(mixer.inner()), real(mixer.channels())),
    };
    let inner = match &layer.feed_forward {
        FeedForward::None => 0.0,
        FeedForward::Dense(dense) => real(dense.inner),
        FeedForward::Experts(experts) => real(experts.each.inner * experts.active),
    };
    let width = |target: &LoraTarget| match target {
        LoraTarget::Query | LoraTarget::Output | LoraTarget::StateOut => hidden + heads,
        LoraTarget::Key | LoraTarget::Value => hidden + keys,
        LoraTarget::QueryKeyValue => hidden + heads + 2.0 * keys,
        LoraTarget::Gate | LoraTarget::Up | LoraTarget::Down => hidden + inner,
        LoraTarget::GateUp => hidden + 2.0 * inner,
        LoraTarget::StateIn => hidden + heads + keys,
    };
    let all: f64 = lora.targets.iter().map(width).sum();
    situation.tokens * all * ADAPTER_BYTES / situation.tensor
}

/// Kernels that the host launches forward.
fn launches(situation: &Situation, further: f64) -> f64 {
    let all = situation.constant(Constant::Kernels) + further;
    if situation.layout.stack == Stack::Xla { all * COMPILED } else { all }
}

/// What the backward pass does again: with selective recompute attention's core in Megatron (arXiv:2205.05198), elsewhere what is
/// cheap and every second product (torchtitan's selective checkpointing, arXiv:2410.06511).
fn recomputed(situation: &Situation, time: &LayerTime, core: Seconds, selected: Seconds) -> Seconds {
    match (situation.layout.recompute, situation.layout.stack) {
        (Recompute::None, _) => Seconds::ZERO,
        (Recompute::Selective, Stack::Megatron) => core,
        (Recompute::Selective, _) => selected,
        (Recompute::Full, _) => time.forward,
    }
}

/// Casting so many elements to 8 bits, row-wise and column-wise: a 16-bit read and two 8-bit writes.
fn cast(situation: &Situation, elements: f64) -> Seconds {
    if !situation.device.is_cast {
        return Seconds::ZERO;
    }
    stream(situation, elements * 2.0 * HALF * situation.constant(Constant::Cast))
}

/// Adding a micro-batch's gradients to fp32 sums: a read and a write of 4 bytes, where a rank keeps whole sums.
fn accumulate(situation: &Situation, weights: f64) -> Seconds {
    let keeps_sums = match situation.layout.stack {
        Stack::Megatron => true,
        Stack::DeepSpeed | Stack::Plain => situation.micro_batches > 1.0,
        Stack::Fsdp | Stack::Xla => false,
    };
    if !keeps_sums || !situation.passes.has_weight_gradients {
        return Seconds::ZERO;
    }
    stream(situation, weights * 8.0 * situation.constant(Constant::Accumulate))
}

/// The exposed communication inside the layer.
fn communicate(situation: &Situation, time: &mut LayerTime, mixer: &Mixer, work: &Work) {
    let rounds = match (situation.passes.is_trained, situation.is_recomputed()) {
        (false, _) => 1.0,
        (true, false) => 2.0,
        (true, true) => 3.0,
    };
    // With the sequence cut, the backward pass gathers again what each column-parallel product had as input: half an all-reduce.
    let again = if situation.passes.is_trained && situation.layout.is_sequence_parallel { 0.5 } else { 0.0 };
    let transfers = tensor(situation) * ((1.0 + work.reduces) * (rounds + again));
    let hidden = if situation.layout.is_tensor_overlapped { situation.constant(Constant::TensorOverlap) } else { 0.0 };
    // Nothing hides behind work that there isn't.
    time.tensor = transfers - (transfers * hidden).min(time.forward + time.backward);
    let exposed = (1.0 - situation.constant(Constant::ExpertOverlap)) * unfused(situation);
    time.expert = work.exchange * (rounds / 2.0 * exposed);
    time.context = context(situation, mixer);
    time.shard = shard(situation, time);
}

/// One all-reduce (or all-gather and reduce-scatter) of the residual stream among tensor-parallel ranks, nothing hidden.
///
/// 2 s b h bytes (arXiv:1909.08053, arXiv:2205.05198).
fn tensor(situation: &Situation) -> Seconds {
    let group = Group::new(situation, situation.tensor, 1.0);
    if group.is_alone() {
        return Seconds::ZERO;
    }
    let stream = Volume::new(HALF * situation.tokens * real(situation.workload.model.hidden));
    group.reduce(stream)
}

/// Ring attention's exposed transfers: keys and values go round once forward and, with their gradients, twice backward
/// (arXiv:2310.01889).
fn context(situation: &Situation, mixer: &Mixer) -> Seconds {
    let group = Group::new(situation, situation.context, situation.tensor);
    if group.is_alone() {
        return Seconds::ZERO;
    }
    let overlap = situation.constant(Constant::ContextOverlap);
    let round = group.gather(Volume::new(HALF * mixer.keys_and_values * situation.context));
    let exposed = |transfer: Seconds, computed: Seconds| (transfer - computed * overlap).max(Seconds::ZERO);
    let forward = exposed(round, mixer.forward);
    if !situation.passes.is_trained {
        return forward;
    }
    forward + exposed(round * 2.0, mixer.backward)
}

/// Gathering parameters before, and scattering gradients behind, each pass of a layer that is shared out (arXiv:1910.02054,
/// arXiv:2304.11277): all-gather forward, again backward if they were freed, reduce-scatter backward. What runs beside products takes
/// some of their time, so that a part stays exposed.
fn shard(situation: &Situation, time: &LayerTime) -> Seconds {
    let gathers_again = match situation.layout.sharding {
        _ if super::optimizer::is_gathered_once(situation) => return Seconds::ZERO,
        Sharding::Parameters { reshards } => f64::from(u8::from(reshards)),
        Sharding::None | Sharding::Optimizer { .. } | Sharding::Gradients => return Seconds::ZERO,
    };
    let group = Group::new(situation, situation.data * situation.context, situation.tensor);
    if group.is_alone() {
        return Seconds::ZERO;
    }
    let weights = time.weights + time.expert_weights;
    let gather = group.gather(Volume::new(HALF * weights));
    let scatter = if situation.passes.has_weight_gradients {
        group.gather(Volume::new(super::optimizer::gradient_bytes(situation) * weights))
    } else {
        Seconds::ZERO
    };
    let overlap = situation.constant(Constant::ShardOverlap);
    let exposed = |transfer: Seconds, computed: Seconds| transfer - transfer.min(computed) * overlap;
    let forward = exposed(gather, time.forward);
    if !situation.passes.is_trained {
        return forward;
    }
    forward + exposed(gather * gathers_again + scatter, time.backward)
}

/// The work on each token.
fn work(situation: &Situation, work: &FeedForward, hidden: f64) -> Work {
    match work {
        FeedForward::None => Work::default(),
        FeedForward::Dense(dense) => Work { reduces: 1.0, ..feed_forward(situation, *dense, hidden) },
        FeedForward::Experts(experts) => mixture(situation, experts, hidden),
    }
}

/// Up (and gate) and down, cut among tensor-parallel ranks: h x f and f x h.
fn feed_forward(situation: &Situation, dense: DenseFeedForward, hidden: f64) -> Work {
    let tokens = situation.tokens;
    let inner = real(dense.inner) / situation.tensor;
    let matrices = if dense.is_gated { 2.0 } else { 1.0 };
    let rate = situation.device.linear;
    let mut linear = gemm::linear(situation, Product { rows: tokens, columns: matrices * inner, inner: hidden }, rate);
    linear += gemm::linear(situation, Product { rows: tokens, columns: hidden, inner }, rate);
    Work {
        linear,
        bytes: tokens * inner * HALF * (matrices + 1.0),
        cast: tokens * (hidden + inner),
        weights: (matrices + 1.0) * hidden * inner,
        ..Work::default()
    }
}

/// The part that is left of what a mixture costs beyond its products, where kernels are fused for it; all of it elsewhere.
fn unfused(situation: &Situation) -> f64 {
    if situation.layout.has_fused_experts { situation.constant(Constant::UnfusedExperts) } else { 1.0 }
}

/// A mixture of experts: each token's copies go to their experts and back, and each expert works on what it gets.
fn mixture(situation: &Situation, experts: &Experts, hidden: f64) -> Work {
    let shared = DenseFeedForward { inner: experts.shared_inner, ..experts.each };
    let mut all = if experts.shared_inner > 0 { feed_forward(situation, shared, hidden) } else { Work::default() };
    let width = experts.latent.map_or(hidden, real);
    let cut = f64::from(situation.layout.expert_tensor.max(1));
    // Tensor-parallel ranks that don't cut experts take a part of the tokens each.
    let tokens = situation.tokens / (situation.tensor / cut).max(1.0);
    let copies = tokens * real(experts.active) * situation.constant(Constant::ExpertImbalance);
    let local = (real(experts.count) / situation.expert).max(1.0);
    let inner = real(experts.each.inner) / cut;
    let matrices = if experts.each.is_gated { 2.0 } else { 1.0 };
    let (rows, rate) = (copies / local, situation.device.linear);
    let mut linear = gemm::linear(situation, Product { rows, columns: matrices * inner, inner: width }, rate);
    linear += gemm::linear(situation, Product { rows, columns: width, inner }, rate);
    let left = unfused(situation);
    all.linear += linear * (local * (1.0 + (situation.constant(Constant::GroupedLoss) - 1.0) * left));
    let router = Product { rows: tokens, columns: real(experts.count), inner: hidden };
    all.linear += gemm::linear(situation, router, situation.device.head);
    let moved = inner * HALF * (matrices + 1.0) + width * situation.constant(Constant::PermuteBytes);
    all.bytes += copies * moved * left;
    all.cast += copies * (width + inner) * left;
    all.weights += hidden * real(experts.count);
    all.expert_weights = local * (matrices + 1.0) * width * inner;
    let sent = Volume::new(HALF * tokens * width);
    let dispatch = Dispatch { ranks: situation.expert, active: real(experts.active), tokens: sent };
    let one = collective::exchange(situation, dispatch);
    all.exchange = one * 4.0;
    all.reduces = if cut > 1.0 || situation.tensor <= 1.0 { 1.0 } else { 0.0 };
    all.kernels = situation.constant(Constant::ExpertKernels) + local * situation.constant(Constant::EachExpertKernels);
    all
}
