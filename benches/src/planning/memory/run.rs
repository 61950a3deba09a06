//! A row of `memory.csv` as a workload and a layout.
//!
//! What a row leaves out, by these rules (each is what the named software does by itself):
//!
//! - one accelerator, one sequence at a time, one micro-batch a step; accelerators that tensor and pipeline parallelism leave are replicas;
//! - several accelerators fully fine-tuning, or `fsdp` or `zero3` anywhere in the row: parameters are sharded; adapters: nothing is;
//!   frozen parameters of FSDP stay whole before October 2023 (PyTorch below 2.1 frees only what has gradients);
//! - AdamW; paged where litgpt's card couldn't hold AdamW's states; paged and within the backward pass where torchtune trains all on one;
//! - a peak of what was reserved is compared with what is allocated if its mean is given: that is of a cache emptied at each step;
//! - everything in bf16 where it says `true`, `pure` or `bfloat16`, in litgpt, torchtune, fsdp_qlora and when PEFT trains all; else mixed precision;
//! - adapters of rank 8 (64 in fsdp_qlora) on q and v (litgpt, PEFT), on all matrices where LLaMA-Factory, Unsloth or fsdp_qlora train, on q, v, output and
//!   work in torchtune since October 2024;
//! - the backward pass computes layers again in LLaMA-Factory, torchtune, Unsloth and fsdp_qlora;
//! - 4-bit scales are quantised too, but where it says `bnb.nf4` without `-dq`;
//! - attention in tiles, but on V100 or before 2023; chunks of logits in litgpt and torchtune, none whole in Unsloth;
//! - other adapters than LoRA are judged as LoRA of rank 8 on their targets, in a source of their own.

use gangline_planning::layout::{AttentionKernel, Layout, LossHead, Offload, Recompute, Sharding, Stack, Step};
use gangline_planning::memory::estimate;
use gangline_planning::model::catalog::Catalog;
use gangline_planning::model::{Attention, Model};
use gangline_planning::units::Volume;
use gangline_planning::workload::{Lora, LoraForm, Optimizer, Task, Workload};

use super::super::table::Row;
use super::words;
use words::has;

/// Added to a source whose figures nobody measured.
pub(super) const ESTIMATED: &str = "(estimated by its authors)";
/// Added to a source of runs that train all parameters on software for pre-training.
pub(super) const FROM_NOTHING: &str = "(software for pre-training)";
/// Added to a source of adapters that aren't low-rank ones.
pub(super) const AS_LORA: &str = "(other adapters, judged as LoRA)";
/// What AnswerDotAI's software is called.
const FSDP_QLORA: [&str; 3] = ["fsdp_qlora", "fsdp-qlora", "answer"];
/// Tokens at which a run is judged of which only is said that none fits.
const LEAST_SEQUENCE: u64 = 512;

/// A row as a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) workload: Workload,
    pub(super) layout: Layout,
    /// What the card has.
    pub(super) capacity: Volume,
    pub(super) peak: Peak,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Peak {
    /// It didn't fit.
    OutOfMemory,
    /// The sequence is the longest that fits.
    Longest,
    /// `max_memory_allocated`.
    Allocated(Volume),
    /// `max_memory_reserved`.
    Reserved(Volume),
    /// What `nvidia-smi` shows.
    Occupied(Volume),
    /// The same, of all accelerators together.
    OverAll(Volume),
}

/// The row's source.
pub(super) fn source(row: &Row) -> String {
    let table = row.text("table");
    if has(row.text("mem_kind"), &["estimate"]) {
        format!("{table} {ESTIMATED}")
    } else if matches!(method(row), Method::Other) {
        format!("{table} {AS_LORA}")
    } else if is_megatron(row) {
        format!("{table} {FROM_NOTHING}")
    } else {
        table.to_owned()
    }
}

