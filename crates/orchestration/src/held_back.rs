//! The index of jobs that are held back, and of those that they wait for.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{Dependency, JobId};

/// The jobs that are held back. Derived like an index: snapshots don't contain it.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBack {
    jobs: BTreeSet<JobId>,
    /// By job, the jobs that wait for its end.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
}

impl HeldBack {
    pub(crate) fn insert(&mut self, id: JobId, after: &BTreeSet<Dependency>) {
        self.jobs.insert(id);
        for dependency in after {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
    }

    /// Removes a job, if it is there.
    pub(crate) fn remove(&mut self, id: JobId, after: &BTreeSet<Dependency>) {
        if !self.jobs.remove(&id) {
            return;
        }
        for dependency in after {
            let dependents = self.dependents.get_mut(&dependency.job);
            if dependents.is_some_and(|dependents| dependents.remove(&id) && dependents.is_empty()) {
                self.dependents.remove(&dependency.job);
            }
        }
    }

    pub(crate) fn contains(&self, id: JobId) -> bool {
        self.jobs.contains(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns the jobs that wait for this job's end.
    pub(crate) fn dependents(&self, id: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.dependents.get(&id).into_iter().flatten().copied()
    }
}
