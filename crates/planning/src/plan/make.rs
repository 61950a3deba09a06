//! From a request to a plan.

use std::collections::BTreeMap;

use gangline_base::Money;
use thiserror::Error;

use super::document::*;
use super::request::{Request, StorageChoice};
use super::{advice, classify, serving, validation, words};
use crate::hardware::{Accelerator, Cluster, Fabric, StorageUnit};
use crate::layout::{Layout, LayoutFault};
use crate::memory::{self, MemoryEstimate, StageMemory};
use crate::model::flops::FlopDefinition;
use crate::model::lora::LoraError;
use crate::names::word_for;
use crate::reliability::{FailureRate, Interval, Size, expected_run_time, goodput, optimal_interval};
use crate::search::{self, Candidate, Loss, Outcome};
use crate::time;
use crate::units::{Bandwidth, FlopRate, Seconds, real};
use crate::workload::{Precision, Task, Workload};

/// Bytes of a token in a prepared dataset: an index of 4 bytes.
const TOKEN_BYTES: f64 = 4.0;
/// Part of a host link's rate that copies of many tensors reach.
const COPY_EFFICIENCY: f64 = 0.7;
/// A host link where the vendor states none: PCIe 4 with 16 lanes, in bytes a second.
const HOST_LINK: f64 = 32e9;
/// Joules of a kilowatt-hour.
const KILOWATT_HOUR: f64 = 3.6e6;
/// Step times that differ by less are the same.
const AS_FAST: f64 = 0.005;
/// Seconds of an hour.
const HOUR: f64 = 3_600.0;
/// Tokens that a price is told for.
const BILLION: i128 = 1_000_000_000;
/// The longest run that is planned, in seconds: a thousand years.
const RUN_MAX: f64 = 3.2e10;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// A size is nothing or absurd.
    #[error("{what} is {value}: {expected}")]
    Absurd {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The given layout breaks a rule.
    #[error("the layout can't be")]
    Layout(#[from] LayoutFault),
    /// No layout is possible.
    #[error("no cut of {model} fits a global batch of {batch} on {accelerators} accelerators: {hint}")]
    NoLayout {
        /// The model.
        model: String,
        /// Sequences of a step.
        batch: u64,
        /// How many accelerators.
        accelerators: u32,
        /// What to change.
        hint: String,
    },
    /// Every layout needs more memory than there is.
    #[error(
        "{model} fits on {accelerators} x {accelerator} in no way: the smallest cut ({layout}) needs {needed:.1} GiB of {capacity:.1} on each: {hint}"
    )]
    TooLarge {
        /// The model.
        model: String,
        /// How many accelerators.
        accelerators: u32,
        /// Of which kind.
        accelerator: String,
        /// The smallest cut.
        layout: String,
        /// What it needs, in GiB.
        needed: f64,
        /// What there is, in GiB.
        capacity: f64,
        /// What to change.
        hint: String,
    },
    /// The accelerator can't compute in this format.
    #[error("{accelerator} can't compute in {precision}: choose {choices}")]
    Precision {
        /// The accelerator.
        accelerator: String,
        /// The format.
        precision: &'static str,
        /// Formats that it has.
        choices: String,
    },
    /// The adapters can't be.
    #[error("the adapters can't be")]
    Lora(#[from] LoraError),
}

