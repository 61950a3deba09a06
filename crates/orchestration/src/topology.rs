//! Where nodes are in the network, and how many of each domain have room: the tree of domains.
//!
//! Invariants: a domain lies within one domain of every wider level that its nodes name, the same for all its nodes, so
//! the domains are a tree ([`Topology::admits`] refuses a node that says otherwise). The counts of a domain are those of
//! the nodes in it, kept as nodes come, go, fill and empty; none is found by looking at nodes. State follows from the
//! nodes alone, not from the order in which they came.
//!
//! The tree of domains and counting per domain follow Kueue's topology-aware scheduling (KEP-2724) and Slurm's
//! topology/block plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gangline_base::{GangShape, Level, NodeId, NodeName};

use crate::cluster::{FreePlace, Node, NodeCapacity, NodeSpec, with_free};
use crate::lanes::{ByLane, OfLane};
use crate::refusal::Refusal;
use crate::standing::NodeStatus;

/// The name of the domain that a node is in, for each level whose domain is known. A node is its own domain of
/// [`Level::Node`], which is never named.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location(BTreeMap<Level, String>);

impl FromIterator<(Level, String)> for Location {
    fn from_iter<T: IntoIterator<Item = (Level, String)>>(names: T) -> Self {
        Location(names.into_iter().filter(|(level, _)| *level != Level::Node).collect())
    }
}

impl Location {
    /// The domain at `level`, if it is known.
    #[must_use]
    pub fn at(&self, level: Level) -> Option<&str> {
        self.0.get(&level).map(String::as_str)
    }

    /// Every domain known, narrow to wide.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Level, &str)> {
        self.0.iter().map(|(level, name)| (*level, name.as_str()))
    }

    /// The domains wider than `level`.
    fn beyond(&self, level: Level) -> Location {
        self.0.iter().filter(|(wider, _)| **wider > level).map(|(level, name)| (*level, name.clone())).collect()
    }

    fn narrowest(&self) -> Option<(Level, &str)> {
        self.iter().next()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|(level, name)| format!("{level} {name}")).collect();
        if names.is_empty() { f.write_str("nothing wider") } else { f.write_str(&names.join(" in ")) }
    }
}

/// The nodes of one domain, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Its level; none for the whole cluster.
    pub(crate) level: Option<Level>,
    /// Its name; empty for the whole cluster.
    pub(crate) name: Arc<str>,
    /// The wider domains it lies in.
    within: Location,
    /// The domains that lie directly in it.
    children: BTreeSet<(Level, Arc<str>)>,
    /// How many nodes there are of each capacity and status, at any depth: what could ever fit.
    pub(crate) classes: BTreeMap<(NodeCapacity, NodeStatus), u32>,
    /// For each lane, ready nodes with at least so many free accelerators (the index), at any depth.
    at_least: ByLane<Vec<u32>>,
    /// Ready nodes that lie in no narrower domain.
    direct: ByLane<BTreeSet<FreePlace>>,
}

impl Domain {
    /// Ready nodes with as many free accelerators as a share of `gang` takes. CPUs and memory are not looked at.
    pub(crate) fn with_devices_for(&self, gang: &GangShape) -> u32 {
        let count = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        self.at_least.get(gang).and_then(|counts| counts.get(count)).copied().unwrap_or(0)
    }

    /// Free accelerators of ready nodes.
    pub(crate) fn free_devices(&self, lane: &impl OfLane) -> u32 {
        self.at_least.get(lane).map_or(0, |counts| counts.iter().skip(1).sum())
    }

    /// Nodes that could take a share of `gang` if they were empty, of those with one of these statuses.
    pub(crate) fn could_hold(&self, gang: &GangShape, statuses: &[NodeStatus]) -> u32 {
        let fits = |((capacity, status), _): &(&(NodeCapacity, NodeStatus), &u32)| {
            statuses.contains(status) && capacity.can_hold_share_of(gang)
        };
        self.classes.iter().filter(fits).map(|(_, count)| count).sum()
    }

    /// Ready nodes in no narrower domain with enough free accelerators for a share of `gang`, fullest first.
    pub(crate) fn direct_for<'a>(&'a self, gang: &GangShape) -> impl Iterator<Item = NodeId> + use<'a> {
        let from = with_free(gang.accelerators_per_node.get());
        let places = self.direct.get(gang).into_iter().flat_map(move |places| places.range(from..));
        places.map(|(.., node)| *node)
    }

    /// Whether it is wider than any domain of `level`.
    pub(crate) fn is_wider_than(&self, level: Level) -> bool {
        self.level.is_none_or(|own| own > level)
    }

    /// Counts a ready node whose free accelerators change; none before it is ready, or after. Which numbers of free
    /// accelerators another number of nodes has now.
    fn count(&mut self, lane: &impl OfLane, before: Option<u32>, after: Option<u32>) -> Range<usize> {
        let (was, is) = (places(before), places(after));
        self.at_least.change(lane, |counts| {
            counts.resize(counts.len().max(is), 0);
            if was < is {
                counts[was..is].iter_mut().for_each(|count| *count += 1);
            } else {
                counts[is..was].iter_mut().for_each(|count| *count -= 1);
            }
            while counts.last() == Some(&0) {
                counts.pop();
            }
        });
        was.min(is)..was.max(is)
    }
}

