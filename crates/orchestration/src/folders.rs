//! Checkpoint folders of live jobs: two jobs that save into one folder overwrite and resume from each other's state,
//! so the second is refused unless its file says that it shares the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gangline_base::{CheckpointPolicy, JobId, JobSpec};

/// The live jobs that save into each folder. Derived like an index: snapshots don't contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointFolders(BTreeMap<PathBuf, BTreeSet<JobId>>);

impl CheckpointFolders {
    /// Adds a live job.
    pub(crate) fn came(&mut self, job: JobId, checkpoint: &CheckpointPolicy) {
        if let Some(folder) = folder_of(checkpoint) {
            self.0.entry(folder).or_default().insert(job);
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn went(&mut self, job: JobId, checkpoint: &CheckpointPolicy) {
        let Some(folder) = folder_of(checkpoint) else { return };
        if let Some(holders) = self.0.get_mut(&folder) {
            holders.remove(&job);
            if holders.is_empty() {
                self.0.remove(&folder);
            }
        }
    }

    /// Returns the folder of a new job and the first live job in its way there; none if the new job shares the folder, or
    /// runs only after the jobs that have it.
    pub(crate) fn in_the_way(&self, spec: &JobSpec) -> Option<(PathBuf, JobId)> {
        let folder = folder_of(&spec.checkpoint).filter(|_| !spec.checkpoint.is_shared)?;
        let comes_after = |holder: &JobId| spec.after.iter().any(|before| before.job == *holder);
        let holder = self.0.get(&folder)?.iter().find(|holder| !comes_after(holder)).copied()?;
        Some((folder, holder))
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Returns the folder that a job names, unless it is each job's own by its id.
fn folder_of(checkpoint: &CheckpointPolicy) -> Option<PathBuf> {
    checkpoint.path.as_deref().filter(|path| !path.contains(CheckpointPolicy::JOB)).map(PathBuf::from)
}
