//! Finding room for a whole gang (A-5: whole or not at all), close together.
//!
//! The narrowest domain that fits is taken, since a gang's all-reduce runs at the speed of the widest level it spans
//! (Patarasuk and Yuan 2009), and of several the one that has least left over, so that large holes stay whole for large gangs.
//! A gang that spans domains takes as few as it can: the emptiest whole, and for the rest the one it fits most tightly;
//! unless the fabric's bandwidths are known and equal parts are much faster (`fabric.rs`).
//! Inside a domain, and in a cluster whose network isn't known, the fullest nodes with room are taken; ties go to the
//! nodes whose free devices are joined better (`affinity.rs`), then to those that may have the job's data (`caches.rs`), then
//! to the lower name or id. Which of a node's devices are taken, `affinity.rs` says: the lowest, if it isn't known how they
//! are joined. A gang never shares a node with itself, and its shares, so its ranks, come out in the order of the tree:
//! neighbours in rank are neighbours in the network.
//!
//! Best fit by tree level follows Kueue's topology-aware scheduling (KEP-2724) and Slurm's topology/block plugin, whose
//! segments these are. Counts per domain are kept by [`crate::topology`]; only nodes that are taken are looked at, unless
//! CPUs, memory or a held place forbid some that have devices.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gangline_base::{GangShape, Level, NodeId, Segment};

use crate::caches::Near;
use crate::fabric::{Closeness, Fabric};
use crate::refusal::{DomainFit, Refusal};
use crate::topology::{Domain, Topology};
use crate::{Cluster, Node, Share, affinity};

/// Room that was found.
pub(crate) struct Room {
    /// One share for each node of the gang, in rank order.
    pub(crate) shares: Vec<Share>,
    /// Nodes that had room, counted up to [`CANDIDATES_COUNTED_MAX`] beyond those needed.
    pub(crate) candidates: u32,
    /// How close its nodes are; none for one node, and where the network isn't known.
    pub(crate) closeness: Option<Closeness>,
}

/// Candidates beyond the gang's own that are counted for the reason; the count says "at least" from there.
const CANDIDATES_COUNTED_MAX: usize = 64;

/// Nodes beyond the gang's own that are compared by how their free devices are joined.
const EQUALS_COMPARED_MAX: usize = 64;

/// The most parts that a gang is cut into for the sake of a faster all-reduce.
const PARTS_MAX: usize = 8;
/// How much faster that has to be, since equal parts leave more holes than a gang in as few domains as can be.
const GAIN_MIN: f64 = 1.1;

/// Room for the whole gang, or none, wherever its data is.
pub(crate) fn find_room(cluster: &Cluster, gang: &GangShape, usable: &dyn Fn(&Node) -> u32) -> Option<Room> {
    find_room_near(cluster, gang, usable, &Near::default())
}

/// Room for the whole gang, or none. `usable` says how many of a node's free accelerators this gang may have: fewer than
/// are free where some are held for a job with a better place in line. Of rooms that are equally good the one with more nodes
/// that are `near` its data is taken.
pub(crate) fn find_room_near(
    cluster: &Cluster,
    gang: &GangShape,
    usable: &dyn Fn(&Node) -> u32,
    near: &Near,
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
    let shares = rank_order(nodes).into_iter().map(|node| share_on(node, gang)).collect();
    Some(Room { shares, candidates, closeness })
}

/// Whether there is room for the whole gang.
pub(crate) fn has_room(cluster: &Cluster, gang: &GangShape, usable: &dyn Fn(&Node) -> u32) -> bool {
    if gang.topology.constrains() {
        return find_room(cluster, gang, usable).is_some();
    }
    let near = Near::default();
    let search = Search::new(cluster, gang, usable, &near);
    search.candidates().take(search.wanted()).count() == search.wanted()
}

/// Whether a gang's segments are of equal size.
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
    /// The level that the gang is bound to; none if it isn't.
    pub(crate) level: Option<Level>,
    /// The domain, if there is one.
    pub(crate) domain: Option<&'a Domain>,
    /// How many nodes it has for the gang.
    pub(crate) nodes: u32,
}

impl From<Best<'_>> for DomainFit {
    fn from(best: Best<'_>) -> DomainFit {
        let domain = best.domain.filter(|domain| domain.level.is_some()).map(|domain| domain.name.to_string());
        DomainFit { level: best.level.unwrap_or(Level::Node), domain, nodes: best.nodes }
    }
}

/// Where the gang's topology lets most of its nodes be, by a count of each domain's suitable nodes.
pub(crate) fn most_in_one<'a>(cluster: &'a Cluster, gang: &GangShape, count: &dyn Fn(&Domain) -> u32) -> Best<'a> {
    let topology = cluster.topology();
    let segment = segment(gang);
    let level = gang.topology.require.or(segment.map(|segment| segment.level));
    let counted =
        topology.domains(required(gang)).map(|domain| (whole_segments(topology, domain, segment, count), domain));
    // The first of the largest; `max_by_key` would take the last.
    let best = counted.reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (nodes, domain) = best.map_or((0, None), |(nodes, domain)| (nodes, Some(domain)));
    let nodes = if gang.topology.require == Some(Level::Node) { nodes.min(1) } else { nodes };
    Best { level, domain, nodes }
}

