//! The options that describe a run, and the request built from them.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use gangline_base::Money;
use gangline_planning::hardware::book::Book;
use gangline_planning::hardware::{Cluster, Fabric, Generation};
use gangline_planning::layout::STACKS;
use gangline_planning::model::Model;
use gangline_planning::plan::words::{OPTIMIZERS, PRECISIONS, TASKS, meaning, task_named};
use gangline_planning::plan::{Price, Request, StorageChoice};
use gangline_planning::reliability::FailureRate;
use gangline_planning::units::Seconds;
use gangline_planning::workload::{Lora, LoraForm, LoraTarget, Optimizer, Precision, Task, Workload};

use super::books::{self, BookArgs, Books, wrong};
use crate::amount;
use crate::failure::Failure;

/// Usual numbers of tokens in a step for pre-training (Llama 3: 4M to 16M) and for fine-tuning.
const STEP_TOKENS: [u64; 2] = [4 << 20, 1 << 19];
/// Default time from a failure to the first step: detection, a new node, the framework's start
/// (arXiv:2410.21680 takes 5 to 20 minutes).
const RECOVERY_SECONDS: u32 = 300;
/// Default rank of adapters.
const LORA_RANK: u64 = 16;
/// Default number of simultaneous sequences in serving.
const SERVED_AT_ONCE: u64 = 16;
/// Default number of accelerators in a node.
const NODE: u32 = 8;
/// Networks that are tried besides the named one, the faster first.
const SLOWER_FABRICS: [&str; 3] = ["infiniband-hdr", "efa-p4d", "ethernet-100-node"];
/// Accelerators that are tried if none is named, where a price is known.
const KINDS: [&str; 6] = ["A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200", "L40S"];
/// Numbers of accelerators that are tried: powers of two up to this exponent.
const COUNT_BITS_MAX: u32 = 12;
/// Seconds in a second, a minute, an hour, a day and a week.
const TIME_UNITS: [(char, f64); 5] = [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0), ('w', 604_800.0)];
/// Nano-dollars in a dollar.
const DOLLAR: f64 = 1e9;
/// Maximum time in seconds, and maximum sum in dollars.
const AMOUNT_MAX: f64 = 1e9;

/// The run.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The model, by name: llama-3.1-70b, qwen3-30b-a3b, gpt3-175b
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The model, by its Hugging Face config.json
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    config: Option<PathBuf>,
    /// What is done: pretrain, continual-pretrain, full-finetune (or sft), lora, qlora or inference
    #[arg(long, default_value = TASKS[2])]
    task: String,
    /// The accelerator: h100, a100-80gb, rtx-4090, b200 [default without --gpus: those with a known price]
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// How many [default: the number is looked for]
    #[arg(long, value_name = "N", value_parser = amount::positive::<NonZeroU32>)]
    gpus: Option<NonZeroU32>,
    /// How many a node has [default: 8, or all if they are fewer]
    #[arg(long, value_name = "N", value_parser = amount::positive::<NonZeroU32>)]
    gpus_per_node: Option<NonZeroU32>,
    /// Tokens of a sequence
    #[arg(long, value_name = "TOKENS", default_value = "4096")]
    seq: u64,
    /// Sequences of a step [default: about 4M tokens for pre-training, 512K for fine-tuning]
    #[arg(long, value_name = "SEQUENCES")]
    global_batch: Option<u64>,
    /// Tokens of the run: 500M, 2T [default: 20 a parameter for pre-training, 100M for fine-tuning]
    #[arg(long, value_name = "N", value_parser = amount::tokens)]
    tokens: Option<u64>,
    /// Format of the products: fp32, tf32, fp16, bf16, fp8 or fp4 [default: bf16, fp16 where there is none]
    #[arg(long)]
    precision: Option<String>,
    /// The optimizer: adamw, adamw-bf16, adamw-8bit, adamw-8bit-paged, adafactor, muon or sgd-momentum
    #[arg(long, default_value = "adamw")]
    optimizer: String,
    /// Rank of the adapters [default: 16]
    #[arg(long, value_name = "R", value_parser = amount::positive::<NonZeroU32>)]
    lora_rank: Option<NonZeroU32>,
    /// Matrices that have adapters, such as q_proj,v_proj [default: all linear ones]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    lora_targets: Vec<String>,
    /// The software: megatron, fsdp, deepspeed, plain or xla [default: the fastest that people use for such a task]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    /// The network between nodes: infiniband-ndr, roce-400, efa-v2, ethernet-100-node, ... [default: by the accelerator's generation]
    #[arg(long, value_name = "NAME")]
    fabric: Option<String>,
    /// Where checkpoints are written: nvme, lustre-1000=40 (in TiB), object-store-node, ...
    #[arg(long, value_name = "NAME[=UNITS]", default_value = "nvme-gen4")]
    storage: String,
    /// What an accelerator costs for an hour, in dollars [default: the cheapest in the price book, on demand]
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    price: Option<Money>,
    /// Failures in 1,000 days of an 8-GPU node [default: 3.79, what Llama 3's run had]
    #[arg(long, value_name = "N", value_parser = rate)]
    failures: Option<f64>,
    /// Seconds from a failure to the next step, without reading the checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = RECOVERY_SECONDS)]
    recovery: u32,
    #[command(flatten)]
    books: BookArgs,
}

