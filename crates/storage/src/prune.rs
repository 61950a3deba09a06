//! Pruning: decides which checkpoints stay. The last good one always does.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use gangline_base::Step;
use serde::Serialize;

use crate::check::check;
use crate::disk::Disk;
use crate::history::{Head, History, HistoryEntry};
use crate::retention::{Candidate, Rule, is_diverged, kept};
use crate::{Branch, Error, layout};

/// Which checkpoints to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrunePolicy {
    /// All of the current line, except these. Checkpoints of other branches stay.
    Keep {
        /// This many of the newest *good* ones, and everything newer than the oldest of them. Those that were saved while
        /// the loss was NaN or infinite ([`LOSS_NOTE`](crate::LOSS_NOTE)) don't count, and as many of them stay.
        last: NonZeroUsize,
        /// Rules that keep additional checkpoints.
        rules: Vec<Rule>,
    },
    /// All of the current line above this step, from which training is to resume.
    Above(Step),
    /// Abandoned checkpoints: those of this branch, or all.
    Abandoned(Option<Branch>),
}

/// The result of pruning, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Checkpoints removed, by step.
    pub removed: Vec<Step>,
    /// Checkpoints that stay, by step.
    pub kept: Vec<Step>,
}

impl Pruned {
    /// Moves these steps from `removed` to `kept`.
    pub(crate) fn but(mut self, needed: &BTreeSet<Step>) -> Pruned {
        let (stay, removed) = self.removed.into_iter().partition(|step| needed.contains(step));
        self.removed = removed;
        self.kept = [stay, self.kept].concat();
        self.kept.sort_unstable();
        self
    }
}

/// Determines which of a folder's checkpoints are good: those in `known`, and those verified now.
pub(crate) struct Goodness<'a> {
    pub(crate) root: &'a Path,
    pub(crate) known: &'a BTreeSet<u64>,
}

impl Goodness<'_> {
    fn of(&self, step: u64) -> Result<bool, Error> {
        if self.known.contains(&step) {
            return Ok(true);
        }
        match check(self.root, step) {
            Ok((_, report)) => Ok(report.is_good()),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reports whether any of these is good; looks at the last ones first.
    fn any(&self, seen: &[&HistoryEntry]) -> Result<bool, Error> {
        for seen in seen.iter().rev() {
            if self.of(seen.step)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the checkpoints to remove and to keep.
///
/// # Errors
/// [`Error::LastGood`] if no good checkpoint of the current line would be left; [`Error::NoSuchBranch`];
/// [`Error::Io`].
pub(crate) fn plan(history: &History, policy: &PrunePolicy, goodness: &Goodness<'_>) -> Result<Pruned, Error> {
    let removed: BTreeSet<u64> = match policy {
        PrunePolicy::Keep { last, rules } => beyond(history, *last, rules, goodness)?,
        PrunePolicy::Above(step) => {
            let (above, left): (Vec<&HistoryEntry>, Vec<&HistoryEntry>) =
                history.on.iter().partition(|seen| seen.step > step.0);
            if !above.is_empty() && !goodness.any(&left)? {
                return Err(Error::LastGood { step: Step(above[above.len() - 1].step) });
            }
            above.into_iter().map(|seen| seen.step).collect()
        }
        PrunePolicy::Abandoned(branch) => {
            let is_meant = |seen: &&HistoryEntry| branch.is_none_or(|branch| seen.branch() == Some(branch));
            let removed: BTreeSet<u64> = history.off.iter().filter(is_meant).map(|seen| seen.step).collect();
            match branch {
                Some(branch) if removed.is_empty() => return Err(Error::NoSuchBranch { branch: *branch }),
                _ => removed,
            }
        }
    };
    let mut pruned = Pruned::default();
    for seen in history.on.iter().chain(&history.off) {
        if removed.contains(&seen.step) {
            pruned.removed.push(Step(seen.step))
        } else {
            pruned.kept.push(Step(seen.step))
        }
    }
    pruned.removed.sort_unstable();
    pruned.kept.sort_unstable();
    Ok(pruned)
}

/// Returns the plan that removes one checkpoint, of any branch.
pub(crate) fn plan_one(history: &History, step: Step, goodness: &Goodness<'_>) -> Result<Pruned, Error> {
    let others: Vec<&HistoryEntry> = history.on.iter().filter(|seen| seen.step != step.0).collect();
    let is_on_line = others.len() < history.on.len();
    if !is_on_line && history.find(step.0).is_none() {
        return Err(Error::NotFound { step });
    }
    if is_on_line && !goodness.any(&others)? {
        return Err(Error::LastGood { step });
    }
    Ok(Pruned { removed: vec![step], kept: Vec::new() })
}

/// Returns the checkpoints of the line that are older than the newest `last` good ones and that no rule
/// keeps. If there are fewer good ones, all are kept.
fn beyond(
    history: &History,
    last: NonZeroUsize,
    rules: &[Rule],
    goodness: &Goodness<'_>,
) -> Result<BTreeSet<u64>, Error> {
    let (mut good, mut diverged, mut cut) = (0, 0, 0);
    let mut surplus = BTreeSet::new();
    for (index, seen) in history.on.iter().enumerate().rev() {
        if seen.head.as_ref().is_some_and(|head| is_diverged(&head.metadata)) {
            diverged += 1;
            surplus.extend((diverged > last.get()).then_some(seen.step));
            continue;
        }
        good += usize::from(goodness.of(seen.step)?);
        if good == last.get() {
            cut = index;
            break;
        }
    }
    let heads = history.on.iter().filter_map(|seen| Some((seen.step, seen.head.as_deref()?)));
    let candidates: Vec<Candidate<'_>> = heads.map(|(step, head)| candidate(step, head)).collect();
    let kept = kept(rules, &candidates);
    let old = history.on[..cut].iter().map(|seen| seen.step).chain(surplus);
    Ok(old.filter(|step| !kept.contains_key(&Step(*step))).collect())
}

fn candidate(step: u64, head: &Head) -> Candidate<'_> {
    Candidate { step: Step(step), saved_at: head.saved_at, metadata: &head.metadata, is_whole: true, is_on_line: true }
}

/// Renames checkpoints, so that a reader sees all of one or none. Their bytes stay until [`clear`].
pub(crate) fn retire(disk: &Disk, root: &Path, steps: &[Step]) -> Result<(), Error> {
    steps.iter().try_for_each(|step| {
        let doomed = root.join(layout::deleted_folder(step.0));
        disk.remove_folder(&doomed)?;
        disk.rename_folder(&root.join(layout::checkpoint_folder(step.0)), &doomed)
    })
}

/// Removes the bytes of retired checkpoints.
pub(crate) fn clear(disk: &Disk, root: &Path, steps: &[Step]) -> Result<(), Error> {
    steps.iter().try_for_each(|step| disk.remove_folder(&root.join(layout::deleted_folder(step.0))))
}

/// The most entries read from a store's folder.
const ENTRIES_MAX: usize = 100_000;

/// Returns the names in a store's folder, up to a limit.
pub(crate) fn list_names(root: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::io("list", root, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root).map_err(failed)? {
        crate::error::within("entries in the store's folder", names.len() + 1, ENTRIES_MAX)?;
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Returns the steps that have a checkpoint folder, in ascending order.
pub(crate) fn list_steps(root: &Path) -> Result<Vec<u64>, Error> {
    let mut steps: Vec<u64> = list_names(root)?.iter().filter_map(|name| layout::step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}
