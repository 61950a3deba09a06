//! Finds room for a whole gang (A-5: whole or not at all), close together.
//!
//! The narrowest domain that fits is chosen, since a gang's all-reduce runs at the speed of the widest level
//! it spans (Patarasuk and Yuan 2009); among several, the one with the least left over, so that large holes
//! stay whole for large gangs. A gang that spans domains uses as few as it can: the emptiest ones whole, and
//! for the rest the one that fits most tightly, unless the fabric's bandwidths are known and equal parts are
//! much faster (`fabric.rs`). Inside a domain, or in a cluster with an unknown network, the fullest nodes
//! with room are chosen; ties go to nodes whose free devices are better connected (`affinity.rs`), then to
//! nodes that may have the job's data (`locality.rs`), then to the lower name or id. `affinity.rs` chooses
//! the devices on a node: the lowest, if the layout is unknown. A gang's shares are on different nodes.
//! Shares, and so ranks, follow the order of the tree: neighbouring ranks are neighbours in the network.
//!
//! Best fit by tree level follows Kueue's topology-aware scheduling (KEP-2724) and Slurm's topology/block
//! plugin, which also defines segments. [`crate::placement::topology`] keeps counts per domain; only chosen nodes are
//! visited, unless CPUs, memory or a reservation exclude some that have devices.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gangline_base::{Bytes, GangShape, Level, NodeId, Segment};

use super::affinity;
use crate::placement::fabric::{Closeness, Fabric};
use crate::placement::locality::{NearNodes, Nearness};
use crate::placement::topology::{Domain, Topology};
use crate::refusal::{DomainFit, Refusal};
use crate::{Cluster, Node, Share};

/// The room found for a gang.
pub(crate) struct Room {
    /// One share per node, in rank order.
    pub(crate) shares: Vec<Share>,
    /// Nodes with room, counted up to [`CANDIDATES_COUNTED_MAX`] beyond those needed.
    pub(crate) candidates: u32,
    /// How close its nodes are; none for one node or an unknown network.
    pub(crate) closeness: Option<Closeness>,
    /// Bytes of the gang's datasets that its nodes hold.
    pub(crate) held: Bytes,
}

/// The most candidates, beyond the gang's own nodes, that are counted for the reason; from there the count is
/// a lower bound.
const CANDIDATES_COUNTED_MAX: usize = 64;

/// The most nodes, beyond the gang's own, compared by how their free devices are connected.
const EQUALS_COMPARED_MAX: usize = 64;

/// The most parts into which a gang is divided for a faster all-reduce.
const PARTS_MAX: usize = 8;
/// The least speed-up that justifies equal parts, since they leave more holes than using as few domains as
/// possible.
const GAIN_MIN: f64 = 1.1;

/// Finds room for the whole gang, regardless of its data.
pub(crate) fn find_room(cluster: &Cluster, gang: &GangShape, usable: &dyn Fn(&Node) -> u32) -> Option<Room> {
    find_room_near(cluster, gang, usable, &NearNodes::default())
}

/// Finds room for the whole gang. `usable` returns how many of a node's free accelerators the gang may use:
/// fewer than are free where some are held for a job that is served earlier. Among equally good
/// rooms, the one with more nodes `near` the gang's data is chosen.
pub(crate) fn find_room_near(
    cluster: &Cluster,
    gang: &GangShape,
    usable: &dyn Fn(&Node) -> u32,
    near: &NearNodes,
) -> Option<Room> {
    if cluster.topology().root().with_devices_for(gang) < gang.nodes.get() {
        return None;
    }
    let search = Search::new(cluster, gang, usable, near);
    let (fullest, candidates) = search.fullest();
    if fullest.len() < search.wanted() {
        return None;
    }
    let nodes = if search.is_indifferent() { fullest.clone() } else { search.closest()? };
    let closeness = Closeness::of(gang, &nodes, &fullest, cluster.fabric());
    let held = nodes.iter().fold(Nearness::default(), |sum, node| sum.and(near.at(node.id))).held;
    let shares = rank_order(nodes).into_iter().map(|node| share_on(node, gang)).collect();
    Some(Room { shares, candidates, closeness, held })
}

/// Reports whether there is room for the whole gang.
pub(crate) fn has_room(cluster: &Cluster, gang: &GangShape, usable: &dyn Fn(&Node) -> u32) -> bool {
    if gang.topology.constrains() {
        return find_room(cluster, gang, usable).is_some();
    }
    let near = NearNodes::default();
    let search = Search::new(cluster, gang, usable, &near);
    search.candidates().take(search.wanted()).count() == search.wanted()
}

