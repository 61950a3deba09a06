//! A node's condition (lost, draining, suspect) and its effect on the indices.

use gangline_base::{FaultCategory, JobId, NodeId, Timestamp};

use crate::job::Attempt;
use crate::placement::cluster::{Cluster, index_of};
use crate::placement::external_usage::ExternalUsage;
use crate::placement::health::{Health, HealthPolicy, NODES_PER_SUSPECT, first_fault};

/// The status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStatus {
    /// It takes jobs.
    Ready,
    /// It has had too many faults of its own; nothing new starts until they fade or an administrator restores
    /// it.
    Suspect,
    /// Running jobs continue; nothing new starts.
    Draining,
    /// It is lost.
    Lost,
}

impl NodeStatus {
    /// Every status, for questions that ignore the present status.
    pub(crate) const ANY: [NodeStatus; 4] =
        [NodeStatus::Ready, NodeStatus::Suspect, NodeStatus::Draining, NodeStatus::Lost];
}

/// The condition from which a node's status follows. A drain persists while the node is lost: only its
/// administrator cancels it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCondition {
    /// Whether it is lost.
    pub is_lost: bool,
    /// Whether nothing new may start there.
    pub is_draining: bool,
    /// Its external usage.
    pub outside: ExternalUsage,
    /// Its fault history.
    pub health: Health,
}

impl NodeCondition {
    pub(crate) fn status(&self, now: Timestamp, policy: Option<HealthPolicy>) -> NodeStatus {
        let is_suspect = policy.is_some_and(|policy| self.health.is_suspect_at(now, policy));
        match self {
            NodeCondition { is_lost: true, .. } => NodeStatus::Lost,
            NodeCondition { is_draining: true, .. } => NodeStatus::Draining,
            NodeCondition { outside: ExternalUsage { is_closed: true, .. }, .. } => NodeStatus::Draining,
            _ if is_suspect => NodeStatus::Suspect,
            _ => NodeStatus::Ready,
        }
    }
}

impl Cluster {
    /// Returns when faults make a node suspect; none for never.
    #[must_use]
    pub fn health_policy(&self) -> Option<HealthPolicy> {
        self.health
    }

    /// Changes a node's condition and updates its status.
    pub(crate) fn change_condition(&mut self, now: Timestamp, id: NodeId, change: impl FnOnce(&mut NodeCondition)) {
        self.unindex(id);
        self.leave_topology(id);
        if let Some(node) = self.nodes.get_mut(index_of(id)) {
            change(&mut node.condition);
            node.count_free();
            node.status = node.condition.status(now, self.health);
            node.grade = self.health.map_or(0, |policy| node.condition.health.grade(now, policy));
            if let Some(at) = node.checkup {
                self.checkups.remove(&(at, id));
            }
            node.checkup = self.health.and_then(|policy| node.condition.health.changes_at(now, policy));
            self.checkups.extend(node.checkup.map(|at| (at, id)));
        }
        self.enter_topology(id);
        self.index(id);
    }

    /// Counts a fault attributed to the node.
    pub(crate) fn count_fault(&mut self, now: Timestamp, id: NodeId, category: FaultCategory) {
        let Some(policy) = self.health else { return };
        let is_suspect = |node: &&crate::Node| node.condition.health.is_suspect_at(now, policy);
        let suspects = self.nodes.iter().filter(is_suspect).count();
        let may_suspect = suspects < self.nodes.len() / NODES_PER_SUSPECT;
        self.change_condition(now, id, |condition| {
            condition.health.count(now, policy, policy.weight(category), may_suspect)
        });
    }

    /// Returns a node's fault history, for changes that don't depend on time.
    fn health_mut(&mut self, id: NodeId) -> Option<&mut Health> {
        self.node_mut(id).map(|node| &mut node.condition.health)
    }

    /// Reevaluates nodes whose faults have faded or whose reservation has ended; reports whether one takes
    /// jobs again.
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
            self.change_condition(now, id, |_| {});
            is_one_back |= before == Some(NodeStatus::Suspect) && status(self) == Some(NodeStatus::Ready);
        }
        is_one_back
    }

    /// Returns when to reevaluate nodes next.
    pub(crate) fn next_checkup(&self) -> Option<Timestamp> {
        let checkup = self.checkups.first().map(|(at, _)| *at);
        checkup.into_iter().chain(self.reopenings.first().copied()).min()
    }

    /// Reevaluates every node after the rules or the time changed.
    pub(crate) fn review(&mut self, now: Timestamp) {
        let ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        ids.into_iter().for_each(|id| self.change_condition(now, id, |_| {}));
    }

    /// Notes that a job's attempt failed: its first fault may be attributed to a node.
    pub(crate) fn note_failure(&mut self, now: Timestamp, job: JobId, attempt: &Attempt) {
        let Some((node, fault)) = first_fault(attempt).filter(|_| self.health.is_some()) else { return };
        if self.health_mut(node).is_some_and(|health| health.blames(job, fault)) {
            self.count_fault(now, node, fault.category);
        }
    }

    /// Notes that an attempt succeeded, which clears the last failure of its nodes.
    pub(crate) fn note_success(&mut self, attempt: &Attempt) {
        if self.health.is_none() {
            return;
        }
        for share in &attempt.shares {
            self.health_mut(share.node).into_iter().for_each(|health| health.last_failed = None);
        }
    }
}
