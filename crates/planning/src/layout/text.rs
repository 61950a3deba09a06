//! A layout as text: `tp=8,pp=2,dp=8,mbs=1`.
//!
//! Parts are `key=value`, in any order, with commas or spaces between. What is left out: every degree and the micro-batch 1; `sp` on where
//! tensor parallelism is; `stack` megatron where a model is cut, fsdp where parameters are shared out, else plain; `sharding` the
//! optimizer's state where Megatron has several replicas, parameters under fsdp.

use thiserror::Error;

use super::{AttentionKernel, Gradients, Layout, LossHead, Offload, Recompute, Sharding, Stack, Step};
use crate::names::{listed, nearest};

/// Text that isn't a layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutTextError {
    /// Too long to be one.
    #[error("a layout of more than {TEXT_MAX} bytes: write it as tp=8,pp=2,dp=8,mbs=1")]
    Long,
    /// A part without `=`.
    #[error("`{part}` isn't key=value: write it as tp=8")]
    Part {
        /// The part.
        part: String,
    },
    /// A key that isn't known.
    #[error("a layout has no `{key}`: did you mean {nearest}?")]
    Key {
        /// The key.
        key: String,
        /// The nearest known ones.
        nearest: String,
    },
    /// The same key again.
    #[error("`{key}` is given twice: keep one")]
    Twice {
        /// The key.
        key: String,
    },
    /// A value that the key can't have.
    #[error("{key}={value} isn't possible: {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it may be.
        expected: String,
    },
}

/// Longest text, in bytes.
const TEXT_MAX: usize = 1024;
/// Greatest degree.
const DEGREE_MAX: u32 = 1 << 20;

/// Keys, the short one of each first.
const KEYS: [&[&str]; 20] = [
    &["tp", "tensor"],
    &["sp", "sequence_parallel"],
    &["tp_overlap", "tensor_overlap"],
    &["pp", "pipeline"],
    &["vp", "vpp", "virtual_stages"],
    &["cp", "context"],
    &["ep", "expert"],
    &["etp", "expert_tensor"],
    &["dp", "data"],
    &["mbs", "micro_batch"],
    &["sharding", "zero"],
    &["recompute"],
    &["offload"],
    &["stack"],
    &["compile"],
    &["fused_experts"],
    &["attention", "kernel"],
    &["loss"],
    &["step"],
    &["gradients"],
];

pub(super) const RECOMPUTE: &[(&str, Recompute)] =
    &[("none", Recompute::None), ("selective", Recompute::Selective), ("full", Recompute::Full)];
pub(super) const OFFLOAD: &[(&str, Offload)] = &[
    ("none", Offload::None),
    ("optimizer", Offload::Optimizer),
    ("parameters", Offload::Parameters),
    ("activations", Offload::Activations),
];
/// Software.
pub const STACKS: &[(&str, Stack)] = &[
    ("megatron", Stack::Megatron),
    ("fsdp", Stack::Fsdp),
    ("deepspeed", Stack::DeepSpeed),
    ("plain", Stack::Plain),
    ("xla", Stack::Xla),
];
pub(super) const KERNELS: &[(&str, AttentionKernel)] = &[
    ("flash", AttentionKernel::Flash),
    ("flash1", AttentionKernel::FlashFirst),
    ("unfused", AttentionKernel::Unfused),
];
const SWITCH: &[(&str, bool)] = &[("on", true), ("off", false), ("1", true), ("0", false)];
pub(super) const STEPS: &[(&str, Step)] = &[("behind", Step::Behind), ("within", Step::Within)];
pub(super) const GRADIENTS: &[(&str, Gradients)] = &[("fp32", Gradients::Fp32), ("16bit", Gradients::Half)];
pub(super) const LOSSES: &[(&str, LossHead)] = &[
    ("full", LossHead::Full),
    ("chunked", LossHead::Chunked),
    ("fused", LossHead::Fused),
    ("streamed", LossHead::Streamed),
];

