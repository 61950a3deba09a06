//! Nodes, what they have, and who holds it. Keeps the no-double-booking half of A-5: a device is handed out only from
//! its node's free set, and comes back only once.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{AcceleratorKind, Bytes, GangShape, Level, NodeId, NodeName};

use crate::refusal::{DomainFit, Fit, Refusal};
use crate::share::{MIB_BITS, Resource};
use crate::topology::{Location, Topology};
use crate::{Share, placement};

/// A node as it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name, unique in the cluster.
    pub name: NodeName,
    /// What it has.
    pub capacity: NodeCapacity,
    /// Where in the network it is, as far as that is known.
    pub location: Location,
}

/// What a node has for jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeCapacity {
    /// The type of its accelerators.
    pub accelerator: AcceleratorKind,
    /// How many; numbered from 0.
    pub accelerators: u32,
    /// CPU cores.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
}

impl NodeCapacity {
    pub(crate) fn can_hold_share_of(&self, gang: &GangShape) -> bool {
        self.accelerator == gang.accelerator
            && self.accelerators >= gang.accelerators_per_node.get()
            && self.cpus >= gang.cpus_per_node
            && self.memory >= gang.memory_per_node
    }
}

/// Whether a node takes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStatus {
    /// It does.
    Ready,
    /// What runs there goes on; nothing new starts.
    Draining,
    /// It is gone.
    Lost,
}

impl NodeStatus {
    /// Every status: what is asked of nodes that need not be there now.
    pub(crate) const ANY: [NodeStatus; 3] = [NodeStatus::Ready, NodeStatus::Draining, NodeStatus::Lost];
}

/// A node and what of it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name and capacity.
    pub spec: NodeSpec,
    /// Whether it takes jobs.
    pub status: NodeStatus,
    /// Free accelerators.
    pub free: BTreeSet<u32>,
    /// Free CPU cores.
    pub free_cpus: u32,
    /// Free memory.
    pub free_memory: Bytes,
    /// CPU cores that jobs hold: more than there are, if the node came back with fewer.
    held_cpus: u32,
    /// Memory that jobs hold.
    held_memory: Bytes,
}

impl Node {
    fn new(id: NodeId, spec: NodeSpec) -> Self {
        let free = (0..spec.capacity.accelerators).collect();
        let (free_cpus, free_memory) = (spec.capacity.cpus, spec.capacity.memory);
        let (held_cpus, held_memory) = (0, Bytes(0));
        Node { id, spec, status: NodeStatus::Ready, free, free_cpus, free_memory, held_cpus, held_memory }
    }

    fn set_held(&mut self, cpus: u32, memory: Bytes) {
        (self.held_cpus, self.held_memory) = (cpus, memory);
        self.free_cpus = self.spec.capacity.cpus.saturating_sub(cpus);
        self.free_memory = Bytes(self.spec.capacity.memory.0.saturating_sub(memory.0));
    }

    /// Whether it can take a share of `gang` now.
    #[must_use]
    pub fn has_room_for_share_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready
            && self.spec.capacity.accelerator == gang.accelerator
            && self.free_count() >= gang.accelerators_per_node.get()
            && self.free_cpus >= gang.cpus_per_node
            && self.free_memory >= gang.memory_per_node
    }

    /// Whether it is ready and could take a share of `gang` if it were empty.
    pub(crate) fn takes_shares_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready && self.could_hold_share_of(gang)
    }

    /// Whether it could take a share of `gang` if it were ready and empty.
    #[must_use]
    pub fn could_hold_share_of(&self, gang: &GangShape) -> bool {
        self.spec.capacity.can_hold_share_of(gang)
    }

    /// The name of the domain that has to hold the whole gang if it is to have this node: everywhere (empty), if it
    /// requires none; none if the node doesn't say where it is at that level.
    pub(crate) fn domain_for(&self, gang: &GangShape) -> Option<&str> {
        match gang.topology.require {
            None => Some(""),
            Some(Level::Node) => Some(self.spec.name.as_str()),
            Some(level) => self.spec.location.at(level),
        }
    }

    /// How many accelerators are free.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("a node has fewer than 2^32 accelerators")
    }
}

/// All nodes, indexed by how much is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    by_name: BTreeMap<NodeName, NodeId>,
    /// Ready nodes by kind and number of free accelerators: the fullest that fits is found without a scan.
    by_free: BTreeSet<(AcceleratorKind, u32, NodeId)>,
    /// Where they are, and what could ever fit there, found without a scan.
    topology: Topology,
}

