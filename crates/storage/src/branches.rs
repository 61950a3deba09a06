//! Describes the branches of a folder's saves to readers.

use std::collections::BTreeMap;

use gangline_base::{Bytes, Step, Timestamp};
use serde::Serialize;

use crate::Branch;
use crate::history::{Head, History};

/// A branch of a folder's saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BranchInfo {
    /// The branch's id.
    pub branch: Branch,
    /// Whether it is the current branch.
    pub is_current: bool,
    /// The checkpoint at which it forked, if any.
    pub forked_from: Option<Step>,
    /// The run that saved its newest checkpoint; empty if that wasn't recorded.
    pub run: String,
    /// Its checkpoints, oldest first.
    pub steps: Vec<Step>,
    /// Those of its checkpoints that the current branch doesn't go back to, oldest first.
    pub abandoned: Vec<Step>,
    /// The total size of its checkpoints.
    pub bytes: Bytes,
    /// When its oldest checkpoint was saved.
    pub first_saved_at: Timestamp,
    /// When its newest checkpoint was saved.
    pub last_saved_at: Timestamp,
}

/// Returns the branches that have checkpoints, the one with the newest save last.
pub(crate) fn branches(history: &History) -> Vec<BranchInfo> {
    let mut saves: Vec<(&Head, bool)> = Vec::new();
    for (seen, is_abandoned) in [(&history.on, false), (&history.off, true)] {
        saves.extend(seen.iter().filter_map(|seen| Some((seen.head.as_deref()?, is_abandoned))));
    }
    saves.sort_by_key(|(head, _)| head.moment);
    let mut branches: BTreeMap<Branch, BranchInfo> = BTreeMap::new();
    for (head, is_abandoned) in saves {
        let (line, step) = (&head.lineage.line, Step(head.moment.step));
        let info = branches.entry(line.branch).or_insert_with(|| BranchInfo {
            branch: line.branch,
            is_current: line.branch == history.line.branch,
            forked_from: line.forked_at(),
            run: String::new(),
            steps: Vec::new(),
            abandoned: Vec::new(),
            bytes: Bytes(0),
            first_saved_at: head.saved_at,
            last_saved_at: head.saved_at,
        });
        info.run.clone_from(&head.lineage.run);
        info.steps.push(step);
        info.bytes = Bytes(info.bytes.0.saturating_add(head.bytes));
        info.last_saved_at = head.saved_at;
        if is_abandoned {
            info.abandoned.push(step);
        }
    }
    let mut branches: Vec<BranchInfo> = branches.into_values().collect();
    branches.sort_by_key(|info| (info.is_current, info.last_saved_at));
    branches
}
