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

/// Other words for tasks, and the task that each means: those of TRL, Axolotl, torchtune and of papers.
const TASK_SYNONYMS: [(&str, &str); 19] = [
    ("pre-train", TASKS[0]),
    ("pretraining", TASKS[0]),
    ("pre-training", TASKS[0]),
    ("from-scratch", TASKS[0]),
    ("continual", TASKS[1]),
    ("continued-pretrain", TASKS[1]),
    ("continual-pretraining", TASKS[1]),
    ("continued-pretraining", TASKS[1]),
    ("cpt", TASKS[1]),
    ("sft", TASKS[2]),
    ("finetune", TASKS[2]),
    ("fine-tune", TASKS[2]),
    ("finetuning", TASKS[2]),
    ("fine-tuning", TASKS[2]),
    ("full-fine-tune", TASKS[2]),
    ("full", TASKS[2]),
    ("peft", TASKS[3]),
    ("serve", TASKS[5]),
    ("serving", TASKS[5]),
];

/// Returns the place in [`TASKS`] of a task, by its word or a synonym.
///
/// # Errors
/// [`UnknownWord`] with the nearest of [`TASKS`].
pub fn task_named(word: &str) -> Result<usize, UnknownWord> {
    let wanted = word.to_ascii_lowercase().replace(['_', ' '], "-");
    let synonym = TASK_SYNONYMS.iter().find(|(known, _)| *known == wanted);
    let tasks: Vec<(&str, usize)> = TASKS.iter().enumerate().map(|(at, word)| (*word, at)).collect();
    meaning("task", synonym.map_or(word, |(_, task)| task), &tasks)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_call_a_task_is_understood_and_anything_else_is_refused_with_the_nearest() {
        let named = |word: &str| task_named(word).map(|at| TASKS[at]).map_err(|unknown| unknown.to_string());
        for (word, task) in [
            ("sft", "full-finetune"),
            ("Fine_Tuning", "full-finetune"),
            ("qlora", "qlora"),
            ("CPT", "continual-pretrain"),
            ("pre-training", "pretrain"),
            ("serving", "inference"),
        ] {
            assert_eq!(named(word).as_deref(), Ok(task), "{word}");
        }
        let refused = named("sftt").expect_err("no task");
        assert!(refused.starts_with("no task is called `sftt`: choose "), "{refused}");
        assert!(TASK_SYNONYMS.iter().all(|(word, task)| !TASKS.contains(word) && TASKS.contains(task)));
    }
}
