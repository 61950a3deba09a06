//! Floating-point operations for each token: what a layer does forward, and what the published definitions of utilisation count.
//!
//! A multiplication and an addition are two. Norms, softmax, rotary positions and activations are not counted, as nobody counts them.
//! The backward pass does each product twice (for the inputs' and the weights' gradients), so training takes three times the forward
//! pass (Kaplan 2020, arXiv:2001.08361, section 2.1; Korthikanti 2022, arXiv:2205.05198, appendix A).

use super::matrices::Role;
use super::{Attention, FeedForward, Layer, Model};
use crate::units::{Flops, real};

/// Which scores of attention are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All of them, though those of later tokens are thrown away.
    Full,
    /// Those of the token itself and earlier ones: what kernels that skip the others do.
    Causal,
}

/// Forward operations for one token, on average over a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardFlops {
    /// Matrices of attention, or of state-space layers.
    pub attention: Flops,
    /// Scores and weighted values; or the state's recurrence and convolution.
    pub core: Flops,
    /// Dense and shared work.
    pub feed_forward: Flops,
    /// Experts that the token goes to.
    pub experts: Flops,
    /// Routers.
    pub router: Flops,
    /// The head.
    pub head: Flops,
    /// Layers and heads of multi-token prediction; done in training only, and not in `total`.
    pub further_predictions: Flops,
}

impl ForwardFlops {
    /// All but the further predictions.
    #[must_use]
    pub fn total(&self) -> Flops {
        self.attention + self.core + self.feed_forward + self.experts + self.router + self.head
    }

    fn add(&mut self, layer: &Self, count: f64) {
        self.attention += layer.attention * count;
        self.core += layer.core * count;
        self.feed_forward += layer.feed_forward * count;
        self.experts += layer.experts * count;
        self.router += layer.router * count;
    }
}

/// Tokens that a token sees, on average over a sequence of `sequence`: s, or (s + 1) / 2 behind a causal mask; of these at most the last
/// `window`, w - w (w - 1) / 2s behind the mask.
#[must_use]
pub fn tokens_seen(sequence: u64, window: Option<u64>, mask: Mask) -> f64 {
    let tokens = real(sequence);
    let width = real(window.unwrap_or(sequence).min(sequence));
    match mask {
        Mask::Full => width,
        Mask::Causal => width - width * (width - 1.0) / (2.0 * tokens.max(1.0)),
    }
}

impl Layer {
    /// Forward operations of this layer for one token. `hidden` is the width of the residual stream (h).
    #[must_use]
    pub fn forward_flops(&self, hidden: u64, sequence: u64, mask: Mask) -> ForwardFlops {
        let mut flops = ForwardFlops { core: self.core_flops(sequence, mask), ..ForwardFlops::default() };
        for matrix in self.matrices(hidden) {
            let product = Flops::new(2.0 * real(matrix.used * matrix.elements()));
            match matrix.role {
                Role::Query | Role::Key | Role::Value | Role::Output | Role::QueryLatent => flops.attention += product,
                Role::StateIn | Role::StateOut => flops.attention += product,
                Role::Gate | Role::Up | Role::Down => flops.feed_forward += product,
                Role::SharedGate | Role::SharedUp | Role::SharedDown => flops.feed_forward += product,
                Role::SharedSwitch | Role::LatentIn | Role::LatentOut => flops.feed_forward += product,
                Role::Router => flops.router += product,
                Role::ExpertGate | Role::ExpertUp | Role::ExpertDown => flops.experts += product,
            }
        }
        flops
    }

    /// Forward operations of mixing tokens, without its matrices, for one token: 2 a (d_qk + d_v) for each token seen; of a state-space
    /// layer 7 x inner width x state (Megatron-LM, `training.py`) and the convolution.
    #[must_use]
    pub fn core_flops(&self, sequence: u64, mask: Mask) -> Flops {
        let scores = |heads: u64, sizes: u64, window| {
            Flops::new(2.0 * real(heads * sizes) * tokens_seen(sequence, window, mask))
        };
        match &self.attention {
            Attention::Grouped(attention) => scores(attention.heads, 2 * attention.head_size, attention.window),
            Attention::Latent(attention) => {
                let sizes = attention.nope_size + attention.rope_size + attention.value_size;
                scores(attention.heads, sizes, None)
            }
            Attention::StateSpace(mixer) => {
                let recurrence = 7 * mixer.inner() * mixer.state;
                Flops::new(real(recurrence + 2 * mixer.kernel * mixer.channels()))
            }
        }
    }
}

