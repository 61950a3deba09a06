//! Nodes, their capacity, and who holds it. Keeps the no-double-booking half of A-5: a device is taken only
//! from its node's free set and returned only once. As in most batch systems (Slurm's partitions, PBS' queues
//! of nodes), nodes are divided into pools, but each node is in exactly one; indices are per flavour.
//! `condition.rs` changes a node's condition.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{AcceleratorKind, Bytes, GangShape, JobSpec, Level, NodeId, NodeName, Timestamp};

use crate::placement::capacity::NodeSpec;
use crate::placement::condition::{NodeCondition, NodeStatus};
use crate::placement::fabric::Fabric;
use crate::placement::flavour::{ByFlavour, OfFlavour};
use crate::placement::health::HealthPolicy;
use crate::placement::spare_nodes::{Unheld, is_ordinary};
use crate::placement::topology::Topology;
use crate::queueing::{MIB_BITS, Resource};
use crate::refusal::{DomainFit, Fit, Refusal};
use crate::{Configuration, Share, placement};

/// A node and its free resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name and capacity.
    pub spec: NodeSpec,
    /// Whether it takes jobs, as it followed from its condition when last evaluated.
    pub status: NodeStatus,
    /// The condition that determines the status.
    pub condition: NodeCondition,
    /// Its rounded number of faults when last evaluated; fewer is better.
    pub(crate) grade: u32,
    /// When to evaluate its faults again.
    pub(crate) checkup: Option<Timestamp>,
    /// The number of ordinary jobs' shares here.
    ordinary: u32,
    /// Free accelerators.
    pub free: BTreeSet<u32>,
    /// Accelerators set aside for external usage.
    pub(crate) aside: BTreeSet<u32>,
    /// Free CPU cores, of `NodeCapacity::shared_cpus`.
    pub free_cpus: u32,
    /// Free memory, of `NodeCapacity::shared_memory`.
    pub free_memory: Bytes,
    /// CPU cores that jobs hold; may exceed the capacity if the node came back smaller.
    held_cpus: u32,
    /// Memory that jobs hold.
    held_memory: Bytes,
}

impl Node {
    fn new(id: NodeId, spec: NodeSpec, condition: NodeCondition) -> Self {
        let free = (0..spec.capacity.accelerators).collect();
        let (free_cpus, free_memory) = (spec.capacity.shared_cpus(), spec.capacity.shared_memory());
        let (held_cpus, held_memory) = (0, Bytes(0));
        let (status, grade) = (condition.status(Timestamp::EPOCH, None), 0);
        Node {
            id,
            spec,
            status,
            condition,
            grade,
            checkup: None,
            ordinary: 0,
            free,
            aside: BTreeSet::new(),
            free_cpus,
            free_memory,
            held_cpus,
            held_memory,
        }
    }

    /// Returns its position among ready nodes of its flavour: the fullest first, then the fewest faults.
    pub(crate) fn place(&self) -> FreePlace {
        (self.free_count(), self.grade, self.id)
    }

    /// Returns that position if the node is ready.
    fn indexed_place(&self) -> Option<FreePlace> {
        (self.status == NodeStatus::Ready).then(|| self.place())
    }

    fn set_held(&mut self, cpus: u32, memory: Bytes) {
        (self.held_cpus, self.held_memory) = (cpus, memory);
        self.count_free();
    }

    /// Recomputes what is free, after any change to the inputs.
    pub(crate) fn count_free(&mut self) {
        let (capacity, outside) = (&self.spec.capacity, self.condition.outside);
        self.free_cpus = capacity.shared_cpus().saturating_sub(self.held_cpus).saturating_sub(outside.cpus);
        let memory = capacity.shared_memory().0.saturating_sub(self.held_memory.0).saturating_sub(outside.memory.0);
        self.free_memory = Bytes(memory);
        self.set_aside();
    }

    fn take_back(&mut self, share: &Share) {
        let accelerators = self.spec.capacity.accelerators;
        self.free.extend(share.devices.iter().filter(|device| **device < accelerators));
        self.set_held(self.held_cpus - share.cpus, Bytes(self.held_memory.0 - share.memory.0));
    }

