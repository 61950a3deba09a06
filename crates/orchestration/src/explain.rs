//! Why a job waits, as values.

use std::cmp::Reverse;
use std::fmt;

use gangline_base::{Bytes, GangShape, JobId, JobSpec, NodeName, Timestamp};

use crate::cluster::NodeStatus;
use crate::engine::{Engine, QueueKey};
use crate::job::{Job, JobState};
use crate::{DomainFit, Node, Refusal, Share, placement};

/// Holders named in one explanation.
const HOLDERS_NAMED_MAX: usize = 16;

/// Why a waiting job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The first thing in its way.
    pub blocker: Blocker,
    /// Waiting jobs that are considered before it.
    pub ahead: usize,
    /// Waiting jobs in all, itself included.
    pub waiting: usize,
}

/// What keeps a job from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// It failed and pauses before its next attempt.
    BackingOff {
        /// Until then.
        until: Timestamp,
    },
    /// A job with a better place waits for the same kind of accelerator; what becomes free is its.
    Behind {
        /// That job.
        job: JobId,
        /// What keeps that one.
        because: Box<Blocker>,
    },
    /// Other jobs hold the devices.
    NotEnoughFree {
        /// What it wants.
        wanted: GangShape,
        /// Nodes that could take a share now.
        nodes_with_room: usize,
        /// Free accelerators of the kind on ready nodes; enough of them may still be on too few nodes.
        free_accelerators: u32,
        /// Who holds accelerators of the kind on ready nodes, at most 16 jobs.
        holders: Vec<JobId>,
    },
    /// Enough nodes have room, but not close enough to each other.
    Topology {
        /// What it wants.
        wanted: GangShape,
        /// The domain that has room for the largest part of it.
        best: DomainFit,
        /// Nodes anywhere that could take a share now.
        nodes_with_room: usize,
    },
    /// Too few nodes that could hold it are ready.
    NodesUnavailable {
        /// What it wants.
        wanted: GangShape,
        /// Ready nodes that could take a share if empty.
        ready: u32,
        /// Nodes that could, but are draining.
        draining: Vec<NodeName>,
        /// Nodes that could, but are lost.
        lost: Vec<NodeName>,
    },
    /// Nothing: it starts with the next decision.
    Nothing,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::BackingOff { .. } => f.write_str("it ended without progress and pauses before its next attempt"),
            Blocker::Behind { job, because } => {
                write!(f, "{job} is before it in line for the same accelerators: {because}")
            }
            Blocker::NotEnoughFree { wanted, nodes_with_room, free_accelerators, holders } => {
                let kind = &wanted.accelerator;
                write!(f, "wants {} node(s) with {kind}:{}", wanted.nodes, wanted.accelerators_per_node)?;
                if wanted.cpus_per_node > 0 {
                    write!(f, ", {} cpus", wanted.cpus_per_node)?;
                }
                if wanted.memory_per_node > Bytes(0) {
                    write!(f, ", {}", wanted.memory_per_node)?;
                }
                f.write_str("; ")?;
                write!(f, "{nodes_with_room} node(s) have room, {free_accelerators} {kind} free")?;
                if !holders.is_empty() {
                    let names: Vec<String> = holders.iter().map(JobId::to_string).collect();
                    write!(f, "; held by {}", names.join(", "))?;
                }
                Ok(())
            }
            Blocker::Topology { wanted, best, nodes_with_room } => write!(
                f,
                "wants {} node(s) close to each other; {nodes_with_room} node(s) have room, but {best}",
                wanted.nodes
            ),
            Blocker::NodesUnavailable { wanted, ready, draining, lost } => {
                write!(f, "wants {} node(s), only {ready} that could hold it are ready", wanted.nodes)?;
                for (names, state) in [(draining, "draining"), (lost, "lost")] {
                    if !names.is_empty() {
                        let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
                        write!(f, "; {state}: {}", names.join(", "))?;
                    }
                }
                Ok(())
            }
            Blocker::Nothing => f.write_str("nothing is in its way"),
        }
    }
}

/// What would become of a job if it were submitted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// It would start at once, here.
    WouldStart {
        /// The nodes and devices.
        shares: Vec<Share>,
    },
    /// It would wait.
    WouldWait(Explanation),
}

