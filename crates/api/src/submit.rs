//! Requests that change something, and their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::explain::{Explanation, Placement};
use crate::sweep::SweepSubmitted;

/// A job to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The job file's text (YAML; see docs/reference/job-file.md).
    pub job_file: String,
    /// The file's name, for messages and as the job's name if it gives none.
    #[serde(default)]
    pub file_name: Option<String>,
    /// The folder that `workdir` and `checkpoint.path` are relative to: absolute.
    pub directory: String,
    /// Overrides as `key=value`, dotted keys for nested ones.
    #[serde(default)]
    pub set: Vec<String>,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// The answer to a [`SubmitRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job is in the journal, and on disk.
    Submitted(Submitted),
    /// The sweep is, with all its jobs.
    SweepSubmitted(SweepSubmitted),
    /// What would happen.
    DryRun(DryRun),
}

/// A job was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// Its id.
    #[schema(examples("job-42"))]
    pub job: String,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// What to know about it: what it asks for that is counted only, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What would become of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DryRun {
    /// It would start at once, here.
    WouldStart {
        /// The nodes and devices, in rank order.
        placements: Vec<Placement>,
    },
    /// It would start as soon as jobs that it may preempt have saved and stopped.
    WouldPreempt {
        /// Which jobs, and until when at the latest.
        explanation: Explanation,
    },
    /// It would wait.
    WouldWait {
        /// For what.
        explanation: Explanation,
    },
}

/// The answer to a cancel request: it is in the journal; a running job stops within its grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelAnswer {
    /// The job.
    pub job: String,
    /// Its state now.
    pub state: crate::JobState,
}

/// Changes of a waiting job. Keys that are absent stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// Whether the job is held: a held job doesn't start until it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<bool>,
    /// Keys of the job file and their new values, written as there: `queue`, `priority`, `time_limit` (or `none`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
}

/// The answer to a [`ChangeRequest`]: the changes are in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeAnswer {
    /// The job.
    pub job: String,
    /// Its state now.
    pub state: crate::JobState,
    /// What was changed; empty if the job was so already.
    pub changed: Vec<String>,
}

/// How a resumed job is to differ from the ended one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// Keys of the job file and their new values, written as there: `queue`, `priority`, `time_limit` (or `none`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Resume it although it succeeded, so that nothing is left to do unless its program finds more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Do all of it again in a folder of checkpoints of its own, instead of going on from its checkpoints.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub afresh: bool,
}

/// A piece of a rank's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogChunk {
    /// The attempt it belongs to.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// Whole lines, each with its time and stream (`O` or `E`).
    pub text: String,
    /// Where to go on reading: give it as `cursor`.
    pub next: String,
    /// Nothing more will come: the attempt has ended and all of it was read.
    pub is_end: bool,
}