/// Makes a plan.
///
/// # Errors
/// [`PlanError`], with what to change.
pub fn make(request: &Request) -> Result<Plan, PlanError> {
    check(request)?;
    let Request { workload, cluster, .. } = request;
    let (chosen, outcome) = choose(request)?;
    let (class, class_reason) = classify(&workload.task, request.tokens, workload.model.parameters().total);
    let trained = trained_parameters(workload)?;
    let step = step_facts(workload, cluster, &chosen);
    let (checkpoint, reliability, interval) = keeping(request, trained);
    let run = run_facts(request, &chosen, &interval, &reliability);
    let mut plan = Plan {
        version: VERSION,
        model: model_facts(workload, trained),
        class,
        class_reason,
        workload: workload_facts(request),
        cluster: cluster_facts(request),
        layout: chosen.layout.to_string(),
        layouts_tried: outcome.as_ref().map_or(1, |outcome| outcome.tried),
        layouts_fitting: outcome.as_ref().map_or(usize::from(chosen.memory.fits()), |outcome| outcome.fitting),
        runners_up: outcome.as_ref().map(runners_up).unwrap_or_default(),
        fits: chosen.memory.fits(),
        memory_known_error: validation::MEMORY.told(),
        memory: stages(&chosen.memory),
        cost: cost(request, &run),
        serving: serving::serving(workload, cluster, &chosen),
        network: network(request, &chosen),
        step,
        run,
        checkpoint,
        reliability,
        advice: Vec::new(),
        assumptions: Vec::new(),
    };
    plan.advice = advice::advice(&plan, request, &chosen);
    plan.assumptions = advice::assumptions(request, &chosen);
    Ok(plan)
}

fn check(request: &Request) -> Result<(), PlanError> {
    let Request { workload, cluster, .. } = request;
    let sizes = [
        ("the number of accelerators", u64::from(cluster.accelerators), 1 << 20),
        ("the sequence", workload.sequence, 1 << 30),
        ("the global batch", workload.global_batch, 1 << 30),
        ("the number of tokens", request.tokens, 1 << 60),
    ];
    for (what, value, most) in sizes {
        if value == 0 || value > most {
            let expected = "give a number of at least 1 that a run could have";
            return Err(PlanError::Absurd { what, value: value.to_string(), expected });
        }
    }
    let of_step = workload.sequence.saturating_mul(workload.global_batch);
    if workload.task != Task::Inference && of_step > request.tokens {
        let value = format!("{}, less than a step's {of_step}", request.tokens);
        let expected = "give more tokens, or a smaller global batch";
        return Err(PlanError::Absurd { what: "the number of tokens", value, expected });
    }
    let per_node = cluster.per_node.max(1);
    if cluster.accelerators > per_node && !cluster.accelerators.is_multiple_of(per_node) {
        let value = format!("{}, and {per_node} are in a node", cluster.accelerators);
        let expected = "give a multiple of what a node has";
        return Err(PlanError::Absurd { what: "the number of accelerators", value, expected });
    }
    check_precision(workload.precision, &cluster.accelerator)
}

fn check_precision(precision: Precision, accelerator: &Accelerator) -> Result<(), PlanError> {
    if peak(precision, accelerator).is_some() {
        return Ok(());
    }
    let has = |(_, precision): &&(&str, Precision)| peak(*precision, accelerator).is_some();
    let choices: Vec<&str> = words::PRECISIONS.iter().filter(has).map(|(word, _)| *word).collect();
    Err(PlanError::Precision {
        accelerator: accelerator.name.clone(),
        precision: word_for(&precision, &words::PRECISIONS),
        choices: choices.join(", "),
    })
}

/// The rate that products in a format can have.
fn peak(precision: Precision, accelerator: &Accelerator) -> Option<FlopRate> {
    match precision {
        Precision::Fp32 => Some(accelerator.fp32),
        Precision::Tf32 => accelerator.peaks.tf32,
        Precision::Fp16 => accelerator.peaks.fp16,
        Precision::Bf16 => accelerator.peaks.bf16,
        Precision::Fp8 => accelerator.peaks.fp8,
        Precision::Fp4 => accelerator.peaks.fp4,
    }
}

