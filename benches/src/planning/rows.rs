//! What a row of a throughput table says: workload, layout, cluster, and the time measured.
//!
//! What a row leaves out is inferred, always the same way:
//! - Data parallelism is what the other dimensions leave of the accelerators. Without a micro-batch, a run without pipeline takes its whole
//!   batch at once, one with a pipeline takes single sequences. Without a global batch, there is no accumulation (`ga` = 1) but in a
//!   pipeline, which is taken as well filled.
//! - A run whose batch is smaller than its data parallelism (XLA on large slices) cuts sequences instead (context parallelism).
//! - The year is in `date` (`v25.02`, `26.04` and `2024-07` alike; 2024 without one). Up to 2022 attention wrote its scores; llm-foundry
//!   used the first tiled kernel; everything else the second. From 2023, tensor parallelism cuts the sequence as well.
//! - NeMo's recipes and MegaScale hide tensor parallelism's communication behind products, plain Megatron-LM doesn't.
//! - Experts are cut among tensor-parallel ranks before 2025, whole afterwards.
//! - `recompute` counts if it says full or selective; "per recipe" and "unknown" are taken as none.
//! - Adapters without targets sit on every linear layer with rank 16.

use gangline_planning::hardware::book::Book;
use gangline_planning::hardware::{Cluster, Generation};
use gangline_planning::layout::{AttentionKernel, Gradients, Layout, LossHead, Offload, Recompute, Sharding, Stack};
use gangline_planning::model::Model;
use gangline_planning::model::catalog::Catalog;
use gangline_planning::units::Seconds;
use gangline_planning::workload::{Lora, LoraForm, LoraTarget, Optimizer, Precision, Task, Workload};

use super::machine;
use super::measured;
use super::table::Row;

/// Year that is taken where a row has none.
const YEAR: u32 = 2024;
/// First year of tiled attention and cut sequences.
const TILED: u32 = 2023;
/// First year of whole experts beside tensor parallelism.
const WHOLE_EXPERTS: u32 = 2025;
/// The release of NeMo's container whose recipes fuse experts on Blackwell.
const FUSED_EXPERTS: &str = "26.06";
/// Micro-batches for each stage of a pipeline that is well filled.
const FILLED: u32 = 8;
/// Rank of adapters where a row has none.
const RANK: u64 = 16;

/// A row that can be predicted.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The row's id.
    pub(super) id: String,
    /// Its table.
    pub(super) source: String,
    /// What it is reported with.
    pub(super) group: &'static str,
    /// What was done,
    pub(super) workload: Workload,
    /// cut how,
    pub(super) layout: Layout,
    /// on what.
    pub(super) cluster: Cluster,
    /// Seconds of a step.
    pub(super) measured: Seconds,
}

/// What names mean.
pub(super) struct Books {
    models: Catalog,
    hardware: Book,
}

impl Books {
    /// Those that come with the product.
    pub(super) fn built_in() -> Self {
        Books { models: Catalog::built_in(), hardware: Book::built_in() }
    }
}

/// Reads a row.
///
/// # Errors
/// A sentence that says what the row lacks.
pub(super) fn run(books: &Books, row: &Row) -> Result<Run, String> {
    let cluster = machine::cluster(&books.hardware, row)?;
    let model = model(&books.models, row)?;
    let sequence = sequence(row).ok_or("no sequence length")?;
    let (layout, global_batch) = layout(row, &cluster, model.layer_count())?;
    let task = task(row)?;
    let precision = precision(row);
    let optimizer = if row.lower("precision").contains("pure") { Optimizer::AdamWPureBf16 } else { Optimizer::AdamW };
    let workload = Workload { model, task, sequence, global_batch, precision, optimizer };
    let measured = measured::seconds(row, &workload, cluster.accelerators)?;
    let group = machine::group(&workload, &cluster);
    let (id, source) = (row.text("id").to_owned(), row.source().to_owned());
    Ok(Run { id, source, group, workload, layout, cluster, measured })
}

/// Tokens of a sequence; `8K` is 8,192.
fn sequence(row: &Row) -> Option<u64> {
    let text = row.lower("seq");
    match text.strip_suffix('k') {
        Some(thousands) => thousands.trim().parse::<u64>().ok()?.checked_mul(1024).filter(|tokens| *tokens > 0),
        None => row.count("seq").map(u64::from),
    }
}

fn model(catalog: &Catalog, row: &Row) -> Result<Model, String> {
    let name = row.text("model");
    let mut model = catalog.find(name).map_err(|_| format!("unknown model {name}"))?;
    if row.lower("notes").contains("w/o mtp") {
        model.further_predictions = 0;
    }
    if let Some(layers) = row.count("layers_override") {
        cut_layers(&mut model, layers.into());
    }
    Ok(model)
}

