//! The words for tasks, formats and optimizers, as the command line takes them and documents have them.

use crate::names::{listed, nearest};
use crate::workload::{Optimizer, Precision, Task};

/// Formats of the products.
pub const PRECISIONS: [(&str, Precision); 6] = [
    ("fp32", Precision::Fp32),
    ("tf32", Precision::Tf32),
    ("fp16", Precision::Fp16),
    ("bf16", Precision::Bf16),
    ("fp8", Precision::Fp8),
    ("fp4", Precision::Fp4),
];

/// Optimizers.
pub const OPTIMIZERS: [(&str, Optimizer); 7] = [
    ("adamw", Optimizer::AdamW),
    ("adamw-bf16", Optimizer::AdamWPureBf16),
    ("adamw-8bit", Optimizer::AdamW8Bit),
    ("adamw-8bit-paged", Optimizer::PagedAdamW8Bit),
    ("adafactor", Optimizer::Adafactor),
    ("muon", Optimizer::Muon),
    ("sgd-momentum", Optimizer::SgdMomentum),
];

/// Tasks.
pub const TASKS: [&str; 6] = ["pretrain", "continual-pretrain", "full-finetune", "lora", "qlora", "inference"];

/// A word that isn't known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} is called `{word}`: choose {nearest}")]
pub struct UnknownWord {
    /// Of what kind.
    pub kind: &'static str,
    /// The word.
    pub word: String,
    /// Known ones, the nearest first.
    pub nearest: String,
}

/// What a word of a table means.
///
/// # Errors
/// [`UnknownWord`] with the nearest ones.
pub fn meaning<T: Copy>(kind: &'static str, word: &str, table: &[(&str, T)]) -> Result<T, UnknownWord> {
    let wanted = word.to_ascii_lowercase().replace('_', "-");
    let found = table.iter().find(|(known, _)| *known == wanted);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| UnknownWord {
        kind,
        word: word.to_owned(),
        nearest: listed(&nearest(&wanted, table.iter().map(|(known, _)| *known))),
    })
}

/// The word for a task.
#[must_use]
pub const fn task(task: &Task) -> &'static str {
    match task {
        Task::Pretrain => TASKS[0],
        Task::ContinualPretrain => TASKS[1],
        Task::FullFinetune => TASKS[2],
        Task::Lora(_) => TASKS[3],
        Task::Qlora { .. } => TASKS[4],
        Task::Inference => TASKS[5],
    }
}
