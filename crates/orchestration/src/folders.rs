//! Checkpoint folders of live jobs: two jobs that save into one folder overwrite and resume from each other's state,
//! so the second is refused unless its file says that it shares the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gangline_base::{CheckpointPolicy, JobId, JobSpec};

use crate::Refusal;
use crate::engine::Engine;
use crate::job::Job;

/// The live jobs that save into each folder. Derived like an index: snapshots don't contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointFolders(BTreeMap<PathBuf, BTreeSet<JobId>>);

impl CheckpointFolders {
    /// Adds a live job.
    pub(crate) fn job_came(&mut self, job: &Job) {
        if let Some(folder) = folder_of(&job.spec.checkpoint) {
            self.0.entry(folder).or_default().insert(job.id);
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn job_went(&mut self, job: &Job) {
        let Some(folder) = folder_of(&job.spec.checkpoint) else { return };
        if let Some(holders) = self.0.get_mut(&folder) {
            holders.remove(&job.id);
            if holders.is_empty() {
                self.0.remove(&folder);
            }
        }
    }
}

impl Engine {
    /// Checks that no live job saves into the folder, or that the new job says that it shares it or waits for its end.
    pub(crate) fn admit_folder(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let folder = folder_of(&spec.checkpoint).filter(|_| !spec.checkpoint.is_shared);
        let holders = folder.as_ref().and_then(|folder| self.folders.0.get(folder));
        let comes_after = |holder: &JobId| spec.after.iter().any(|before| before.job == *holder);
        match (folder, holders.and_then(|holders| holders.iter().find(|holder| !comes_after(holder)))) {
            (Some(folder), Some(holder)) => Err(Refusal::FolderTaken { folder, holder: *holder }),
            _ => Ok(()),
        }
    }
}

/// Returns the folder that a job names, unless it is each job's own by its id.
fn folder_of(checkpoint: &CheckpointPolicy) -> Option<PathBuf> {
    checkpoint.path.as_deref().filter(|path| !path.contains(CheckpointPolicy::JOB)).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gangline_base::{JobId, Submitter, Timestamp};

    use crate::fixture;
    use crate::{Engine, Event, Limits, Refusal};

    #[test]
    fn a_folder_belongs_to_one_live_job_unless_the_next_one_shares_it() {
        let mut engine = Engine::new(Limits::default());
        let now = Timestamp::EPOCH;
        engine.apply(now, &Event::NodeJoined(fixture::node(1, 1))).expect("a node joins");
        let mut submit = |path: &str, is_shared: bool| {
            let mut spec = fixture::job(fixture::gang(1, 1));
            spec.checkpoint.path = Some(path.to_owned());
            spec.checkpoint.is_shared = is_shared;
            engine.apply(now, &Event::JobSubmitted(Arc::new(spec))).map(|_| ())
        };
        assert_eq!(submit("/c/a", false), Ok(()));
        let taken = Refusal::FolderTaken { folder: "/c/a".into(), holder: JobId(1) };
        assert_eq!(submit("/c/a/", false), Err(taken), "however it is written");
        assert_eq!(submit("/c/a/b", false), Ok(()));
        assert_eq!(submit("/c/a", true), Ok(()));
        assert_eq!((submit("/c/{job}", false), submit("/c/{job}", false)), (Ok(()), Ok(())));
        engine.check_invariants().expect("the index holds");
        for job in (1..=5).map(JobId) {
            engine.apply(now, &Event::CancelRequested { job, by: Submitter("ada".to_owned()) }).expect("it is live");
        }
        assert_eq!(engine.folders.0.keys().count(), 1, "job-1 holds its device until it has stopped");
    }
}