/// Keeps the first layers; a model is lengthened in its last group.
fn cut_layers(model: &mut Model, layers: u64) {
    let mut left = layers;
    for group in &mut model.layers {
        group.count = group.count.min(left);
        left -= group.count;
    }
    if let Some(last) = model.layers.last_mut() {
        last.count += left;
    }
    model.layers.retain(|group| group.count > 0);
}

/// What is computed again: "none/unknown" is nothing, a bare yes is everything.
fn recomputed(text: &str) -> Recompute {
    match text {
        _ if text.contains("none") || text.contains("unknown") => Recompute::None,
        _ if text.contains("selective") => Recompute::Selective,
        _ if text.contains("full") => Recompute::Full,
        "yes" | "true" | "on" | "1" => Recompute::Full,
        _ => Recompute::None,
    }
}

/// Whether the loss overwrites logits: llm-foundry's `fused_crossentropy`, and NeMo's recipes of performance.
fn has_fused_loss(row: &Row) -> bool {
    row.lower("framework").contains("foundry") || has_half_gradients(row)
}

/// Whether gradients are summed in 16 bits, as in NeMo's and Megatron-Bridge's recipes of performance.
fn has_half_gradients(row: &Row) -> bool {
    ["nemo", "bridge"].iter().any(|name| row.lower("framework").contains(name))
}

/// Degrees of parallelism and batch as a row gives them.
struct Degrees {
    tensor: u32,
    pipeline: u32,
    context: u32,
    data: u32,
    micro_batch: u32,
    global_batch: u32,
}

fn layout(row: &Row, cluster: &Cluster, layers: u64) -> Result<(Layout, u64), String> {
    let degrees = degrees(row, cluster.accelerators)?;
    let year = year(row);
    let stack = stack(row);
    let expert = row.count("ep").unwrap_or(1);
    let recompute = row.lower("recompute");
    let is_cut = recompute.contains("+sp") || (year >= TILED && degrees.tensor > 1);
    let layout = Layout {
        tensor: degrees.tensor,
        is_sequence_parallel: is_cut,
        is_tensor_overlapped: is_cut && overlaps_tensor(row),
        pipeline: degrees.pipeline,
        virtual_stages: virtual_stages(row, layers, degrees.pipeline),
        context: degrees.context,
        expert,
        expert_tensor: if year >= WHOLE_EXPERTS { 1 } else { degrees.tensor },
        data: degrees.data,
        sharding: sharding(row, stack, degrees.data * degrees.context),
        micro_batch: degrees.micro_batch,
        recompute: recomputed(&recompute),
        offload: if row.lower("sharding").contains("offload") { Offload::Optimizer } else { Offload::None },
        stack,
        is_compiled: ["yes", "true"].iter().any(|word| row.lower("compile").contains(word)),
        has_fused_experts: fuses_experts(row, cluster),
        kernel: match year {
            _ if row.lower("framework").contains("foundry") => AttentionKernel::FlashFirst,
            year if year < TILED => AttentionKernel::Unfused,
            _ => AttentionKernel::Flash,
        },
        loss: if has_fused_loss(row) { LossHead::Fused } else { LossHead::Full },
        gradients: if has_half_gradients(row) { Gradients::Half } else { Gradients::Fp32 },
        ..Layout::default()
    };
    Ok((layout, degrees.global_batch.into()))
}

fn degrees(row: &Row, accelerators: u32) -> Result<Degrees, String> {
    let [tensor, pipeline, context] = ["tp", "pp", "cp"].map(|column| row.count(column).unwrap_or(1));
    let used = tensor * pipeline * context;
    if !accelerators.is_multiple_of(used) {
        return Err(format!("tp x pp x cp = {used} doesn't divide the accelerators"));
    }
    let data = accelerators / used;
    let stated = row.count("mbs");
    let accumulated = row.count("ga").unwrap_or(if pipeline == 1 { 1 } else { FILLED * pipeline });
    let global_batch = match (row.count("gbs"), stated) {
        (Some(batch), _) => batch,
        (None, Some(micro_batch)) => micro_batch * accumulated * data,
        (None, None) => return Err("no global batch and no micro-batch".to_owned()),
    };
    if global_batch < data {
        let (context, data) = (context * (data / global_batch), global_batch);
        return Ok(Degrees { tensor, pipeline, context, data, micro_batch: 1, global_batch });
    }
    let most = global_batch / data;
    let micro_batch = stated.unwrap_or(if pipeline == 1 { most } else { 1 }).min(most);
    Ok(Degrees { tensor, pipeline, context, data, micro_batch, global_batch })
}