/// The length of a list with a place for each number of free accelerators up to this one.
fn places(free: Option<u32>) -> usize {
    free.map_or(0, |free| usize::try_from(free).expect("a usize holds 32 bits") + 1)
}

/// The domains of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Domains {
    by_name: BTreeMap<Arc<str>, Domain>,
    /// For each lane and number of free accelerators (the index), how many ready nodes of a domain have as many, and that
    /// domain, if there are any: the tightest one that could hold a gang is found without a scan.
    by_room: ByLane<Vec<Rooms>>,
}

/// Domains by the number of their nodes that have room, without those that have none.
type Rooms = BTreeSet<(u32, Arc<str>)>;

impl Domains {
    /// Domains in which so many nodes have the devices for a share of `gang`, the tightest first, then by name.
    fn with_room_for<'a>(&'a self, gang: &GangShape, nodes: u32) -> impl Iterator<Item = &'a Domain> + use<'a> {
        let free = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        let rooms = self.by_room.get(gang).and_then(|rooms| rooms.get(free)).into_iter();
        let tightest: (u32, Arc<str>) = (nodes.max(1), Arc::default());
        let names = rooms.flat_map(move |rooms| rooms.range(tightest.clone()..));
        names.filter_map(|(_, name)| self.by_name.get(name))
    }

    /// Counts a node of a domain whose free accelerators change.
    fn count(&mut self, name: &str, lane: &impl OfLane, before: Option<u32>, after: Option<u32>) {
        let Some(domain) = self.by_name.get_mut(name) else { return };
        let changed = domain.count(lane, before, after);
        let counts = domain.at_least.get(lane).map(Vec::as_slice).unwrap_or_default();
        self.by_room.change(lane, |rooms| {
            rooms.resize(rooms.len().max(changed.end), Rooms::new());
            for (free, rooms) in rooms.iter_mut().enumerate().take(changed.end).skip(changed.start) {
                let now = counts.get(free).copied().unwrap_or(0);
                let then = if before < after { now - 1 } else { now + 1 };
                rooms.remove(&(then, domain.name.clone()));
                rooms.extend((now > 0).then(|| (now, domain.name.clone())));
            }
            while rooms.last().is_some_and(Rooms::is_empty) {
                rooms.pop();
            }
        });
    }
}

/// The tree of domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    root: Domain,
    levels: BTreeMap<Level, Domains>,
}

impl Topology {
    /// The whole cluster.
    pub(crate) fn root(&self) -> &Domain {
        &self.root
    }

    /// Whether no node says where it is.
    pub(crate) fn is_flat(&self) -> bool {
        self.levels.is_empty()
    }