impl RunArgs {
    /// Reports whether a model or an accelerator is given.
    pub(crate) fn is_begun(&self) -> bool {
        self.model.is_some() || self.config.is_some() || self.gpu.is_some() || self.gpus.is_some()
    }

    /// Reports whether the number of accelerators is given.
    pub(crate) fn is_sized(&self) -> bool {
        self.gpus.is_some()
    }

    /// Returns the user's files for planning the run.
    pub(crate) fn books(&self) -> &BookArgs {
        &self.books
    }

    /// Builds the request for the given number of accelerators.
    pub(crate) fn request(&self) -> Result<Request, Failure> {
        let missing = |what: &str, hint: &str| Failure::coded("G0601", format!("failed to plan: {what}"), hint);
        let gpu = self
            .gpu
            .as_deref()
            .ok_or_else(|| missing("no accelerator is named", "name one with --gpu, such as h100"))?;
        let gpus = self.gpus.ok_or_else(|| missing("the number of accelerators is missing", "give it with --gpus"))?;
        let books = self.books.read()?;
        let request = self.request_for(&books, self.model()?, gpu, gpus.get())?;
        Ok(Request { alternatives: slower(&books.hardware), ..request })
    }

    fn model(&self) -> Result<Model, Failure> {
        books::model(self.model.as_deref(), self.config.as_deref())
    }

    /// Builds requests for all kinds and numbers that are tried. Slower networks are only tried for the one
    /// that is chosen.
    pub(crate) fn requests(&self) -> Result<Vec<Request>, Failure> {
        let kinds: Vec<&str> = self.gpu.as_deref().map_or_else(|| KINDS.to_vec(), |gpu| vec![gpu]);
        let (books, model) = (self.books.read()?, self.model()?);
        let mut requests = Vec::new();
        for kind in kinds {
            let first = self.request_for(&books, model.clone(), kind, 1)?;
            if first.price.is_none() && self.gpu.is_some() {
                let message = format!("failed to plan: no price of {} is known", first.cluster.accelerator.name);
                return Err(Failure::coded("G0601", message, "give one with --price, in dollars for an hour"));
            }
            if first.price.is_some() {
                requests.extend((0..=COUNT_BITS_MAX).map(|bits| {
                    let (accelerators, per_node) = (1 << bits, self.per_node(1 << bits));
                    Request { cluster: Cluster { accelerators, per_node, ..first.cluster.clone() }, ..first.clone() }
                }));
            }
        }
        Ok(requests)
    }

    fn request_for(&self, books: &Books, model: Model, gpu: &str, accelerators: u32) -> Result<Request, Failure> {
        let book = &books.hardware;
        let accelerator = book.accelerator(gpu).map_err(|error| wrong(&error))?.value.clone();
        let generation = accelerator.generation;
        let workload = self.workload(model, generation)?;
        let fabric = self.fabric.clone().unwrap_or_else(|| usual_fabric(generation).to_owned());
        let price = match self.price {
            Some(hourly) => Some(Price { hourly, source: "as given".to_owned(), as_of: None, is_stale: false }),
            None => books.price(&accelerator.name),
        };
        let parameters = workload.model.parameters().total;
        let tokens = self.tokens.unwrap_or(match workload.task {
            Task::Pretrain => parameters.saturating_mul(20),
            _ => 100_000_000.max(workload.sequence.saturating_mul(workload.global_batch)),
        });
        let named = book.fabric(&fabric).map_err(|error| wrong(&error))?.value;
        Ok(Request {
            workload,
            tokens,
            cluster: Cluster { accelerator, accelerators, per_node: self.per_node(accelerators), fabric: named },
            fabric,
            alternatives: Vec::new(),
            layout: None,
            stack: self
                .stack
                .as_deref()
                .map(|word| meaning("stack", word, STACKS))
                .transpose()
                .map_err(|error| wrong(&error))?,
            price,
            storage: self.storage(book)?,
            failures: self.failures.map_or(FailureRate::LLAMA_3, |per_thousand_node_days| FailureRate {
                per_thousand_node_days,
                source: "--failures",
            }),
            recovery: Seconds::new(f64::from(self.recovery)),
        })
    }

    fn per_node(&self, accelerators: u32) -> u32 {
        self.gpus_per_node.map_or(NODE, NonZeroU32::get).min(accelerators)
    }

