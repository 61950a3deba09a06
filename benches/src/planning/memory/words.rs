//! What the tables' words mean, whatever their spelling.

use gangline_planning::layout::{LossHead, Offload, Recompute};
use gangline_planning::model::Model;
use gangline_planning::units::Volume;
use gangline_planning::workload::{LoraTarget, Optimizer, Precision};

/// Whether the text has one of the words, in whatever case.
pub(super) fn has(text: &str, words: &[&str]) -> bool {
    let text = text.to_lowercase();
    words.iter().any(|word| text.contains(word))
}

/// A number behind a name: `pp=3` in `zero1=-1 tp=1 pp=3`, `tp4` in `tp4 pp16`.
pub(super) fn degree(text: &str, name: &str) -> Option<u32> {
    let words = text.split([' ', ',', ';', '/']);
    words.filter_map(|word| word.trim().strip_prefix(name)).find_map(|rest| rest.trim_start_matches('=').parse().ok())
}

/// Megabytes and the like as the table's unit says.
pub(super) fn volume(amount: f64, unit: &str) -> Volume {
    if has(unit, &["mib"]) {
        Volume::new(amount * 1_048_576.0)
    } else if has(unit, &["gib"]) {
        Volume::from_gib(amount)
    } else if unit.trim_start().to_lowercase().starts_with("mb") {
        Volume::new(amount * 1e6)
    } else {
        Volume::new(amount * 1e9)
    }
}

/// Cards by what their name has, and their memory in GB (data sheets), for names that don't say it.
const CARDS: [(&str, f64); 18] = [
    ("b200", 180.0),
    ("b300", 288.0),
    ("h200", 141.0),
    ("h100", 80.0),
    ("h800", 80.0),
    ("a800", 80.0),
    ("l40", 48.0),
    ("a40", 48.0),
    ("a6000", 48.0),
    ("6000 ada", 48.0),
    ("a5000", 24.0),
    ("a10", 24.0),
    ("3090", 24.0),
    ("4090", 24.0),
    ("5090", 32.0),
    ("l4", 24.0),
    ("t4", 16.0),
    ("v100", 16.0),
];

/// A card's memory: the number before `GB` in its name, or what such a card has; 80 GB of an A100 that doesn't say.
///
/// Vendors' GB are GiB on the card. GDDR6 with error correction keeps a 16th of it for checks.
pub(super) fn capacity(card: &str) -> Option<Volume> {
    let name = card.to_lowercase();
    let said = name.split("gb").next().filter(|_| name.contains("gb")).and_then(|before| {
        let digits: String = before.trim_end().chars().rev().take_while(char::is_ascii_digit).collect();
        digits.chars().rev().collect::<String>().parse::<f64>().ok()
    });
    let known = CARDS.iter().find(|(part, _)| name.contains(part) && *part != "a10").map(|(_, gigabytes)| *gigabytes);
    let of_a100 = if name.contains("a100") { Some(80.0) } else { name.contains("a10").then_some(24.0) };
    let gibibytes = said.or(known).or(of_a100)?;
    let has_checks = has(&name, &["l40", "a10g", "a6000", "a5000", "6000 ada"]);
    Some(Volume::from_gib(if has_checks { gibibytes * 15.0 / 16.0 } else { gibibytes }))
}

/// Format of products.
pub(super) fn precision(text: &str) -> Precision {
    match () {
        () if has(text, &["fp4"]) && !has(text, &["nf4"]) => Precision::Fp4,
        () if has(text, &["fp8"]) => Precision::Fp8,
        () if has(text, &["fp16", "float16"]) && !has(text, &["bf"]) => Precision::Fp16,
        () if has(text, &["32"]) => Precision::Fp32,
        () => Precision::Bf16,
    }
}

/// The optimizer; AdamW without fp32 copies where everything is in bf16.
pub(super) fn optimizer(text: &str, is_pure: bool) -> Optimizer {
    match () {
        () if has(text, &["paged"]) => Optimizer::PagedAdamW8Bit,
        () if has(text, &["8bit", "8-bit", "8 bit", "int8"]) => Optimizer::AdamW8Bit,
        () if has(text, &["adafactor"]) => Optimizer::Adafactor,
        () if has(text, &["muon"]) => Optimizer::Muon,
        () if has(text, &["sgd"]) => Optimizer::SgdMomentum,
        () if is_pure => Optimizer::AdamWPureBf16,
        () => Optimizer::AdamW,
    }
}