impl Model {
    /// Forward operations for one token of a sequence of `sequence`.
    #[must_use]
    pub fn forward_flops(&self, sequence: u64, mask: Mask) -> ForwardFlops {
        let head = Flops::new(2.0 * real(self.vocabulary * self.hidden));
        let mut sum = ForwardFlops { head, ..ForwardFlops::default() };
        for group in self.kinds() {
            sum.add(&group.layer.forward_flops(self.hidden, sequence, mask), real(group.count));
        }
        if let Some(layer) = self.further_prediction_layer() {
            let layer = layer.forward_flops(self.hidden, sequence, mask).total();
            let joining = Flops::new(2.0 * real(2 * self.hidden * self.hidden));
            sum.further_predictions = (layer + joining + head) * real(self.further_predictions);
        }
        sum
    }

    /// Layers with grouped or latent attention times their heads' width: a d of all of them.
    fn attention_width(&self) -> u64 {
        let width = |layer: &Layer| match &layer.attention {
            Attention::Grouped(attention) => attention.heads * attention.head_size,
            Attention::Latent(attention) => attention.heads * (attention.nope_size + attention.rope_size),
            Attention::StateSpace(_) => 0,
        };
        self.layers.iter().map(|group| group.count * width(&group.layer)).sum()
    }

    /// Operations of training on one token as a definition counts them.
    #[must_use]
    pub fn training_flops(&self, sequence: u64, definition: FlopDefinition) -> Flops {
        let tokens = real(sequence);
        match definition {
            FlopDefinition::ModelFull => self.forward_flops(sequence, Mask::Full).total() * 3.0,
            FlopDefinition::ModelCausal => {
                let flops = self.forward_flops(sequence, Mask::Causal);
                (flops.total() + flops.further_predictions) * 3.0
            }
            FlopDefinition::AllParameters => {
                let attention = 12.0 * real(self.attention_width()) * tokens;
                Flops::new(6.0 * real(self.parameters().active) + attention)
            }
            FlopDefinition::SixN => Flops::new(6.0 * real(self.parameters().active)),
            FlopDefinition::MegatronHardware => {
                let (layers, hidden) = (real(self.layer_count()), real(self.hidden));
                let parts = 1.0 + tokens / (6.0 * hidden) + real(self.vocabulary) / (16.0 * layers * hidden);
                Flops::new(96.0 * layers * hidden * hidden * parts)
            }
        }
    }

    /// Whether each layer has a mixture, or none.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|group| matches!(group.layer.feed_forward, FeedForward::Experts(_)))
    }
}

/// What the published figures of utilisation count as a token's operations. They differ by up to 4/3 and more, so a utilisation without
/// its definition says nothing, and predictions are checked on times instead.
///
/// Measured on the rows that state both a rate of tokens and one of operations: [`FlopDefinition::AllParameters`] gives MosaicML's 216 rows
/// within 0.5 %, [`FlopDefinition::ModelFull`] DGX Cloud's dense ones within 1 %, [`FlopDefinition::ModelCausal`] Megatron-Bridge's of Llama,
/// Qwen3, DeepSeek and Kimi within 0.5 %, [`FlopDefinition::MegatronHardware`] Megatron-LM's of 2020 within 0.1 %. Outside: Nemotron-4 of
/// DGX Cloud (13 to 17 % more, because grouped attention is counted as if it weren't) and gpt-oss of Megatron-Bridge (17 % less).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlopDefinition {
    /// 6 N_mm + 12 a d s for each layer: matrices that are used, and all scores. Megatron-LM and NeMo until 2025-08, MegaScale, the dense
    /// recipes of NVIDIA's DGX Cloud (arXiv:2205.05198, appendix A).
    ModelFull,
    /// The same with the scores that a causal mask or window leaves, and with multi-token prediction. Megatron-Bridge from 25.09,
    /// DGX Cloud's mixtures, MaxText from 2025-07.
    ModelCausal,
    /// 6 N + 12 a d s for each layer with all parameters that a token meets, embeddings too. MosaicML's llm-foundry; PaLM
    /// (arXiv:2204.02311, appendix B).
    AllParameters,
    /// 6 N: Kaplan 2020 (arXiv:2001.08361), and most estimates of a whole run.
    SixN,
    /// 96 l h^2 (1 + s/6h + V/16lh): a GPT whose activations are all computed again, 4/3 of the model's own. Megatron-LM in 2021
    /// (arXiv:2104.04473, equation 3), OneFlow, BLOOM; InternEvo for any model.
    MegatronHardware,
}

impl FlopDefinition {
    /// Every one.
    pub const ALL: [FlopDefinition; 5] = [
        FlopDefinition::ModelFull,
        FlopDefinition::ModelCausal,
        FlopDefinition::AllParameters,
        FlopDefinition::SixN,
        FlopDefinition::MegatronHardware,
    ];

    /// What to call a utilisation of this definition.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FlopDefinition::ModelFull => "MFU (6N of used matrices, full attention)",
            FlopDefinition::ModelCausal => "MFU (6N of used matrices, causal attention)",
            FlopDefinition::AllParameters => "MFU (6N of all parameters, full attention)",
            FlopDefinition::SixN => "MFU (6N)",
            FlopDefinition::MegatronHardware => "HFU (Megatron 2021, all activations twice)",
        }
    }
}