    /// Reports whether the node, in its present state, could restart a share of `gang` that is already here.
    pub(crate) fn keeps(&self, gang: &GangShape, share: &Share) -> bool {
        let mut without = self.clone();
        without.take_back(share);
        self.status == NodeStatus::Ready && self.spec.capacity.is_for(gang) && without.has_free(share)
    }

    /// Reports whether exactly what this share holds is free.
    pub(crate) fn has_free(&self, share: &Share) -> bool {
        share.devices.iter().all(|device| self.free.contains(device))
            && share.cpus <= self.free_cpus
            && share.memory <= self.free_memory
    }

    /// Reports whether it can take a share of `gang` now.
    #[must_use]
    pub fn has_room_for_share_of(&self, gang: &GangShape) -> bool {
        self.has_left_for_share_of(gang) && self.spec.capacity.is_for(gang)
    }

    /// Checks free resources only, for a node already known to have the gang's flavour.
    pub(crate) fn has_left_for_share_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready
            && self.free_count() >= gang.accelerators_per_node.get()
            && self.free_cpus >= gang.cpus_per_node
            && self.free_memory >= gang.memory_per_node
    }

    /// Reports whether a node of the gang's flavour is ready and could take a share of `gang` if empty.
    pub(crate) fn takes_shares_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready && self.spec.capacity.has_enough_for_share_of(gang)
    }

    /// Reports whether it could take a share of `gang` if ready and empty.
    #[must_use]
    pub fn could_hold_share_of(&self, gang: &GangShape) -> bool {
        self.spec.capacity.can_hold_share_of(gang)
    }

    /// Returns the domain that must hold the whole gang if it uses this node; none if the node doesn't name
    /// it.
    pub(crate) fn domain_for(&self, gang: &GangShape) -> Option<Bound<'_>> {
        match gang.topology.require {
            None => Some(Bound::Nowhere),
            Some(level) => self.domain_at(level).map(Bound::To),
        }
    }

    /// Returns the name of its domain at a level, if known; every node is its own narrowest domain.
    pub(crate) fn domain_at(&self, level: Level) -> Option<&str> {
        if level == Level::Node { Some(self.spec.name.as_str()) } else { self.spec.location.at(level) }
    }

    /// Returns the number of free accelerators.
    #[inline]
    #[must_use]
    pub fn free_count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("a node has fewer than 2^32 accelerators")
    }
}

/// What the rest of a gang is bound to once it uses a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound<'a> {
    /// Nothing: other nodes may be anywhere.
    Nowhere,
    /// The domain of this name.
    To(&'a str),
}

/// A node's position among the ready nodes of its flavour: free accelerators, faults, id.
pub(crate) type FreePlace = (u32, u32, NodeId);

/// Returns the lowest position with this many accelerators free.
pub(crate) const fn with_free(count: u32) -> FreePlace {
    (count, 0, NodeId(0))
}

/// Returns the index of a node in a list of all nodes.
#[inline]
pub(crate) fn index_of(node: NodeId) -> usize {
    usize::try_from(node.0).expect("a usize holds 32 bits")
}

/// All nodes, indexed by what is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// By id; ids count from 0.
    pub(crate) nodes: Vec<Node>,
    by_name: BTreeMap<NodeName, NodeId>,
    /// Ready nodes by flavour and free accelerators, so that the fullest that fits is found without a scan.
    by_free: ByFlavour<BTreeSet<FreePlace>>,
    /// Ready nodes without ordinary jobs, in the order in which they become spares.
    unheld: Unheld,
    /// Indices by network domain: locations and capacities, found without a scan.
    topology: Topology,
    /// The network's bandwidths, if configured.
    fabric: Option<Fabric>,
    /// When faults make a node suspect; none for never.
    pub(crate) health: Option<HealthPolicy>,
    /// When to evaluate a node's faults again.
    pub(crate) checkups: BTreeSet<(Timestamp, NodeId)>,
    /// The number of nodes with a known device layout.
    laid_out: usize,
    /// When reservations end and their nodes become available to all.
    pub(crate) reopenings: BTreeSet<Timestamp>,
}

