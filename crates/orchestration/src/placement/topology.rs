//! Network locations of nodes, and how many nodes of each domain have room: the tree of domains.
//!
//! Invariants: a domain lies within one domain of every wider level that its nodes name, the same for all its
//! nodes, so domains form a tree ([`Topology::admits`] refuses a node that contradicts this). A domain's
//! counts are updated as nodes come, go, fill and empty, never recounted. The state follows from the nodes
//! alone, not from the order in which they came.
//!
//! The tree of domains and counting per domain follow Kueue's topology-aware scheduling (KEP-2724) and
//! Slurm's topology/block plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gangline_base::{GangShape, Level, NodeId, NodeName};

use crate::placement::capacity::{NodeCapacity, NodeSpec};
use crate::placement::cluster::{FreePlace, Node, with_free};
use crate::placement::condition::NodeStatus;
use crate::placement::flavour::{ByFlavour, OfFlavour};
use crate::refusal::Refusal;

/// A node's domain at each level where it is known. A node is its own domain of [`Level::Node`], which is
/// never named.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location(BTreeMap<Level, String>);

impl FromIterator<(Level, String)> for Location {
    fn from_iter<T: IntoIterator<Item = (Level, String)>>(names: T) -> Self {
        Location(names.into_iter().filter(|(level, _)| *level != Level::Node).collect())
    }
}

impl Location {
    /// Returns the domain at `level`, if known.
    #[must_use]
    pub fn at(&self, level: Level) -> Option<&str> {
        self.0.get(&level).map(String::as_str)
    }

    /// Returns every known domain, narrow to wide.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Level, &str)> {
        self.0.iter().map(|(level, name)| (*level, name.as_str()))
    }

    /// Returns the domains wider than `level`.
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

/// A domain with counts of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Its level; none for the whole cluster.
    pub(crate) level: Option<Level>,
    /// Its name; empty for the whole cluster.
    pub(crate) name: Arc<str>,
    /// The wider domains it lies in.
    within: Location,
    /// The domains directly inside it.
    children: BTreeSet<(Level, Arc<str>)>,
    /// The number of nodes of each capacity and status, at any depth; decides what could ever fit.
    pub(crate) classes: BTreeMap<(NodeCapacity, NodeStatus), u32>,
    /// By flavour, how many ready nodes at any depth have at least as many free accelerators as the index
    /// says.
    at_least: ByFlavour<Vec<u32>>,
    /// Ready nodes that are in no narrower domain.
    direct: ByFlavour<BTreeSet<FreePlace>>,
}

impl Domain {
    /// Returns the number of ready nodes with enough free accelerators for a share of `gang`. CPUs and memory
    /// are ignored.
    pub(crate) fn with_devices_for(&self, gang: &GangShape) -> u32 {
        let count = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        self.at_least.get(gang).and_then(|counts| counts.get(count)).copied().unwrap_or(0)
    }

    /// Returns the free accelerators of ready nodes.
    pub(crate) fn free_devices(&self, flavour: &impl OfFlavour) -> u32 {
        self.at_least.get(flavour).map_or(0, |counts| counts.iter().skip(1).sum())
    }

    /// Returns the number of nodes with one of these statuses that could take a share of `gang` if empty.
    pub(crate) fn could_hold(&self, gang: &GangShape, statuses: &[NodeStatus]) -> u32 {
        let fits = |((capacity, status), _): &(&(NodeCapacity, NodeStatus), &u32)| {
            statuses.contains(status) && capacity.can_hold_share_of(gang)
        };
        self.classes.iter().filter(fits).map(|(_, count)| count).sum()
    }

