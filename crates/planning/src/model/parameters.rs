//! Exact counts of parameters: in all, for each token, by component and by layer.
//!
//! Counts are of what is trained, so a tied head counts once, and a router's correction bias (DeepSeek-V3: 58 layers x 256 experts =
//! 14,848 numbers that some published counts include) is stated apart. Checked against 71 published counts by
//! `cargo xtask bench planning`.

use super::matrices::Role;
use super::{Attention, DenseFeedForward, Experts, FeedForward, Layer, Model, Norm, QkNorm, RouterBias};

/// Parameters of one layer by component; experts apart, so that they can be spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerParameters {
    /// Matrices of attention, or of the state-space mixer.
    pub attention: u64,
    /// Matrices of dense feed-forward work, or of what a mixture shares among all tokens.
    pub feed_forward: u64,
    /// Matrices and biases of one expert.
    pub expert: u64,
    /// The same of all experts.
    pub experts: u64,
    /// The router's matrix and its learned bias.
    pub router: u64,
    /// Norms, those of queries, keys and latents too.
    pub norms: u64,
    /// Biases outside experts, sinks, and a state-space layer's convolution and vectors.
    pub vectors: u64,
    /// Matrix elements that a token is multiplied by: all of attention, router and shared work, and of the experts it goes to.
    pub used_in_matrices: u64,
    /// All that a token meets, vectors too.
    pub used: u64,
    /// Correction biases of the router: kept, not trained, in no sum.
    pub corrections: u64,
}

impl LayerParameters {
    /// All of the layer.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.without_experts() + self.experts
    }

    /// All but the experts: what every rank of an expert-parallel group has.
    #[must_use]
    pub const fn without_experts(&self) -> u64 {
        self.attention + self.feed_forward + self.router + self.norms + self.vectors
    }
}

/// Parameters of a model by component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// All, as Hugging Face's `num_parameters()` counts.
    pub total: u64,
    /// Those that one token meets: all but the experts it doesn't go to.
    pub active: u64,
    /// Elements of matrices that a token is multiplied by, the head's among them (N_mm): 2 operations each, forward.
    pub used_in_matrices: u64,
    /// The words' matrix and the learned positions.
    pub embedding: u64,
    /// Of that, the words' matrix alone: V h.
    pub words: u64,
    /// The head's own matrix and bias; the matrix counts nothing where it is tied.
    pub head: u64,
    /// All layers.
    pub layers: u64,
    /// The norms outside layers.
    pub norms: u64,
    /// Of the layers, all experts.
    pub experts: u64,
    /// Further layers for multi-token prediction; not in `total`.
    pub further_predictions: u64,
    /// Correction biases of routers; not in `total`.
    pub corrections: u64,
}

impl Model {
    /// Counts this model's parameters.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let words = self.vocabulary * self.hidden;
        let embedding = words + self.embedding.positions * self.hidden;
        let own_head = if self.embedding.is_tied { 0 } else { words };
        let head = own_head + if self.embedding.has_head_bias { self.vocabulary } else { 0 };
        let outside = [self.embedding.norm, self.final_norm];
        let norms = outside.into_iter().flatten().map(|norm| norm_parameters(norm, self.hidden)).sum();
        let around = embedding + head + norms;
        let mut sum = Parameters {
            total: around,
            active: around,
            used_in_matrices: words,
            embedding,
            words,
            head,
            norms,
            further_predictions: self.further_predictions * self.further_prediction(),
            ..Parameters::default()
        };
        for group in self.kinds() {
            let layer = group.layer.parameters(self.hidden);
            sum.total += group.count * layer.total();
            sum.active += group.count * layer.used;
            sum.used_in_matrices += group.count * layer.used_in_matrices;
            sum.layers += group.count * layer.total();
            sum.experts += group.count * layer.experts;
            sum.corrections += group.count * layer.corrections;
        }
        sum
    }

    /// The layer of a module of multi-token prediction: like the last that attends.
    #[must_use]
    pub fn further_prediction_layer(&self) -> Option<&Layer> {
        let mut attending =
            self.layers.iter().rev().filter(|group| !matches!(group.layer.attention, Attention::StateSpace(_)));
        attending.next().map(|group| &group.layer)
    }

    /// One module of multi-token prediction: a layer, a matrix 2h x h, and three norms; embedding and head are shared
    /// (arXiv:2412.19437, section 2.2).
    fn further_prediction(&self) -> u64 {
        let Some(last) = self.further_prediction_layer() else { return 0 };
        let norms = 3 * norm_parameters(last.norm, self.hidden);
        last.parameters(self.hidden).total() + 2 * self.hidden * self.hidden + norms
    }
}

