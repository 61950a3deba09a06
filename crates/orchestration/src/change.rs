//! The changes that users may make to waiting jobs.

use std::fmt;
use std::time::Duration;

use gangline_base::{JobSpec, Priority, QueueName};

/// A change of a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// It may not start until it is released.
    Hold,
    /// It may start again.
    Release,
    /// It waits in another queue.
    Queue(QueueName),
    /// It gets another priority.
    Priority(Priority),
    /// Its attempts get another time limit, or none.
    TimeLimit(Option<Duration>),
}

impl fmt::Display for JobChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobChange::Hold => f.write_str("held"),
            JobChange::Release => f.write_str("released"),
            JobChange::Queue(queue) => write!(f, "queue set to {queue}"),
            JobChange::Priority(priority) => write!(f, "priority set to {}", priority.value()),
            JobChange::TimeLimit(Some(limit)) => write!(f, "time limit set to {} s", limit.as_secs()),
            JobChange::TimeLimit(None) => f.write_str("time limit removed"),
        }
    }
}

impl JobChange {
    /// Changes a specification; a hold is no part of one.
    pub fn apply_to(&self, spec: &mut JobSpec) {
        match self {
            JobChange::Hold | JobChange::Release => {}
            JobChange::Queue(queue) => spec.queue.clone_from(queue),
            JobChange::Priority(priority) => spec.priority = *priority,
            JobChange::TimeLimit(limit) => spec.time_limit = *limit,
        }
    }
}
