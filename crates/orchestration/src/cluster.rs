//! Nodes, what they have, and who holds it. Keeps the no-double-booking half of A-5: a device is handed out only from
//! its node's free set, and comes back only once. Nodes are set apart in pools as in most batch systems (Slurm's partitions,
//! PBS' queues of nodes), but a node is in one only: indices are kept for each kind of accelerator in each pool. What a node's
//! status follows from changes in `standing.rs`.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{
    AcceleratorKind, Bytes, DeviceLayout, GangShape, JobSpec, Lane, Level, NodeId, NodeName, PoolName, Timestamp,
};

use crate::fabric::Fabric;
use crate::health::HealthPolicy;
use crate::lanes::{ByLane, OfLane};
use crate::refusal::{DomainFit, Fit, Refusal};
use crate::share::{MIB_BITS, Resource};
use crate::spares::{Unheld, is_ordinary};
use crate::standing::{NodeStatus, Standing};
use crate::topology::{Location, Topology};
use crate::{Configuration, Share, placement};

/// A node as it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name, unique in the cluster.
    pub name: NodeName,
    /// What it has.
    pub capacity: NodeCapacity,
    /// Where in the network it is, as far as that is known.
    pub location: Location,
    /// How its accelerators are joined, as far as that is known.
    pub layout: DeviceLayout,
}

/// What a node has for jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeCapacity {
    /// The pool of the jobs that it is for.
    pub pool: PoolName,
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
    /// What its jobs compete for.
    #[must_use]
    pub fn lane(&self) -> Lane {
        Lane { accelerator: self.accelerator.clone(), pool: self.pool.clone() }
    }

    /// Whether it has the kind of accelerator, and is in the pool, that a gang asks for.
    pub(crate) fn is_for(&self, gang: &GangShape) -> bool {
        self.accelerator == gang.accelerator && self.pool == gang.pool
    }

    pub(crate) fn can_hold_share_of(&self, gang: &GangShape) -> bool {
        self.has_enough_for_share_of(gang) && self.is_for(gang)
    }

    /// The same of a node of the gang's lane, whose names need not be compared.
    fn has_enough_for_share_of(&self, gang: &GangShape) -> bool {
        self.accelerators >= gang.accelerators_per_node.get()
            && self.cpus >= gang.cpus_per_node
            && self.memory >= gang.memory_per_node
    }
}

/// A node and what of it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its name and capacity.
    pub spec: NodeSpec,
    /// Whether it takes jobs: what follows from its standing at the last look.
    pub status: NodeStatus,
    /// Why.
    pub standing: Standing,
    /// Faults of its own, rounded, at the last look: the fewer the better.
    pub(crate) grade: u32,
    /// When to look at its faults again.
    pub(crate) checkup: Option<Timestamp>,
    /// Shares of ordinary jobs that are here.
    ordinary: u32,
    /// Free accelerators.
    pub free: BTreeSet<u32>,
    /// Those that others hold.
    pub(crate) aside: BTreeSet<u32>,
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
    fn new(id: NodeId, spec: NodeSpec, standing: Standing) -> Self {
        let free = (0..spec.capacity.accelerators).collect();
        let (free_cpus, free_memory) = (spec.capacity.cpus, spec.capacity.memory);
        let (held_cpus, held_memory) = (0, Bytes(0));
        let (status, grade) = (standing.status(Timestamp::EPOCH, None), 0);
        Node {
            id,
            spec,
            status,
            standing,
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

    /// Its place among the ready nodes of its lane: the fullest first, of those the ones with fewest faults.
    pub(crate) fn place(&self) -> FreePlace {
        (self.free_count(), self.grade, self.id)
    }

    /// The same, if it is ready.
    fn indexed_place(&self) -> Option<FreePlace> {
        (self.status == NodeStatus::Ready).then(|| self.place())
    }

    fn set_held(&mut self, cpus: u32, memory: Bytes) {
        (self.held_cpus, self.held_memory) = (cpus, memory);
        self.count_free();
    }

    /// Works out what is free, after anything has changed that it follows from.
    pub(crate) fn count_free(&mut self) {
        let (capacity, outside) = (&self.spec.capacity, self.standing.outside);
        self.free_cpus = capacity.cpus.saturating_sub(self.held_cpus).saturating_sub(outside.cpus);
        let memory = capacity.memory.0.saturating_sub(self.held_memory.0).saturating_sub(outside.memory.0);
        self.free_memory = Bytes(memory);
        self.set_aside();
    }

    fn take_back(&mut self, share: &Share) {
        let accelerators = self.spec.capacity.accelerators;
        self.free.extend(share.devices.iter().filter(|device| **device < accelerators));
        self.set_held(self.held_cpus - share.cpus, Bytes(self.held_memory.0 - share.memory.0));
    }

    /// Whether a share of `gang` that it holds could start here again, by what the node is now.
    pub(crate) fn keeps(&self, gang: &GangShape, share: &Share) -> bool {
        let mut without = self.clone();
        without.take_back(share);
        self.status == NodeStatus::Ready && self.spec.capacity.is_for(gang) && without.has_free(share)
    }

    /// Whether just what this share holds is free.
    pub(crate) fn has_free(&self, share: &Share) -> bool {
        share.devices.iter().all(|device| self.free.contains(device))
            && share.cpus <= self.free_cpus
            && share.memory <= self.free_memory
    }

    /// Whether it can take a share of `gang` now.
    #[must_use]
    pub fn has_room_for_share_of(&self, gang: &GangShape) -> bool {
        self.has_left_for_share_of(gang) && self.spec.capacity.is_for(gang)
    }

    /// The same of a node of the gang's lane, whose names need not be compared.
    pub(crate) fn has_left_for_share_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready
            && self.free_count() >= gang.accelerators_per_node.get()
            && self.free_cpus >= gang.cpus_per_node
            && self.free_memory >= gang.memory_per_node
    }

    /// Whether it, a node of the gang's lane, is ready and could take a share of `gang` if it were empty.
    pub(crate) fn takes_shares_of(&self, gang: &GangShape) -> bool {
        self.status == NodeStatus::Ready && self.spec.capacity.has_enough_for_share_of(gang)
    }

    /// Whether it could take a share of `gang` if it were ready and empty.
    #[must_use]
    pub fn could_hold_share_of(&self, gang: &GangShape) -> bool {
        self.spec.capacity.can_hold_share_of(gang)
    }

    /// What has to hold the whole gang if it is to have this node; none if the node doesn't say where it is there.
    pub(crate) fn domain_for(&self, gang: &GangShape) -> Option<Bound<'_>> {
        match gang.topology.require {
            None => Some(Bound::Nowhere),
            Some(level) => self.domain_at(level).map(Bound::To),
        }
    }

    /// The name of its domain of a level, if it says; every node is its own narrowest.
    pub(crate) fn domain_at(&self, level: Level) -> Option<&str> {
        if level == Level::Node { Some(self.spec.name.as_str()) } else { self.spec.location.at(level) }
    }

    /// How many accelerators are free.
    #[inline]
    #[must_use]
    pub fn free_count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("a node has fewer than 2^32 accelerators")
    }
}

