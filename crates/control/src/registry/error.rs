//! Why the registry can't do something.

use std::path::{Path, PathBuf};

use gangline_base::Step;
use gangline_store::db;
use gangline_store::tracking::Failure;

/// Why nothing was registered, noted or shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such job.
    #[error("there is no job \"{0}\"")]
    NoJob(String),
    /// The request names no checkpoint, or two.
    #[error("either a job or a folder of checkpoints has to be named")]
    NoPlace,
    /// The folder isn't there, or isn't an absolute path of text.
    #[error("the control plane finds no folder {}", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has no checkpoint.
    #[error("there is no complete checkpoint in {}", folder.display())]
    NoCheckpoint {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has no checkpoint of this step.
    #[error("there is no checkpoint of step {step} in {}", folder.display())]
    NoStep {
        /// The folder.
        folder: PathBuf,
        /// The step.
        step: Step,
    },
    /// A checkpoint can't be read or pinned.
    #[error("the checkpoint in {} can't be pinned or read", folder.display())]
    Checkpoint {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// Why.
        source: gangline_storage::Error,
    },
    /// The version isn't a checkpoint.
    #[error("version {number} of {model} isn't a checkpoint: an MLflow client registered it")]
    NotACheckpoint {
        /// The model.
        model: String,
        /// The version's number.
        number: u32,
    },
    /// Something else was read than what the version is.
    #[error("version {number} of {model} has the content hash {expected}, and {found} was read")]
    OtherBytes {
        /// The model.
        model: String,
        /// The version's number.
        number: u32,
        /// The content hash of the version.
        expected: String,
        /// That of what was read.
        found: String,
    },
    /// Tracking's store can't do it.
    #[error(transparent)]
    Tracking(#[from] Failure),
    /// The records of jobs can't be read.
    #[error(transparent)]
    Jobs(#[from] db::Error),
}

impl Error {
    pub(super) fn checkpoint(folder: &Path, source: gangline_storage::Error) -> Error {
        let folder = folder.to_owned();
        match source {
            gangline_storage::Error::NotFound { step } => Error::NoStep { folder, step },
            source => Error::Checkpoint { folder, source },
        }
    }
}
