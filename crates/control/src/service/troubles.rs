//! Problems on the platform's own side, by node: shown until they are over, and never counted as a job's
//! fault.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{NodeName, Timestamp};
use tracing::{info, warn};

/// Problems not seen for this long are no longer shown.
const KEPT: Duration = Duration::from_mins(10);

/// The operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Starting supervisors.
    Launch,
    /// Starting ranks.
    Ranks,
    /// Checking on supervisors.
    Look,
    /// Killing the processes that a supervisor left behind.
    Remains,
}

/// The current problems, by node and kind.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    of: BTreeMap<(NodeName, Kind), (Timestamp, String)>,
}

impl Troubles {
    /// Notes a problem on a node, new or continuing.
    pub(super) fn note(&mut self, now: Timestamp, node: &NodeName, kind: Kind, text: String) {
        let known = self.of.insert((node.clone(), kind), (now, text.clone()));
        if known.is_none() {
            warn!(%node, text, "a node is unwell");
        }
    }

    /// Removes a problem that is over.
    pub(super) fn clear(&mut self, node: &NodeName, kind: Kind) {
        if self.of.remove(&(node.clone(), kind)).is_some() {
            info!(%node, ?kind, "what was wrong on a node is over");
        }
    }

    /// Forgets problems that have not been seen for long.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        self.of.retain(|_, (at, _)| now.since(*at) < KEPT);
    }

    /// Returns a problem of the node, if it has one.
    pub(super) fn of_node(&self, node: &NodeName) -> Option<&str> {
        self.of.iter().find(|((of, _), _)| of == node).map(|(_, (_, text))| text.as_str())
    }

    /// Describes the first problem in a sentence, with the number of others.
    pub(super) fn summary(&self) -> Option<String> {
        let ((node, _), (_, text)) = self.of.first_key_value()?;
        let others = match self.of.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Some(format!("on {node} {text}{others}"))
    }
}