/// What a gang is bound to that has a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound<'a> {
    /// Nothing: its other nodes may be anywhere.
    Nowhere,
    /// The domain of this name.
    To(&'a str),
}

/// Where a node stands among the ready ones of its lane: by free accelerators, faults, id.
pub(crate) type FreePlace = (u32, u32, NodeId);

/// The place of the fullest node that has so many accelerators free.
pub(crate) const fn with_free(count: u32) -> FreePlace {
    (count, 0, NodeId(0))
}

/// Where a node, or what is kept of it, is in a list of all.
#[inline]
pub(crate) fn index_of(node: NodeId) -> usize {
    usize::try_from(node.0).expect("a usize holds 32 bits")
}

/// All nodes, indexed by how much is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// By id, which count from 0.
    pub(crate) nodes: Vec<Node>,
    by_name: BTreeMap<NodeName, NodeId>,
    /// Ready nodes by lane and number of free accelerators: the fullest that fits is found without a scan.
    by_free: ByLane<BTreeSet<FreePlace>>,
    /// Those of them that no ordinary job holds, in the order in which they are spares.
    unheld: Unheld,
    /// Where they are, and what could ever fit there, found without a scan.
    topology: Topology,
    /// What its levels carry, if the administrator said.
    fabric: Option<Fabric>,
    /// When faults make a node suspect; never, if nobody said.
    pub(crate) health: Option<HealthPolicy>,
    /// When to look at a node's faults again.
    pub(crate) checkups: BTreeSet<(Timestamp, NodeId)>,
    /// Nodes that say how their accelerators are joined.
    laid_out: usize,
    /// When reservations end and their nodes are anyone's again.
    pub(crate) reopenings: BTreeSet<Timestamp>,
}

