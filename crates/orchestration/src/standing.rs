//! A node's standing: lost, drained, trusted or not, and what follows for the indices.

use gangline_base::{FaultCategory, NodeId, Timestamp};

use crate::cluster::{Cluster, index_of};
use crate::engine::Engine;
use crate::health::{Health, HealthPolicy, NODES_PER_SUSPECT, first_fault};
use crate::outside::Outside;
use crate::{Decision, Fate, Job, RequeueReason};

/// Whether a node takes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStatus {
    /// It does.
    Ready,
    /// It has had too many faults of its own; nothing new starts until they are forgotten, or an administrator takes it back.
    Suspect,
    /// What runs there goes on; nothing new starts.
    Draining,
    /// It is gone.
    Lost,
}

impl NodeStatus {
    /// Every status: what is asked of nodes that need not be there now.
    pub(crate) const ANY: [NodeStatus; 4] =
        [NodeStatus::Ready, NodeStatus::Suspect, NodeStatus::Draining, NodeStatus::Lost];
}

/// What a node's status follows from. A drain outlasts the node's being lost: only its administrator takes it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// It is gone.
    pub is_lost: bool,
    /// Nothing new is to start there.
    pub is_draining: bool,
    /// What others do with it.
    pub outside: Outside,
    /// Its faults.
    pub health: Health,
}

impl Standing {
    pub(crate) fn status(&self, now: Timestamp, policy: Option<HealthPolicy>) -> NodeStatus {
        let is_suspect = policy.is_some_and(|policy| self.health.is_suspect_at(now, policy));
        match self {
            Standing { is_lost: true, .. } => NodeStatus::Lost,
            Standing { is_draining: true, .. } => NodeStatus::Draining,
            Standing { outside: Outside { is_closed: true, .. }, .. } => NodeStatus::Draining,
            _ if is_suspect => NodeStatus::Suspect,
            _ => NodeStatus::Ready,
        }
    }
}

impl Cluster {
    /// When faults make a node suspect; never, if nobody said.
    #[must_use]
    pub fn health_policy(&self) -> Option<HealthPolicy> {
        self.health
    }

    /// Changes what a node's status follows from.
    pub(crate) fn change_standing(&mut self, now: Timestamp, id: NodeId, change: impl FnOnce(&mut Standing)) {
        self.unindex(id);
        self.leave_topology(id);
        if let Some(node) = self.nodes.get_mut(index_of(id)) {
            change(&mut node.standing);
            node.count_free();
            node.status = node.standing.status(now, self.health);
            node.grade = self.health.map_or(0, |policy| node.standing.health.grade(now, policy));
            if let Some(at) = node.checkup {
                self.checkups.remove(&(at, id));
            }
            node.checkup = self.health.and_then(|policy| node.standing.health.changes_at(now, policy));
            self.checkups.extend(node.checkup.map(|at| (at, id)));
        }
        self.enter_topology(id);
        self.index(id);
    }

    /// Counts a fault of the node's own.
    pub(crate) fn count_fault(&mut self, now: Timestamp, id: NodeId, category: FaultCategory) {
        let Some(policy) = self.health else { return };
        let is_suspect = |node: &&crate::Node| node.standing.health.is_suspect_at(now, policy);
        let suspects = self.nodes.iter().filter(is_suspect).count();
        let may_suspect = suspects < self.nodes.len() / NODES_PER_SUSPECT;
        self.change_standing(now, id, |standing| {
            standing.health.count(now, policy, policy.weight(category), may_suspect)
        });
    }

    /// A node's faults, to change what depends on no time.
    pub(crate) fn health_mut(&mut self, id: NodeId) -> Option<&mut Health> {
        self.node_mut(id).map(|node| &mut node.standing.health)
    }

    /// Looks again at nodes whose faults have faded, or whose reservation has ended, by now; whether one takes jobs again.
    pub(crate) fn check_up(&mut self, now: Timestamp) -> bool {
        let mut is_one_back = false;
        while self.reopenings.first().is_some_and(|at| *at <= now) {
            self.reopenings.pop_first();
            is_one_back = true;
        }
        while let Some((at, id)) = self.checkups.first().copied().filter(|(at, _)| *at <= now) {
            self.checkups.remove(&(at, id));
            let status = |cluster: &Cluster| cluster.node(id).map(|node| node.status);
            let before = status(self);
            self.change_standing(now, id, |_| {});
            is_one_back |= before == Some(NodeStatus::Suspect) && status(self) == Some(NodeStatus::Ready);
        }
        is_one_back
    }

    /// When to look at nodes again.
    pub(crate) fn next_checkup(&self) -> Option<Timestamp> {
        let checkup = self.checkups.first().map(|(at, _)| *at);
        checkup.into_iter().chain(self.reopenings.first().copied()).min()
    }

    /// Looks at every node anew: the rules or the time have changed.
    pub(crate) fn review(&mut self, now: Timestamp) {
        let ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        ids.into_iter().for_each(|id| self.change_standing(now, id, |_| {}));
    }
}

impl Engine {
    /// What a decision about a job says of the nodes it ran on: its first fault may be a node's, and a success is forgiving.
    pub(crate) fn note_health(&mut self, now: Timestamp, decision: &Decision) {
        if self.cluster.health_policy().is_none() {
            return;
        }
        let Some(attempt) = self.jobs.get(&decision.job()).and_then(Job::attempt) else { return };
        match decision {
            Decision::Requeue { job, reason: RequeueReason::Fault { .. }, .. }
            | Decision::End {
                job,
                fate: Fate::FaultsExhausted { .. } | Fate::NoProgress { .. } | Fate::NotRetried { .. },
            } => {
                let Some((node, fault)) = first_fault(attempt) else { return };
                if self.cluster.health_mut(node).is_some_and(|health| health.blames(*job, fault)) {
                    self.cluster.count_fault(now, node, fault.category);
                }
            }
            Decision::End { fate: Fate::Succeeded, .. } => {
                for share in &attempt.shares {
                    self.cluster.health_mut(share.node).into_iter().for_each(|health| health.last_failed = None);
                }
            }
            _ => {}
        }
    }
}