/// The layout that was given, or the best.
fn choose(request: &Request) -> Result<(Candidate, Option<Outcome>), PlanError> {
    let Request { workload, cluster, .. } = request;
    if let Some(layout) = request.layout {
        layout.check(workload, cluster)?;
        let memory = memory::estimate(workload, &layout, cluster);
        let time = time::estimate(workload, &layout, cluster);
        return Ok((Candidate { layout, memory, time }, None));
    }
    let outcome = search::search(workload, cluster, request.stack);
    let (model, accelerators) = (workload.model.name.clone(), cluster.accelerators);
    match (&outcome.best, &outcome.smallest) {
        (Some(best), _) => Ok((best.clone(), Some(outcome))),
        (None, Some(smallest)) => Err(PlanError::TooLarge {
            model,
            accelerators,
            accelerator: cluster.accelerator.name.clone(),
            layout: smallest.layout.to_string(),
            needed: smallest.memory.fullest().occupied().gib(),
            capacity: smallest.memory.capacity.gib(),
            hint: advice::what_needs_less(&workload.task),
        }),
        (None, None) => {
            let batch = workload.global_batch;
            let hint = impossible(workload, cluster);
            Err(PlanError::NoLayout { model, batch, accelerators, hint })
        }
    }
}

/// What makes any cut impossible: the rule that cutting by data alone breaks.
fn impossible(workload: &Workload, cluster: &Cluster) -> String {
    let layout = Layout { data: cluster.accelerators, ..Layout::default() };
    layout.check(workload, cluster).err().map_or_else(
        || "choose a global batch that more numbers divide".to_owned(),
        |fault| format!("by data alone, {fault}"),
    )
}

fn trained_parameters(workload: &Workload) -> Result<u64, PlanError> {
    Ok(match (&workload.task, workload.task.adapters()) {
        (_, Some(lora)) => workload.model.lora_parameters(lora)?,
        (Task::Inference, _) => 0,
        _ => workload.model.parameters().total,
    })
}

fn model_facts(workload: &Workload, trained: u64) -> ModelFacts {
    let parameters = workload.model.parameters();
    ModelFacts {
        name: workload.model.name.clone(),
        parameters: parameters.total,
        active_parameters: parameters.active,
        trained_parameters: trained,
        embedding_parameters: parameters.embedding,
        layers: workload.model.layer_count(),
    }
}

fn workload_facts(request: &Request) -> WorkloadFacts {
    let workload = &request.workload;
    WorkloadFacts {
        task: words::task(&workload.task).to_owned(),
        sequence_tokens: workload.sequence,
        global_batch_sequences: workload.global_batch,
        tokens: request.tokens,
        precision: word_for(&workload.precision, &words::PRECISIONS).to_owned(),
        optimizer: word_for(&workload.optimizer, &words::OPTIMIZERS).to_owned(),
    }
}

fn cluster_facts(request: &Request) -> ClusterFacts {
    let cluster = &request.cluster;
    ClusterFacts {
        accelerator: cluster.accelerator.name.clone(),
        accelerators: cluster.accelerators,
        per_node: cluster.per_node,
        memory_bytes: cluster.accelerator.memory.get(),
        fabric: request.fabric.clone(),
        fabric_bytes_per_second: cluster.fabric.per_accelerator.get(),
    }
}

fn runners_up(outcome: &Outcome) -> Vec<RunnerUpFacts> {
    let facts = |runner_up: &search::RunnerUp| RunnerUpFacts {
        layout: runner_up.candidate.layout.to_string(),
        step_seconds: runner_up.candidate.time.total().get(),
        memory_bytes: runner_up.candidate.memory.fullest().occupied().get(),
        reason: reason(&runner_up.loss),
    };
    outcome.runners_up.iter().map(facts).collect()
}