impl Cluster {
    /// Returns every node, by id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.iter()
    }

    /// Returns the node with this id.
    #[inline]
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(index_of(id))
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(index_of(id))
    }

    /// Returns the id of the node with this name.
    #[must_use]
    pub fn id_of(&self, name: &NodeName) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Returns the totals of every resource over ready and draining nodes.
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

    /// Returns the total accelerators of a kind on ready and draining nodes.
    pub(crate) fn total_of(&self, kind: &AcceleratorKind) -> u32 {
        let of_kind = self.topology.root().classes.iter().filter(|((capacity, _), _)| capacity.accelerator == *kind);
        let present = of_kind.filter(|((_, status), _)| *status != NodeStatus::Lost);
        present.fold(0, |sum, ((capacity, _), count)| sum.saturating_add(capacity.accelerators.saturating_mul(*count)))
    }

    /// Returns ready nodes of a flavour, most free first.
    pub(crate) fn emptiest_of<'a>(&'a self, flavour: &impl OfFlavour) -> impl Iterator<Item = &'a Node> + 'a {
        self.by_free.get(flavour).into_iter().flatten().rev().filter_map(|(.., id)| self.node(*id))
    }

    /// Returns ready nodes that can take a share of the gang now, fullest first.
    pub(crate) fn with_room_for<'a>(&'a self, gang: &'a GangShape) -> impl Iterator<Item = &'a Node> + 'a {
        let from = with_free(gang.accelerators_per_node.get());
        let places = self.by_free.get(gang).into_iter().flat_map(move |places| places.range(from..));
        places.filter_map(|(.., id)| self.node(*id)).filter(|node| node.has_left_for_share_of(gang))
    }

    /// Reports whether any node has a known device layout.
    pub(crate) fn has_layouts(&self) -> bool {
        self.laid_out > 0
    }

    /// Returns the network's bandwidths, if configured.
    pub(crate) fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    pub(crate) fn configure(&mut self, configuration: &Configuration) {
        self.fabric.clone_from(&configuration.fabric);
        self.health = configuration.health;
        self.reopenings = configuration.reservations.iter().map(|reservation| reservation.until).collect();
    }

    /// Returns the tree of domains.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Checks whether a node's location is consistent; see [`Topology::admits`].
    pub(crate) fn admits(&self, spec: &NodeSpec) -> Result<(), Refusal> {
        self.topology.admits(spec, self.nodes.iter())
    }

    /// Returns how many nodes with one of these statuses could, if empty, take a share of `gang` within its
    /// topology constraints.
    pub(crate) fn could_hold(&self, gang: &GangShape, statuses: &[NodeStatus]) -> u32 {
        placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, statuses)).nodes
    }

    /// Compares what `gang` requests with what the cluster has.
    pub(crate) fn fit(&self, gang: &GangShape) -> Fit {
        let of_kind = || self.nodes.iter().map(|n| &n.spec.capacity).filter(|c| c.is_for(gang));
        let best = placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, &NodeStatus::ANY));
        let kinds: BTreeSet<String> = self.nodes.iter().map(|n| n.spec.capacity.flavour().to_string()).collect();
        Fit {
            wanted: gang.clone(),
            nodes_of_kind: u32::try_from(of_kind().count()).expect("a cluster has fewer than 2^32 nodes"),
            nodes_that_fit: self.topology.root().could_hold(gang, &NodeStatus::ANY),
            accelerators_per_node_max: of_kind().map(|c| c.accelerators).max().unwrap_or(0),
            cpus_per_node_max: of_kind().map(|c| c.cpus).max().unwrap_or(0),
            memory_per_node_max: of_kind().map(|c| c.memory).max().unwrap_or_default(),
            kinds: kinds.into_iter().collect(),
            closest: gang.topology.constrains().then(|| DomainFit::from(best)),
        }
    }

    /// Adds a node, or takes a known one back with its present capacity. Jobs keep the devices they hold.
    pub(crate) fn join(&mut self, spec: NodeSpec, held: &[&Share]) -> NodeId {
        let next = NodeId(u32::try_from(self.nodes.len()).expect("a cluster has fewer than 2^32 nodes"));
        let id = *self.by_name.entry(spec.name.clone()).or_insert(next);
        self.unindex(id);
        let known = self.node(id).map(|node| node.condition).unwrap_or_default();
        let was_laid_out = self.node(id).is_some_and(|node| !node.spec.layout.is_unknown());
        self.laid_out = self.laid_out + usize::from(!spec.layout.is_unknown()) - usize::from(was_laid_out);
        self.leave_topology(id);
        let (checkup, ordinary) = self.node(id).map_or((None, 0), |node| (node.checkup, node.ordinary));
        let mut node = Node { checkup, ordinary, ..Node::new(id, spec, NodeCondition { is_lost: false, ..known }) };
        node.count_free();
        match self.node_mut(id) {
            Some(known) => *known = node,
            None => self.nodes.push(node),
        }
        self.enter_topology(id);
        self.index(id);
        for share in held.iter().filter(|share| share.node == id) {
            self.take(share);
        }
        id
    }

    /// Takes a share's devices. Devices beyond a shrunken node's capacity are ignored.
    pub(crate) fn take(&mut self, share: &Share) {
        self.change(share.node, |node| {
            for device in &share.devices {
                node.free.remove(device);
                node.aside.remove(device);
            }
            node.set_held(node.held_cpus + share.cpus, node.held_memory + share.memory);
        });
    }

    /// Returns a share's devices.
    pub(crate) fn release(&mut self, share: &Share) {
        self.change(share.node, |node| node.take_back(share));
    }

    /// Calls `ask` with these shares free, then takes them again. A copy of the cluster would cost as much as
    /// there are nodes.
    pub(crate) fn with_released<R>(&mut self, shares: &[Share], ask: impl FnOnce(&Cluster) -> R) -> R {
        shares.iter().for_each(|share| self.release(share));
        let answer = ask(self);
        shares.iter().for_each(|share| self.take(share));
        answer
    }

    /// Changes what is held of a node and updates its index entries, if they differ.
    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.get_mut(index_of(id)) else { return };
        let before = node.indexed_place();
        change(node);
        let after = node.indexed_place();
        self.move_node(id, before, after);
    }

    /// Returns ready nodes without ordinary jobs.
    pub(crate) fn unheld(&self) -> &Unheld {
        &self.unheld
    }

    /// Counts an attempt's shares as they come or leave. The devices must change hands next, since that
    /// updates the index of possible spares.
    pub(crate) fn count_ordinary(&mut self, spec: &JobSpec, shares: &[Share], comes: bool) {
        for share in shares.iter().filter(|_| is_ordinary(spec)) {
            if let Some(node) = self.node_mut(share.node) {
                node.ordinary = if comes { node.ordinary + 1 } else { node.ordinary.saturating_sub(1) };
            }
        }
    }

    /// Counts shares whose devices are already taken.
    pub(crate) fn recount_ordinary(&mut self, spec: &JobSpec, shares: &[Share]) {
        shares.iter().for_each(|share| self.unindex(share.node));
        self.count_ordinary(spec, shares, true);
        shares.iter().for_each(|share| self.index(share.node));
    }

    pub(crate) fn enter_topology(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get(index_of(id)) {
            self.topology.enter(node);
        }
    }

    pub(crate) fn leave_topology(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get(index_of(id)) {
            self.topology.leave(node);
        }
    }

    pub(crate) fn unindex(&mut self, id: NodeId) {
        let before = self.node(id).and_then(Node::indexed_place);
        self.move_node(id, before, None);
    }

    pub(crate) fn index(&mut self, id: NodeId) {
        let after = self.node(id).and_then(Node::indexed_place);
        self.move_node(id, None, after);
    }

    /// Moves a node in the indices of ready nodes.
    fn move_node(&mut self, id: NodeId, before: Option<FreePlace>, after: Option<FreePlace>) {
        let Some(node) = self.nodes.get(index_of(id)).filter(|_| before.or(after).is_some()) else { return };
        let flavour = &node.spec.capacity;
        if let Some(before) = before {
            self.unheld.remove(flavour, before);
        }
        if let Some(after) = after.filter(|_| node.ordinary == 0) {
            self.unheld.insert(flavour, after);
        }
        if before != after {
            self.by_free.change(flavour, |places| {
                before.map(|before| places.remove(&before));
                places.extend(after);
            });
            self.topology.count(node, before, after);
        }
    }
}
