//! What kind of work a run is, by what is trained and on how much.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::real;
use crate::workload::Task;

/// Tokens for each parameter from which training is pre-training in all but name: a quarter of the 20 that are compute-optimal
/// (Hoffmann 2022, arXiv:2203.15556).
const PRETRAINING: f64 = 5.0;
/// Tokens for each parameter from which it is continual pre-training: Code Llama went on with 500B tokens for 7B to 34B parameters,
/// Llemma with 50B to 200B (arXiv:2308.12950, arXiv:2310.10631); instruction data is a hundredth of a token and less.
const CONTINUAL: f64 = 0.1;

/// The kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Adapting a model to a task.
    FineTuning,
    /// Going on with pre-training on new data.
    ContinualPretraining,
    /// From the beginning.
    Pretraining,
    /// Serving.
    Inference,
}

/// What kind it is, and why.
#[must_use]
pub fn classify(task: &Task, tokens: u64, parameters: u64) -> (Class, String) {
    let each = real(tokens) / real(parameters.max(1));
    let told = if each >= 0.1 { format!("{each:.1}") } else { format!("{each:.2e}") };
    match task {
        Task::Inference => (Class::Inference, "nothing is trained: memory is weights, and keys and values".to_owned()),
        Task::Lora(_) | Task::Qlora { .. } => {
            (Class::FineTuning, "adapters are trained, the model is frozen: no optimizer state for it".to_owned())
        }
        Task::Pretrain => (Class::Pretraining, format!("from the beginning, {told} tokens a parameter")),
        Task::ContinualPretrain | Task::FullFinetune if each >= PRETRAINING => (
            Class::Pretraining,
            format!("{told} tokens a parameter is as much as pre-training from the beginning takes: plan it as that"),
        ),
        Task::FullFinetune | Task::ContinualPretrain if each >= CONTINUAL => (
            Class::ContinualPretraining,
            format!("{told} tokens a parameter: more than adapting to a task takes, less than the 20 of pre-training"),
        ),
        Task::FullFinetune | Task::ContinualPretrain => (
            Class::FineTuning,
            format!(
                "{told} tokens a parameter: a short run, so what is idle before and after it costs as much as it does"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_say_what_a_run_is_whatever_it_is_called() {
        let class = |task, tokens| classify(&task, tokens, 70_000_000_000).0;
        assert_eq!(class(Task::FullFinetune, 500_000_000), Class::FineTuning);
        assert_eq!(class(Task::FullFinetune, 20_000_000_000), Class::ContinualPretraining);
        assert_eq!(class(Task::ContinualPretrain, 1_000_000_000_000), Class::Pretraining);
        assert_eq!(class(Task::Pretrain, 1), Class::Pretraining);
        assert_eq!(class(Task::Inference, 0), Class::Inference);
    }
}
