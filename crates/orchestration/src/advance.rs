//! Advance reservations: an administrator sets nodes apart for some queues, or for maintenance, from one time until another.
//!
//! Within the window only jobs of the queues named start on the nodes. Before it, a job of another queue starts there only if
//! its time limit has it gone by then; one without a limit, only if the window is still far. What runs into the window
//! nevertheless is not stopped. These are the rules of Slurm's reservations (scontrol, "reservations"; the term is that
//! of Smith, Foster and Taylor, IPPS 2000). Unlike a promise to the first in line (`backfill.rs`), they come in with the
//! configuration, so the journal has them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_base::{JobSpec, NodeId, NodeName, QueueName, Timestamp};

use crate::backfill::latest_end;
use crate::configuration::{Configuration, QUEUE_DEPTH_MAX};
use crate::engine::Engine;

/// Reservations in one configuration.
pub const RESERVATIONS_MAX: usize = 1_000;
/// Jobs without a time limit start on a node only if its next window is farther away than this.
pub const LEAD: Duration = Duration::from_hours(24);

/// Nodes set apart for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvanceReservation {
    /// What people call it; unique.
    pub name: String,
    /// The nodes, known yet or not.
    pub nodes: BTreeSet<NodeName>,
    /// From then,
    pub from: Timestamp,
    /// until then.
    pub until: Timestamp,
    /// The queues whose jobs start there, those below them included. None: nobody's do.
    pub queues: BTreeSet<QueueName>,
}

/// Why reservations make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReservation {
    /// Two have one name.
    #[error("there are two reservations named \"{name}\"")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// It ends before it begins, or has no nodes.
    #[error("reservation \"{name}\" is empty: it needs nodes, and to end after it begins")]
    Empty {
        /// Its name.
        name: String,
    },
    /// Two want one node at one time.
    #[error(
        "reservations \"{first}\" and \"{second}\" both have {node} at one time: move one, or take the node out of it"
    )]
    Overlap {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// A node of both.
        node: NodeName,
    },
    /// A queue isn't there.
    #[error("reservation \"{name}\" is for queue \"{queue}\", which is not a queue here")]
    UnknownQueue {
        /// Its name.
        name: String,
        /// The queue.
        queue: QueueName,
    },
    /// More than are supported.
    #[error("{count} reservations are more than the {RESERVATIONS_MAX} there may be")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// Whether a configuration's reservations make sense.
pub(crate) fn check(configuration: &Configuration) -> Result<(), InvalidReservation> {
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
    /// Whether its window is open.
    #[must_use]
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// Whether a job of another queue, over by `end` at the latest, may not start on its nodes now.
    fn bars(&self, now: Timestamp, end: Option<Timestamp>) -> bool {
        let is_over_in_time = match end {
            Some(end) => end <= self.from,
            None => now + LEAD < self.from,
        };
        now < self.until && (self.is_open(now) || !is_over_in_time)
    }
}

impl Configuration {
    /// Whether a queue is one of those named, or below one.
    fn is_within(&self, queue: &QueueName, named: &BTreeSet<QueueName>) -> bool {
        let parent = |name: &QueueName| self.queues.iter().find(|queue| queue.name == *name)?.parent.clone();
        let up = std::iter::successors(Some(queue.clone()), parent);
        up.take(QUEUE_DEPTH_MAX + 1).any(|queue| named.contains(&queue))
    }
}

impl Engine {
    /// The reservations that keep a job from some nodes now.
    pub(crate) fn barring(&self, now: Timestamp, spec: &JobSpec) -> Vec<&AdvanceReservation> {
        let (configuration, end) = (self.queues.configuration(), latest_end(spec, now));
        let bars = |reservation: &&AdvanceReservation| {
            reservation.bars(now, end) && !configuration.is_within(&spec.queue, &reservation.queues)
        };
        configuration.reservations.iter().filter(bars).collect()
    }

    /// The nodes that reservations keep a job from now.
    pub(crate) fn barred_nodes(&self, now: Timestamp, spec: &JobSpec) -> BTreeSet<NodeId> {
        let nodes = self.barring(now, spec).into_iter().flat_map(|reservation| &reservation.nodes);
        nodes.filter_map(|name| self.cluster.id_of(name)).collect()
    }

    /// The reservation in whose window a node is.
    #[must_use]
    pub fn reservation_on(&self, now: Timestamp, node: &NodeName) -> Option<&AdvanceReservation> {
        let all = &self.queues.configuration().reservations;
        all.iter().find(|reservation| reservation.is_open(now) && reservation.nodes.contains(node))
    }
}
