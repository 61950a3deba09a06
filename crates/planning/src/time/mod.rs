//! How long an optimizer step takes, by component.
//!
//! Analytic: each layer's products, attention and element-wise work at rates that kernels reach (`gemm`, `mixer`, `layer`), collectives
//! at rates that links reach (`collective`), the pipeline's bubble (`pipeline`), the step's end (`optimizer`). What is taken from
//! measurement stands in one table (`constants`). An estimate allocates nothing but for adapters.

mod collective;
pub mod constants;
mod gemm;
mod layer;
mod mixer;
mod optimizer;
mod pipeline;
mod situation;
#[cfg(test)]
mod tests;

use crate::hardware::Cluster;
use crate::layout::Layout;
use crate::units::{Seconds, Volume, real};
use crate::workload::Workload;
use constants::{Constant, Constants};
use gemm::{Product, stream};
use optimizer::Held;
use situation::Situation;

/// An optimizer step's time by component; they add up. Communication counts as far as nothing hides it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Products, attention and element-wise work of the slowest stage.
    pub compute: Seconds,
    /// Launching kernels slower than they run.
    pub launch: Seconds,
    /// Tensor parallelism.
    pub tensor: Seconds,
    /// Context parallelism.
    pub context: Seconds,
    /// Expert parallelism.
    pub expert: Seconds,
    /// Data parallelism: reducing gradients, gathering parameters.
    pub data: Seconds,
    /// Transfers between pipeline stages.
    pub pipeline: Seconds,
    /// Stages that wait while the pipeline fills and drains.
    pub bubble: Seconds,
    /// The update.
    pub optimizer: Seconds,
    /// What is outside the model, and waiting for the slowest.
    pub other: Seconds,
}

impl StepTime {
    /// The whole step.
    #[must_use]
    pub fn total(&self) -> Seconds {
        let inside = self.compute + self.launch + self.tensor + self.context + self.expert;
        inside + self.data + self.pipeline + self.bubble + self.optimizer + self.other
    }
}

/// Estimates a step's time with the shipped constants.
///
/// Layout and workload must fit each other (heads divisible by tensor parallelism and so on); sizes of 0 count as 1.
#[must_use]
pub fn estimate(workload: &Workload, layout: &Layout, cluster: &Cluster) -> StepTime {
    estimate_with(constants::SHIPPED, workload, layout, cluster)
}

/// Estimates a step's time with the constants given.
#[must_use]
pub fn estimate_with(constants: &Constants, workload: &Workload, layout: &Layout, cluster: &Cluster) -> StepTime {
    let situation = Situation::new(constants, workload, layout, cluster);
    let layers = Layers::of(&situation);
    let head = head(&situation);
    let stages = pipeline::stages(&situation, layers.count, layers.all.total(), head * layers.heads);
    let transfers = pipeline::transfers(&situation);
    let batches = situation.micro_batches;
    // The slowest stage's time, split in proportion to the layers' components.
    let part = batches / situation.pipeline;
    let inside = layers.all.total() * part;
    let held = held(&situation, &layers);
    let trained = optimizer::trained(&situation, held);
    let mut time = StepTime {
        compute: (layers.all.forward + layers.all.backward) * part + (stages.slowest * batches - inside),
        launch: layers.all.launch * part,
        tensor: layers.all.tensor * part,
        context: layers.all.context * part,
        expert: layers.all.expert * part,
        data: layers.all.shard * part + optimizer::reduction(&situation, trained, stages.mean),
        pipeline: transfers * batches,
        bubble: pipeline::bubble(&situation, &stages) + transfers * ((situation.pipeline - 1.0) / situation.chunks),
        optimizer: optimizer::update(&situation, held, trained),
        other: Seconds::new(constants.get(Constant::StepFixed)),
    };
    time.other += time.total() * straggling(&situation);
    time
}

/// Sums over all layers.
struct Layers {
    count: f64,
    /// Heads that are computed: one, and one for each further prediction.
    heads: f64,
    all: layer::LayerTime,
}

impl Layers {
    fn of(situation: &Situation) -> Self {
        let model = &situation.workload.model;
        let further = if situation.passes.is_trained { real(model.further_predictions) } else { 0.0 };
        let mut layers = Layers { count: 0.0, heads: 1.0 + further, all: layer::LayerTime::default() };
        for group in &model.layers {
            layers.add(real(group.count), &layer::time(situation, &group.layer));
        }
        if let Some(last) = model.layers.last().filter(|_| further > 0.0) {
            layers.add(further, &layer::time(situation, &last.layer));
        }
        layers
    }

    fn add(&mut self, count: f64, each: &layer::LayerTime) {
        self.count += count;
        self.all.forward += each.forward * count;
        self.all.backward += each.backward * count;
        self.all.launch += each.launch * count;
        self.all.tensor += each.tensor * count;
        self.all.context += each.context * count;
        self.all.expert += each.expert * count;
        self.all.shard += each.shard * count;
        self.all.weights += each.weights * count;
        self.all.expert_weights += each.expert_weights * count;
    }
}

/// The embedding and one head with its loss, for a micro-batch: V h products in 16 bits, logits through memory.
fn head(situation: &Situation) -> Seconds {
    let model = &situation.workload.model;
    let words = real(model.vocabulary) / situation.tensor;
    let hidden = real(model.hidden);
    let product = Product { rows: situation.tokens, columns: words, inner: hidden };
    let linear = gemm::linear(situation, product, situation.device.head);
    let logits = situation.tokens * words * situation.constant(Constant::HeadBytes);
    let embedded = situation.tokens * hidden * situation.constant(Constant::EmbeddingBytes);
    if !situation.passes.is_trained {
        return linear.forward;
    }
    let weights = if situation.passes.has_weight_gradients { linear.weights } else { Seconds::ZERO };
    linear.forward + linear.inputs + weights + stream(situation, logits + embedded)
}

/// What an accelerator holds: its share of the layers, and of embedding and head.
fn held(situation: &Situation, layers: &Layers) -> Held {
    let model = &situation.workload.model;
    let matrices = if model.embedding.is_tied { 1.0 } else { 2.0 };
    let words = real(model.vocabulary * model.hidden) * matrices / situation.tensor;
    Held {
        dense: (layers.all.weights + words) / situation.pipeline,
        experts: layers.all.expert_weights / situation.pipeline,
    }
}

/// Part of a step lost to waiting for the slowest: so much for each doubling of nodes.
fn straggling(situation: &Situation) -> f64 {
    let cluster = situation.cluster;
    let nodes = f64::from(cluster.accelerators.max(1)) / f64::from(cluster.per_node.max(1));
    situation.constant(Constant::Straggling) * nodes.max(1.0).log2()
}

/// How long all-reducing a model's 16-bit gradients among so many accelerators takes on a cluster, nothing hidden: what shows whether
/// a fabric is worth its price.
#[must_use]
pub fn gradient_reduction(workload: &Workload, layout: &Layout, cluster: &Cluster) -> Seconds {
    let situation = Situation::new(constants::SHIPPED, workload, layout, cluster);
    let elements = real(workload.model.parameters().total) / (situation.tensor * situation.pipeline);
    let replicas = situation.data * situation.context;
    collective::Group::new(&situation, replicas, situation.tensor).reduce(Volume::new(elements * 2.0))
}
