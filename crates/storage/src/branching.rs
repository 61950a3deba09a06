//! Decides on rank 0 which branch a save belongs to.
//!
//! A writer that has loaded the newest save of the current branch continues it; one that has loaded another
//! checkpoint begins a branch there. A writer that has loaded nothing continues after the newest save if its
//! step is no lower, and otherwise begins a branch from nothing, beside the earlier saves.

use std::path::Path;

use gangline_base::{Step, Timestamp};
use serde::Serialize;

use crate::Error;
use crate::history::{Heads, History, current_branch};
use crate::lineage::{Line, Lineage, Moment, Origin};

/// How a save began a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Began {
    /// At a loaded checkpoint that is not the newest.
    Fork {
        /// The checkpoint at which it forks.
        from: Step,
        /// The newest checkpoint of the branch that is left.
        beside: Option<Step>,
    },
    /// From nothing, although there are checkpoints: none was loaded, and their steps are higher.
    Anew {
        /// The newest checkpoint of the branch that is left.
        beside: Step,
    },
}

/// A writer's position among the branches.
#[derive(Debug, Default)]
pub(crate) struct Branching {
    pub(crate) heads: Heads,
    /// This writer's last save.
    at: Option<Origin>,
    /// The checkpoint that was loaded since the last committed save.
    resumed: Option<Origin>,
}

/// The lineage for the manifest of a save.
#[derive(Clone, Debug)]
pub(crate) struct Next {
    pub(crate) lineage: Lineage,
    /// Whether the save is the first of its branch.
    pub(crate) is_first: bool,
    pub(crate) began: Option<Began>,
}

impl Branching {
    /// Decides for a save of this step, before which `resumed` was loaded.
    pub(crate) fn next(
        &mut self,
        root: &Path,
        step: Step,
        resumed: Option<Origin>,
        (run, now): (&str, Timestamp),
    ) -> Result<Next, Error> {
        self.resumed = resumed.or(self.resumed.take());
        let order_after = |order: u64| now.unix_nanos().max(order.saturating_add(1));
        let lineage = |line: Line, order: u64, parent: Option<u64>| Lineage {
            run: run.to_owned(),
            saved_at: now.unix_nanos(),
            order,
            parent,
            line,
        };
        if let (Some(Origin { line, last }), None) = (&self.at, &self.resumed)
            && step.0 >= last.step
            && current_branch(root)?.is_none_or(|branch| branch == line.branch)
        {
            let lineage = lineage(line.clone(), order_after(last.order), Some(last.step));
            return Ok(Next { lineage, is_first: false, began: None });
        }
        let history = self.heads.history(root)?;
        let order = order_after(history.newest);
        let moment = Moment { order, step: step.0 };
        let beside = history.tip().map(|seen| Step(seen.step));
        Ok(match self.predecessor(&history, step) {
            Predecessor::Tip => {
                let lineage = lineage(history.line, order, beside.map(|step| step.0));
                Next { lineage, is_first: false, began: None }
            }
            Predecessor::Older(Origin { line, last }) => {
                let line = Line::begin(run, moment, Some((&line, last)));
                let began = Some(Began::Fork { from: Step(last.step), beside });
                Next { lineage: lineage(line, order, Some(last.step)), is_first: true, began }
            }
            Predecessor::Nothing => {
                let line = Line::begin(run, moment, None);
                let began = beside.map(|beside| Began::Anew { beside });
                Next { lineage: lineage(line, order, None), is_first: true, began }
            }
        })
    }

    fn predecessor(&self, history: &History, step: Step) -> Predecessor {
        let tip = history.tip();
        match &self.resumed {
            Some(loaded) => {
                let is_tip = tip.and_then(|tip| tip.head.as_ref()).is_some_and(|head| head.moment == loaded.last);
                if is_tip && loaded.line.branch == history.line.branch {
                    Predecessor::Tip
                } else {
                    Predecessor::Older(loaded.clone())
                }
            }
            None if tip.is_some_and(|tip| step.0 >= tip.step) => Predecessor::Tip,
            None => Predecessor::Nothing,
        }
    }

    /// Records that the save is committed.
    pub(crate) fn committed(&mut self, lineage: &Lineage, step: Step) {
        self.resumed = None;
        let last = Moment { order: lineage.order, step: step.0 };
        self.at = Some(Origin { line: lineage.line.clone(), last });
    }
}

/// The predecessor of a save.
enum Predecessor {
    /// The newest save of the current branch.
    Tip,
    /// Another save.
    Older(Origin),
    Nothing,
}