fn reason(loss: &Loss) -> String {
    match loss {
        Loss::Slower { factor, .. } | Loss::NotSimpler { factor } if (factor - 1.0).abs() < AS_FAST => {
            "as fast, but cut in more ways".to_owned()
        }
        Loss::Slower { factor, component, extra } => {
            format!("{:.0} % slower, most of it {component} (+{:.2} s)", (factor - 1.0) * 100.0, extra.get())
        }
        Loss::TooLarge { needed, capacity, component } => {
            format!("faster, but needs {:.0} GiB of {:.0}, most of it {component}", needed.gib(), capacity.gib())
        }
        Loss::NotSimpler { factor } => {
            let part = (1.0 - factor) * 100.0;
            format!("{part:.0} % faster, which is less than estimates are good for, and cut in more ways")
        }
    }
}

/// Stages, alike neighbours together.
fn stages(memory: &MemoryEstimate) -> Vec<StageFacts> {
    let mut told: Vec<StageFacts> = Vec::new();
    for stage in &memory.stages {
        let facts = stage_facts(stage);
        match told.last_mut() {
            Some(last) if (last.occupied_bytes / facts.occupied_bytes - 1.0).abs() < 1e-3 => last.alike += 1,
            _ => told.push(facts),
        }
    }
    told
}

fn stage_facts(stage: &StageMemory) -> StageFacts {
    let parts = search::memory_components(stage);
    StageFacts {
        stage: stage.stage,
        alike: 1,
        components_bytes: parts.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.get())).collect(),
        allocated_bytes: stage.allocated().get(),
        occupied_bytes: stage.occupied().get(),
    }
}

fn step_facts(workload: &Workload, cluster: &Cluster, chosen: &Candidate) -> StepFacts {
    let seconds = chosen.time.total();
    let tokens = real(workload.sequence * workload.global_batch);
    let rate = tokens / seconds.get();
    let devices = f64::from(cluster.accelerators);
    let peak = peak(workload.precision, &cluster.accelerator).map_or(f64::INFINITY, FlopRate::get);
    let share = |definition: FlopDefinition| {
        let part = workload.model.training_flops(workload.sequence, definition).get() * rate / (devices * peak);
        (definition.name().to_owned(), part)
    };
    let is_whole = !matches!(workload.task, Task::Inference | Task::Lora(_) | Task::Qlora { .. });
    let definitions = [FlopDefinition::ModelCausal, FlopDefinition::ModelFull, FlopDefinition::SixN];
    let components = search::components(&chosen.time);
    StepFacts {
        seconds: seconds.get(),
        components_seconds: components.into_iter().map(|(name, time)| (name.to_owned(), time.get())).collect(),
        tokens_per_second: rate,
        tokens_per_second_per_accelerator: rate / devices,
        utilisation: if is_whole { definitions.into_iter().map(share).collect() } else { BTreeMap::new() },
        known_error: validation::known_error(workload, cluster),
    }
}

/// What saving and failures do to the run.
fn keeping(request: &Request, trained: u64) -> (CheckpointFacts, ReliabilityFacts, Interval) {
    let Request { workload, cluster, storage, failures, .. } = request;
    let size = Size::of(workload, trained);
    let link = cluster.accelerator.host_link.get();
    let link = Bandwidth::new(if link > 0.0 { link } else { HOST_LINK } * COPY_EFFICIENCY);
    let blocked = size.total() / f64::from(cluster.accelerators) / link;
    let bandwidth = bandwidth_of(storage, cluster);
    let written = size.total() / bandwidth.0;
    let read = size.total() / bandwidth.1;
    let recovery = request.recovery + read;
    let mean_time = failures.mean_time(cluster.accelerators);
    let interval = optimal_interval(size.total(), blocked.max(Seconds::new(1e-3)), written, mean_time);
    let checkpoint = CheckpointFacts {
        bytes: size.total().get(),
        weights_bytes: size.weights.get(),
        storage: storage.storage.name.clone(),
        blocked_seconds: blocked.get(),
        written_seconds: written.get(),
        interval_seconds: interval.between.get(),
        overhead: interval.overhead,
        bandwidth_wanted_bytes_per_second: interval.bandwidth_wanted.get(),
    };
    let FailureRate { per_thousand_node_days, source } = *failures;
    let reliability = ReliabilityFacts {
        mean_time_seconds: mean_time.get(),
        per_thousand_node_days,
        source: source.to_owned(),
        recovery_seconds: recovery.get(),
        goodput: goodput(&interval, recovery, mean_time),
    };
    (checkpoint, reliability, interval)
}