impl Engine {
    /// Why a waiting job waits; none if it isn't waiting.
    #[must_use]
    pub fn explain(&self, now: Timestamp, id: JobId) -> Option<Explanation> {
        let job = self.jobs.get(&id)?;
        let JobState::Queued { not_before, .. } = job.state else { return None };
        Some(self.explain_at(now, (Reverse(job.spec.priority), id), &job.spec.gang, not_before))
    }

    /// Where a job would run if it were submitted now, or why it would wait.
    ///
    /// # Errors
    /// The [`Refusal`] that submitting it would meet.
    pub fn dry_run(&self, now: Timestamp, spec: &JobSpec) -> Result<DryRun, Refusal> {
        self.admit_job(spec)?;
        let explanation = self.explain_at(now, (Reverse(spec.priority), self.next_job_id()), &spec.gang, now);
        if explanation.blocker != Blocker::Nothing {
            return Ok(DryRun::WouldWait(explanation));
        }
        let shares = placement::find_room(&self.cluster, &spec.gang, &Node::free_count)
            .map(|room| room.shares)
            .unwrap_or_default();
        Ok(DryRun::WouldStart { shares })
    }

    fn explain_at(&self, now: Timestamp, key: QueueKey, gang: &GangShape, not_before: Timestamp) -> Explanation {
        let ahead: Vec<&Job> = self.pending.range(..key).filter_map(|(_, id)| self.jobs.get(id)).collect();
        let waiting = self.pending.len() + usize::from(!self.pending.contains(&key));
        let own = self.blocker_of(now, gang, not_before);
        let holds_its_place = |other: &&&Job| {
            let JobState::Queued { not_before, .. } = other.state else { return false };
            other.spec.gang.accelerator == gang.accelerator
                && matches!(
                    self.blocker_of(now, &other.spec.gang, not_before),
                    Blocker::NotEnoughFree { .. } | Blocker::Topology { .. }
                )
        };
        let blocker = match own {
            Blocker::BackingOff { .. } | Blocker::NodesUnavailable { .. } => own,
            _ => match ahead.iter().find(holds_its_place) {
                None => own,
                Some(head) => {
                    let because = Box::new(self.blocker_of(now, &head.spec.gang, now));
                    Blocker::Behind { job: head.id, because }
                }
            },
        };
        Explanation { blocker, ahead: ahead.len(), waiting }
    }

    fn blocker_of(&self, now: Timestamp, gang: &GangShape, not_before: Timestamp) -> Blocker {
        if not_before > now {
            return Blocker::BackingOff { until: not_before };
        }
        if placement::find_room(&self.cluster, gang, &Node::free_count).is_some() {
            return Blocker::Nothing;
        }
        let ready = self.cluster.could_hold(gang, &[NodeStatus::Ready]);
        if ready < gang.nodes.get() {
            let names = |status| {
                let nodes = self.cluster.nodes().filter(move |node| node.status == status);
                nodes.filter(|n| n.could_hold_share_of(gang)).map(|n| n.spec.name.clone()).collect()
            };
            let (draining, lost) = (names(NodeStatus::Draining), names(NodeStatus::Lost));
            return Blocker::NodesUnavailable { wanted: gang.clone(), ready, draining, lost };
        }
        let competes =
            |node: &Node| node.status == NodeStatus::Ready && node.spec.capacity.accelerator == gang.accelerator;
        let holds_one = |job: &&Job| {
            let shares = job.attempt().map(|attempt| attempt.shares.as_slice()).unwrap_or_default();
            shares.iter().any(|share| self.cluster.node(share.node).is_some_and(competes))
        };
        let nodes_with_room = self.cluster.with_room_for(gang).count();
        if gang.topology.constrains() && nodes_with_room >= usize::try_from(gang.nodes.get()).unwrap_or(usize::MAX) {
            let best = placement::most_in_one(&self.cluster, gang, &|domain| domain.with_devices_for(gang)).into();
            return Blocker::Topology { wanted: gang.clone(), best, nodes_with_room };
        }
        Blocker::NotEnoughFree {
            wanted: gang.clone(),
            nodes_with_room,
            free_accelerators: self.cluster.nodes().filter(|node| competes(node)).map(Node::free_count).sum(),
            holders: self.jobs.values().filter(holds_one).map(|job| job.id).take(HOLDERS_NAMED_MAX).collect(),
        }
    }
}
