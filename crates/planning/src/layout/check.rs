//! Which cuts are possible: each rule is one function, each fault names the rule and what to change.

use thiserror::Error;

use super::{Layout, Sharding, Stack};
use crate::hardware::Cluster;
use crate::model::{Attention, FeedForward, Model};
use crate::workload::Workload;

/// A rule that a layout breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutFault {
    /// A degree, batch or size is zero.
    #[error("{what} is 0: it must be at least 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// The cut is of another number of accelerators than there are.
    #[error(
        "tensor {tensor} x pipeline {pipeline} x context {context} x data {data} is {product} accelerators, but there are {accelerators}: {hint}"
    )]
    Product {
        /// t.
        tensor: u32,
        /// p.
        pipeline: u32,
        /// c.
        context: u32,
        /// D.
        data: u32,
        /// Their product.
        product: u64,
        /// What there is.
        accelerators: u32,
        /// A data parallelism that fits, or what must divide what.
        hint: String,
    },
    /// Something can't be cut into so many equal parts.
    #[error("{by} {parts} doesn't divide {what} ({amount}): choose {choices}")]
    Indivisible {
        /// The degree: `tensor parallelism`.
        by: &'static str,
        /// Its value.
        parts: u64,
        /// What is cut.
        what: String,
        /// How much of it there is.
        amount: u64,
        /// Degrees that do divide it.
        choices: String,
    },
    /// Tensor parallelism goes beyond the accelerators that fast links join.
    #[error(
        "tensor parallelism {tensor} goes beyond the {domain} accelerators that fast links join: choose at most {domain}, and pipeline or data parallelism for the rest"
    )]
    TensorBeyondNode {
        /// t.
        tensor: u32,
        /// Accelerators of a node, or of its larger link domain.
        domain: u32,
    },
    /// Layers can't be dealt to stages.
    #[error(
        "pipeline {pipeline} x {virtual_stages} virtual stages doesn't deal {layers} layers evenly, even if embedding and head take a layer's place: choose {choices} chunks in all"
    )]
    Layers {
        /// p.
        pipeline: u32,
        /// v.
        virtual_stages: u32,
        /// L.
        layers: u64,
        /// Products p x v that do.
        choices: String,
    },
    /// Virtual stages without a pipeline.
    #[error("{virtual_stages} virtual stages need a pipeline of at least 2: choose vp=1 or pp=2")]
    VirtualWithoutPipeline {
        /// v.
        virtual_stages: u32,
    },
    /// Experts are spread, but the model has none.
    #[error("expert parallelism {expert} needs a mixture of experts, and {model} has none: choose ep=1")]
    NoExperts {
        /// e.
        expert: u32,
        /// The model's name.
        model: String,
    },
    /// Two things that exclude each other.
    #[error("{one} and {other} exclude each other: {hint}")]
    Contradiction {
        /// The one.
        one: &'static str,
        /// The other.
        other: &'static str,
        /// What to change.
        hint: &'static str,
    },
}

/// Places of layers that embedding, head and a layer for multi-token prediction may take in an even split (arXiv:2407.21783, section 3.3.2;
/// arXiv:2412.19437): as many layers may be missing.
const PLACES_TAKEN_MAX: u64 = 3;
/// So many chunks for each that lacks a layer are many.
const MANY_CHUNKS: u64 = 8;
/// How many choices a fault names.
const CHOICES_MAX: usize = 12;

impl Layout {
    /// Whether this cut of this workload fits this cluster's shape; memory is another question.
    ///
    /// # Errors
    /// The first rule that is broken, and what to change.
    pub fn check(&self, workload: &Workload, cluster: &Cluster) -> Result<(), LayoutFault> {
        self.check_amounts(workload)?;
        self.check_contradictions()?;
        self.check_product(cluster)?;
        self.check_tensor(&workload.model, cluster)?;
        self.check_sequence(workload)?;
        self.check_pipeline(workload)?;
        self.check_batch(workload)?;
        self.check_experts(&workload.model)?;
        self.check_sharding()
    }

