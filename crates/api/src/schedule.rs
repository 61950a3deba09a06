//! Schedules: job files that are submitted again and again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{SubmitRequest, Time};

/// A job file to submit again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// When, in UTC: minute, hour, day of the month, month and day of the week as in crontab(5), or `@daily` and the like.
    #[schema(examples("0 3 * * *"))]
    pub cron: String,
    /// What is submitted.
    pub job: SubmitRequest,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Its id.
    #[schema(examples("schedule-3"))]
    pub id: String,
    /// The name of its jobs when it was made.
    pub name: String,
    /// When, in UTC, as in crontab(5).
    pub cron: String,
    /// The user for whom its jobs run.
    pub submitter: String,
    /// When it was made.
    pub created_at: Time,
    /// Whether it is paused.
    pub is_paused: bool,
    /// When it submits next; none while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Time>,
    /// What came of its last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
    /// How many of its times were left out: its last job was still live, or the control plane was down.
    pub left_out: u64,
}

/// What came of one time of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// When it was due.
    pub due: Time,
    /// The job or sweep that was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<String>,
    /// Why nothing was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// All schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// By their numbers.
    pub schedules: Vec<Schedule>,
}
