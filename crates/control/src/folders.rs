//! Where the service keeps the files of jobs: folders below the data folder.

use std::path::{Path, PathBuf};

use gangline_base::{AttemptNumber, CheckpointPolicy, JobId};

/// Returns a job's checkpoint folder: the one that it names, with its id where the name has a place for it, or its own
/// in the data folder.
pub(crate) fn checkpoint_folder(data: &Path, job: JobId, said: Option<&str>) -> PathBuf {
    match said {
        Some(said) => PathBuf::from(said.replace(CheckpointPolicy::JOB, &job.to_string())),
        None => data.join("checkpoints").join(job.to_string()),
    }
}

/// Returns the folder of a gang's attempt below the data folder.
pub(crate) fn attempt_folder(data: &Path, job: JobId, attempt: AttemptNumber) -> PathBuf {
    data.join("jobs").join(job.to_string()).join(attempt.to_string())
}

/// Returns the folder of a share's supervisor below the data folder.
pub(crate) fn share_folder(data: &Path, job: JobId, attempt: AttemptNumber, node: &str) -> PathBuf {
    attempt_folder(data, job, attempt).join(node)
}