    fn workload(&self, model: Model, generation: Generation) -> Result<Workload, Failure> {
        let task = match task_named(&self.task).map_err(|error| wrong(&error))? {
            0 => Task::Pretrain,
            1 => Task::ContinualPretrain,
            2 => Task::FullFinetune,
            3 => Task::Lora(self.lora(model.all_linear())?),
            4 => Task::Qlora { lora: self.lora(model.all_linear())?, is_double: true },
            _ => Task::Inference,
        };
        if task.adapters().is_none() && (self.lora_rank.is_some() || !self.lora_targets.is_empty()) {
            let message = format!("failed to plan: {} has no adapters for --lora-rank and --lora-targets", self.task);
            return Err(Failure::coded("G0601", message, "leave them out, or choose --task lora or qlora"));
        }
        let precision = match &self.precision {
            Some(word) => meaning("precision", word, &PRECISIONS).map_err(|error| wrong(&error))?,
            None if matches!(generation, Generation::Volta | Generation::Turing) => Precision::Fp16,
            None => Precision::Bf16,
        };
        let optimizer: Optimizer = meaning("optimizer", &self.optimizer, &OPTIMIZERS).map_err(|error| wrong(&error))?;
        let wanted = STEP_TOKENS[usize::from(!matches!(task, Task::Pretrain | Task::ContinualPretrain))];
        let usual = (wanted / self.seq.max(1)).max(1);
        Ok(Workload {
            model,
            sequence: self.seq,
            global_batch: self.global_batch.unwrap_or(if task == Task::Inference { SERVED_AT_ONCE } else { usual }),
            task,
            precision,
            optimizer,
        })
    }

    fn lora(&self, all: Vec<LoraTarget>) -> Result<Lora, Failure> {
        let unknown = |name: &String| {
            let message = format!("failed to plan: no matrix is called `{name}`");
            Failure::coded(
                "G0601",
                message,
                "name q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or leave it out for all",
            )
        };
        let named: Result<Vec<LoraTarget>, Failure> =
            self.lora_targets.iter().map(|name| LoraTarget::named(name).ok_or_else(|| unknown(name))).collect();
        let targets = if self.lora_targets.is_empty() { all } else { named? };
        Ok(Lora {
            rank: self.lora_rank.map_or(LORA_RANK, |rank| u64::from(rank.get())),
            targets,
            form: LoraForm::Plain,
        })
    }

    fn storage(&self, book: &Book) -> Result<StorageChoice, Failure> {
        let (name, units) =
            self.storage.split_once('=').map_or((self.storage.as_str(), None), |(name, units)| (name, Some(units)));
        let storage = book.storage(name).map_err(|error| wrong(&error))?.value.clone();
        let units = match units.map(str::parse::<f64>) {
            None => 1.0,
            Some(Ok(units)) if units > 0.0 && units <= AMOUNT_MAX => units,
            Some(_) => {
                let message = format!("failed to plan: --storage {} has no number after =", self.storage);
                return Err(Failure::coded("G0601", message, "write it as lustre-1000=40, which is 40 TiB"));
            }
        };
        Ok(StorageChoice { storage, units })
    }
}

/// Returns the usual network of such accelerators.
const fn usual_fabric(generation: Generation) -> &'static str {
    match generation {
        Generation::Volta | Generation::Turing => "infiniband-edr-node",
        Generation::Ampere | Generation::Ada | Generation::Cdna2 => "infiniband-hdr",
        _ => "infiniband-ndr",
    }
}

fn slower(book: &Book) -> Vec<(String, Fabric)> {
    let known = |name: &&str| Some(((*name).to_owned(), book.fabric(name).ok()?.value));
    SLOWER_FABRICS.iter().filter_map(known).collect()
}

/// Parses a time such as `36h` or `7d`; returns seconds.
pub(crate) fn time(text: &str) -> Result<f64, String> {
    let wrong = || "write a time with its unit, such as 36h or 7d".to_owned();
    let unit =
        text.chars().last().and_then(|last| TIME_UNITS.iter().find(|(unit, _)| *unit == last)).ok_or_else(wrong)?.1;
    let number: f64 = text[..text.len() - 1].trim().parse().map_err(|_| wrong())?;
    let seconds = number * unit;
    if seconds > 0.0 && seconds <= AMOUNT_MAX { Ok(seconds) } else { Err(wrong()) }
}

/// Parses dollars such as `2.49`.
pub(crate) fn dollars(text: &str) -> Result<Money, String> {
    let wrong = || "write dollars such as 2.49 or 20000".to_owned();
    let number: f64 = text.trim().trim_start_matches('$').parse().map_err(|_| wrong())?;
    if !(number > 0.0 && number <= AMOUNT_MAX) {
        return Err(wrong());
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 10^18")]
    let nanos = (number * DOLLAR).round() as i64;
    Ok(Money::from_nano_dollars(nanos))
}

fn rate(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| *number > 0.0 && *number <= AMOUNT_MAX)
        .ok_or_else(|| "write a number above 0, such as 6.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_dollars_are_read_and_what_is_neither_is_refused() {
        assert_eq!((time("36h"), time("7d")), (Ok(129_600.0), Ok(604_800.0)));
        assert!(time("7").is_err() && time("-1h").is_err() && time("").is_err() && time("é").is_err());
        assert_eq!(dollars("$2.49"), Ok(Money::from_nano_dollars(2_490_000_000)));
        assert!(dollars("0").is_err() && dollars("nan").is_err() && dollars("1e30").is_err());
    }
}