/// The level of the domain that has to hold all; every node is a domain of its own of the narrowest.
fn required(gang: &GangShape) -> Option<Level> {
    gang.topology.require.filter(|level| *level != Level::Node)
}

/// The segments, unless they are of one node, which any node is.
pub(crate) fn segment(gang: &GangShape) -> Option<Segment> {
    gang.topology.segment.filter(|segment| segment.nodes.get() > 1)
}

/// Of the nodes counted in a domain, those that make up whole segments.
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

/// What is looked for.
struct Search<'a> {
    cluster: &'a Cluster,
    gang: &'a GangShape,
    usable: &'a dyn Fn(&Node) -> u32,
    segment: Option<Segment>,
    near: &'a Near,
    /// How near the usable nodes of each domain are together.
    near_in: BTreeMap<(Level, &'a str), u32>,
}

impl<'a> Search<'a> {
    fn new(cluster: &'a Cluster, gang: &'a GangShape, usable: &'a dyn Fn(&Node) -> u32, near: &'a Near) -> Self {
        let mut search = Search { cluster, gang, usable, segment: segment(gang), near, near_in: BTreeMap::new() };
        let nodes = near.nodes().filter_map(|(node, count)| Some((cluster.node(node)?, count)));
        for (node, count) in nodes.filter(|(node, _)| node.spec.capacity.is_for(gang)) {
            let domains = node.spec.location.iter();
            if search.is_usable(node) {
                domains.for_each(|domain| *search.near_in.entry(domain).or_insert(0) += count);
            }
        }
        search
    }

    fn near_in(&self, domain: &Domain) -> u32 {
        let named = domain.level.and_then(|level| self.near_in.get(&(level, &*domain.name)));
        named.copied().unwrap_or(0)
    }

    /// Whether nodes that are equally full and healthy may differ for this gang.
    fn tells_equals_apart(&self) -> bool {
        !self.near.is_nowhere() || self.cluster.has_layouts() && self.gang.accelerators_per_node.get() > 1
    }

    /// Up to `wanted` of nodes that come fullest first; of those equally full and healthy the ones where the gang's devices
    /// are least spread, then those nearest to its data.
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

    /// Nodes anywhere that could have a share, the fullest first.
    fn candidates(&self) -> impl Iterator<Item = &'a Node> {
        self.cluster.with_room_for(self.gang).filter(|node| self.is_usable(node))
    }

    /// The fullest nodes anywhere, and how many there are to choose from.
    fn fullest(&self) -> (Vec<&'a Node>, u32) {
        let mut candidates = self.candidates();
        let nodes: Vec<&Node> = candidates.by_ref().take(self.wanted()).collect();
        let count = nodes.len() + candidates.take(CANDIDATES_COUNTED_MAX).count();
        let nodes =
            if self.tells_equals_apart() { self.best_of_equals(self.candidates(), self.wanted()) } else { nodes };
        (nodes, u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Whether it is the same where the gang runs: any domain holds one node, and one without domains needs no search.
    fn is_indifferent(&self) -> bool {
        let is_alone = self.wanted() == 1 && required(self.gang).is_none();
        is_alone || self.cluster.topology().is_flat() && !self.gang.topology.constrains()
    }

    /// All nodes in the tightest domain of the narrowest level that has one.
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

    /// All nodes in the domain of this level that has least left over, and that domain.
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

    /// All nodes in this domain, if they find room there.
    fn filled(&self, domain: &'a Domain) -> Option<(&'a Domain, Vec<&'a Node>)> {
        let mut nodes = Vec::with_capacity(self.wanted());
        self.fill(domain, self.wanted(), &mut nodes);
        (nodes.len() == self.wanted()).then_some((domain, nodes))
    }

    /// Nodes in equal parts of a domain's own domains, if an all-reduce would be so much faster there than on `nodes` that
    /// the holes are worth it: each part reduces its data before it is exchanged, and the smallest part has most to exchange.
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

    /// Nodes with enough devices free for whole segments: at most so many have room.
    fn room_in(&self, domain: &Domain) -> u32 {
        whole_segments(self.cluster.topology(), domain, self.segment, &|domain| domain.with_devices_for(self.gang))
    }

    /// Takes up to `wanted` nodes of a domain, from as few of its own domains as can be.
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

/// Which part to take next: the one that what is missing fits most tightly, else the largest; of equal ones the first.
fn best_part(parts: &[(usize, &Domain)], missing: usize) -> Option<usize> {
    let tightest =
        parts.iter().enumerate().filter(|(_, (room, _))| *room >= missing).min_by_key(|(_, (room, _))| *room);
    let largest = || parts.iter().enumerate().rev().max_by_key(|(_, (room, _))| *room);
    tightest.or_else(largest).map(|(at, _)| at)
}

/// By the lowest id in each node's domain, wide to narrow, then by id: domains stay together, and without domains it is
/// the order of ids.
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