/// Reads a row.
pub(super) fn read(catalog: &Catalog, row: &Row) -> Result<Run, String> {
    let model = model(catalog, row)?;
    let peak = peak(row)?;
    let sequence = match (row.count("seq"), peak) {
        (Some(sequence), _) => u64::from(sequence),
        (None, Peak::OutOfMemory) => LEAST_SEQUENCE,
        (None, _) => return Err("no sequence".to_owned()),
    };
    let capacity = words::capacity(row.text("gpu")).ok_or_else(|| format!("no memory of a {:?}", row.text("gpu")))?;
    let task = task(row, &model)?;
    let layout = layout(row, &task)?;
    let replicas = u64::from(layout.data) * u64::from(layout.micro_batch);
    let accumulated = row.count("ga").map_or(1, u64::from);
    let optimizer = words::optimizer(row.text("optimizer"), is_pure(row, &task));
    let precision = words::precision(row.text("precision"));
    let global_batch = replicas * accumulated;
    let mut workload = Workload { model, task, sequence, global_batch, precision, optimizer };
    let is_paged = has(row.text("framework"), &["litgpt"]) && !holds_states(&workload, &layout, capacity);
    if row.text("optimizer").is_empty() && (is_paged || is_torchtune_alone(row)) {
        workload.optimizer = Optimizer::PagedAdamW8Bit;
    }
    Ok(Run { workload, layout, capacity, peak })
}

/// Whether the card holds weights, gradients and optimizer state, whatever else there is.
fn holds_states(workload: &Workload, layout: &Layout, capacity: Volume) -> bool {
    let memory = estimate(workload, layout, &super::cluster(capacity)).fullest();
    workload.task != Task::FullFinetune || memory.weights * 2.0 + memory.optimizer <= capacity
}

/// The model by its name, or by the recipe's name in the notes.
fn model(catalog: &Catalog, row: &Row) -> Result<Model, String> {
    let recipe = row.text("notes").split("yaml ").nth(1).and_then(|rest| rest.split('/').next());
    let recipe = recipe.and_then(|name| catalog.find(name).ok());
    let by_name = |name: &str| catalog.find(name).ok();
    let name = row.text("model");
    let without_size = name.rsplit_once(' ').map(|(front, _)| front);
    let found = recipe.or_else(|| by_name(name)).or_else(|| without_size.and_then(by_name));
    let mut model = found.ok_or_else(|| format!("unknown model {name}"))?;
    if has(row.text("framework"), &["litgpt"]) {
        as_in_litgpt(&mut model);
    }
    Ok(model)
}

/// litgpt's models have a head of their own, and queries, keys and values in one matrix (`litgpt/model.py`).
fn as_in_litgpt(model: &mut Model) {
    model.embedding.is_tied = false;
    for group in &mut model.layers {
        if let Attention::Grouped(attention) = &mut group.layer.attention {
            attention.is_fused = true;
        }
    }
}

fn peak(row: &Row) -> Result<Peak, String> {
    let (kind, unit) = (row.text("mem_kind"), row.text("unit"));
    if [row.text("peak_mem"), row.text("seq")].iter().any(|text| has(text, &["oom", "out of memory"])) {
        return Ok(Peak::OutOfMemory);
    }
    if has(kind, &["largest seq"]) {
        return Ok(Peak::Longest);
    }
    let measured = words::volume(row.number("peak_mem").ok_or("no peak")?, unit);
    Ok(match () {
        () if has(unit, &["total over"]) => Peak::OverAll(measured),
        () if has(kind, &["reserved"]) && !has(kind, &["allocated", "avg"]) => Peak::Reserved(measured),
        () if has(kind, &["smi", "gpu memory", "gram", "used"]) => Peak::Occupied(measured),
        () => Peak::Allocated(measured),
    })
}

fn is_megatron(row: &Row) -> bool {
    has(row.text("framework"), &["megatron", "nemo", "internevo"])
}

enum Method {
    Full,
    Low,
    Quantised,
    Other,
}

fn method(row: &Row) -> Method {
    let (method, quant) = (row.text("method"), row.text("quant"));
    let is_quantised = has(quant, &["nf4", "fp4", "4bit", "4-bit", "int4", "hqq"]) || quant == "4";
    match () {
        () if has(method, &["qlora"]) || is_quantised => Method::Quantised,
        () if has(method, &["full", "pretrain", "sft"]) => Method::Full,
        () if ["lora", "dora", "rslora", "pissa"].contains(&method.to_lowercase().as_str()) => Method::Low,
        () => Method::Other,
    }
}

fn task(row: &Row, model: &Model) -> Result<Task, String> {
    let bits = row.text("quant");
    if has(bits, &["int8", "8bit", "8-bit"]) || ["8", "2"].contains(&bits) {
        return Err(format!("{bits}-bit weights aren't modelled"));
    }
    let is_double = has(bits, &["dq", "double"]) || !has(bits, &["bnb.nf4", "bnb.fp4"]);
    Ok(match method(row) {
        Method::Full => Task::FullFinetune,
        Method::Low | Method::Other => Task::Lora(lora(row, model)?),
        Method::Quantised => Task::Qlora { lora: lora(row, model)?, is_double },
    })
}