/// Whether tensor parallelism's communication runs behind products.
fn overlaps_tensor(row: &Row) -> bool {
    let framework = row.lower("framework");
    ["nemo", "bridge", "megascale"].iter().any(|word| framework.contains(word)) && year(row) >= TILED
}

/// Whether the recipe fuses experts: those of DeepSeek-V3, Kimi-K2 and Qwen3 for 8 bits on Blackwell do from the container of 2026-06 on
/// (Megatron-Bridge 0.5.1, release notes: #4498, #4606, #4700); gpt-oss' fused kernels regressed there, Nemotron's have others.
fn fuses_experts(row: &Row, cluster: &Cluster) -> bool {
    let release = row.text("date").split(' ').next().unwrap_or_default();
    let model = row.lower("model");
    cluster.accelerator.generation == Generation::Blackwell
        && row.lower("framework").contains("bridge")
        && row.lower("precision").starts_with("mxfp8")
        && release >= FUSED_EXPERTS
        && ["deepseek", "kimi", "qwen3"].iter().any(|name| model.contains(name))
}

/// Chunks of a stage; where a row says no more than that they are interleaved, a layer each.
fn virtual_stages(row: &Row, layers: u64, pipeline: u32) -> u32 {
    let single = || u32::try_from(layers / u64::from(pipeline)).unwrap_or(1).max(1);
    let stated = row.count("vpp");
    stated.unwrap_or_else(|| if row.lower("vpp").contains("interleav") { single() } else { 1 })
}

/// The first number of two or four digits that is a year.
fn year(row: &Row) -> u32 {
    let digits = row.text("date").split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty());
    match digits.and_then(|part| part.parse().ok()) {
        Some(short @ 15..=50) => 2000 + short,
        Some(long @ 2015..=2050) => long,
        _ => YEAR,
    }
}

fn stack(row: &Row) -> Stack {
    let (framework, sharding) = (row.lower("framework"), row.lower("sharding"));
    let says = |words: &[&str]| words.iter().any(|word| framework.contains(word));
    match () {
        () if says(&["maxtext", "paxml", "jax", "xla", "levanter", "easylm", "t5x", "alpa"]) => Stack::Xla,
        () if says(&["deepspeed"]) && !says(&["megatron"]) => Stack::DeepSpeed,
        () if sharding.contains("fsdp") && !sharding.contains("megatron") => Stack::Fsdp,
        () if says(&["megatron", "nemo", "bridge", "primus", "megascale", "neox"]) => Stack::Megatron,
        () if says(&["fsdp", "foundry", "torchtitan", "composer"]) => Stack::Fsdp,
        () if sharding.contains("zero") || says(&["internevo"]) => Stack::DeepSpeed,
        () => Stack::Plain,
    }
}

fn sharding(row: &Row, stack: Stack, ranks: u32) -> Sharding {
    let text = row.lower("sharding");
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let within = text
        .split_once("within ")
        .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?.parse().ok());
    match () {
        () if says(&["zero2", "shard_grad_op", "zero-2", "stage 2"]) && stack == Stack::Fsdp => {
            Sharding::Parameters { reshards: false }
        }
        () if says(&["zero3", "fsdp", "zero-3", "hsdp", "full_shard", "stage 3"]) => {
            Sharding::Parameters { reshards: true }
        }
        () if says(&["zero2", "zero-2", "stage 2"]) => Sharding::Gradients,
        () if says(&["zero1", "zero-1", "stage 1", "distributed"]) => {
            Sharding::Optimizer { ranks: within.unwrap_or(ranks) }
        }
        () if text.is_empty() && stack == Stack::Xla => Sharding::Parameters { reshards: true },
        () => Sharding::None,
    }
}

fn precision(row: &Row) -> Precision {
    let text = row.lower("precision");
    match () {
        () if text.contains("fp4") => Precision::Fp4,
        () if text.contains("fp8") => Precision::Fp8,
        () if text.contains("tf32") => Precision::Tf32,
        () if text.contains("fp32") => Precision::Fp32,
        () if text.contains("fp16") => Precision::Fp16,
        () => Precision::Bf16,
    }
}

fn task(row: &Row) -> Result<Task, String> {
    let lora = || Lora { rank: RANK, targets: targets(), form: LoraForm::Plain };
    match row.lower("task").as_str() {
        "" | "pretrain" | "pre-training" | "pretraining" => Ok(Task::Pretrain),
        "sft" | "full" | "finetune" | "full-finetune" => Ok(Task::FullFinetune),
        "lora" => Ok(Task::Lora(lora())),
        "qlora" => Ok(Task::Qlora { lora: lora(), is_double: true }),
        other => Err(format!("unknown task {other}")),
    }
}

fn targets() -> Vec<LoraTarget> {
    vec![LoraTarget::Query, LoraTarget::Value]
}
