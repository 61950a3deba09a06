//! Plans the removal of checkpoints. None are due unless the configuration says so. Even then the newest good
//! one in a folder stays, and a folder is skipped if it overlaps with that of another job that hasn't ended,
//! ended too recently, or keeps its own.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use gangline_base::{JobId, Pin, Timestamp};
use gangline_storage::{Options, PrunePolicy, Store};

use super::plan::{Error, Plan, Planning, shown};
use crate::folders::checkpoint_folder;
use gangline_store::model::Kept;
use gangline_store::ports::Queries as _;

/// The most checkpoint folders that one pass examines.
const FOLDERS_PER_PASS_MAX: usize = 1_000;
/// Removes all of a folder's checkpoints but the newest good save of its current branch, and returns their
/// number. Other branches stay unless there is such a save.
pub(crate) fn keep_newest(folder: &Path) -> Result<usize, gangline_storage::Error> {
    let store = Store::open(folder, Options::reader())?;
    let newest = PrunePolicy::Keep { last: NonZeroUsize::MIN, rules: Vec::new() };
    let mut removed = store.prune(&newest, false)?.removed.len();
    if store.latest()?.checkpoint.is_some() {
        removed += store.prune(&PrunePolicy::Abandoned(None), false)?.removed.len();
    }
    Ok(removed)
}

/// A job's checkpoints that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueCheckpoints {
    pub(crate) job: JobId,
    pub(crate) ended_at: Timestamp,
    pub(crate) folder: PathBuf,
    /// The rule, as a text that follows "because".
    pub(crate) because: String,
}

impl Planning<'_> {
    /// Adds the checkpoint folders of jobs that ended long enough ago.
    pub(super) fn plan_checkpoints(&self, plan: &mut Plan) -> Result<(), Error> {
        let Some(age) = self.policy.checkpoints else { return Ok(()) };
        let because = format!("retention.checkpoints is {}", shown(age));
        let mut due: BTreeMap<PathBuf, DueCheckpoints> = BTreeMap::new();
        let (mut after, mut is_contiguous) = (JobId(self.checkpoints_from.0.saturating_sub(1)), true);
        while due.len() < FOLDERS_PER_PASS_MAX
            && let Some(job) = self.reader.next_job(after)?
        {
            after = job;
            let Some(kept) = self.kept(job)?.flatten() else { return Ok(()) };
            if !self.is_old(kept.submitted_at, self.policy.checkpoints) {
                // Ids are in the order of time, so all following jobs are younger.
                break;
            }
            is_contiguous &= self.lets_go(&kept) || kept.pins.contains(&Pin::Checkpoints);
            if is_contiguous {
                plan.checkpoints_from = JobId(job.0 + 1);
            }
            let Some(ended_at) = kept.ended_at.filter(|_| self.lets_go(&kept)) else { continue };
            let folder = self.folder_of(&kept);
            if has_several(&folder) {
                due.insert(folder.clone(), DueCheckpoints { job, ended_at, folder, because: because.clone() });
            }
        }
        if !due.is_empty() {
            self.leave_out_shared(&mut due)?;
        }
        plan.checkpoints.extend(due.into_values());
        plan.checkpoints.sort_by_key(|due| due.job);
        Ok(())
    }

    /// Reports whether a job's checkpoints may be removed.
    fn lets_go(&self, kept: &Kept) -> bool {
        let is_old = kept.ended_at.is_some_and(|at| self.is_old(at, self.policy.checkpoints));
        is_old && !kept.pins.contains(&Pin::Checkpoints)
    }

    /// Returns the canonical path, so that two paths to one folder are equal.
    fn folder_of(&self, kept: &Kept) -> PathBuf {
        let folder = checkpoint_folder(self.folder, kept.id, kept.checkpoints.as_deref());
        folder.canonicalize().unwrap_or(folder)
    }

    /// Skips each folder that overlaps with that of a job that keeps its checkpoints. A job with an
    /// unreadable record may have any folder, so then all are skipped.
    fn leave_out_shared(&self, due: &mut BTreeMap<PathBuf, DueCheckpoints>) -> Result<(), Error> {
        let mut after = JobId(0);
        while let Some(job) = self.reader.next_job(after)? {
            after = job;
            match self.kept(job)?.flatten() {
                None => due.clear(),
                Some(kept) if !self.lets_go(&kept) => remove_overlapping(due, &self.folder_of(&kept)),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Removes the entries inside `folder`, `folder` itself, and the entries that it is inside of.
fn remove_overlapping<T>(due: &mut BTreeMap<PathBuf, T>, folder: &Path) {
    for outer in folder.ancestors() {
        due.remove(outer);
    }
    let inner = |due: &BTreeMap<PathBuf, T>| {
        due.range(folder.to_owned()..).next().map(|(found, _)| found.clone()).filter(|found| found.starts_with(folder))
    };
    while let Some(found) = inner(due) {
        due.remove(&found);
    }
}

/// Reports whether there is something to remove. An unreadable folder has nothing.
fn has_several(folder: &Path) -> bool {
    Store::open(folder, Options::reader()).and_then(|store| store.list()).is_ok_and(|listed| listed.len() > 1)
}

/// Returns the number and bytes of the checkpoints that would be removed if the newest one is good.
pub(crate) fn size_of_due(folder: &Path) -> (u64, u64) {
    let found = Store::open(folder, Options::reader()).and_then(|store| Ok((store.list()?, store.line()?)));
    let (listed, line) = found.unwrap_or_default();
    let others = listed.iter().filter(|listed| Some(&listed.step) != line.first());
    let bytes = others.clone().filter_map(|listed| listed.manifest.as_ref().ok()).map(|info| info.bytes.0).sum();
    (others.count() as u64, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_overlaps_with_those_around_it_and_in_it_and_no_other() {
        let folders = ["/a", "/a/b", "/a/b/c", "/a/b-2", "/a/bc", "/b"];
        let left = |folder: &str| {
            let mut due: BTreeMap<PathBuf, ()> = folders.iter().map(|folder| (PathBuf::from(folder), ())).collect();
            remove_overlapping(&mut due, Path::new(folder));
            due.into_keys().map(|folder| folder.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left("/a/b"), ["/a/b-2", "/a/bc", "/b"]);
        assert_eq!(left("/"), [""; 0]);
        assert_eq!(left("/c"), ["/a", "/a/b", "/a/b/c", "/a/b-2", "/a/bc", "/b"]);
        assert_eq!(left("/a/b/c/d"), ["/a/b-2", "/a/bc", "/b"]);
    }
}
