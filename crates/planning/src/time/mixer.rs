//! What mixes tokens: attention of any kind, or a state-space layer, with its projections.

use super::constants::Constant;
use super::gemm::{self, Linear, Product, stream};
use super::situation::Situation;
use crate::hardware::Generation;
use crate::layout::{AttentionKernel, Stack};
use crate::model::{Attention, GroupedAttention, LatentAttention, StateSpace};
use crate::units::{Flops, Seconds, real};

/// Bytes that splitting heads, rotating them and what is kept move for each element of queries, keys and values.
const HEAD_BYTES: f64 = 6.0;
/// Elements of a head at which attention's rate is stated.
const STATED_HEAD: f64 = 128.0;
/// Operations of tiled attention's backward pass, of forward: five products instead of two (arXiv:2205.14135).
const TILED_BACKWARD: f64 = 2.5;
/// Part of large products' rate that unfused attention's small batched ones reach.
const BATCHED: f64 = 0.6;
/// Tokens of a state-space layer's chunk (arXiv:2405.21060, section 7).
const CHUNK: f64 = 256.0;

/// Times of what mixes tokens, for one micro-batch on one accelerator.
#[derive(Clone, Copy, Default)]
pub(super) struct Mixer {
    /// Projections.
    pub(super) linear: Linear,
    /// The core, forward.
    pub(super) forward: Seconds,
    /// The core, backward.
    pub(super) backward: Seconds,
    /// Bytes of element-wise kernels around it, forward.
    pub(super) bytes: f64,
    /// Elements cast to 8 bits for the projections.
    pub(super) cast: f64,
    /// Elements of keys and values, for all tokens of this accelerator.
    pub(super) keys_and_values: f64,
    /// Weights of this accelerator.
    pub(super) weights: f64,
}

/// The heads of one accelerator: what the core's operations depend on.
struct Core {
    heads: f64,
    /// Elements of a head's query and key, and of its value, together.
    sizes: f64,
    /// Tokens that a token sees, in the mean, where later ones are skipped.
    seen: f64,
}

/// The mixer's times.
pub(super) fn mixer(situation: &Situation, attention: &Attention, hidden: f64) -> Mixer {
    match attention {
        Attention::Grouped(attention) => grouped(situation, attention, hidden),
        Attention::Latent(attention) => latent(situation, attention, hidden),
        Attention::StateSpace(mixer) => state_space(situation, *mixer, hidden),
    }
}

/// Projections on this situation's tokens; each is inputs by outputs.
fn projections<const N: usize>(situation: &Situation, sizes: [(f64, f64); N]) -> Mixer {
    let mut mixer = Mixer::default();
    for (inner, columns) in sizes {
        let product = Product { rows: situation.tokens, columns, inner };
        mixer.linear += gemm::linear(situation, product, situation.device.linear);
        mixer.weights += inner * columns;
        mixer.cast += situation.tokens * inner;
    }
    mixer
}

/// h x (a + 2g) d and a d x h (arXiv:2305.13245); ranks that outnumber the heads of keys hold copies of them.
fn grouped(situation: &Situation, attention: &GroupedAttention, hidden: f64) -> Mixer {
    let size = real(attention.head_size);
    let heads = real(attention.heads) / situation.tensor;
    let kv_heads = (real(attention.kv_heads) / situation.tensor).max(1.0);
    let fused = (heads + 2.0 * kv_heads) * size;
    let seen = seen(situation.sequence, attention.window.map(real));
    let (forward, backward) = core(situation, &Core { heads, sizes: 2.0 * size, seen });
    Mixer {
        forward,
        backward,
        bytes: situation.tokens * fused * HEAD_BYTES,
        keys_and_values: situation.tokens * 2.0 * kv_heads * size,
        ..projections(situation, [(hidden, fused), (heads * size, hidden)])
    }
}

/// The latents' projections are on every tensor-parallel rank, the heads' are cut (arXiv:2405.04434, arXiv:2412.19437).
fn latent(situation: &Situation, attention: &LatentAttention, hidden: f64) -> Mixer {
    let heads = real(attention.heads) / situation.tensor;
    let key = real(attention.nope_size + attention.rope_size);
    let value = real(attention.value_size);
    let rank = real(attention.kv_rank);
    let joint = rank + real(attention.rope_size);
    let (down, up) = match attention.query_rank {
        Some(query_rank) => (real(query_rank) + joint, real(query_rank)),
        None => (joint, hidden),
    };
    let unpacked = heads * (real(attention.nope_size) + value);
    let sizes = [(hidden, down), (up, heads * key), (rank, unpacked), (heads * value, hidden)];
    let seen = seen(situation.sequence, None);
    let (forward, backward) = core(situation, &Core { heads, sizes: key + value, seen });
    Mixer {
        forward,
        backward,
        bytes: situation.tokens * heads * (2.0 * key + value) * HEAD_BYTES,
        keys_and_values: situation.tokens * heads * (key + value),
        ..projections(situation, sizes)
    }
}

