//! What is trained: a transformer's shape, from which parameters, operations and activations follow.
//!
//! A [`Model`] is a row of layers between an embedding and a head. All sizes are in elements. Families of architectures differ only
//! in how a `config.json` of theirs is read (`config`); everything behind that sees this one shape.
//!
//! Pure. What a layer multiplies is listed once, in [`matrices`]; counts of parameters, of adapters and of operations follow from
//! that list.

pub mod catalog;
pub mod config;
mod families;
pub mod flops;
pub mod lora;
pub mod matrices;
pub mod parameters;

#[cfg(test)]
mod tests;

/// A transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// As people call it: `llama-3.1-70b`.
    pub name: String,
    /// Width of the residual stream (h).
    pub hidden: u64,
    /// Words of the embedding (V), padding included if it is stored.
    pub vocabulary: u64,
    /// How words and positions come in, and words go out.
    pub embedding: Embedding,
    /// The layers in order, equal neighbours together.
    pub layers: Vec<LayerGroup>,
    /// The norm before the head, if there is one.
    pub final_norm: Option<Norm>,
    /// Further layers, each of which predicts one more token ahead while training (multi-token prediction, arXiv:2412.19437,
    /// section 2.2). Published counts leave them out, and so does `parameters().total`.
    pub further_predictions: u64,
    /// The longest sequence that its configuration names, with its scaling of positions; none if it names none.
    pub context: Option<u64>,
}

/// The way in and out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Learned positions (rows of `hidden` elements); 0 where positions are rotary or biases.
    pub positions: u64,
    /// Whether the head shares the words' matrix.
    pub is_tied: bool,
    /// Whether the head has a bias.
    pub has_head_bias: bool,
    /// A norm right behind the embedding (BLOOM).
    pub norm: Option<Norm>,
}

/// Neighbouring layers of one shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerGroup {
    /// How many.
    pub count: u64,
    /// Each of them.
    pub layer: Layer,
}

/// A layer: it mixes tokens, then works on each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Mixing of tokens.
    pub attention: Attention,
    /// Work on each token.
    pub feed_forward: FeedForward,
    /// The norms of width `hidden` in it.
    pub norms: u64,
    /// Of what kind they are.
    pub norm: Norm,
}

/// A norm's parameters for each element of its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// A gain: RMSNorm, or LayerNorm without bias.
    Gain,
    /// A gain and a bias: LayerNorm.
    GainAndBias,
    /// Nothing learned (OLMo 1).
    Plain,
}

impl Norm {
    /// What it learns for each element.
    #[must_use]
    pub const fn gains_and_biases(self) -> u64 {
        match self {
            Norm::Plain => 0,
            Norm::Gain => 1,
            Norm::GainAndBias => 2,
        }
    }
}

/// How tokens see each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attention {
    /// Multi-head, grouped-query or multi-query attention.
    Grouped(GroupedAttention),
    /// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
    Latent(LatentAttention),
    /// No attention: a state-space layer (Mamba-2, arXiv:2405.21060).
    StateSpace(StateSpace),
}

/// Attention whose heads share keys and values in groups (Ainslie 2023, arXiv:2305.13245).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedAttention {
    /// Query heads (a).
    pub heads: u64,
    /// Heads of keys and values (g).
    pub kv_heads: u64,
    /// Elements of a head (d).
    pub head_size: u64,
    /// A bias on queries, keys and values.
    pub has_qkv_bias: bool,
    /// A bias on the output.
    pub has_output_bias: bool,
    /// Learned norms of queries and keys.
    pub qk_norm: QkNorm,
    /// Tokens that a token sees back, where that is limited.
    pub window: Option<u64>,
    /// A learned sink for each head (gpt-oss).
    pub has_sinks: bool,
    /// Whether queries, keys and values come from one stored matrix, which then has one adapter.
    pub is_fused: bool,
}

/// Learned norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// One gain of a head's size for all heads (Qwen3).
    PerHead,
    /// A gain of all heads' width (OLMo 2).
    Full,
}

/// Multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Heads (a).
    pub heads: u64,
    /// Rank of the queries' projection; none: they are projected directly.
    pub query_rank: Option<u64>,
    /// Rank of keys' and values' joint projection.
    pub kv_rank: u64,
    /// Elements of a head's query and key without position.
    pub nope_size: u64,
    /// Elements of a head's query and key with rotary position.
    pub rope_size: u64,
    /// Elements of a head's value.
    pub value_size: u64,
}

/// A Mamba-2 layer: tokens are mixed by a short convolution and a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// Heads.
    pub heads: u64,
    /// Elements of a head; heads x size is the inner width.
    pub head_size: u64,
    /// Groups of heads that share what goes into and out of the state.
    pub groups: u64,
    /// Elements of the state for each element of a head.
    pub state: u64,
    /// Tokens that the convolution sees.
    pub kernel: u64,
}

impl StateSpace {
    /// Width between the two projections.
    #[must_use]
    pub const fn inner(self) -> u64 {
        self.heads * self.head_size
    }

    /// Channels of the convolution: the inner width, and what goes into and out of the state.
    #[must_use]
    pub const fn channels(self) -> u64 {
        self.inner() + 2 * self.groups * self.state
    }
}

/// Work on each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// Nothing: the next layer follows at once (Nemotron-H).
    None,
    /// The same weights for every token.
    Dense(DenseFeedForward),
    /// Each token goes to a few experts.
    Experts(Experts),
}

/// Two matrices, or three with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseFeedForward {
    /// Inner width (f).
    pub inner: u64,
    /// Whether a third matrix gates (SwiGLU, GeGLU; Shazeer 2020, arXiv:2002.05202).
    pub is_gated: bool,
    /// Whether the matrices have biases.
    pub has_bias: bool,
    /// Whether gate and up are one stored matrix, which then has one adapter (Phi-3).
    pub is_fused: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts (E).
    pub count: u64,
    /// Experts that a token goes to (k).
    pub active: u64,
    /// One of them.
    pub each: DenseFeedForward,
    /// Inner width of what every token goes to besides; 0: nothing.
    pub shared_inner: u64,
    /// A gate on what is shared (Qwen2-MoE).
    pub has_shared_gate: bool,
    /// A bias of the router for each expert.
    pub router_bias: RouterBias,
    /// Width that experts see, where tokens are projected to it and back (Nemotron-3 Super's LatentMoE); none: the hidden width.
    pub latent: Option<u64>,
}

/// A router's bias for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterBias {
    /// None.
    None,
    /// Trained like the rest (gpt-oss).
    Learned,
    /// Kept so that the load is balanced, never trained (DeepSeek-V3): in the checkpoint, and in some published counts, but not
    /// among a model's parameters.
    Correction,
}

impl Model {
    /// The model with learned positions for sequences of so many tokens; as it is where its positions aren't learned.
    #[must_use]
    pub fn with_positions(mut self, tokens: u64) -> Self {
        if self.embedding.positions > 0 {
            self.embedding.positions = tokens;
        }
        self
    }

    /// The model cut to its first layers, as benchmarks of one machine do; as it is if it hasn't so many.
    #[must_use]
    pub fn with_layers(mut self, count: u64) -> Self {
        let mut left = count;
        for group in &mut self.layers {
            group.count = group.count.min(left);
            left -= group.count;
        }
        self.layers.retain(|group| group.count > 0);
        self
    }

    /// The different layers, each with how many there are of it, whatever their order: where windows alternate, two instead of all.
    #[must_use]
    pub fn kinds(&self) -> Vec<LayerGroup> {
        let mut kinds: Vec<LayerGroup> = Vec::with_capacity(self.layers.len().min(4));
        for group in &self.layers {
            match kinds.iter_mut().find(|kind| kind.layer == group.layer) {
                Some(kind) => kind.count += group.count,
                None => kinds.push(*group),
            }
        }
        kinds
    }

    /// How many layers there are (L).
    #[must_use]
    pub fn layer_count(&self) -> u64 {
        self.layers.iter().map(|group| group.count).sum()
    }
}