impl Layout {
    /// Reads a layout.
    ///
    /// # Errors
    /// When the text is too long, or a part isn't `key=value` of a known key and a value it can have.
    pub fn parse(text: &str) -> Result<Layout, LayoutTextError> {
        if text.len() > TEXT_MAX {
            return Err(LayoutTextError::Long);
        }
        let mut given: Vec<&'static str> = Vec::new();
        let mut layout = Layout::default();
        let mut sharding = None;
        for part in text.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| LayoutTextError::Part { part: part.to_owned() })?;
            let key = known_key(key)?;
            if given.contains(&key) {
                return Err(LayoutTextError::Twice { key: key.to_owned() });
            }
            given.push(key);
            match key {
                "sharding" => sharding = Some(value),
                _ => layout.set(key, value)?,
            }
        }
        layout.complete(&given, sharding)
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), LayoutTextError> {
        match key {
            "tp" => self.tensor = degree(key, value)?,
            "sp" => self.is_sequence_parallel = one_of(key, value, SWITCH)?,
            "tp_overlap" => self.is_tensor_overlapped = one_of(key, value, SWITCH)?,
            "pp" => self.pipeline = degree(key, value)?,
            "vp" => self.virtual_stages = degree(key, value)?,
            "cp" => self.context = degree(key, value)?,
            "ep" => self.expert = degree(key, value)?,
            "etp" => self.expert_tensor = degree(key, value)?,
            "dp" => self.data = degree(key, value)?,
            "mbs" => self.micro_batch = degree(key, value)?,
            "recompute" => self.recompute = one_of(key, value, RECOMPUTE)?,
            "offload" => self.offload = one_of(key, value, OFFLOAD)?,
            "compile" => self.is_compiled = one_of(key, value, SWITCH)?,
            "fused_experts" => self.has_fused_experts = one_of(key, value, SWITCH)?,
            "stack" => self.stack = one_of(key, value, STACKS)?,
            "attention" => self.kernel = one_of(key, value, KERNELS)?,
            "step" => self.step = one_of(key, value, STEPS)?,
            "gradients" => self.gradients = one_of(key, value, GRADIENTS)?,
            _ => self.loss = one_of(key, value, LOSSES)?,
        }
        Ok(())
    }

    /// Chooses what was left out.
    fn complete(mut self, given: &[&str], sharding: Option<&str>) -> Result<Layout, LayoutTextError> {
        if !given.contains(&"sp") {
            self.is_sequence_parallel = self.tensor > 1;
        }
        let is_cut = self.tensor > 1 || self.pipeline > 1 || self.context > 1 || self.expert > 1;
        let shares_parameters = matches!(sharding, Some("parameters" | "zero3" | "3" | "fsdp"));
        if !given.contains(&"stack") {
            self.stack = match (is_cut, shares_parameters, self.data > 1) {
                (true, ..) | (_, false, true) => Stack::Megatron,
                (_, true, _) => Stack::Fsdp,
                _ => Stack::Plain,
            };
        }
        let replicas = self.data.saturating_mul(self.context);
        self.sharding = match sharding {
            Some(value) => sharding_of(value, replicas)?,
            None if replicas == 1 => Sharding::None,
            None => match self.stack {
                Stack::Megatron => Sharding::Optimizer { ranks: replicas },
                Stack::Fsdp | Stack::Xla => Sharding::Parameters { reshards: true },
                Stack::DeepSpeed | Stack::Plain => Sharding::None,
            },
        };
        Ok(self)
    }
}

fn known_key(key: &str) -> Result<&'static str, LayoutTextError> {
    let wanted = key.trim().to_ascii_lowercase().replace('-', "_");
    let found = KEYS.iter().find(|names| names.contains(&wanted.as_str()));
    found.map(|names| names[0]).ok_or_else(|| LayoutTextError::Key {
        key: key.to_owned(),
        nearest: listed(&nearest(key, KEYS.iter().copied().flatten().copied())),
    })
}

fn degree(key: &str, value: &str) -> Result<u32, LayoutTextError> {
    let number = value.parse().ok().filter(|number| (1..=DEGREE_MAX).contains(number));
    number.ok_or_else(|| refused(key, value, format!("a whole number from 1 to {DEGREE_MAX}")))
}

fn one_of<T: Copy>(key: &str, value: &str, known: &[(&str, T)]) -> Result<T, LayoutTextError> {
    let wanted = value.to_ascii_lowercase();
    let found = known.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<String> = known.iter().map(|(name, _)| (*name).to_owned()).collect();
        refused(key, value, format!("choose {}", listed(&names)))
    })
}

