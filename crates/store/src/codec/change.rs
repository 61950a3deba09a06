//! Changes of waiting jobs and jobs' dependencies, as stored on disk.

use std::time::Duration;

use gangline_base::{Dependency, EndCondition, JobId, Priority, QueueName};
use gangline_orchestration::JobChange;
use serde::{Deserialize, Serialize};

use super::Error;
use super::spec::millis;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChangeV1 {
    Hold,
    Release,
    Queue(QueueName),
    Priority(u16),
    /// In milliseconds; none removes the limit.
    TimeLimit(Option<u64>),
}

/// A job that has to end, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DependencyV1(JobId, ConditionV1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConditionV1 {
    Success,
    Failure,
    Any,
}

impl From<JobChange> for ChangeV1 {
    fn from(change: JobChange) -> Self {
        match change {
            JobChange::Hold => ChangeV1::Hold,
            JobChange::Release => ChangeV1::Release,
            JobChange::Queue(queue) => ChangeV1::Queue(queue),
            JobChange::Priority(priority) => ChangeV1::Priority(priority.value()),
            JobChange::TimeLimit(limit) => ChangeV1::TimeLimit(limit.map(millis)),
        }
    }
}

impl TryFrom<ChangeV1> for JobChange {
    type Error = Error;

    fn try_from(change: ChangeV1) -> Result<Self, Error> {
        Ok(match change {
            ChangeV1::Hold => JobChange::Hold,
            ChangeV1::Release => JobChange::Release,
            ChangeV1::Queue(queue) => JobChange::Queue(queue),
            ChangeV1::Priority(value) => {
                JobChange::Priority(Priority::new(value).ok_or(Error::Impossible("priority"))?)
            }
            ChangeV1::TimeLimit(limit) => JobChange::TimeLimit(limit.map(Duration::from_millis)),
        })
    }
}

impl From<Dependency> for DependencyV1 {
    fn from(dependency: Dependency) -> Self {
        let condition = match dependency.condition {
            EndCondition::Success => ConditionV1::Success,
            EndCondition::Failure => ConditionV1::Failure,
            EndCondition::Any => ConditionV1::Any,
        };
        DependencyV1(dependency.job, condition)
    }
}

impl From<DependencyV1> for Dependency {
    fn from(dependency: DependencyV1) -> Self {
        let condition = match dependency.1 {
            ConditionV1::Success => EndCondition::Success,
            ConditionV1::Failure => EndCondition::Failure,
            ConditionV1::Any => EndCondition::Any,
        };
        Dependency { job: dependency.0, condition }
    }
}
