//! Advance reservations: an administrator sets nodes apart for some queues, or for maintenance, during a time
//! window.
//!
//! During the window only jobs of the named queues start on the nodes. Before it, a job of another queue
//! starts there only if its time limit ends before the window; a job without a limit only if the window is
//! still far away. A job that runs into the window anyway is not stopped. These are the rules of Slurm's
//! reservations (scontrol, "reservations"; the term is that of Smith, Foster and Taylor, IPPS 2000). Unlike a
//! backfill reservation (`backfill.rs`), they are part of the configuration, so the journal has them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{JobSpec, NodeName, QueueName, Timestamp};

use crate::configuration::{Configuration, QUEUE_DEPTH_MAX};
use crate::placement::backfill::latest_end;

/// The most reservations in one configuration.
pub const RESERVATIONS_MAX: usize = 1_000;
/// A job without a time limit starts on a node only if its next window is farther away than this.
pub const LEAD: Duration = Duration::from_hours(24);

/// Nodes set apart for a time window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvanceReservation {
    /// Its unique name.
    pub name: String,
    /// The nodes, which need not have joined yet.
    pub nodes: BTreeSet<NodeName>,
    /// The start of the window.
    pub from: Timestamp,
    /// The end of the window.
    pub until: Timestamp,
    /// The queues, with their descendants, whose jobs may start there. If empty, no job may.
    pub queues: BTreeSet<QueueName>,
}

/// Why reservations are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReservation {
    /// Two reservations have the same name.
    #[error("there are two reservations named \"{name}\"")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A reservation ends before it begins, or has no nodes.
    #[error("reservation \"{name}\" is empty: it needs nodes, and to end after it begins")]
    Empty {
        /// Its name.
        name: String,
    },
    /// Two reservations overlap on a node.
    #[error(
        "reservations \"{first}\" and \"{second}\" both have {node} at one time: move one, or take the node out of it"
    )]
    Overlap {
        /// The first reservation.
        first: String,
        /// The second reservation.
        second: String,
        /// A node in both.
        node: NodeName,
    },
    /// A reservation names an unknown queue.
    #[error("reservation \"{name}\" is for queue \"{queue}\", which is not a queue here")]
    UnknownQueue {
        /// Its name.
        name: String,
        /// The queue.
        queue: QueueName,
    },
    /// There are more reservations than supported.
    #[error("{count} reservations are more than the {RESERVATIONS_MAX} there may be")]
    TooMany {
        /// The number of reservations.
        count: usize,
    },
}

/// Validates a configuration's reservations.
pub(crate) fn check_reservations(configuration: &Configuration) -> Result<(), InvalidReservation> {
    let all = &configuration.reservations;
    if all.len() > RESERVATIONS_MAX {
        return Err(InvalidReservation::TooMany { count: all.len() });
    }
    let queues: BTreeSet<&QueueName> = configuration.queues.iter().map(|queue| &queue.name).collect();
    let mut names = BTreeSet::new();
    let mut of_node: BTreeMap<&NodeName, Vec<&AdvanceReservation>> = BTreeMap::new();
    for reservation in all {
        let name = reservation.name.clone();
        if !names.insert(&reservation.name) {
            return Err(InvalidReservation::Duplicate { name });
        }
        if reservation.from >= reservation.until || reservation.nodes.is_empty() {
            return Err(InvalidReservation::Empty { name });
        }
        let is_unknown = |queue: &&QueueName| !queues.is_empty() && !queues.contains(queue);
        if let Some(queue) = reservation.queues.iter().find(is_unknown).cloned() {
            return Err(InvalidReservation::UnknownQueue { name, queue });
        }
        for node in &reservation.nodes {
            let others = of_node.entry(node).or_default();
            let overlaps =
                |other: &&&AdvanceReservation| other.from < reservation.until && reservation.from < other.until;
            if let Some(other) = others.iter().find(overlaps) {
                return Err(InvalidReservation::Overlap {
                    first: other.name.clone(),
                    second: name,
                    node: node.clone(),
                });
            }
            others.push(reservation);
        }
    }
    Ok(())
}

impl AdvanceReservation {
    /// Reports whether its window is open.
    #[must_use]
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// Reports whether a job of another queue that ends by `end` at the latest may not start on its nodes
    /// now.
    fn bars(&self, now: Timestamp, end: Option<Timestamp>) -> bool {
        let is_over_in_time = match end {
            Some(end) => end <= self.from,
            None => now + LEAD < self.from,
        };
        now < self.until && (self.is_open(now) || !is_over_in_time)
    }
}

impl Configuration {
    /// Reports whether a queue is one of those named or a descendant of one.
    fn is_within(&self, queue: &QueueName, named: &BTreeSet<QueueName>) -> bool {
        let parent = |name: &QueueName| self.queues.iter().find(|queue| queue.name == *name)?.parent.clone();
        let up = std::iter::successors(Some(queue.clone()), parent);
        up.take(QUEUE_DEPTH_MAX + 1).any(|queue| named.contains(&queue))
    }

    /// Returns the reservations that keep a job from some nodes now.
    pub(crate) fn barring(&self, now: Timestamp, spec: &JobSpec) -> Vec<&AdvanceReservation> {
        let end = latest_end(spec, now);
        let bars = |reservation: &&AdvanceReservation| {
            reservation.bars(now, end) && !self.is_within(&spec.queue, &reservation.queues)
        };
        self.reservations.iter().filter(bars).collect()
    }

    /// Returns the reservation with an open window that contains a node.
    pub(crate) fn reservation_on(&self, now: Timestamp, node: &NodeName) -> Option<&AdvanceReservation> {
        self.reservations.iter().find(|reservation| reservation.is_open(now) && reservation.nodes.contains(node))
    }
}
