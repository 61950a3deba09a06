//! What a layer multiplies its tokens by: one list, from which parameters, adapters and operations are counted.
//!
//! Queries, keys and values are listed apart even where they are stored as one matrix; their sizes add up all the same.

use super::{Attention, DenseFeedForward, Experts, FeedForward, GroupedAttention, LatentAttention, Layer, StateSpace};

/// A kind of matrix in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Hidden to queries; of latent attention, from the queries' latent to queries if there is one.
    Query,
    /// Hidden to keys; of latent attention, hidden to the joint latent and the shared rotary key.
    Key,
    /// Hidden to values; of latent attention, the joint latent to keys and values.
    Value,
    /// Heads to hidden.
    Output,
    /// Hidden to the queries' latent.
    QueryLatent,
    /// Into a state-space layer.
    StateIn,
    /// Out of a state-space layer.
    StateOut,
    /// Gate of the feed-forward work.
    Gate,
    /// Up.
    Up,
    /// Down.
    Down,
    /// Gate of what all tokens share in a mixture.
    SharedGate,
    /// Up, shared.
    SharedUp,
    /// Down, shared.
    SharedDown,
    /// Which says how much of the shared work is taken (Qwen2-MoE).
    SharedSwitch,
    /// Hidden to the width that experts see.
    LatentIn,
    /// That width to hidden.
    LatentOut,
    /// Which chooses experts.
    Router,
    /// Gate of an expert.
    ExpertGate,
    /// Up, of an expert.
    ExpertUp,
    /// Down, of an expert.
    ExpertDown,
}

/// So many equal matrices of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// What for.
    pub role: Role,
    /// Elements in (columns, as PyTorch stores it).
    pub inputs: u64,
    /// Elements out (rows).
    pub outputs: u64,
    /// How many there are: 1, or the experts.
    pub copies: u64,
    /// How many of them each token meets: 1, or the experts it goes to.
    pub used: u64,
}

impl Matrix {
    /// Elements of one copy.
    #[must_use]
    pub const fn elements(self) -> u64 {
        self.inputs * self.outputs
    }

    const fn one(role: Role, inputs: u64, outputs: u64) -> Self {
        Matrix { role, inputs, outputs, copies: 1, used: 1 }
    }
}

/// Most matrices that a layer lists: six of latent attention, ten of a mixture.
const MATRICES_MAX: usize = 16;

/// The matrices of a layer, without an allocation: a plan counts them for thousands of layouts.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    list: [Matrix; MATRICES_MAX],
    count: usize,
}

impl Matrices {
    fn push(&mut self, matrix: Matrix) {
        self.list[self.count] = matrix;
        self.count += 1;
    }
}

impl IntoIterator for Matrices {
    type Item = Matrix;
    type IntoIter = std::iter::Take<std::array::IntoIter<Matrix, MATRICES_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.count)
    }
}

impl Layer {
    /// The matrices of the layer, given the width of the residual stream (h).
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> Matrices {
        let mut all = Matrices { list: [Matrix::one(Role::Output, 0, 0); MATRICES_MAX], count: 0 };
        match &self.attention {
            Attention::Grouped(attention) => grouped(&mut all, attention, hidden),
            Attention::Latent(attention) => latent(&mut all, attention, hidden),
            Attention::StateSpace(mixer) => state_space(&mut all, *mixer, hidden),
        }
        match &self.feed_forward {
            FeedForward::None => {}
            FeedForward::Dense(dense) => feed_forward(&mut all, dense, hidden, DENSE),
            FeedForward::Experts(experts) => mixture(&mut all, experts, hidden),
        }
        all
    }
}

/// h x ad, 2 of h x gd, ad x h (Ainslie 2023, arXiv:2305.13245).
fn grouped(all: &mut Matrices, attention: &GroupedAttention, hidden: u64) {
    let queries = attention.heads * attention.head_size;
    let keys = attention.kv_heads * attention.head_size;
    all.push(Matrix::one(Role::Query, hidden, queries));
    all.push(Matrix::one(Role::Key, hidden, keys));
    all.push(Matrix::one(Role::Value, hidden, keys));
    all.push(Matrix::one(Role::Output, queries, hidden));
}

/// h x r_q, r_q x a(d_n + d_r), h x (r_kv + d_r), r_kv x a(d_n + d_v), a d_v x h (DeepSeek-V2, arXiv:2405.04434, appendix C).
fn latent(all: &mut Matrices, attention: &LatentAttention, hidden: u64) {
    let queries = attention.heads * (attention.nope_size + attention.rope_size);
    let keys_and_values = attention.heads * (attention.nope_size + attention.value_size);
    if let Some(rank) = attention.query_rank {
        all.push(Matrix::one(Role::QueryLatent, hidden, rank));
    }
    all.push(Matrix::one(Role::Query, attention.query_rank.unwrap_or(hidden), queries));
    all.push(Matrix::one(Role::Key, hidden, attention.kv_rank + attention.rope_size));
    all.push(Matrix::one(Role::Value, attention.kv_rank, keys_and_values));
    all.push(Matrix::one(Role::Output, attention.heads * attention.value_size, hidden));
}

/// h x (2 inner + 2 groups x state + heads), inner x h (Mamba-2, arXiv:2405.21060, section 8).
fn state_space(all: &mut Matrices, mixer: StateSpace, hidden: u64) {
    all.push(Matrix::one(Role::StateIn, hidden, mixer.inner() + mixer.channels() + mixer.heads));
    all.push(Matrix::one(Role::StateOut, mixer.inner(), hidden));
}

/// Roles of gate, up and down.
type Roles = [Role; 3];
const DENSE: Roles = [Role::Gate, Role::Up, Role::Down];
const SHARED: Roles = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
const EXPERT: Roles = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];

/// 3 of h x f with a gate (Shazeer 2020, arXiv:2002.05202), 2 without.
fn feed_forward(all: &mut Matrices, dense: &DenseFeedForward, hidden: u64, [gate, up, down]: Roles) {
    if dense.is_gated {
        all.push(Matrix::one(gate, hidden, dense.inner));
    }
    all.push(Matrix::one(up, hidden, dense.inner));
    all.push(Matrix::one(down, dense.inner, hidden));
}

/// h x E of the router, what is shared, and E experts.
fn mixture(all: &mut Matrices, experts: &Experts, hidden: u64) {
    all.push(Matrix::one(Role::Router, hidden, experts.count));
    if experts.shared_inner > 0 {
        let shared = DenseFeedForward { inner: experts.shared_inner, ..experts.each };
        feed_forward(all, &shared, hidden, SHARED);
    }
    if experts.has_shared_gate {
        all.push(Matrix::one(Role::SharedSwitch, hidden, 1));
    }
    if let Some(latent) = experts.latent {
        all.push(Matrix::one(Role::LatentIn, hidden, latent));
        all.push(Matrix::one(Role::LatentOut, latent, hidden));
    }
    let first = all.count;
    feed_forward(all, &experts.each, experts.latent.unwrap_or(hidden), EXPERT);
    for matrix in &mut all.list[first..all.count] {
        (matrix.copies, matrix.used) = (experts.count, experts.active);
    }
}
