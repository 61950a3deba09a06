//! How many parameters one rank of a stage has, before any are shared out among replicas.
//!
//! What is the same for all layers of a kind is computed once ([`Kind`]); a stage then only counts its layers.

use super::activations::{self, LayerBytes};
use super::states::adapters;
use super::{Cut, Parts};
use crate::layout::{Layout, Stack};
use crate::model::matrices::{Matrix, Role};
use crate::model::{Attention, FeedForward, Layer, Model};
use crate::units::real;

/// Parameters on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Census {
    /// Outside experts.
    pub(crate) dense: f64,
    /// In this rank's experts.
    pub(crate) experts: f64,
    /// Of both, in matrices that 4-bit formats are for: all in layers but routers.
    pub(crate) linear: f64,
    /// Rows and columns of matrices: what Adafactor keeps.
    pub(crate) edges: f64,
    /// Of the layer that has most.
    pub(crate) largest_layer: f64,
    /// In adapters.
    pub(crate) adapters: f64,
}

/// What is the same for all layers of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Kind<'a> {
    /// Such a layer.
    pub(crate) layer: &'a Layer,
    /// Its parameters on a rank.
    pub(crate) census: Census,
    /// Its activations.
    pub(crate) bytes: LayerBytes,
    /// Its matrices as they are stored.
    pub(crate) stored: Vec<Stored>,
}

/// A matrix as Megatron stores it: q, k and v are one, gate and up too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stored {
    /// Elements in and out, of all ranks.
    pub(crate) shape: (u64, u64),
    /// Elements on this rank, of one expert where experts have such a matrix.
    pub(crate) elements: f64,
    role: Role,
}

/// What lies before the first and behind the last layer, on a rank, and what each layer has besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// The words' matrix, padded as it is stored.
    pub(crate) words: f64,
    positions: f64,
    norms: f64,
    /// Adapters of a layer.
    adapters: f64,
}

impl<'a> Kind<'a> {
    pub(crate) fn of(cut: &Cut<'_>, layer: &'a Layer) -> Kind<'a> {
        Kind { layer, census: of_layer(cut, layer), bytes: activations::layer(cut, layer), stored: stored(cut, layer) }
    }

    pub(crate) const fn has_experts(&self) -> bool {
        matches!(self.layer.feed_forward, FeedForward::Experts(_))
    }
}

impl Ends {
    pub(crate) fn of(cut: &Cut<'_>) -> Ends {
        let model = &cut.workload.model;
        let norms = [model.embedding.norm, model.final_norm].into_iter().flatten();
        let lora = adapters(&cut.workload.task);
        let trained = lora.and_then(|lora| model.lora_parameters(lora).ok()).map_or(0.0, real);
        Ends {
            words: real(padded_vocabulary(model, cut.layout)) * real(model.hidden) / cut.tensor,
            positions: real(model.embedding.positions * model.hidden),
            norms: real(norms.map(|norm| norm.gains_and_biases() * model.hidden).sum()),
            adapters: trained / real(model.layer_count().max(1)) / cut.tensor,
        }
    }
}

/// Counts a stage's parameters on one tensor-parallel and expert-parallel rank. A tied matrix is on both ends of a pipeline.
pub(crate) fn census(cut: &Cut<'_>, parts: &Parts<'_>) -> Census {
    let (model, stage, ends) = (&cut.workload.model, parts.stage, parts.ends);
    let mut census = Census::default();
    for (kind, count) in parts.counted() {
        census.add(&kind.census, count);
        census.adapters += count * ends.adapters;
    }
    if let (true, Some(last)) = (stage.further > 0, parts.last) {
        let mut further = last.census;
        further.dense += 2.0 * real(model.hidden) * real(model.hidden) / cut.tensor;
        census.add(&further, real(stage.further));
    }
    let has_own = !model.embedding.is_tied || (cut.layout.pipeline > 1 && !stage.has_embedding);
    census.dense += if stage.has_embedding { ends.words + ends.positions } else { 0.0 };
    census.dense += if stage.has_head && has_own { ends.words } else { 0.0 };
    census.dense += if stage.has_head { ends.norms } else { 0.0 };
    census
}

