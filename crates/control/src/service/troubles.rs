//! What is wrong on the platform's own side, node by node: shown until it is over, and no job's fault.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{NodeName, Timestamp};
use tracing::{info, warn};

/// What hasn't been seen for so long isn't said any more.
const KEPT: Duration = Duration::from_mins(10);

/// What doesn't work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Starting supervisors.
    Launch,
    /// Starting ranks.
    Ranks,
    /// Looking after supervisors.
    Look,
    /// Killing what a supervisor left.
    Remains,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    of: BTreeMap<(NodeName, Kind), (Timestamp, String)>,
}

impl Troubles {
    /// Something doesn't work on a node, or still doesn't.
    pub(super) fn note(&mut self, now: Timestamp, node: &NodeName, kind: Kind, text: String) {
        let known = self.of.insert((node.clone(), kind), (now, text.clone()));
        if known.is_none() {
            warn!(%node, text, "a node is unwell");
        }
    }

    /// It works again.
    pub(super) fn clear(&mut self, node: &NodeName, kind: Kind) {
        if self.of.remove(&(node.clone(), kind)).is_some() {
            info!(%node, ?kind, "what was wrong on a node is over");
        }
    }

    /// Forgets what hasn't been seen for long.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        self.of.retain(|_, (at, _)| now.since(*at) < KEPT);
    }

    /// What is wrong on a node.
    pub(super) fn of_node(&self, node: &NodeName) -> Option<&str> {
        self.of.iter().find(|((of, _), _)| of == node).map(|(_, (_, text))| text.as_str())
    }

    /// What is wrong at all, in a sentence.
    pub(super) fn summary(&self) -> Option<String> {
        let ((node, _), (_, text)) = self.of.first_key_value()?;
        let others = match self.of.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Some(format!("on {node} {text}{others}"))
    }
}