impl Cluster {
    /// Every node, by id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.iter()
    }

    /// The node with this id.
    #[inline]
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(index_of(id))
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(index_of(id))
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

    /// What ready and draining nodes have of a kind of accelerator.
    pub(crate) fn total_of(&self, kind: &AcceleratorKind) -> u32 {
        let of_kind = self.topology.root().classes.iter().filter(|((capacity, _), _)| capacity.accelerator == *kind);
        let present = of_kind.filter(|((_, status), _)| *status != NodeStatus::Lost);
        present.fold(0, |sum, ((capacity, _), count)| sum.saturating_add(capacity.accelerators.saturating_mul(*count)))
    }

    /// Ready nodes of a lane, those with most free first.
    pub(crate) fn emptiest_of<'a>(&'a self, lane: &impl OfLane) -> impl Iterator<Item = &'a Node> + 'a {
        self.by_free.get(lane).into_iter().flatten().rev().filter_map(|(.., id)| self.node(*id))
    }

    /// Ready nodes of the gang's kind that can take a share now, fullest first.
    pub(crate) fn with_room_for<'a>(&'a self, gang: &'a GangShape) -> impl Iterator<Item = &'a Node> + 'a {
        let from = with_free(gang.accelerators_per_node.get());
        let places = self.by_free.get(gang).into_iter().flat_map(move |places| places.range(from..));
        places.filter_map(|(.., id)| self.node(*id)).filter(|node| node.has_left_for_share_of(gang))
    }

    /// Whether any node says how its accelerators are joined.
    pub(crate) fn has_layouts(&self) -> bool {
        self.laid_out > 0
    }

    /// What the network's levels carry, if the administrator said.
    pub(crate) fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    pub(crate) fn configure(&mut self, configuration: &Configuration) {
        self.fabric.clone_from(&configuration.fabric);
        self.health = configuration.health;
        self.reopenings = configuration.reservations.iter().map(|reservation| reservation.until).collect();
    }

    /// The tree of domains.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether a node can be where it says; see [`Topology::admits`].
    pub(crate) fn admits(&self, spec: &NodeSpec) -> Result<(), Refusal> {
        self.topology.admits(spec, self.nodes.iter())
    }

    /// How many nodes could take a share of `gang` where its topology allows them all, if they were empty, of those with
    /// one of these statuses.
    pub(crate) fn could_hold(&self, gang: &GangShape, statuses: &[NodeStatus]) -> u32 {
        placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, statuses)).nodes
    }

    /// What `gang` wants beside what the cluster has.
    pub(crate) fn fit(&self, gang: &GangShape) -> Fit {
        let of_kind = || self.nodes.iter().map(|n| &n.spec.capacity).filter(|c| c.is_for(gang));
        let best = placement::most_in_one(self, gang, &|domain| domain.could_hold(gang, &NodeStatus::ANY));
        let kinds: BTreeSet<String> = self.nodes.iter().map(|n| n.spec.capacity.lane().to_string()).collect();
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

    /// Adds a node, or takes a known one back with its present capacity. Devices that jobs hold stay theirs.
    pub(crate) fn join(&mut self, spec: NodeSpec, held: &[&Share]) -> NodeId {
        let next = NodeId(u32::try_from(self.nodes.len()).expect("a cluster has fewer than 2^32 nodes"));
        let id = *self.by_name.entry(spec.name.clone()).or_insert(next);
        self.unindex(id);
        let known = self.node(id).map(|node| node.standing).unwrap_or_default();
        let was_laid_out = self.node(id).is_some_and(|node| !node.spec.layout.is_unknown());
        self.laid_out = self.laid_out + usize::from(!spec.layout.is_unknown()) - usize::from(was_laid_out);
        self.leave_topology(id);
        let (checkup, ordinary) = self.node(id).map_or((None, 0), |node| (node.checkup, node.ordinary));
        let mut node = Node { checkup, ordinary, ..Node::new(id, spec, Standing { is_lost: false, ..known }) };
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

    /// Hands a share's devices out. Devices beyond a shrunken node's capacity are none of its business any more.
    pub(crate) fn take(&mut self, share: &Share) {
        self.change(share.node, |node| {
            for device in &share.devices {
                node.free.remove(device);
                node.aside.remove(device);
            }
            node.set_held(node.held_cpus + share.cpus, node.held_memory + share.memory);
        });
    }

    /// Takes a share's devices back.
    pub(crate) fn release(&mut self, share: &Share) {
        self.change(share.node, |node| node.take_back(share));
    }

    /// Changes what of a node is held, and its place in the indices: what stays the same there isn't touched.
    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.get_mut(index_of(id)) else { return };
        let before = node.indexed_place();
        change(node);
        let after = node.indexed_place();
        self.move_node(id, before, after);
    }

    /// Ready nodes that no ordinary job holds.
    pub(crate) fn unheld(&self) -> &Unheld {
        &self.unheld
    }

    /// The shares of an attempt come, or leave: whether their nodes may be spares shows when their devices change hands,
    /// which has to be next.
    pub(crate) fn count_ordinary(&mut self, spec: &JobSpec, shares: &[Share], comes: bool) {
        for share in shares.iter().filter(|_| is_ordinary(spec)) {
            if let Some(node) = self.node_mut(share.node) {
                node.ordinary = if comes { node.ordinary + 1 } else { node.ordinary.saturating_sub(1) };
            }
        }
    }

    /// Counts shares whose devices are taken already.
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

    /// Moves a node in the indices of the ready ones.
    fn move_node(&mut self, id: NodeId, before: Option<FreePlace>, after: Option<FreePlace>) {
        let Some(node) = self.nodes.get(index_of(id)).filter(|_| before.or(after).is_some()) else { return };
        let lane = &node.spec.capacity;
        if let Some(before) = before {
            self.unheld.remove(lane, before);
        }
        if let Some(after) = after.filter(|_| node.ordinary == 0) {
            self.unheld.insert(lane, after);
        }
        if before != after {
            self.by_free.change(lane, |places| {
                before.map(|before| places.remove(&before));
                places.extend(after);
            });
            self.topology.count(node, before, after);
        }
    }
}