/// Checks that a gang's segments have equal size.
pub(crate) fn check_segments(gang: &GangShape) -> Result<(), Refusal> {
    match gang.topology.segment {
        Some(segment) if !gang.nodes.get().is_multiple_of(segment.nodes.get()) => {
            Err(Refusal::UnevenSegments { nodes: gang.nodes.get(), segment: segment.nodes.get() })
        }
        _ => Ok(()),
    }
}

/// The domain that could hold the largest part of a gang.
pub(crate) struct Best<'a> {
    /// The level to which the gang is bound, if any.
    pub(crate) level: Option<Level>,
    /// The domain, if there is one.
    pub(crate) domain: Option<&'a Domain>,
    /// How many nodes it offers the gang.
    pub(crate) nodes: u32,
}

impl From<Best<'_>> for DomainFit {
    fn from(best: Best<'_>) -> DomainFit {
        let domain = best.domain.filter(|domain| domain.level.is_some()).map(|domain| domain.name.to_string());
        DomainFit { level: best.level.unwrap_or(Level::Node), domain, nodes: best.nodes }
    }
}

/// Returns the permitted domain with the most nodes for the gang, using `count` for the suitable nodes of a
/// domain.
pub(crate) fn most_in_one<'a>(cluster: &'a Cluster, gang: &GangShape, count: &dyn Fn(&Domain) -> u32) -> Best<'a> {
    let topology = cluster.topology();
    let segment = segment(gang);
    let level = gang.topology.require.or(segment.map(|segment| segment.level));
    let counted =
        topology.domains(required(gang)).map(|domain| (whole_segments(topology, domain, segment, count), domain));
    // Keeps the first of the largest; `max_by_key` would take the last.
    let best = counted.reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (nodes, domain) = best.map_or((0, None), |(nodes, domain)| (nodes, Some(domain)));
    let nodes = if gang.topology.require == Some(Level::Node) { nodes.min(1) } else { nodes };
    Best { level, domain, nodes }
}

/// Returns the level of the domain that must hold all nodes; every node is its own narrowest domain.
fn required(gang: &GangShape) -> Option<Level> {
    gang.topology.require.filter(|level| *level != Level::Node)
}

/// Returns the segments, unless they have one node each, which any node satisfies.
pub(crate) fn segment(gang: &GangShape) -> Option<Segment> {
    gang.topology.segment.filter(|segment| segment.nodes.get() > 1)
}

/// Returns the nodes counted in a domain that make up whole segments.
fn whole_segments(
    topology: &Topology,
    domain: &Domain,
    segment: Option<Segment>,
    count: &dyn Fn(&Domain) -> u32,
) -> u32 {
    match segment {
        Some(segment) if domain.is_wider_than(segment.level) => {
            let parts = topology.children(domain).filter(|child| child.level >= Some(segment.level));
            parts.map(|child| whole_segments(topology, child, Some(segment), count)).sum()
        }
        Some(segment) if domain.level == Some(segment.level) => count(domain) / segment.nodes * segment.nodes.get(),
        _ => count(domain),
    }
}

/// The request and what restricts it.
struct Search<'a> {
    cluster: &'a Cluster,
    gang: &'a GangShape,
    usable: &'a dyn Fn(&Node) -> u32,
    segment: Option<Segment>,
    near: &'a NearNodes,
    /// How near the usable nodes of each domain are to the data, all together.
    near_in: BTreeMap<(Level, &'a str), Nearness>,
}

impl<'a> Search<'a> {
    fn new(cluster: &'a Cluster, gang: &'a GangShape, usable: &'a dyn Fn(&Node) -> u32, near: &'a NearNodes) -> Self {
        let mut search = Search { cluster, gang, usable, segment: segment(gang), near, near_in: BTreeMap::new() };
        let nodes = near.nodes().filter_map(|(node, near)| Some((cluster.node(node)?, near)));
        for (node, near) in nodes.filter(|(node, _)| node.spec.capacity.is_for(gang)) {
            let domains = node.spec.location.iter();
            if search.is_usable(node) {
                domains.for_each(|domain| {
                    let sum = search.near_in.entry(domain).or_default();
                    *sum = sum.and(near);
                });
            }
        }
        search
    }

    fn near_in(&self, domain: &Domain) -> Nearness {
        let named = domain.level.and_then(|level| self.near_in.get(&(level, &*domain.name)));
        named.copied().unwrap_or_default()
    }

    /// Reports whether equally full and healthy nodes may differ for this gang.
    fn tells_equals_apart(&self) -> bool {
        !self.near.is_nowhere() || self.cluster.has_layouts() && self.gang.accelerators_per_node.get() > 1
    }

