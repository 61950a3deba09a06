//! Retention: which checkpoints stay. The last good one always does.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use gangline_base::Step;
use serde::Serialize;

use crate::check::check;
use crate::disk::Disk;
use crate::{Error, layout};

/// Which checkpoints stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunePolicy {
    /// This many of the newest *good* ones, and everything newer than the oldest of them.
    pub keep: NonZeroUsize,
}

/// What pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Checkpoints removed, oldest first.
    pub removed: Vec<Step>,
    /// Checkpoints that stay, oldest first.
    pub kept: Vec<Step>,
}

impl Pruned {
    /// The same, but for steps that stay for another reason.
    pub(crate) fn but(mut self, needed: &BTreeSet<Step>) -> Pruned {
        let (stay, removed) = self.removed.into_iter().partition(|step| needed.contains(step));
        self.removed = removed;
        self.kept = [stay, self.kept].concat();
        self
    }
}

/// Says what `policy` doesn't keep. A checkpoint counts as good if it is in `known_good` or its bytes are checked now.
/// Unless that many good ones are found, all are kept.
pub(crate) fn plan(root: &Path, policy: PrunePolicy, known_good: &BTreeSet<u64>) -> Result<Pruned, Error> {
    let steps = list_steps(root)?;
    let mut good = 0;
    let mut cut = 0;
    for (index, step) in steps.iter().enumerate().rev() {
        let is_good = known_good.contains(step)
            || match check(root, *step) {
                Ok((_, report)) => report.is_good(),
                Err(Error::NotFound { .. }) => false,
                Err(error) => return Err(error),
            };
        good += usize::from(is_good);
        if good == policy.keep.get() {
            cut = index;
            break;
        }
    }
    let (old, kept) = steps.split_at(cut);
    let as_steps = |steps: &[u64]| steps.iter().copied().map(Step).collect();
    Ok(Pruned { removed: as_steps(old), kept: as_steps(kept) })
}

/// Takes the names of checkpoints away, so that a reader sees all of one or none. Their bytes stay until [`clear`].
pub(crate) fn retire(disk: &Disk, root: &Path, steps: &[Step]) -> Result<(), Error> {
    steps.iter().try_for_each(|step| {
        let doomed = root.join(layout::deleted_folder(step.0));
        disk.remove_folder(&doomed)?;
        disk.rename_folder(&root.join(layout::checkpoint_folder(step.0)), &doomed)
    })
}

/// Removes the bytes of checkpoints that were retired.
pub(crate) fn clear(disk: &Disk, root: &Path, steps: &[Step]) -> Result<(), Error> {
    steps.iter().try_for_each(|step| disk.remove_folder(&root.join(layout::deleted_folder(step.0))))
}

/// The most entries looked at in a store's folder.
const ENTRIES_MAX: usize = 100_000;

/// The names in a store's folder, bounded.
pub(crate) fn list_names(root: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::io("list", root, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)? {
        crate::error::within("entries in the store's folder", names.len() + 1, ENTRIES_MAX)?;
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// The steps there are folders of, oldest first.
pub(crate) fn list_steps(root: &Path) -> Result<Vec<u64>, Error> {
    let mut steps: Vec<u64> = list_names(root)?.iter().filter_map(|name| layout::step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}
