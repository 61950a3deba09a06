//! Sweeps and budgets as the API shows them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{JobState, Time};

/// A sweep was taken, with all its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SweepSubmitted {
    /// Its id.
    #[schema(examples("sweep-42"))]
    pub sweep: String,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// The ids of its jobs, in the order of the grid.
    pub jobs: Vec<String>,
    /// What to know about its jobs: what they ask for that is counted only, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sweep {
    /// Its id, which has the number of its first job.
    #[schema(examples("sweep-42"))]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// When it was submitted.
    pub submitted_at: Time,
    /// The most of its jobs that hold devices at once; absent if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Which jobs are stopped before their end; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    /// Its jobs, in the order of the grid.
    pub points: Vec<SweepPoint>,
    /// What its jobs are ranked by, in words.
    #[serde(default)]
    pub ranked_by: String,
    /// Those of its jobs that have a value to be ranked by, best first.
    #[serde(default)]
    pub ranking: Vec<String>,
    /// Jobs that can't be shown, because what is kept of them is damaged on disk (G0213).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

/// Asynchronous successive halving: at each rung the best of the values seen there so far go on, one in `reduction`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EarlyStop {
    /// The metric.
    pub metric: String,
    /// `minimize` or `maximize`.
    pub goal: String,
    /// The step of the first rung.
    pub min_steps: u64,
    /// How much further each rung is than the one before.
    pub reduction: u32,
}

/// A job of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SweepPoint {
    /// The job.
    pub job: String,
    /// What it has of its own.
    pub parameters: Vec<Parameter>,
    /// Where it stands.
    pub state: JobState,
    /// The last thing decided about it.
    pub because: String,
    /// Steps finished (measured).
    pub step: Option<u64>,
    /// The last loss (measured).
    pub loss: Option<f64>,
    /// What it reported at the last rung it reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricPoint>,
}

/// A job's place in its sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSweep {
    /// The sweep.
    pub id: String,
    /// What the job has of its own.
    pub parameters: Vec<Parameter>,
    /// What it reported at the last rung it reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricPoint>,
}

/// A parameter and its value, as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value; in a list of jobs, and in a sweep's, at most 256 bytes of it.
    pub value: String,
}

/// A metric at a rung (measured, to a billionth).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricPoint {
    /// The step it was measured at.
    pub step: u64,
    /// The value; absent if the job had diverged.
    pub value: Option<f64>,
}

/// The answer to the cancelling of a sweep: it is in the journal; running jobs stop within their grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelSweepAnswer {
    /// The sweep.
    pub sweep: String,
    /// Those of its jobs that had not ended.
    pub jobs: Vec<super::CancelAnswer>,
}

/// What a job may cost, and has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// The most it may cost.
    pub limit_nano_dollars: i64,
    /// What it has cost so far, all attempts together (estimated, by list prices).
    pub spent_nano_dollars: i64,
    /// Until when that is counted, while it holds devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_to: Option<Time>,
    /// When it is asked to save and stop, while it holds devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Time>,
}