fn lora(row: &Row, model: &Model) -> Result<Lora, String> {
    const RANK: u64 = 8;
    const RANK_OF_FSDP_QLORA: u64 = 64;
    const RANK_MAX: u64 = 1024;
    let framework = row.text("framework");
    let named = words::targets(row.text("lora_targets"), model);
    let has_work = has(framework, &["torchtune"]) && row.text("date") >= "2024-10";
    let by_default = match () {
        () if has(framework, &["factory", "unsloth", "hf"]) || has(framework, &FSDP_QLORA) => "all",
        () if is_litgpt_all(row) => "all",
        () if has_work => "q v o mlp",
        () => "q v",
    };
    let mut targets = if named.is_empty() { words::targets(by_default, model) } else { named };
    if targets.is_empty() {
        targets = model.all_linear();
    }
    let is_other = matches!(method(row), Method::Other);
    let usual = if has(framework, &FSDP_QLORA) { RANK_OF_FSDP_QLORA } else { RANK };
    let rank = row.count("lora_r").map_or(usual, u64::from).min(if is_other { RANK } else { RANK_MAX });
    let form = match () {
        () if has(row.text("method"), &["dora"]) => LoraForm::WeightDecomposed,
        () if has(row.text("optimizer"), &["lora-fa"]) => LoraForm::FrozenDown,
        () => LoraForm::Plain,
    };
    Ok(Lora { rank, targets, form })
}

/// Recipes of litgpt's config hub that adapt every matrix (`config_hub/finetune/*/lora.yaml`): those of small models.
fn is_litgpt_all(row: &Row) -> bool {
    has(row.text("framework"), &["litgpt"]) && has(row.text("notes"), &["yaml gemma", "yaml tiny-llama", "yaml phi"])
}

/// Whether weights, gradients and moments are all in bf16.
fn is_pure(row: &Row, task: &Task) -> bool {
    let (precision, framework) = (row.text("precision"), row.text("framework"));
    let trains_all = *task == Task::FullFinetune;
    has(precision, &["true", "pure"])
        || has(framework, &FSDP_QLORA) && !has(precision, &["autocast", "32"])
        || has(row.text("method"), &["pure"])
        || has(framework, &["litgpt", "torchtune"])
        || trains_all && has(framework, &["peft"]) && has(precision, &["bfloat16"])
}

fn layout(row: &Row, task: &Task) -> Result<Layout, String> {
    let (sharding, framework) = (row.text("sharding"), row.text("framework"));
    let all = [sharding, framework, row.text("method")].join(" ");
    let accelerators = row.count("n_gpus").unwrap_or(1);
    let tensor = row.count("tp").or_else(|| words::degree(sharding, "tp")).unwrap_or(1);
    let pipeline = row.count("pp").or_else(|| words::degree(sharding, "pp")).unwrap_or(1);
    let data = accelerators / (tensor * pipeline);
    if data == 0 || data * tensor * pipeline != accelerators {
        return Err(format!("{accelerators} accelerators aren't tp {tensor} x pp {pipeline} x replicas"));
    }
    let shares_parameters = has(&all, &["fsdp", "zero3", "zero-3", "stage 3"]) && !has(sharding, &["fsdp=false"]);
    let is_cut = tensor * pipeline > 1;
    let is_deepspeed = has(&[all.as_str(), row.text("offload")].join(" "), &["zero", "deepspeed"]);
    let stack = match () {
        () if (is_megatron(row) || is_cut) && !shares_parameters => Stack::Megatron,
        () if shares_parameters && has(&all, &["fsdp"]) => Stack::Fsdp,
        () if is_deepspeed => Stack::DeepSpeed,
        () if data > 1 && *task == Task::FullFinetune => Stack::Fsdp,
        () => Stack::Plain,
    };
    let is_old = row.text("date") < "2023-11" && !row.text("date").is_empty();
    let reshards = !(is_old && *task != Task::FullFinetune);
    let sharding = match () {
        () if stack == Stack::Fsdp || shares_parameters => Sharding::Parameters { reshards },
        () if has(sharding, &["zero2", "zero-2", "stage 2"]) => Sharding::Gradients,
        () if has(sharding, &["zero1", "zero-1", "stage 1"]) && data > 1 => Sharding::Optimizer { ranks: data },
        () => Sharding::None,
    };
    let is_unfused = has(row.text("flash_attn"), &["eager", "false", "no"])
        || has(row.text("gpu"), &["v100"])
        || row.text("date") < "2023" && !row.text("date").is_empty();
    let recompute = words::recompute(row.text("recompute")).unwrap_or_else(|| recompute_by_default(&all));
    Ok(Layout {
        tensor,
        is_sequence_parallel: false,
        pipeline,
        data,
        sharding,
        micro_batch: row.count("mbs").unwrap_or(1),
        recompute,
        offload: offload(row, matches!(sharding, Sharding::Parameters { .. })),
        stack,
        kernel: if is_unfused { AttentionKernel::Unfused } else { AttentionKernel::Flash },
        is_compiled: has(row.text("compile"), &["true", "yes", "compile"]),
        step: step(row),
        loss: loss(row),
        ..Layout::default()
    })
}