    /// Takes up to `wanted` nodes, which come fullest first; among equally full and healthy ones, those where
    /// the gang's devices are least spread out, then those nearest to its data.
    fn best_of_equals(&self, nodes: impl Iterator<Item = &'a Node>, wanted: usize) -> Vec<&'a Node> {
        if !self.tells_equals_apart() {
            return nodes.take(wanted).collect();
        }
        let fullness = |node: &Node| (node.free_count(), node.grade);
        let compared_max = if self.near.is_nowhere() { wanted + EQUALS_COMPARED_MAX } else { usize::MAX };
        let mut equal: Vec<&Node> = Vec::new();
        for node in nodes.take(compared_max) {
            if equal.len() >= wanted && equal.last().is_none_or(|last| fullness(last) != fullness(node)) {
                break;
            }
            equal.push(node);
        }
        let count = usize::try_from(self.gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        let spread = |node: &Node| affinity::spread(&node.spec.layout, &node.free, count);
        equal.sort_by_cached_key(|node| (fullness(node), spread(node), Reverse(self.near.at(node.id))));
        equal.truncate(wanted);
        equal
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.gang.nodes.get()).expect("a usize holds 32 bits")
    }

    fn is_usable(&self, node: &Node) -> bool {
        node.has_left_for_share_of(self.gang) && (self.usable)(node) >= self.gang.accelerators_per_node.get()
    }

    /// Returns all nodes that could have a share, fullest first.
    fn candidates(&self) -> impl Iterator<Item = &'a Node> {
        self.cluster.with_room_for(self.gang).filter(|node| self.is_usable(node))
    }

    /// Returns the fullest nodes anywhere, and the number of candidates.
    fn fullest(&self) -> (Vec<&'a Node>, u32) {
        let mut candidates = self.candidates();
        let nodes: Vec<&Node> = candidates.by_ref().take(self.wanted()).collect();
        let count = nodes.len() + candidates.take(CANDIDATES_COUNTED_MAX).count();
        let nodes =
            if self.tells_equals_apart() { self.best_of_equals(self.candidates(), self.wanted()) } else { nodes };
        (nodes, u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Reports whether all locations are equal for the gang: it needs one node, or the cluster has no
    /// domains.
    fn is_indifferent(&self) -> bool {
        let is_alone = self.wanted() == 1 && required(self.gang).is_none();
        is_alone || self.cluster.topology().is_flat() && !self.gang.topology.constrains()
    }

    /// Returns all nodes, in the tightest domain of the narrowest level that fits.
    fn closest(&self) -> Option<Vec<&'a Node>> {
        if self.gang.topology.require == Some(Level::Node) && self.wanted() > 1 {
            return None;
        }
        let widest = required(self.gang);
        let preferred = self.gang.topology.prefer.unwrap_or(Level::Node);
        let from = widest.map_or(preferred, |widest| preferred.min(widest));
        let levels = Level::ALL.into_iter().filter(|level| *level >= from && widest.is_none_or(|w| *level <= w));
        let levels = levels.filter(|level| self.cluster.fabric().is_none_or(|fabric| fabric.has(*level)));
        let levels = levels.map(Some).chain(widest.is_none().then_some(None));
        let (domain, nodes) = levels.into_iter().find_map(|level| self.tightest(level))?;
        let even = self.cluster.fabric().and_then(|fabric| self.faster_in_equal_parts(fabric, domain, &nodes));
        Some(even.unwrap_or(nodes))
    }

    /// Returns all nodes in the domain of this level with the least left over, and that domain.
    fn tightest(&self, level: Option<Level>) -> Option<(&'a Domain, Vec<&'a Node>)> {
        let fitting = self.cluster.topology().domains_with_room_for(level, self.gang, self.gang.nodes.get());
        if self.segment.is_none() && self.near.is_nowhere() {
            return fitting.into_iter().find_map(|domain| self.filled(domain));
        }
        let mut fitting: Vec<(u32, &Domain)> = fitting.map(|domain| (self.room_in(domain), domain)).collect();
        fitting.retain(|(room, _)| *room >= self.gang.nodes.get());
        fitting.sort_unstable_by_key(|(room, domain)| (*room, Reverse(self.near_in(domain)), &domain.name));
        fitting.into_iter().find_map(|(_, domain)| self.filled(domain))
    }

    /// Returns all nodes in this domain, if they fit.
    fn filled(&self, domain: &'a Domain) -> Option<(&'a Domain, Vec<&'a Node>)> {
        let mut nodes = Vec::with_capacity(self.wanted());
        self.fill(domain, self.wanted(), &mut nodes);
        (nodes.len() == self.wanted()).then_some((domain, nodes))
    }

    /// Returns nodes in equal parts of a domain's subdomains, if the all-reduce is so much faster than on
    /// `nodes` that it is worth the holes. Each part reduces its data before exchanging it, so the smallest
    /// part exchanges most.
    fn faster_in_equal_parts(&self, fabric: &Fabric, domain: &'a Domain, nodes: &[&'a Node]) -> Option<Vec<&'a Node>> {
        if self.segment.is_some() {
            return None;
        }
        let topology = self.cluster.topology();
        let mut children: Vec<(u32, &Domain)> =
            topology.children(domain).map(|child| (self.room_in(child), child)).collect();
        children.sort_by_key(|(room, _)| *room);
        let divisors = (2..=PARTS_MAX).filter(|parts| self.wanted().is_multiple_of(*parts));
        let even = divisors.into_iter().find_map(|parts| {
            let size = self.wanted() / parts;
            let fitting = children.iter().filter(|(room, _)| usize::try_from(*room).is_ok_and(|room| room >= size));
            let mut nodes = Vec::with_capacity(self.wanted());
            fitting.take(parts).for_each(|(_, child)| self.fill(child, size, &mut nodes));
            (nodes.len() == self.wanted()).then_some(nodes)
        })?;
        let (faster, slower) = (fabric.all_reduce(self.gang, &even), fabric.all_reduce(self.gang, nodes));
        (faster * GAIN_MIN < slower).then_some(even)
    }

    /// Returns an upper bound on the nodes with room for whole segments: those with enough free devices.
    fn room_in(&self, domain: &Domain) -> u32 {
        whole_segments(self.cluster.topology(), domain, self.segment, &|domain| domain.with_devices_for(self.gang))
    }

    /// Takes up to `wanted` nodes of a domain, from as few of its subdomains as possible.
    fn fill(&self, domain: &'a Domain, wanted: usize, nodes: &mut Vec<&'a Node>) {
        let before = nodes.len();
        let outside_segments = self.segment.filter(|segment| domain.is_wider_than(segment.level));
        let children = self.cluster.topology().children(domain);
        let children = children.filter(|child| outside_segments.is_none_or(|s| child.level >= Some(s.level)));
        let mut children: Vec<(usize, &Domain)> = children
            .map(|child| (usize::try_from(self.room_in(child)).expect("a usize holds 32 bits"), child))
            .filter(|(room, _)| *room > 0)
            .collect();
        if !self.near.is_nowhere() {
            children.sort_by_key(|(_, child)| Reverse(self.near_in(child)));
        }
        while let missing = wanted - (nodes.len() - before)
            && missing > 0
            && let Some(next) = best_part(&children, missing)
        {
            let (_, child) = children.remove(next);
            self.fill(child, missing, nodes);
        }
        if outside_segments.is_none() {
            let missing = wanted - (nodes.len() - before);
            let direct = domain.direct_for(self.gang).filter_map(|id| self.cluster.node(id));
            nodes.extend(self.best_of_equals(direct.filter(|node| self.is_usable(node)), missing));
        }
        if let Some(segment) = self.segment.filter(|segment| domain.level == Some(segment.level)) {
            let size = usize::try_from(segment.nodes.get()).expect("a usize holds 32 bits");
            nodes.truncate(before + (nodes.len() - before) / size * size);
        }
    }
}

