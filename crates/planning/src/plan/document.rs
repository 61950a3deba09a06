//! A plan's document: what `--json` prints and a job keeps. Every number is estimated; its unit is in its name.

use std::collections::BTreeMap;

use gangline_base::Money;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::class::Class;

/// The format's version.
pub const VERSION: u32 = 1;

/// The format as a JSON Schema (draft 2020-12).
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Plan).into()
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The format's version.
    pub version: u32,
    /// What is trained.
    pub model: ModelFacts,
    /// What kind of run it is.
    pub class: Class,
    /// Why it is taken for that.
    pub class_reason: String,
    /// What is done with the model.
    pub workload: WorkloadFacts,
    /// What it runs on.
    pub cluster: ClusterFacts,
    /// How it is cut, as `gangline plan evaluate --layout` takes it.
    pub layout: String,
    /// How many cuts were looked at, and how many of them fit; 1 where the cut was given.
    pub layouts_tried: usize,
    /// Of these, those that fit.
    pub layouts_fitting: usize,
    /// Cuts that lost.
    pub runners_up: Vec<RunnerUpFacts>,
    /// What an accelerator of each pipeline stage holds at most.
    pub memory: Vec<StageFacts>,
    /// What is known of such estimates.
    pub memory_known_error: KnownError,
    /// Whether that fits.
    pub fits: bool,
    /// An optimizer step.
    pub step: StepFacts,
    /// The whole run.
    pub run: RunFacts,
    /// Checkpoints.
    pub checkpoint: CheckpointFacts,
    /// Failures.
    pub reliability: ReliabilityFacts,
    /// The network between nodes.
    pub network: NetworkFacts,
    /// What it costs, where a price is known.
    pub cost: Option<CostFacts>,
    /// Serving, where that is the task.
    pub serving: Option<ServingFacts>,
    /// What a reader should know or change.
    pub advice: Vec<String>,
    /// What was assumed.
    pub assumptions: Vec<String>,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFacts {
    /// Its name.
    pub name: String,
    /// All parameters, exact.
    pub parameters: u64,
    /// Those that a token meets.
    pub active_parameters: u64,
    /// Those that are trained.
    pub trained_parameters: u64,
    /// Those of the words' matrix and learned positions.
    pub embedding_parameters: u64,
    /// Layers.
    pub layers: u64,
}

/// What is done with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadFacts {
    /// The task, as `--task` takes it.
    pub task: String,
    /// Tokens of a sequence.
    pub sequence_tokens: u64,
    /// Sequences of a step.
    pub global_batch_sequences: u64,
    /// Tokens of the run.
    pub tokens: u64,
    /// Format of the products.
    pub precision: String,
    /// The optimizer.
    pub optimizer: String,
}

/// What it runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterFacts {
    /// Each accelerator.
    pub accelerator: String,
    /// How many.
    pub accelerators: u32,
    /// How many a node has.
    pub per_node: u32,
    /// An accelerator's memory.
    pub memory_bytes: f64,
    /// The network between nodes.
    pub fabric: String,
    /// Its rate for each accelerator, each way.
    pub fabric_bytes_per_second: f64,
}

/// A cut that lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunnerUpFacts {
    /// It.
    pub layout: String,
    /// Its step.
    pub step_seconds: f64,
    /// What its fullest stage holds.
    pub memory_bytes: f64,
    /// Why it lost.
    pub reason: String,
}

/// A stage's memory by component, in bytes; `occupied_bytes` is their sum, what nvidia-smi shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageFacts {
    /// The first stage that is like this, from 0.
    pub stage: u32,
    /// How many neighbouring stages are like this.
    pub alike: u32,
    /// Parts by name.
    pub components_bytes: BTreeMap<String, f64>,
    /// What PyTorch calls allocated.
    pub allocated_bytes: f64,
    /// All.
    pub occupied_bytes: f64,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepFacts {
    /// How long it takes.
    pub seconds: f64,
    /// By component; they add up.
    pub components_seconds: BTreeMap<String, f64>,
    /// Tokens a second of all accelerators.
    pub tokens_per_second: f64,
    /// The same of each.
    pub tokens_per_second_per_accelerator: f64,
    /// Part of the peak rate of the products' format, by definition of what is counted.
    pub utilisation: BTreeMap<String, f64>,
    /// What is known of such estimates: the region, and the median error there in percent.
    pub known_error: KnownError,
}

/// How wrong such estimates have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnownError {
    /// Measurements like this.
    pub region: String,
    /// How many there are.
    pub rows: u32,
    /// Half of them were off by less, in percent.
    pub median_percent: f64,
    /// Nine of ten were off by less, in percent.
    pub p90_percent: f64,
}

/// The run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFacts {
    /// Optimizer steps.
    pub steps: u64,
    /// Time if nothing breaks and nothing is saved.
    pub training_seconds: f64,
    /// Time to be expected, saves and failures included.
    pub expected_seconds: f64,
    /// Accelerator-hours of that.
    pub accelerator_hours: f64,
    /// Energy of the accelerators at full power, in kWh; none where a vendor states no power.
    pub accelerator_energy_kwh: Option<f64>,
    /// Training data that must arrive.
    pub data_bytes_per_second: f64,
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointFacts {
    /// One of them.
    pub bytes: f64,
    /// Of that, weights.
    pub weights_bytes: f64,
    /// Where they go.
    pub storage: String,
    /// Training stands still for, with a copy in the host's memory.
    pub blocked_seconds: f64,
    /// Until it is written.
    pub written_seconds: f64,
    /// From one to the next.
    pub interval_seconds: f64,
    /// Part of the time.
    pub overhead: f64,
    /// Bandwidth that keeps it under 2 % for who waits until it is written.
    pub bandwidth_wanted_bytes_per_second: f64,
}

/// Failures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReliabilityFacts {
    /// Between two failures.
    pub mean_time_seconds: f64,
    /// The rate that this follows from.
    pub per_thousand_node_days: f64,
    /// Where that was counted.
    pub source: String,
    /// From a failure to the next step.
    pub recovery_seconds: f64,
    /// Part of the time that is training.
    pub goodput: f64,
}

/// The network between nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkFacts {
    /// All-reducing the gradients, nothing hidden.
    pub gradient_reduction_seconds: f64,
    /// How much longer a step would take on cheaper networks, each with its own best cut.
    pub alternatives: Vec<FabricFacts>,
}

/// Another network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FabricFacts {
    /// It.
    pub fabric: String,
    /// All-reducing the gradients, nothing hidden.
    pub gradient_reduction_seconds: f64,
    /// Its step over this plan's; none where nothing fits.
    pub slowdown: Option<f64>,
}

/// Serving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServingFacts {
    /// Tokens of prompts that are taken in.
    pub prompt_tokens_per_second: f64,
    /// Between two tokens of a sequence, when all sequences are as long as they get.
    pub token_seconds: f64,
    /// Tokens that come out, of all sequences.
    pub tokens_per_second: f64,
}

/// What it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostFacts {
    /// An accelerator for an hour.
    #[schemars(with = "i64")]
    pub hourly_nano_dollars: Money,
    /// The run, saves and failures included.
    #[schemars(with = "i64")]
    pub total_nano_dollars: Money,
    /// A billion tokens of that.
    #[schemars(with = "i64")]
    pub per_billion_tokens_nano_dollars: Money,
    /// Who asks that price.
    pub source: String,
    /// The day of the price.
    pub as_of: Option<String>,
    /// Whether it is older than 90 days.
    pub is_stale: bool,
}