fn offload(row: &Row, is_sharded: bool) -> Offload {
    let text = row.text("offload");
    // Unsloth's way of computing again keeps what it begins from on the host, since April 2024.
    let is_unsloth = has(row.text("framework"), &["unsloth"]) && row.text("date") >= "2024-04";
    if is_unsloth || has(row.text("recompute"), &["offload"]) {
        Offload::Activations
    } else {
        words::offload(text, is_sharded)
    }
}

fn recompute_by_default(framework: &str) -> Recompute {
    if has(framework, &["factory", "torchtune", "unsloth"]) || has(framework, &FSDP_QLORA) {
        Recompute::Full
    } else {
        Recompute::None
    }
}

fn loss(row: &Row) -> LossHead {
    let framework = row.text("framework");
    match words::loss(row.text("loss_impl")) {
        _ if has(framework, &["unsloth"]) => LossHead::Streamed,
        Some(loss) => loss,
        None if has(framework, &["litgpt", "torchtune"]) => LossHead::Chunked,
        None => LossHead::Full,
    }
}

/// torchtune's recipes for one accelerator step within the backward pass.
fn step(row: &Row) -> Step {
    let optimizer = row.text("optimizer");
    let is_within = has(optimizer, &["bwd", "backward"]) || optimizer.is_empty() && is_torchtune_alone(row);
    if is_within { Step::Within } else { Step::Behind }
}

fn is_torchtune_alone(row: &Row) -> bool {
    has(row.text("framework"), &["torchtune"])
        && row.count("n_gpus").unwrap_or(1) == 1
        && matches!(method(row), Method::Full)
}

#[cfg(test)]
mod tests {
    use gangline_planning::workload::LoraTarget;

    use super::*;

    fn run(fields: &[(&str, &str)]) -> Result<Run, String> {
        read(&Catalog::built_in(), &Row::of(fields))
    }

    #[test]
    fn a_litgpt_row_is_adapters_in_bf16_on_one_card() {
        let fields = [
            ("framework", "litgpt"),
            ("model", "Llama 2 7 B"),
            ("method", "qlora"),
            ("quant", "bnb.nf4"),
            ("precision", "bf16-true"),
            ("gpu", "A100-SXM4-40GB"),
            ("seq", "1304"),
            ("mbs", "2"),
            ("ga", "64"),
            ("lora_targets", "q,v (r=8 default)"),
            ("peak_mem", "14.14"),
            ("unit", "GB (1e9, torch.cuda.max_memory_allocated/1e9)"),
            ("mem_kind", "peak allocated"),
        ];
        let run = run(&fields).unwrap();
        let lora = Lora { rank: 8, targets: vec![LoraTarget::Query, LoraTarget::Value], form: LoraForm::Plain };
        assert_eq!(run.workload.task, Task::Qlora { lora, is_double: false });
        assert_eq!((run.workload.optimizer, run.workload.global_batch), (Optimizer::AdamWPureBf16, 128));
        assert_eq!((run.layout.stack, run.layout.loss, run.layout.micro_batch), (Stack::Plain, LossHead::Chunked, 2));
        assert_eq!(run.peak, Peak::Allocated(Volume::new(14.14e9)));
    }