/// Returns the part to take next: the one that fits the missing nodes most tightly, else the largest; the
/// first of equals.
fn best_part(parts: &[(usize, &Domain)], missing: usize) -> Option<usize> {
    let tightest =
        parts.iter().enumerate().filter(|(_, (room, _))| *room >= missing).min_by_key(|(_, (room, _))| *room);
    let largest = || parts.iter().enumerate().rev().max_by_key(|(_, (room, _))| *room);
    tightest.or_else(largest).map(|(at, _)| at)
}

/// Sorts by the lowest id in each node's domain, wide to narrow, then by id: domains stay together. Without
/// domains this is the order of ids.
fn rank_order(mut nodes: Vec<&Node>) -> Vec<&Node> {
    nodes.sort_unstable_by_key(|node| node.id);
    let mut first: BTreeMap<(Level, &str), NodeId> = BTreeMap::new();
    for node in &nodes {
        for domain in node.spec.location.iter() {
            first.entry(domain).or_insert(node.id);
        }
    }
    let place = |node: &&Node| -> Vec<NodeId> {
        let domains = node.spec.location.iter().rev();
        domains.filter_map(|domain| first.get(&domain).copied()).chain([node.id]).collect()
    };
    nodes.sort_by_cached_key(place);
    nodes
}

fn share_on(node: &Node, gang: &GangShape) -> Share {
    let count = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
    Share {
        node: node.id,
        devices: affinity::choose(&node.spec.layout, &node.free, count),
        cpus: gang.cpus_per_node,
        memory: gang.memory_per_node,
    }
}
