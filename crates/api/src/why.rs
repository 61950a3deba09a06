//! Why a job is slower than it could be.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{AgainstPlan, Fault, Time};

/// Why a job is slower than it could be, by what its ranks measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The job.
    pub job: String,
    /// The attempt that was looked at; none if the job has had none.
    pub attempt: Option<u32>,
    /// The stretch of time that was looked at.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// The answer in a sentence.
    pub summary: String,
    /// Ranks that reported steps.
    pub ranks: u64,
    /// The fewest steps of any of them in the half that was judged.
    pub steps: u64,
    /// Mean seconds of a step there (measured); none if there were too few.
    pub step_seconds: Option<f64>,
    /// Phases that ranks reported. What costs time in others can't be told.
    pub phases: Vec<String>,
    /// How its rate compares with its plan's, if its job file has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<AgainstPlan>,
    /// The job's last fault, if its last attempt ended by it, or began within the stretch of time that was looked at after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<LastFault>,
    /// Causes, in the order in which they are looked for: data, checkpoint, communication, straggler, garbage_collection,
    /// memory_pressure, clocks, host_contention.
    pub causes: Vec<Cause>,
}

/// What ended an attempt of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LastFault {
    /// The attempt.
    pub attempt: u32,
    /// Number of attempts in a row, this one included, that ended in the same way.
    pub in_a_row: u32,
    /// What failed first, and why.
    pub fault: Fault,
}

/// Something that costs a job time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// What.
    #[schema(examples("data"))]
    pub kind: String,
    /// Part of the gang's time that it costs (measured); none if that can't be told.
    pub share: Option<f64>,
    /// What was measured.
    pub evidence: String,
    /// Ranks where it shows, the worst first.
    pub ranks: Vec<u32>,
    /// Number of further ranks.
    pub more_ranks: u64,
    /// Nodes of these ranks.
    pub nodes: Vec<String>,
    /// Since when, within the time that was looked at.
    pub since: Time,
    /// What it costs an hour, in nano-dollars: the share at the configured prices; none if the nodes have none.
    pub cost_nano_dollars_per_hour: Option<i64>,
    /// The same as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_hour: Option<String>,
    /// What to do about it.
    pub hint: String,
}