    #[test]
    fn degrees_stand_in_the_sharding_too() {
        let fields = [
            ("framework", "InternEvo"),
            ("model", "InternLM-7B"),
            ("method", "full (pretrain/sft)"),
            ("n_gpus", "4"),
            ("gpu", "A800-80GB"),
            ("seq", "2048"),
            ("sharding", "zero1=-1 tp=1 pp=4 fsdp=False"),
            ("recompute", "full"),
            ("peak_mem", "69.0"),
            ("unit", "GB"),
            ("mem_kind", "GPU memory (nvidia-smi-like)"),
        ];
        let run = run(&fields).unwrap();
        assert_eq!((run.layout.pipeline, run.layout.data, run.layout.stack), (4, 1, Stack::Megatron));
        assert_eq!((run.layout.recompute, run.peak), (Recompute::Full, Peak::Occupied(Volume::new(69e9))));
    }

    #[test]
    fn deepspeed_shares_out_what_its_stage_says() {
        let of = |sharding| {
            let fields = [("model", "llama-2-7b"), ("method", "full"), ("framework", "DeepSpeed"), ("n_gpus", "8")];
            let rest = [("gpu", "A100-80GB"), ("seq", "2048"), ("peak_mem", "40"), ("sharding", sharding)];
            let layout = run(&[&fields[..], &rest[..]].concat()).unwrap().layout;
            (layout.stack, layout.sharding)
        };
        assert_eq!(of("zero3"), (Stack::DeepSpeed, Sharding::Parameters { reshards: true }));
        assert_eq!(of("ZeRO-2"), (Stack::DeepSpeed, Sharding::Gradients));
        assert_eq!(of("zero1"), (Stack::DeepSpeed, Sharding::Optimizer { ranks: 8 }));
        assert_eq!(of("fsdp"), (Stack::Fsdp, Sharding::Parameters { reshards: true }));
    }

    #[test]
    fn torchtune_and_unsloth_are_what_their_recipes_say() {
        let common =
            [("model", "Llama3.1 8B"), ("gpu", "RTX 4090"), ("seq", "2048"), ("peak_mem", "20"), ("unit", "GiB")];
        let torchtune = [&common[..], &[("framework", "torchtune"), ("method", "full"), ("date", "2024-12")]].concat();
        let run_of = |fields: &[(&str, &str)]| run(fields).unwrap();
        let whole = run_of(&torchtune);
        assert_eq!((whole.layout.step, whole.layout.recompute), (Step::Within, Recompute::Full));
        assert_eq!(whole.workload.optimizer, Optimizer::PagedAdamW8Bit);
        let unsloth = [&common[..], &[("framework", "Unsloth"), ("method", "qlora"), ("date", "2025-01")]].concat();
        let unsloth = run_of(&unsloth);
        assert_eq!((unsloth.layout.loss, unsloth.layout.offload), (LossHead::Streamed, Offload::Activations));
        assert!(matches!(unsloth.workload.task, Task::Qlora { is_double: true, .. }));
    }

    #[test]
    fn a_row_that_lacks_what_is_needed_says_what() {
        assert_eq!(run(&[("model", "nobody-3b")]), Err("unknown model nobody-3b".to_owned()));
        let model = ("model", "llama-2-7b");
        assert_eq!(run(&[model]), Err("no peak".to_owned()));
        assert_eq!(run(&[model, ("peak_mem", "12")]), Err("no sequence".to_owned()));
        let sized = [model, ("peak_mem", "12"), ("seq", "512")];
        assert_eq!(run(&sized), Err("no memory of a \"\"".to_owned()));
        let uneven = [&sized[..], &[("gpu", "A100"), ("n_gpus", "6"), ("tp", "4")]].concat();
        assert_eq!(run(&uneven), Err("6 accelerators aren't tp 4 x pp 1 x replicas".to_owned()));
        let oom = run(&[model, ("peak_mem", "OOM"), ("gpu", "A100")]).unwrap();
        assert_eq!((oom.peak, oom.workload.sequence), (Peak::OutOfMemory, LEAST_SEQUENCE));
    }

    #[test]
    fn sources_that_stand_apart_say_why() {
        let of = |fields: &[(&str, &str)]| source(&Row::of(fields));
        assert_eq!(of(&[("table", "t"), ("method", "lora")]), "t");
        assert_eq!(of(&[("table", "t"), ("method", "boft")]), "t (other adapters, judged as LoRA)");
        assert_eq!(of(&[("table", "t"), ("mem_kind", "ESTIMATE by the authors")]), "t (estimated by its authors)");
        let pretraining = [("table", "t"), ("method", "full"), ("framework", "Megatron")];
        assert_eq!(of(&pretraining), "t (software for pre-training)");
    }
}