    fn check_amounts(&self, workload: &Workload) -> Result<(), LayoutFault> {
        let amounts = [
            ("tensor parallelism", u64::from(self.tensor)),
            ("pipeline parallelism", u64::from(self.pipeline)),
            ("virtual stages", u64::from(self.virtual_stages)),
            ("context parallelism", u64::from(self.context)),
            ("expert parallelism", u64::from(self.expert)),
            ("expert tensor parallelism", u64::from(self.expert_tensor)),
            ("data parallelism", u64::from(self.data)),
            ("micro-batch", u64::from(self.micro_batch)),
            ("sequence", workload.sequence),
            ("global batch", workload.global_batch),
            ("number of layers", workload.model.layer_count()),
        ];
        let zero = amounts.into_iter().find(|(_, amount)| *amount == 0);
        zero.map_or(Ok(()), |(what, _)| Err(LayoutFault::Zero { what }))
    }

    fn check_contradictions(&self) -> Result<(), LayoutFault> {
        let is_sharded = matches!(self.sharding, Sharding::Gradients | Sharding::Parameters { .. });
        if self.stack == Stack::DeepSpeed && is_sharded && self.pipeline > 1 {
            return Err(LayoutFault::Contradiction {
                one: "DeepSpeed's pipeline",
                other: "sharded gradients or parameters",
                hint: "choose pp=1, or ZeRO-1",
            });
        }
        if self.stack == Stack::Plain && self.accelerators() > u64::from(self.data) {
            return Err(LayoutFault::Contradiction {
                one: "plain PyTorch",
                other: "tensor, pipeline or context parallelism",
                hint: "choose stack=megatron or stack=fsdp, or tp=1,pp=1,cp=1",
            });
        }
        Ok(())
    }

    fn check_product(&self, cluster: &Cluster) -> Result<(), LayoutFault> {
        let product = self.accelerators();
        let accelerators = u64::from(cluster.accelerators);
        if product == accelerators {
            return Ok(());
        }
        let replica = product / u64::from(self.data);
        let hint = if replica <= accelerators && accelerators.is_multiple_of(replica) {
            format!("choose dp={}", accelerators / replica)
        } else {
            format!("choose tp x pp x cp that divides {accelerators}, not {replica}")
        };
        let Layout { tensor, pipeline, context, data, .. } = *self;
        Err(LayoutFault::Product { tensor, pipeline, context, data, product, accelerators: cluster.accelerators, hint })
    }

    /// Heads, their keys and values, and inner widths are cut among tensor ranks, which talk so much that they need the fast links
    /// (Shoeybi 2019, arXiv:1909.08053; Narayanan 2021, arXiv:2104.04473, section 3.2).
    fn check_tensor(&self, model: &Model, cluster: &Cluster) -> Result<(), LayoutFault> {
        let domain = cluster.per_node.max(cluster.linked());
        if self.tensor > domain {
            return Err(LayoutFault::TensorBeyondNode { tensor: self.tensor, domain });
        }
        for group in &model.layers {
            let cuts = tensor_cuts(&group.layer.attention).into_iter().flatten();
            for (what, amount) in cuts.chain(inner_cut(&group.layer.feed_forward)) {
                divides("tensor parallelism", self.tensor.into(), &format!("{what} of {}", model.name), amount)?;
            }
        }
        Ok(())
    }

    /// Causal attention is balanced by giving each context rank an early and a late piece (arXiv:2407.21783, section 3.3.2), and
    /// sequence parallelism cuts a piece among tensor ranks (arXiv:2205.05198).
    fn check_sequence(&self, workload: &Workload) -> Result<(), LayoutFault> {
        if self.context > 1 {
            divides("twice the context parallelism", 2 * u64::from(self.context), "the sequence", workload.sequence)?;
        }
        if self.is_sequence_parallel {
            let cut = u64::from(self.tensor) * u64::from(self.context);
            divides("sequence x context parallelism", cut, "the sequence", workload.sequence)?;
        }
        Ok(())
    }

    fn check_pipeline(&self, workload: &Workload) -> Result<(), LayoutFault> {
        if self.virtual_stages > 1 && self.pipeline < 2 {
            return Err(LayoutFault::VirtualWithoutPipeline { virtual_stages: self.virtual_stages });
        }
        let layers = workload.model.layer_count();
        let chunks = u64::from(self.pipeline) * u64::from(self.virtual_stages);
        if !is_dealt(layers, chunks) {
            let choices = choices((1..=layers).filter(|chunks| is_dealt(layers, *chunks)));
            let Layout { pipeline, virtual_stages, .. } = *self;
            return Err(LayoutFault::Layers { pipeline, virtual_stages, layers, choices });
        }
        if self.virtual_stages > 1 {
            let micro_batches = self.micro_batches(workload.global_batch);
            let shared = "the micro-batches that interleaved stages share";
            divides("pipeline parallelism", self.pipeline.into(), shared, micro_batches)?;
        }
        Ok(())
    }

