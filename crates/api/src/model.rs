//! The registry of models: versions that are checkpoints, and where they came from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Code, Time};

/// The version of [`Lineage`].
pub const LINEAGE_VERSION: u32 = 1;

/// Makes a checkpoint a version of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// The job whose checkpoint it is. Either this or the folder is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(examples("job-42"))]
    pub job: Option<String>,
    /// The folder of checkpoints, an absolute path on the control plane's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The step; the newest checkpoint unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What the version is, in its users' words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The answer to a [`RegisterRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// The version.
    pub version: ModelVersion,
    /// Whether it is new; a checkpoint that is a version of the model already stays that version.
    pub is_new: bool,
}

/// Says that every byte of a version's checkpoint was read and is as it was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifiedRequest {
    /// The content hash of what was read.
    pub content_hash: String,
}

/// Points an alias at a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromoteRequest {
    /// The alias.
    #[schema(examples("production"))]
    pub alias: String,
}

/// Says that a version's tensors were written to a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportedRequest {
    /// The folder, with the name of its machine: `host:/folder`.
    pub place: String,
}

/// All registered models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// By their names.
    pub models: Vec<Model>,
}

/// A registered model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// What it is, in its users' words.
    pub description: String,
    /// Its aliases, each with the number of its version.
    pub aliases: BTreeMap<String, u32>,
    /// Its versions, the newest first.
    pub versions: Vec<ModelVersion>,
}

/// A version of a registered model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelVersion {
    /// The model.
    pub model: String,
    /// Its number, from 1.
    pub number: u32,
    /// What it is, in its users' words.
    pub description: String,
    /// When it was made.
    pub created_at: Time,
    /// Where its files come from: a checkpoint as `FOLDER@STEP`, or the URI that an MLflow client gave.
    pub source: String,
    /// The aliases that point at it.
    pub aliases: Vec<String>,
    /// The run that put it out, if it was registered with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The folder that keeps the checkpoint, a store whose only checkpoint it is; none if it isn't a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// What was done with it, oldest first.
    pub history: Vec<ModelEvent>,
    /// Where it came from; only where one version is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

/// What was done with a version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelEvent {
    /// When.
    pub at: Time,
    /// Who.
    pub by: String,
    /// `registered`, `verified`, `promoted` or `exported`.
    pub action: String,
    /// The alias, or the folder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Where a version came from, as it was known when the version was made: later changes of jobs and runs don't change it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lineage {
    /// [`LINEAGE_VERSION`].
    pub version: u32,
    /// The checkpoint.
    pub checkpoint: CheckpointLineage,
    /// The data that the trainer says it read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataLineage>,
    /// The software that the trainer says it ran on, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// The job that saved it, then the job that this one continued, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobLineage>,
    /// The runs that these jobs logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunLineage>,
    /// What isn't known and why, each as a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// A checkpoint, from its manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointLineage {
    /// The folder of checkpoints that it was saved in.
    pub folder: String,
    /// The step after which it was saved.
    pub step: u64,
    /// Hash over the step and every tensor.
    pub content_hash: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its tensors.
    pub tensors: u64,
    /// The ranks that wrote it.
    pub world_size: u32,
    /// When it was saved.
    pub saved_at: Option<Time>,
    /// The branch of its folder's saves.
    pub branch: String,
    /// The step of the save before it on its branch.
    pub parent: Option<u64>,
    /// What the trainer saved with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// A dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DataLineage {
    /// Its name among the trainer's datasets.
    pub name: String,
    /// Its path or URL.
    pub source: String,
    /// What identifies its bytes; how it was made depends on what read it.
    pub digest: String,
    /// Which samples were read, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<String>,
    /// `checkpoint` if the checkpoint says so, or the id of the run that does.
    pub told_by: String,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobLineage {
    /// Its id.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Who submitted it.
    pub submitter: String,
    /// When.
    pub submitted_at: Time,
    /// The command of its ranks.
    pub run: String,
    /// The folder they started in; of code from git, the repository's address.
    pub workdir: String,
    /// The copy of the code that they ran, if they ran one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The container image that they ran in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its attempts up to the checkpoint, with their nodes.
    pub attempts: Vec<AttemptLineage>,
    /// Device time that it held until the version was made, in seconds.
    pub gpu_seconds: f64,
    /// What the job cost until then, in nano-dollars, without what has no price.
    pub cost_nano_dollars: i64,
    /// The same as text.
    pub cost: String,
    /// Whether the cost is an estimate, since the job still ran.
    pub is_estimated: bool,
}

/// An attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptLineage {
    /// Its number.
    pub number: u32,
    /// When it got its devices.
    pub placed_at: Time,
    /// When they were free again.
    pub ended_at: Option<Time>,
    /// Its nodes, each with its devices.
    pub nodes: BTreeMap<String, Vec<u32>>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunLineage {
    /// Its id.
    pub run: String,
    /// Its name.
    pub name: String,
    /// The job that logged it.
    pub job: String,
}