/// In, a short convolution, chunks with states between them, a gate, and out (arXiv:2405.21060, sections 6 and 8).
///
/// Operations of a token: 2 Q n for each group's scores, 2 Q P + 4 n P for each head, with chunks of Q, states of n, heads of P.
fn state_space(situation: &Situation, mixer: StateSpace, hidden: f64) -> Mixer {
    let tensor = situation.tensor;
    let inner = real(mixer.inner()) / tensor;
    let channels = real(mixer.channels()) / tensor;
    let heads = real(mixer.heads) / tensor;
    let groups = (real(mixer.groups) / tensor).max(1.0);
    let (size, state) = (real(mixer.head_size), real(mixer.state));
    let each = groups * 2.0 * CHUNK * state + heads * (2.0 * CHUNK * size + 4.0 * state * size);
    let rate = situation.device.attention * (attention_part(situation) * head_part(situation, size));
    let states = stream(situation, situation.tokens / CHUNK * heads * size * state * 4.0);
    let forward = Flops::new(situation.tokens * each) / rate * situation.constant(Constant::StateSpaceLoss) + states;
    Mixer {
        forward,
        backward: forward * TILED_BACKWARD,
        bytes: situation.tokens * (2.0 * channels + inner) * HEAD_BYTES,
        ..projections(situation, [(hidden, inner + channels + heads), (inner, hidden)])
    }
}

/// Tokens that a token sees in the mean: s / 2 of earlier ones, or with a window w < s, w (1 - w / 2s).
fn seen(sequence: f64, window: Option<f64>) -> f64 {
    let window = window.unwrap_or(sequence).min(sequence);
    window * (1.0 - window / (2.0 * sequence))
}

/// The core's time forward and backward: 2 (d_qk + d_v) operations for each pair of tokens and head.
///
/// Tiled kernels skip later tokens and move next to nothing (arXiv:2205.14135); unfused attention computes all s and moves its scores
/// through memory several times (arXiv:2205.05198, section 4.1).
fn core(situation: &Situation, core: &Core) -> (Seconds, Seconds) {
    let pairs = situation.tokens * core.heads;
    if situation.is_early() {
        let scores = pairs * situation.sequence;
        let computed = Flops::new(2.0 * scores * core.sizes) / (situation.device.head * BATCHED);
        let forward = computed + stream(situation, scores * situation.constant(Constant::UnfusedBytes));
        return (forward, forward * 2.0);
    }
    let rate = situation.device.attention * (attention_part(situation) * head_part(situation, core.sizes / 2.0));
    let forward = Flops::new(2.0 * pairs * core.seen * core.sizes) / rate;
    (forward, forward * TILED_BACKWARD)
}

/// Small heads leave more of the time to the softmax: d / (d + d_0), stated at d = 128.
fn head_part(situation: &Situation, size: f64) -> f64 {
    let softmax = situation.constant(Constant::AttentionSoftmax);
    size / (size + softmax) * (STATED_HEAD + softmax) / STATED_HEAD
}

/// Part of the peak that tiled kernels reach.
fn attention_part(situation: &Situation) -> f64 {
    let has_own_kernels = matches!(situation.layout.stack, Stack::Megatron | Stack::Xla);
    let constant = match situation.cluster.accelerator.generation {
        Generation::Volta | Generation::Turing => Constant::AttentionVolta,
        Generation::Ampere | Generation::Ada | Generation::Other => Constant::AttentionAmpere,
        Generation::Hopper if has_own_kernels => Constant::AttentionHopper,
        Generation::Hopper => Constant::AttentionHopperPortable,
        Generation::Blackwell => Constant::AttentionBlackwell,
        Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4 => Constant::AttentionCdna,
        Generation::Tpu => Constant::AttentionTpu,
    };
    let part = situation.constant(constant);
    match situation.layout.kernel {
        AttentionKernel::FlashFirst => part * situation.constant(Constant::AttentionFirst),
        AttentionKernel::Unfused | AttentionKernel::Flash => part,
    }
}