impl Cluster {
    /// Every node, by id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.values()
    }

    /// The node with this id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The id of the node with this name.
    #[must_use]
    pub fn id_of(&self, name: &NodeName) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// What ready and draining nodes have of every resource.
    pub(crate) fn totals(&self) -> BTreeMap<Resource, u64> {
        let mut totals = BTreeMap::new();
        let present = self.topology.root().classes.iter().filter(|((_, status), _)| *status != NodeStatus::Lost);
        for ((capacity, _), count) in present {
            let amounts = [
                (Resource::Accelerator(capacity.accelerator.clone()), u64::from(capacity.accelerators)),
                (Resource::Cpus, u64::from(capacity.cpus)),
                (Resource::Memory, capacity.memory.0 >> MIB_BITS),
            ];
            for (resource, amount) in amounts {
                *totals.entry(resource).or_insert(0) += amount * u64::from(*count);
            }
        }
        totals
    }

    /// Ready nodes of a kind, those with most free first.
    pub(crate) fn emptiest_of<'a>(&'a self, kind: &'a AcceleratorKind) -> impl Iterator<Item = &'a Node> + 'a {
        let all = (kind.clone(), 0, NodeId(0))..=(kind.clone(), u32::MAX, NodeId(u32::MAX));
        self.by_free.range(all).rev().filter_map(|(_, _, id)| self.nodes.get(id))
    }

    /// Ready nodes of the gang's kind that can take a share now, fullest first.
    pub(crate) fn with_room_for<'a>(&'a self, gang: &'a GangShape) -> impl Iterator<Item = &'a Node> + 'a {
        let from = (gang.accelerator.clone(), gang.accelerators_per_node.get(), NodeId(0));
        self.by_free
            .range(from..)
            .take_while(|(kind, _, _)| *kind == gang.accelerator)
            .filter_map(|(_, _, id)| self.nodes.get(id))
            .filter(|node| node.has_room_for_share_of(gang))
    }

    /// The tree of domains.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether a node can be where it says; see [`Topology::admits`].
    pub(crate) fn admits(&self, spec: &NodeSpec) -> Result<(), Refusal> {
        self.topology.admits(spec, self.nodes.values())
    }

    /// How many nodes could take a share of `gang` where its topology allows them all, if they were empty, of those with
    /// one of these statuses.
    pub(crate) fn could_hold(&self, gang: &GangShape, statuses: &[NodeStatus]) -> u32 {
        placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, statuses)).nodes
    }

    /// What `gang` wants beside what the cluster has.
    pub(crate) fn fit(&self, gang: &GangShape) -> Fit {
        let of_kind = || self.nodes.values().map(|n| &n.spec.capacity).filter(|c| c.accelerator == gang.accelerator);
        let best = placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, &NodeStatus::ANY));
        let kinds: BTreeSet<&str> = self.nodes.values().map(|n| n.spec.capacity.accelerator.0.as_str()).collect();
        Fit {
            wanted: gang.clone(),
            nodes_of_kind: u32::try_from(of_kind().count()).expect("a cluster has fewer than 2^32 nodes"),
            nodes_that_fit: self.topology.root().could_hold(gang, &NodeStatus::ANY),
            accelerators_per_node_max: of_kind().map(|c| c.accelerators).max().unwrap_or(0),
            cpus_per_node_max: of_kind().map(|c| c.cpus).max().unwrap_or(0),
            memory_per_node_max: of_kind().map(|c| c.memory).max().unwrap_or_default(),
            kinds: kinds.into_iter().map(str::to_owned).collect(),
            closest: gang.topology.constrains().then(|| DomainFit::from(best)),
        }
    }

    /// Adds a node, or takes a known one back with its present capacity. Devices that jobs hold stay theirs.
    pub(crate) fn join(&mut self, spec: NodeSpec, held: &[&Share]) -> NodeId {
        let next = NodeId(u32::try_from(self.nodes.len()).expect("a cluster has fewer than 2^32 nodes"));
        let id = *self.by_name.entry(spec.name.clone()).or_insert(next);
        self.unindex(id);
        let was_draining = self.nodes.get(&id).is_some_and(|node| node.status == NodeStatus::Draining);
        let status = if was_draining { NodeStatus::Draining } else { NodeStatus::Ready };
        self.leave_topology(id);
        self.nodes.insert(id, Node { status, ..Node::new(id, spec) });
        self.enter_topology(id);
        self.index(id);
        for share in held.iter().filter(|share| share.node == id) {
            self.take(share);
        }
        id
    }

    pub(crate) fn set_status(&mut self, id: NodeId, status: NodeStatus) {
        self.unindex(id);
        self.leave_topology(id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.status = status;
        }
        self.enter_topology(id);
        self.index(id);
    }

    /// Hands a share's devices out. Devices beyond a shrunken node's capacity are none of its business any more.
    pub(crate) fn take(&mut self, share: &Share) {
        self.unindex(share.node);
        if let Some(node) = self.nodes.get_mut(&share.node) {
            for device in &share.devices {
                node.free.remove(device);
            }
            node.set_held(node.held_cpus + share.cpus, node.held_memory + share.memory);
        }
        self.index(share.node);
    }

    /// Takes a share's devices back.
    pub(crate) fn release(&mut self, share: &Share) {
        self.unindex(share.node);
        if let Some(node) = self.nodes.get_mut(&share.node) {
            let accelerators = node.spec.capacity.accelerators;
            node.free.extend(share.devices.iter().filter(|device| **device < accelerators));
            node.set_held(node.held_cpus - share.cpus, Bytes(node.held_memory.0 - share.memory.0));
        }
        self.index(share.node);
    }

    fn enter_topology(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get(&id) {
            self.topology.enter(node);
        }
    }

    fn leave_topology(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get(&id) {
            self.topology.leave(node);
        }
    }

    fn unindex(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.status == NodeStatus::Ready) else { return };
        self.by_free.remove(&(node.spec.capacity.accelerator.clone(), node.free_count(), id));
        self.topology.close(node);
    }

    fn index(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.status == NodeStatus::Ready) else { return };
        self.by_free.insert((node.spec.capacity.accelerator.clone(), node.free_count(), id));
        self.topology.open(node);
    }
}