impl Census {
    fn add(&mut self, layer: &Census, count: f64) {
        self.dense += count * layer.dense;
        self.experts += count * layer.experts;
        self.linear += count * layer.linear;
        self.edges += count * layer.edges;
        self.largest_layer = self.largest_layer.max(layer.largest_layer);
    }
}

/// Parameters of one layer on a rank. Latents of attention are on every tensor-parallel rank, as in Megatron-Core.
fn of_layer(cut: &Cut<'_>, layer: &Layer) -> Census {
    let counts = layer.parameters(cut.workload.model.hidden);
    let mut census = Census { dense: real(counts.norms) + real(counts.vectors) / cut.tensor, ..Census::default() };
    for matrix in layer.matrices(cut.workload.model.hidden) {
        let copies = real(matrix.copies) / parts(layer, matrix, cut.layout);
        let elements = real(matrix.elements()) * copies;
        if matrix.copies > 1 {
            census.experts += elements;
        } else {
            census.dense += elements;
        }
        if matrix.role != Role::Router {
            census.linear += elements;
        }
        census.edges += real(matrix.inputs + matrix.outputs) * copies;
    }
    census.largest_layer = census.dense + census.experts;
    census
}

/// Among how many ranks a matrix, or the experts that have one, are cut.
fn parts(layer: &Layer, matrix: Matrix, layout: &Layout) -> f64 {
    let is_latent = matches!(layer.attention, Attention::Latent(_));
    match matrix.role {
        Role::Router | Role::SharedSwitch | Role::QueryLatent => 1.0,
        Role::Key if is_latent => 1.0,
        Role::ExpertGate | Role::ExpertUp | Role::ExpertDown => {
            f64::from(layout.expert) * f64::from(layout.expert_tensor)
        }
        _ => f64::from(layout.tensor),
    }
}

/// Matrices that a layer of a mixture usually has, once k and v have joined q and up gate.
const STORED_USUAL: usize = 8;

/// A layer's matrices as they are stored: k and v join q, up joins gate.
fn stored(cut: &Cut<'_>, layer: &Layer) -> Vec<Stored> {
    let is_grouped = matches!(layer.attention, Attention::Grouped(_));
    let first_of = |role: Role| match role {
        Role::Key | Role::Value if is_grouped => Some(Role::Query),
        Role::Up => Some(Role::Gate),
        Role::SharedUp => Some(Role::SharedGate),
        Role::ExpertUp => Some(Role::ExpertGate),
        _ => None,
    };
    let mut all: Vec<Stored> = Vec::with_capacity(STORED_USUAL);
    for matrix in layer.matrices(cut.workload.model.hidden) {
        if matches!(matrix.role, Role::Router | Role::SharedSwitch) {
            continue;
        }
        let of_expert = f64::from(cut.layout.expert_tensor);
        let parts = if matrix.copies > 1 { of_expert } else { parts(layer, matrix, cut.layout) };
        let elements = real(matrix.elements()) / parts;
        let joined = first_of(matrix.role).and_then(|role| all.iter_mut().find(|first| first.role == role));
        match joined {
            Some(first) => {
                first.shape.1 += matrix.outputs;
                first.elements += elements;
            }
            None => all.push(Stored { shape: (matrix.inputs, matrix.outputs), elements, role: matrix.role }),
        }
    }
    all
}

/// Megatron pads words to a multiple of 128 t (`make_vocab_size_divisible_by`).
pub(crate) const fn padded_vocabulary(model: &Model, layout: &Layout) -> u64 {
    match layout.stack {
        Stack::Megatron => model.vocabulary.next_multiple_of(128 * layout.tensor as u64),
        _ => model.vocabulary,
    }
}