/// Rates of writing and reading of all there is.
fn bandwidth_of(choice: &StorageChoice, cluster: &Cluster) -> (Bandwidth, Bandwidth) {
    let nodes = cluster.accelerators.div_ceil(cluster.per_node.max(1));
    let units = match choice.storage.of {
        StorageUnit::Node => f64::from(nodes),
        StorageUnit::System => 1.0,
        StorageUnit::Tebibyte | StorageUnit::Stream => choice.units,
    };
    (choice.storage.write * units, choice.storage.read * units)
}

fn run_facts(request: &Request, chosen: &Candidate, interval: &Interval, reliability: &ReliabilityFacts) -> RunFacts {
    let Request { workload, cluster, .. } = request;
    let of_step = (workload.sequence * workload.global_batch).max(1);
    let steps = request.tokens.div_ceil(of_step);
    let training = chosen.time.total() * real(steps);
    let (recovery, mean) = (Seconds::new(reliability.recovery_seconds), Seconds::new(reliability.mean_time_seconds));
    let expected = expected_run_time(training, interval, recovery, mean).max(training);
    let devices = f64::from(cluster.accelerators);
    let watts = cluster.accelerator.watts;
    RunFacts {
        steps,
        training_seconds: training.get(),
        expected_seconds: expected.get(),
        accelerator_hours: expected.get() * devices / HOUR,
        accelerator_energy_kwh: (watts > 0.0).then(|| expected.get() * devices * watts / KILOWATT_HOUR),
        data_bytes_per_second: real(of_step) / chosen.time.total().get() * TOKEN_BYTES,
    }
}

fn cost(request: &Request, run: &RunFacts) -> Option<CostFacts> {
    let price = request.price.as_ref()?;
    let time = std::time::Duration::try_from_secs_f64(run.expected_seconds.min(RUN_MAX)).ok()?;
    let total = price.hourly.for_time(time).times(request.cluster.accelerators);
    let of_billion = i128::from(total.nano_dollars()) * BILLION / i128::from(request.tokens.max(1));
    Some(CostFacts {
        hourly_nano_dollars: price.hourly,
        total_nano_dollars: total,
        per_billion_tokens_nano_dollars: Money::from_nano_dollars(i64::try_from(of_billion).unwrap_or(i64::MAX)),
        source: price.source.clone(),
        as_of: price.as_of.clone(),
        is_stale: price.is_stale,
    })
}

fn network(request: &Request, chosen: &Candidate) -> NetworkFacts {
    let Request { workload, cluster, alternatives, .. } = request;
    let reduction = |cluster: &Cluster| time::gradient_reduction(workload, &chosen.layout, cluster).get();
    let is_one_node = cluster.accelerators <= cluster.per_node;
    let slower = alternatives.iter().filter(|(_, fabric)| fabric.per_accelerator < cluster.fabric.per_accelerator);
    let told = |(name, fabric): &(String, Fabric)| {
        let other = Cluster { fabric: *fabric, ..cluster.clone() };
        let step = match request.layout {
            Some(layout) => Some(time::estimate(workload, &layout, &other).total()),
            None => search::search(workload, &other, request.stack).best.map(|best| best.time.total()),
        };
        FabricFacts {
            fabric: name.clone(),
            gradient_reduction_seconds: reduction(&other),
            slowdown: step.map(|step| step / chosen.time.total()),
        }
    };
    NetworkFacts {
        gradient_reduction_seconds: reduction(cluster),
        alternatives: if is_one_node { Vec::new() } else { slower.map(told).collect() },
    }
}