    fn check_batch(&self, workload: &Workload) -> Result<(), LayoutFault> {
        let at_once = u64::from(self.data) * u64::from(self.micro_batch);
        divides("data parallelism x micro-batch", at_once, "the global batch", workload.global_batch)
    }

    fn check_experts(&self, model: &Model) -> Result<(), LayoutFault> {
        let mixtures = model.layers.iter().filter_map(|group| match &group.layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            _ => None,
        });
        let mut has_experts = false;
        for experts in mixtures {
            has_experts = true;
            divides(
                "expert parallelism",
                self.expert.into(),
                &format!("the experts of {}", model.name),
                experts.count,
            )?;
            divides(
                "expert tensor parallelism",
                self.expert_tensor.into(),
                "an expert's inner width",
                experts.each.inner,
            )?;
        }
        if !has_experts && self.expert > 1 {
            return Err(LayoutFault::NoExperts { expert: self.expert, model: model.name.clone() });
        }
        let ranks = u64::from(self.tensor).saturating_mul(u64::from(self.context)).saturating_mul(u64::from(self.data));
        let cut = u64::from(self.expert) * u64::from(self.expert_tensor);
        divides("expert x expert tensor parallelism", cut, "the ranks of a stage", ranks)
    }

    fn check_sharding(&self) -> Result<(), LayoutFault> {
        let Sharding::Optimizer { ranks } = self.sharding else { return Ok(()) };
        let all = u64::from(self.data) * u64::from(self.context);
        divides("the optimizer's shards", ranks.into(), "data x context parallelism", all)
    }
}

/// Heads that tensor parallelism cuts.
fn tensor_cuts(attention: &Attention) -> [Option<(&'static str, u64)>; 2] {
    match attention {
        // One head of keys and values is copied to every rank (Shazeer 2019, arXiv:1911.02150); several are cut.
        Attention::Grouped(grouped) if grouped.kv_heads > 1 => {
            [Some(("the query heads", grouped.heads)), Some(("the heads of keys and values", grouped.kv_heads))]
        }
        Attention::Grouped(grouped) => [Some(("the query heads", grouped.heads)), None],
        Attention::Latent(latent) => [Some(("the heads", latent.heads)), None],
        Attention::StateSpace(mixer) => {
            [Some(("the state-space heads", mixer.heads)), Some(("their groups", mixer.groups))]
        }
    }
}

/// The inner width that tensor parallelism cuts.
fn inner_cut(work: &FeedForward) -> Option<(&'static str, u64)> {
    match work {
        FeedForward::Dense(dense) => Some(("the inner width", dense.inner)),
        FeedForward::Experts(experts) if experts.shared_inner > 0 => {
            Some(("the shared inner width", experts.shared_inner))
        }
        FeedForward::Experts(_) | FeedForward::None => None,
    }
}

/// Whether layers go evenly into chunks, some of whose places embedding, head and further predictions may take.
pub(crate) const fn is_dealt(layers: u64, chunks: u64) -> bool {
    let missing = layers.next_multiple_of(chunks) - layers;
    // Of 126 layers on 128 chunks the first and the last have none; that is for many chunks.
    let is_many = chunks <= layers || missing * MANY_CHUNKS <= chunks;
    is_many && missing <= PLACES_TAKEN_MAX && (missing == 0 || chunks > missing)
}

fn divides(by: &'static str, parts: u64, what: &str, amount: u64) -> Result<(), LayoutFault> {
    if amount.is_multiple_of(parts) {
        return Ok(());
    }
    let choices = choices(divisors(amount));
    Err(LayoutFault::Indivisible { by, parts, what: what.to_owned(), amount, choices })
}

/// Divisors, smallest first, as far as anyone would use them.
fn divisors(amount: u64) -> impl Iterator<Item = u64> {
    const TRIED_MAX: u64 = 65_536;
    (1..=amount.min(TRIED_MAX)).filter(move |candidate| amount.is_multiple_of(*candidate))
}

/// `1, 2, 4 or 8`.
fn choices(possible: impl Iterator<Item = u64>) -> String {
    let named: Vec<String> = possible.take(CHOICES_MAX).map(|number| number.to_string()).collect();
    match named.as_slice() {
        [] => "another".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;
