//! What a job waits for before it may start: the ends of other jobs.

use std::fmt;

use crate::JobId;

/// The most jobs that one job may wait for: as many as the largest sweep has.
pub const DEPENDENCIES_MAX: usize = 1_000;

/// A job that has to end before another one may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// The job that has to end. It was submitted before the job that waits for it, so there are no cycles.
    pub job: JobId,
    /// How it has to end.
    pub condition: EndCondition,
}

/// How a job has to end for those that wait for it. Slurm calls these `afterok`, `afternotok` and `afterany`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndCondition {
    /// It has to succeed: the default.
    Success,
    /// It has to end without success.
    Failure,
    /// It has to end, however it does.
    Any,
}

impl EndCondition {
    /// Every condition.
    pub const ALL: [EndCondition; 3] = [EndCondition::Success, EndCondition::Failure, EndCondition::Any];

    /// Returns the word for it in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EndCondition::Success => "success",
            EndCondition::Failure => "failure",
            EndCondition::Any => "any",
        }
    }

    /// Reports whether an end meets the condition.
    #[must_use]
    pub fn is_met(self, has_succeeded: bool) -> bool {
        match self {
            EndCondition::Success => has_succeeded,
            EndCondition::Failure => !has_succeeded,
            EndCondition::Any => true,
        }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            EndCondition::Success => write!(f, "{} to succeed", self.job),
            EndCondition::Failure => write!(f, "{} to fail", self.job),
            EndCondition::Any => write!(f, "{} to end", self.job),
        }
    }
}