    /// Returns ready nodes outside narrower domains with enough free accelerators for a share of `gang`,
    /// fullest first.
    pub(crate) fn direct_for<'a>(&'a self, gang: &GangShape) -> impl Iterator<Item = NodeId> + use<'a> {
        let from = with_free(gang.accelerators_per_node.get());
        let places = self.direct.get(gang).into_iter().flat_map(move |places| places.range(from..));
        places.map(|(.., node)| *node)
    }

    /// Reports whether it is wider than any domain of `level`.
    pub(crate) fn is_wider_than(&self, level: Level) -> bool {
        self.level.is_none_or(|own| own > level)
    }

    /// Counts a ready node whose free accelerators change; none before it is ready, or after. Returns the
    /// numbers of free accelerators whose counts changed.
    fn count(&mut self, flavour: &impl OfFlavour, before: Option<u32>, after: Option<u32>) -> Range<usize> {
        let (was, is) = (places(before), places(after));
        self.at_least.change(flavour, |counts| {
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

/// Returns the length of a list indexed by numbers of free accelerators up to this one.
fn places(free: Option<u32>) -> usize {
    free.map_or(0, |free| usize::try_from(free).expect("a usize holds 32 bits") + 1)
}

/// The domains of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Domains {
    by_name: BTreeMap<Arc<str>, Domain>,
    /// By flavour and number of free accelerators (the index), how many ready nodes of each domain have that
    /// many, omitting zero: finds the tightest domain for a gang without a scan.
    by_room: ByFlavour<Vec<Rooms>>,
}

/// Domains sorted by their number of nodes with room, omitting zero.
type Rooms = BTreeSet<(u32, Arc<str>)>;

impl Domains {
    /// Returns domains in which at least this many nodes have the devices for a share of `gang`, tightest
    /// first, then by name.
    fn with_room_for<'a>(&'a self, gang: &GangShape, nodes: u32) -> impl Iterator<Item = &'a Domain> + use<'a> {
        let free = usize::try_from(gang.accelerators_per_node.get()).expect("a usize holds 32 bits");
        let rooms = self.by_room.get(gang).and_then(|rooms| rooms.get(free)).into_iter();
        let tightest: (u32, Arc<str>) = (nodes.max(1), Arc::default());
        let names = rooms.flat_map(move |rooms| rooms.range(tightest.clone()..));
        names.filter_map(|(_, name)| self.by_name.get(name))
    }

    /// Counts a domain's node whose free accelerators change.
    fn count(&mut self, name: &str, flavour: &impl OfFlavour, before: Option<u32>, after: Option<u32>) {
        let Some(domain) = self.by_name.get_mut(name) else { return };
        let changed = domain.count(flavour, before, after);
        let counts = domain.at_least.get(flavour).map(Vec::as_slice).unwrap_or_default();
        self.by_room.change(flavour, |rooms| {
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
    /// Returns the whole cluster.
    pub(crate) fn root(&self) -> &Domain {
        &self.root
    }

    /// Reports whether no node names a location.
    pub(crate) fn is_flat(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns every domain of `level`, by name; the whole cluster for none.
    pub(crate) fn domains(&self, level: Option<Level>) -> Box<dyn Iterator<Item = &Domain> + '_> {
        match level {
            None => Box::new(std::iter::once(&self.root)),
            Some(level) => Box::new(self.levels.get(&level).into_iter().flat_map(|domains| domains.by_name.values())),
        }
    }

    /// Returns domains of `level` in which at least this many nodes have the devices for a share of `gang`,
    /// tightest first, then by name.
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

    /// Returns the domains directly inside `domain`.
    pub(crate) fn children<'a>(&'a self, domain: &'a Domain) -> impl Iterator<Item = &'a Domain> + 'a {
        domain.children.iter().filter_map(|(level, name)| self.levels.get(level)?.by_name.get(name))
    }

    /// Checks that a node's location is consistent with the `known` nodes; a node that comes back may have
    /// moved.
    ///
    /// # Errors
    /// [`Refusal::Misplaced`] if another node in one of its domains places that domain elsewhere.
    pub(crate) fn admits<'a>(&self, spec: &NodeSpec, known: impl Iterator<Item = &'a Node>) -> Result<(), Refusal> {
        let conflicting = spec.location.iter().find(|(level, name)| {
            let domain = self.levels.get(level).and_then(|domains| domains.by_name.get(*name));
            domain.is_some_and(|domain| domain.within != spec.location.beyond(*level))
        });
        let Some((level, name)) = conflicting else { return Ok(()) };
        let is_neighbour = |node: &&Node| node.spec.name != spec.name && node.spec.location.at(level) == Some(name);
        // Without a neighbour the node was alone in the domain and moves it along.
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

    /// Adds a node; it has no room until [`Topology::count`].
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

    /// Removes a node, and domains left empty; its room must already be removed ([`Topology::count`]).
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

    /// Counts a node whose position among ready nodes changes; none before it is ready, or after.
    pub(crate) fn count(&mut self, node: &Node, before: Option<FreePlace>, after: Option<FreePlace>) {
        let (flavour, location) = (&node.spec.capacity, &node.spec.location);
        let free = |place: Option<FreePlace>| place.map(|(free, ..)| free);
        let (was, is) = (free(before), free(after));
        self.root.count(flavour, was, is);
        for (level, name) in location.iter() {
            if let Some(domains) = self.levels.get_mut(&level) {
                domains.count(name, flavour, was, is);
            }
        }
        if let Some(domain) = self.domain_mut(location.narrowest()) {
            domain.direct.change(flavour, |places| {
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

/// Two nodes that place the same domain differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} says that {level} {domain} lies in {says}, but {neighbour} says in {neighbour_says}")]
pub struct Misplaced {
    /// The node that would join.
    pub node: NodeName,
    /// The existing node.
    pub neighbour: NodeName,
    /// The level of the shared domain.
    pub level: Level,
    /// The name of the shared domain.
    pub domain: String,
    /// Where the joining node places the domain.
    pub says: Location,
    /// Where the existing node places the domain.
    pub neighbour_says: Location,
}

/// Checks that nodes agree on the tree of domains.
///
/// # Errors
/// The first node that contradicts an earlier one.
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