    /// Every domain of `level`, by name; the whole cluster for none.
    pub(crate) fn domains(&self, level: Option<Level>) -> Box<dyn Iterator<Item = &Domain> + '_> {
        match level {
            None => Box::new(std::iter::once(&self.root)),
            Some(level) => Box::new(self.levels.get(&level).into_iter().flat_map(|domains| domains.by_name.values())),
        }
    }

    /// Those of them in which so many nodes have the devices for a share of `gang`, the tightest first, then by name.
    pub(crate) fn domains_with_room_for<'a>(
        &'a self,
        level: Option<Level>,
        gang: &GangShape,
        nodes: u32,
    ) -> Box<dyn Iterator<Item = &'a Domain> + 'a> {
        match level {
            None => Box::new(Some(&self.root).filter(|root| root.with_devices_for(gang) >= nodes).into_iter()),
            Some(level) => match self.levels.get(&level) {
                None => Box::new(std::iter::empty()),
                Some(domains) => Box::new(domains.with_room_for(gang, nodes)),
            },
        }
    }

    /// The domains directly in `domain`.
    pub(crate) fn children<'a>(&'a self, domain: &'a Domain) -> impl Iterator<Item = &'a Domain> + 'a {
        domain.children.iter().filter_map(|(level, name)| self.levels.get(level)?.by_name.get(name))
    }

    /// Whether a node can be where it says. `known` are the nodes there are; a node that comes back may have moved.
    ///
    /// # Errors
    /// [`Refusal::Misplaced`] if another node in one of its domains says that that one lies elsewhere.
    pub(crate) fn admits<'a>(&self, spec: &NodeSpec, known: impl Iterator<Item = &'a Node>) -> Result<(), Refusal> {
        let conflicting = spec.location.iter().find(|(level, name)| {
            let domain = self.levels.get(level).and_then(|domains| domains.by_name.get(*name));
            domain.is_some_and(|domain| domain.within != spec.location.beyond(*level))
        });
        let Some((level, name)) = conflicting else { return Ok(()) };
        let is_neighbour = |node: &&Node| node.spec.name != spec.name && node.spec.location.at(level) == Some(name);
        // None: it was alone there, and takes its domain along.
        let Some(neighbour) = known.into_iter().find(is_neighbour) else { return Ok(()) };
        Err(Refusal::Misplaced(Box::new(Misplaced {
            node: spec.name.clone(),
            neighbour: neighbour.spec.name.clone(),
            level,
            domain: name.to_owned(),
            says: spec.location.beyond(level),
            neighbour_says: neighbour.spec.location.beyond(level),
        })))
    }

    /// Takes a node in; it has no room before [`Topology::count`].
    pub(crate) fn enter(&mut self, node: &Node) {
        let location = &node.spec.location;
        let mut parent: Option<(Level, &str)> = None;
        for (level, name) in location.iter().rev() {
            let domains = &mut self.levels.entry(level).or_default().by_name;
            if !domains.contains_key(name) {
                let within = location.beyond(level);
                let name: Arc<str> = name.into();
                let domain = Domain { level: Some(level), name: name.clone(), within, ..Domain::default() };
                domains.insert(name.clone(), domain);
                if let Some(parent) = self.domain_mut(parent) {
                    parent.children.insert((level, name));
                }
            }
            parent = Some((level, name));
        }
        let class = (node.spec.capacity.clone(), node.status);
        self.each_of(location, |domain| *domain.classes.entry(class.clone()).or_insert(0) += 1);
    }

    /// Takes a node out, and the domains that were only its own; it has no room any more ([`Topology::count`]).
    pub(crate) fn leave(&mut self, node: &Node) {
        let class = (node.spec.capacity.clone(), node.status);
        self.each_of(&node.spec.location, |domain| {
            let Some(count) = domain.classes.get_mut(&class) else { return };
            *count -= 1;
            if *count == 0 {
                domain.classes.remove(&class);
            }
        });
        for (level, name) in node.spec.location.iter() {
            self.remove_if_empty(level, name);
        }
    }

    fn remove_if_empty(&mut self, level: Level, name: &str) {
        let Some(domains) = self.levels.get_mut(&level).map(|domains| &mut domains.by_name) else { return };
        if domains.get(name).is_none_or(|domain| !domain.classes.is_empty()) {
            return;
        }
        let removed = domains.remove(name);
        if domains.is_empty() {
            self.levels.remove(&level);
        }
        let within = removed.map(|domain| domain.within).unwrap_or_default();
        if let Some(parent) = self.domain_mut(within.narrowest()) {
            parent.children.remove(&(level, name.into()));
        }
    }

    /// Counts a node whose place among the ready ones changes; none before it is ready, or after.
    pub(crate) fn count(&mut self, node: &Node, before: Option<FreePlace>, after: Option<FreePlace>) {
        let (lane, location) = (&node.spec.capacity, &node.spec.location);
        let free = |place: Option<FreePlace>| place.map(|(free, ..)| free);
        let (was, is) = (free(before), free(after));
        self.root.count(lane, was, is);
        for (level, name) in location.iter() {
            if let Some(domains) = self.levels.get_mut(&level) {
                domains.count(name, lane, was, is);
            }
        }
        if let Some(domain) = self.domain_mut(location.narrowest()) {
            domain.direct.change(lane, |places| {
                before.map(|before| places.remove(&before));
                places.extend(after);
            });
        }
    }

    fn domain_mut(&mut self, at: Option<(Level, &str)>) -> Option<&mut Domain> {
        match at {
            None => Some(&mut self.root),
            Some((level, name)) => self.levels.get_mut(&level).and_then(|domains| domains.by_name.get_mut(name)),
        }
    }

    fn each_of(&mut self, location: &Location, mut change: impl FnMut(&mut Domain)) {
        change(&mut self.root);
        for (level, name) in location.iter() {
            if let Some(domain) = self.domain_mut(Some((level, name))) {
                change(domain);
            }
        }
    }
}

/// Two nodes that put one domain into different places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} says that {level} {domain} lies in {says}, but {neighbour} says in {neighbour_says}")]
pub struct Misplaced {
    /// The node that would join.
    pub node: NodeName,
    /// A node that is there.
    pub neighbour: NodeName,
    /// The level of the domain both are in.
    pub level: Level,
    /// Its name.
    pub domain: String,
    /// Where the one says it lies.
    pub says: Location,
    /// Where the other says it lies.
    pub neighbour_says: Location,
}

/// Whether nodes agree on the tree of domains.
///
/// # Errors
/// The first node that puts a domain elsewhere than one before it.
pub fn check_locations<'a>(nodes: impl Iterator<Item = (&'a NodeName, &'a Location)>) -> Result<(), Box<Misplaced>> {
    let mut first: BTreeMap<(Level, &str), (&NodeName, Location)> = BTreeMap::new();
    for (node, location) in nodes {
        for (level, domain) in location.iter() {
            let says = location.beyond(level);
            let (neighbour, neighbour_says) = first.entry((level, domain)).or_insert_with(|| (node, says.clone()));
            if *neighbour_says != says {
                let (domain, neighbour_says) = (domain.to_owned(), neighbour_says.clone());
                let (node, neighbour) = (node.clone(), neighbour.clone());
                return Err(Box::new(Misplaced { node, neighbour, level, domain, says, neighbour_says }));
            }
        }
    }
    Ok(())
}