impl Layer {
    /// Counts this layer's parameters, given the width of the residual stream (h).
    #[must_use]
    pub fn parameters(&self, hidden: u64) -> LayerParameters {
        let (mixer_norms, mixer_vectors) = mixer_vectors(self, hidden);
        let work = work_vectors(&self.feed_forward, hidden);
        let mut count = LayerParameters {
            norms: mixer_norms + self.norms * norm_parameters(self.norm, hidden),
            vectors: mixer_vectors + work.shared,
            expert: work.expert,
            router: work.router,
            corrections: work.corrections,
            ..LayerParameters::default()
        };
        for matrix in self.matrices(hidden) {
            count.used_in_matrices += matrix.used * matrix.elements();
            match matrix.role {
                Role::Gate | Role::Up | Role::Down => count.feed_forward += matrix.elements(),
                Role::SharedGate | Role::SharedUp | Role::SharedDown => count.feed_forward += matrix.elements(),
                Role::SharedSwitch | Role::LatentIn | Role::LatentOut => count.feed_forward += matrix.elements(),
                Role::Router => count.router += matrix.elements(),
                Role::ExpertGate | Role::ExpertUp | Role::ExpertDown => count.expert += matrix.elements(),
                Role::Query | Role::Key | Role::Value | Role::Output | Role::QueryLatent => {
                    count.attention += matrix.elements();
                }
                Role::StateIn | Role::StateOut => count.attention += matrix.elements(),
            }
        }
        let (all, used) = self.experts().map_or((0, 0), |experts| (experts.count, experts.active));
        count.experts = all * count.expert;
        count.used = count.without_experts() + used * count.expert;
        count
    }

    /// The layer's experts, if it has any.
    #[must_use]
    pub const fn experts(&self) -> Option<&Experts> {
        match &self.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::None | FeedForward::Dense(_) => None,
        }
    }
}

/// Parameters of a norm over so many elements.
const fn norm_parameters(norm: Norm, width: u64) -> u64 {
    norm.gains_and_biases() * width
}

/// Norms inside the mixer of tokens, and its vectors.
fn mixer_vectors(layer: &Layer, hidden: u64) -> (u64, u64) {
    match &layer.attention {
        Attention::Grouped(attention) => {
            let (queries, keys) = (attention.heads * attention.head_size, attention.kv_heads * attention.head_size);
            let norms = match attention.qk_norm {
                QkNorm::None => 0,
                QkNorm::PerHead => 2 * attention.head_size,
                QkNorm::Full => queries + keys,
            };
            let qkv_bias = if attention.has_qkv_bias { queries + 2 * keys } else { 0 };
            let output_bias = if attention.has_output_bias { hidden } else { 0 };
            let sinks = if attention.has_sinks { attention.heads } else { 0 };
            (norms, qkv_bias + output_bias + sinks)
        }
        Attention::Latent(attention) => (attention.query_rank.unwrap_or(0) + attention.kv_rank, 0),
        Attention::StateSpace(mixer) => {
            let convolution = (mixer.kernel + 1) * mixer.channels();
            // A decay, a step and a skip for each head.
            (mixer.inner(), convolution + 3 * mixer.heads)
        }
    }
}

/// Vectors of the feed-forward work.
#[derive(Default)]
struct WorkVectors {
    shared: u64,
    expert: u64,
    router: u64,
    corrections: u64,
}

fn work_vectors(work: &FeedForward, hidden: u64) -> WorkVectors {
    match work {
        FeedForward::None => WorkVectors::default(),
        FeedForward::Dense(dense) => WorkVectors { shared: biases(dense, hidden), ..WorkVectors::default() },
        FeedForward::Experts(experts) => {
            let shared = DenseFeedForward { inner: experts.shared_inner, ..experts.each };
            let bias_of = |kind| if experts.router_bias == kind { experts.count } else { 0 };
            WorkVectors {
                shared: if experts.shared_inner > 0 { biases(&shared, hidden) } else { 0 },
                expert: biases(&experts.each, experts.latent.unwrap_or(hidden)),
                router: bias_of(RouterBias::Learned),
                corrections: bias_of(RouterBias::Correction),
            }
        }
    }
}

/// f (2f with a gate) and h.
const fn biases(dense: &DenseFeedForward, hidden: u64) -> u64 {
    let inner = if dense.is_gated { 2 * dense.inner } else { dense.inner };
    if dense.has_bias { inner + hidden } else { 0 }
}