/// `none`, `optimizer` (or `zero1`), `optimizer:8` for shards of 8 ranks, `gradients` (`zero2`), `parameters` (`zero3`, `fsdp`),
/// `parameters:kept` where they aren't freed between forward and backward.
fn sharding_of(value: &str, replicas: u32) -> Result<Sharding, LayoutTextError> {
    let (kind, detail) = value.split_once(':').map_or((value, None), |(kind, detail)| (kind, Some(detail)));
    match (kind.to_ascii_lowercase().as_str(), detail) {
        ("none" | "ddp" | "0", None) => Ok(Sharding::None),
        ("optimizer" | "zero1" | "1", None) => Ok(Sharding::Optimizer { ranks: replicas }),
        ("optimizer" | "zero1" | "1", Some(ranks)) => Ok(Sharding::Optimizer { ranks: degree("sharding", ranks)? }),
        ("gradients" | "zero2" | "2", None) => Ok(Sharding::Gradients),
        ("parameters" | "zero3" | "fsdp" | "3", None) => Ok(Sharding::Parameters { reshards: true }),
        ("parameters" | "zero3" | "fsdp" | "3", Some("kept")) => Ok(Sharding::Parameters { reshards: false }),
        _ => {
            let expected = "choose none, optimizer, optimizer:RANKS, gradients, parameters or parameters:kept";
            Err(refused("sharding", value, expected.to_owned()))
        }
    }
}

fn refused(key: &str, value: &str, expected: String) -> LayoutTextError {
    LayoutTextError::Value { key: key.to_owned(), value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_read_and_what_it_leaves_out_is_chosen() {
        let layout = Layout::parse("tp=8,pp=2,dp=8,mbs=1,vp=5").unwrap();
        let expected = Layout {
            tensor: 8,
            is_sequence_parallel: true,
            pipeline: 2,
            virtual_stages: 5,
            data: 8,
            sharding: Sharding::Optimizer { ranks: 8 },
            stack: Stack::Megatron,
            ..Layout::default()
        };
        assert_eq!(layout, expected);
        assert_eq!(layout.accelerators(), 128);
        assert_eq!(Layout::parse("").unwrap(), Layout::default());
        let sharded = Layout::parse("dp=16 Micro-Batch=2 zero=3 recompute=full loss=chunked").unwrap();
        assert_eq!((sharded.stack, sharded.micro_batch, sharded.loss), (Stack::Fsdp, 2, LossHead::Chunked));
        assert_eq!(sharded.sharding, Sharding::Parameters { reshards: true });
        let compiled = Layout::parse("compile=on,attention=flash1,tp_overlap=1").unwrap();
        assert_eq!((compiled.is_compiled, compiled.kernel), (true, AttentionKernel::FlashFirst));
        assert!(compiled.is_tensor_overlapped);
        let shards = Layout::parse("tp=2,dp=16,zero=1:8,sp=off").unwrap();
        assert_eq!((shards.sharding, shards.is_sequence_parallel), (Sharding::Optimizer { ranks: 8 }, false));
    }

    #[test]
    fn text_that_is_no_layout_is_refused_with_what_to_change() {
        let said = |text: &str| Layout::parse(text).unwrap_err().to_string();
        assert!(
            said("pipline=2").starts_with("a layout has no `pipline`: did you mean `pipeline`"),
            "{}",
            said("pipline=2")
        );
        assert_eq!(said("tp"), "`tp` isn't key=value: write it as tp=8");
        assert_eq!(said("tp=0"), "tp=0 isn't possible: a whole number from 1 to 1048576");
        assert_eq!(said("tp=99999999999999"), "tp=99999999999999 isn't possible: a whole number from 1 to 1048576");
        assert_eq!(said("tp=2,tensor=4"), "`tp` is given twice: keep one");
        assert_eq!(said("recompute=some"), "recompute=some isn't possible: choose `none`, `selective` or `full`");
        assert!(said("zero=4").ends_with("gradients, parameters or parameters:kept"));
        assert!(said(&"x".repeat(5_000)).contains("more than 1024 bytes"));
    }
}
