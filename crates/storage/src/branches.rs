//! What a reader is told of the branches of a folder's saves.

use std::collections::BTreeMap;

use gangline_base::{Bytes, Step, Timestamp};
use serde::Serialize;

use crate::Branch;
use crate::course::{Course, Head};

/// A branch of a folder's saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BranchInfo {
    /// Its name.
    pub branch: Branch,
    /// Whether training goes on in it.
    pub is_current: bool,
    /// The checkpoint that it goes on from, if it began at one.
    pub forked_from: Option<Step>,
    /// The run that saved the newest of its checkpoints; empty if that wasn't noted.
    pub run: String,
    /// Its checkpoints, oldest first.
    pub steps: Vec<Step>,
    /// Those of them that the current branch doesn't go back to, oldest first.
    pub abandoned: Vec<Step>,
    /// Bytes of its checkpoints.
    pub bytes: Bytes,
    /// When the oldest of them was saved.
    pub first_saved_at: Timestamp,
    /// When the newest of them was saved.
    pub last_saved_at: Timestamp,
}

/// The branches there are checkpoints of, the one with the newest save last.
pub(crate) fn branches(course: &Course) -> Vec<BranchInfo> {
    let mut saves: Vec<(&Head, bool)> = Vec::new();
    for (seen, is_abandoned) in [(&course.on, false), (&course.off, true)] {
        saves.extend(seen.iter().filter_map(|seen| Some((seen.head.as_deref()?, is_abandoned))));
    }
    saves.sort_by_key(|(head, _)| head.moment);
    let mut branches: BTreeMap<Branch, BranchInfo> = BTreeMap::new();
    for (head, is_abandoned) in saves {
        let (line, step) = (&head.lineage.line, Step(head.moment.step));
        let info = branches.entry(line.branch).or_insert_with(|| BranchInfo {
            branch: line.branch,
            is_current: line.branch == course.line.branch,
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