/// What is computed again.
pub(super) fn recompute(text: &str) -> Option<Recompute> {
    match () {
        () if text.is_empty() => None,
        () if has(text, &["selective"]) => Some(Recompute::Selective),
        () if has(text, &["full", "true", "yes", "on", "activation", "checkpoint"])
            && !has(text, &["none", "false"]) =>
        {
            Some(Recompute::Full)
        }
        () => Some(Recompute::None),
    }
}

/// What the host holds.
pub(super) fn offload(text: &str, is_sharded: bool) -> Offload {
    match () {
        () if has(text, &["activation"]) => Offload::Activations,
        () if text.is_empty() || has(text, &["none", "false", "no"]) => Offload::None,
        () if is_sharded => Offload::Parameters,
        () => Offload::Optimizer,
    }
}

/// How the loss is computed, if the text says it.
pub(super) fn loss(text: &str) -> Option<LossHead> {
    match () {
        () if text.is_empty() => None,
        () if has(text, &["linear", "liger", "cut"]) => Some(LossHead::Streamed),
        () if has(text, &["chunk"]) => Some(LossHead::Chunked),
        () if has(text, &["fused"]) => Some(LossHead::Fused),
        () => Some(LossHead::Full),
    }
}

/// The matrices that adapters are for: those named, or all of the layers.
pub(super) fn targets(text: &str, model: &Model) -> Vec<LoraTarget> {
    if has(text, &["all"]) {
        return model.all_linear();
    }
    let names = text.split("(r=").next().unwrap_or(text).split([',', ' ', ';', '+', '|']);
    let known = |name: &str| match name.trim() {
        "mlp" => vec![LoraTarget::Gate, LoraTarget::Up, LoraTarget::Down],
        other => LoraTarget::named(other).into_iter().collect(),
    };
    let named: Vec<LoraTarget> = names.flat_map(known).collect();
    let there = model.all_linear();
    let is_there = |target: &LoraTarget| {
        let joined = match target {
            LoraTarget::Query | LoraTarget::Key | LoraTarget::Value => LoraTarget::QueryKeyValue,
            LoraTarget::Gate | LoraTarget::Up => LoraTarget::GateUp,
            other => *other,
        };
        there.contains(target) || there.contains(&joined)
    };
    named.into_iter().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_what_its_name_says_or_such_a_card_has() {
        let gibibytes = |card| capacity(card).map(Volume::gib);
        assert_eq!(gibibytes("A100-SXM4-40GB"), Some(40.0));
        assert_eq!(gibibytes("A100"), Some(80.0));
        assert_eq!(gibibytes("NVIDIA L40S"), Some(45.0));
        assert_eq!(gibibytes("A10G-24GB"), Some(22.5));
        assert_eq!(gibibytes("48 GB card (A100-80GB)"), Some(48.0));
        assert_eq!(gibibytes("RTX 4090"), Some(24.0));
        assert_eq!(gibibytes("abacus"), None);
    }

    #[test]
    fn words_mean_the_same_however_they_are_written() {
        assert_eq!(degree("zero1=-1 tp=4 pp=1 fsdp=True", "pp"), Some(1));
        assert_eq!(degree("tp4 pp16 dp1", "pp"), Some(16));
        assert_eq!(degree("fsdp", "tp"), None);
        assert_eq!(volume(1.0, "GB (1e9, torch)"), Volume::new(1e9));
        assert_eq!(volume(1.0, "GiB"), Volume::from_gib(1.0));
        assert_eq!(recompute("full (unsloth offloaded)"), Some(Recompute::Full));
        assert_eq!(recompute("none"), Some(Recompute::None));
        assert_eq!((offload("", true), offload("activations to CPU", false)), (Offload::None, Offload::Activations));
        assert_eq!(
            (precision("bfloat16"), precision("32-true"), precision("fp16")),
            (Precision::Bf16, Precision::Fp32, Precision::Fp16)
        );
        assert_eq!(optimizer("PagedAdamW8bit", true), Optimizer::PagedAdamW8Bit);
        assert_eq!(optimizer("AdamW", true), Optimizer::AdamWPureBf16);
        assert_eq!(loss("chunked CE"), Some(LossHead::Chunked));
    }

    #[test]
    fn targets_are_those_that_the_model_has() {
        let model = gangline_planning::model::catalog::find("llama-2-7b").unwrap();
        assert_eq!(targets("q,v (r=8 default)", &model), [LoraTarget::Query, LoraTarget::Value]);
        assert_eq!(targets("q_proj v_proj", &model), [LoraTarget::Query, LoraTarget::Value]);
        assert_eq!(targets("all linear", &model).len(), 7);
        let plain = gangline_planning::model::catalog::find("phi-2").unwrap();
        assert!(!targets("mlp", &plain).contains(&LoraTarget::Gate));
    }
}
