//! Runs: one training each, with its parameters, metrics and tags.

use crate::{Entry, ExperimentId, Input, Lifecycle, Metric, Refusal, UnixMillis};

/// How far a run is, as its client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// It runs.
    Running,
    /// It is going to run.
    Scheduled,
    /// It ended well.
    Finished,
    /// It failed.
    Failed,
    /// It was stopped.
    Killed,
}

/// What a run is, without what it measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Its id, 32 hexadecimal digits.
    pub id: String,
    /// Its experiment.
    pub experiment: ExperimentId,
    /// Its name; several runs may have the same.
    pub name: String,
    /// Who ran it, as the client says.
    pub user: String,
    /// How far it is.
    pub status: RunStatus,
    /// When it started.
    pub start: UnixMillis,
    /// When it ended.
    pub end: Option<UnixMillis>,
    /// Where its artifacts lie, as a URI.
    pub artifact_uri: String,
    /// Whether it is in use.
    pub lifecycle: Lifecycle,
}

/// A model that a run put out at a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOutput {
    /// The logged model's id.
    pub model: String,
    /// The training step.
    pub step: i64,
}

/// A run with all that was logged of it, except the histories of its metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it is.
    pub info: RunInfo,
    /// The latest value of each metric, by key.
    pub metrics: Vec<Metric>,
    /// Its parameters, by key.
    pub params: Vec<Entry>,
    /// Its tags, by key.
    pub tags: Vec<Entry>,
    /// The datasets that it read.
    pub inputs: Vec<Input>,
    /// The ids of the logged models that it read.
    pub model_inputs: Vec<String>,
    /// The logged models that it put out.
    pub model_outputs: Vec<ModelOutput>,
}

impl RunStatus {
    /// All, by their numbers on the wire from 1.
    pub const ALL: [RunStatus; 5] =
        [RunStatus::Running, RunStatus::Scheduled, RunStatus::Finished, RunStatus::Failed, RunStatus::Killed];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            RunStatus::Running => "RUNNING",
            RunStatus::Scheduled => "SCHEDULED",
            RunStatus::Finished => "FINISHED",
            RunStatus::Failed => "FAILED",
            RunStatus::Killed => "KILLED",
        }
    }

    /// Reads a status by its name or its number on the wire.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<RunStatus, Refusal> {
        let by_name = RunStatus::ALL.into_iter().find(|status| status.name() == text);
        let number = || text.parse::<usize>().ok()?.checked_sub(1);
        by_name.or_else(|| RunStatus::ALL.get(number()?).copied()).ok_or_else(|| {
            let names = RunStatus::ALL.map(RunStatus::name).join(", ");
            Refusal::invalid(format!("Invalid value \"{text}\" for parameter 'status' supplied: write one of {names}"))
        })
    }
}
