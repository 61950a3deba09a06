//! One timed operation of a worker, and the kinds that there are.

/// What an operation does. Declared in the order of the names, which breaks ties between operations of equal start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The backward pass of a microbatch through a model chunk.
    BackwardCompute,
    /// Gradients of activations from the next stage.
    BackwardReceive,
    /// Gradients of activations to the stage before.
    BackwardSend,
    /// The shared embedding's gradients, between the first and the last stage.
    EmbeddingGradsAllReduce,
    /// The forward pass of a microbatch through a model chunk.
    ForwardCompute,
    /// Activations from the stage before.
    ForwardReceive,
    /// Activations to the next stage.
    ForwardSend,
    /// Work after the last backward pass that belongs to nothing else, like collecting garbage.
    Collection,
    /// Gradients, between data-parallel ranks.
    GradsReduceScatter,
    /// The norms' gradients, between tensor-parallel ranks.
    LayernormGradsAllReduce,
    /// The optimizer's step, which ends a step.
    Optimizer,
    /// The gradients' norm, between all workers.
    OptimizerClip,
    /// Parameters, between data-parallel ranks.
    ParamsAllGather,
    /// Gradients that weren't reduced during the backward pass, between data-parallel ranks.
    SeparateGradsAllReduce,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Kind; 14] = [
        Kind::BackwardCompute,
        Kind::BackwardReceive,
        Kind::BackwardSend,
        Kind::EmbeddingGradsAllReduce,
        Kind::ForwardCompute,
        Kind::ForwardReceive,
        Kind::ForwardSend,
        Kind::Collection,
        Kind::GradsReduceScatter,
        Kind::LayernormGradsAllReduce,
        Kind::Optimizer,
        Kind::OptimizerClip,
        Kind::ParamsAllGather,
        Kind::SeparateGradsAllReduce,
    ];

    /// The name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::BackwardCompute => "backward-compute",
            Kind::BackwardReceive => "backward-recv",
            Kind::BackwardSend => "backward-send",
            Kind::EmbeddingGradsAllReduce => "embedding-grads-all-reduce",
            Kind::ForwardCompute => "forward-compute",
            Kind::ForwardReceive => "forward-recv",
            Kind::ForwardSend => "forward-send",
            Kind::Collection => "gc",
            Kind::GradsReduceScatter => "grads-reduce-scatter",
            Kind::LayernormGradsAllReduce => "layernorm-grads-all-reduce",
            Kind::Optimizer => "optimizer",
            Kind::OptimizerClip => "optimizer-clip-main-grad",
            Kind::ParamsAllGather => "params-all-gather",
            Kind::SeparateGradsAllReduce => "separate-grads-all-reduce",
        }
    }

    /// The kind of a name in traces.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name of the group of kinds whose share of a slowdown is told: the two ends of a transfer are one.
    pub const fn group(self) -> &'static str {
        match self {
            Kind::ForwardSend | Kind::ForwardReceive => "forward-pp-comm",
            Kind::BackwardSend | Kind::BackwardReceive => "backward-pp-comm",
            kind => kind.name(),
        }
    }

    pub(super) const fn is_compute(self) -> bool {
        matches!(self, Kind::ForwardCompute | Kind::BackwardCompute)
    }

    pub(super) const fn is_transfer(self) -> bool {
        matches!(self, Kind::ForwardSend | Kind::ForwardReceive | Kind::BackwardSend | Kind::BackwardReceive)
    }

    /// Whether its ideal duration is the mean of all; else it is the median, which waits for stragglers don't move.
    pub(super) const fn is_work(self) -> bool {
        self.is_compute() || matches!(self, Kind::Optimizer | Kind::Collection)
    }

    /// Whether all data-parallel ranks do it together.
    pub(super) const fn is_across_data(self) -> bool {
        matches!(
            self,
            Kind::ParamsAllGather | Kind::GradsReduceScatter | Kind::SeparateGradsAllReduce | Kind::OptimizerClip
        )
    }

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One timed operation of a worker. Times are in seconds, from any beginning that the workers of a step share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// The worker's data-parallel rank.
    pub dp_rank: u32,
    /// The worker's pipeline stage.
    pub stage: u32,
    /// The worker's rank in the gang.
    pub rank: u32,
    /// The step.
    pub step: i64,
    /// What it does.
    pub kind: Kind,
    /// When it began; finite.
    pub start: f64,
    /// How long it took, waits included; finite and at least 0.
    pub duration: f64,
    /// Its number among those of its kind, worker and step, from 0 on.
    pub sequence: u32,
    /// The model chunk within the stage, or -1.
    pub chunk: i32,
    /// The model chunk within the model, or -1.
    pub global_chunk: i32,
    /// The microbatch, or -1.
    pub microbatch: i32,
}

impl Operation {
    /// When it ended.
    pub fn end(&self) -> f64 {
        self.start + self.duration
    }

    pub(super) fn name(&self) -> String {
        format!("{} {} of stage {}", self.kind.name(), self.sequence, self.stage)
    }
}
