//! The network's bandwidths, and the all-reduce time over a gang's nodes by which placements are compared.
//!
//! The model takes the cheaper of two algorithms' bandwidth terms in the alpha-beta model: one ring over all
//! ranks, 2 (N-1)/N of the data over its slowest edge (Patarasuk and Yuan, JPDC 2009), and NCCL's hierarchy
//! of such rings, reduce-scatter inwards and all-gather outwards, level by level. Latency is left out:
//! placements of one gang differ in it by only a few hops. A ring leaves a node through all its ports at
//! once, one ring per port (NCCL's channels); in a rail-optimised fabric (NVIDIA, DGX SuperPOD reference
//! architecture) one switch joins the ports with the same number of many nodes, so racks don't matter. Only
//! +, x and / are used: the same bits on every machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;

use gangline_base::{GangShape, Level};

use crate::Node;

/// How nodes are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricKind {
    /// Leaf switches join all ports of the nodes of a rack.
    #[default]
    FatTree,
    /// Leaf switches join the same-numbered ports of the nodes of a rail group.
    RailOptimised,
}

/// The network's bandwidths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// How nodes are connected.
    pub kind: FabricKind,
    /// The one-way bandwidth of one port within a domain of the level, in Gbit/s: an accelerator's NVLink for
    /// [`Level::Node`] and [`Level::Nvlink`], a network port beyond. A missing level has the bandwidth of the
    /// next wider one.
    pub gbps: BTreeMap<Level, NonZeroU32>,
    /// The bandwidth of one port between the widest domains, in Gbit/s; by default that within them.
    pub core_gbps: Option<NonZeroU32>,
    /// Network ports per node; by default one per accelerator.
    pub rails: Option<NonZeroU32>,
}

/// Why bandwidths are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFabric {
    /// The bandwidth inside a node is missing; it is the first part of every all-reduce.
    #[error(
        "the fabric does not say what an accelerator sends another of its node: set node_gbps, such as 3600 for NVLink 4"
    )]
    NoNode,
    /// No network bandwidth by which to compare placements.
    #[error("the fabric names no bandwidth between nodes: set rack_gbps, or another level's")]
    NoBandwidth,
    /// A wider level has more bandwidth than a narrower one, although its traffic passes through both.
    #[error(
        "the fabric carries {wide_gbps} Gbit/s within a {wide}, but only {narrow_gbps} within a {narrow}: a wider level can't be faster"
    )]
    WiderIsFaster {
        /// The name of the wider level.
        wide: String,
        /// The wider level's bandwidth.
        wide_gbps: NonZeroU32,
        /// The narrower level.
        narrow: Level,
        /// The narrower level's bandwidth.
        narrow_gbps: NonZeroU32,
    },
    /// The fabric is rail-optimised but has no bandwidth within a rail group.
    #[error("a rail-optimised fabric needs rail_gbps: what a port carries within a rail group")]
    NoRails,
}

impl Fabric {
    /// Validates the bandwidths.
    ///
    /// # Errors
    /// The first [`InvalidFabric`] found.
    pub fn check(&self) -> Result<(), InvalidFabric> {
        if !self.gbps.contains_key(&Level::Node) {
            return Err(InvalidFabric::NoNode);
        }
        if self.gbps.keys().all(|level| *level <= Level::Nvlink) {
            return Err(InvalidFabric::NoBandwidth);
        }
        if self.kind == FabricKind::RailOptimised && !self.gbps.contains_key(&Level::RailGroup) {
            return Err(InvalidFabric::NoRails);
        }
        let named = self.gbps.iter().map(|(level, gbps)| (level.to_string(), *gbps));
        let wider = named.chain(self.core_gbps.map(|gbps| ("cluster".to_owned(), gbps))).skip(1);
        for ((narrow, narrow_gbps), (wide, wide_gbps)) in self.gbps.iter().zip(wider) {
            if wide_gbps > *narrow_gbps {
                let (narrow, narrow_gbps) = (*narrow, *narrow_gbps);
                return Err(InvalidFabric::WiderIsFaster { wide, wide_gbps, narrow, narrow_gbps });
            }
        }
        Ok(())
    }

    /// Returns one port's bandwidth within a domain of this level, or between the widest domains for none, in
    /// Gbit/s.
    fn within(&self, level: Option<Level>) -> f64 {
        let wider = level.and_then(|level| self.gbps.range(level..).next()).map(|(_, gbps)| *gbps);
        let widest = self.gbps.last_key_value().map(|(_, gbps)| *gbps);
        wider.or(self.core_gbps).or(widest).map_or(1.0, |gbps| f64::from(gbps.get()))
    }

    /// Reports whether the fabric has switches of this level; a rail-optimised fabric has no rack switches.
    pub(crate) fn has(&self, level: Level) -> bool {
        !(self.kind == FabricKind::RailOptimised && level == Level::Rack)
    }

    /// Returns the number of a node's ports that a gang's devices there can use at once.
    fn ports(&self, gang: &GangShape) -> f64 {
        let devices = gang.accelerators_per_node;
        f64::from(self.rails.map_or(devices, |rails| rails.min(devices)).get())
    }

    /// Returns the one-way bandwidth of the gang's devices on one node within a domain of this level, in
    /// Gbit/s.
    fn of_node(&self, gang: &GangShape, level: Option<Level>) -> f64 {
        let is_nvlink = level.is_some_and(|level| level <= Level::Nvlink);
        let ports = if is_nvlink { f64::from(gang.accelerators_per_node.get()) } else { self.ports(gang) };
        ports * self.within(level)
    }

    /// Returns the seconds that an all-reduce of 1 Gbit over these nodes takes; only ratios are meaningful.
    pub(crate) fn all_reduce(&self, gang: &GangShape, nodes: &[&Node]) -> f64 {
        let tiers = self.tiers(nodes);
        self.ring(gang, nodes.len(), &tiers).min(self.hierarchical(gang, &tiers))
    }

    fn ring(&self, gang: &GangShape, nodes: usize, tiers: &[Tier]) -> f64 {
        let devices = gang.accelerators_per_node.get();
        let ranks = f64::from(devices) * real(nodes);
        // All rings pass through every device, and each leaves the node through its own port.
        let inside = if devices > 1 { self.within(Some(Level::Node)) } else { f64::INFINITY };
        let spanned = tiers.iter().filter(|tier| tier.parts > 1).map(|tier| self.of_node(gang, tier.level));
        let slowest = spanned.fold(inside, f64::min);
        2.0 * (ranks - 1.0) / ranks / slowest
    }

    fn hierarchical(&self, gang: &GangShape, tiers: &[Tier]) -> f64 {
        let devices = f64::from(gang.accelerators_per_node.get());
        let inside = 2.0 * (devices - 1.0) / devices / self.within(Some(Level::Node));
        let between = |tier: &Tier| {
            let parts = real(tier.parts);
            // Each node of the smallest part exchanges its piece of the data with the other parts.
            2.0 * (parts - 1.0) / parts / (real(tier.nodes_of_part) * self.of_node(gang, tier.level))
        };
        inside + tiers.iter().map(between).sum::<f64>()
    }

    /// Returns how the nodes divide into domains, level by level, narrow to wide.
    fn tiers(&self, nodes: &[&Node]) -> Vec<Tier> {
        let levels = Level::ALL.into_iter().filter(|level| *level > Level::Node && self.has(*level));
        let mut part_of: Vec<usize> = (0..nodes.len()).collect();
        let mut tiers = Vec::new();
        for level in levels.map(Some).chain([None]) {
            let domains = domains_at(level, nodes, &part_of);
            tiers.push(Tier::new(level, &part_of, &domains));
            part_of = domains;
        }
        tiers
    }
}

/// Returns the index of each node's domain at this level; a node that names none stays in its narrower
/// domain.
fn domains_at(level: Option<Level>, nodes: &[&Node], part_of: &[usize]) -> Vec<usize> {
    let mut numbers: BTreeMap<(Option<&str>, usize), usize> = BTreeMap::new();
    let keys = nodes.iter().zip(part_of).map(|(node, part)| match level {
        None => (None, 0),
        Some(level) => match node.spec.location.at(level) {
            Some(name) => (Some(name), 0),
            None => (None, *part),
        },
    });
    keys.map(|key| {
        let next = numbers.len();
        *numbers.entry(key).or_insert(next)
    })
    .collect()
}

/// How a gang's nodes are distributed at one level.
struct Tier {
    level: Option<Level>,
    /// The most narrower domains within one domain of the level.
    parts: usize,
    /// The fewest nodes in such a narrower domain.
    nodes_of_part: usize,
}

impl Tier {
    fn new(level: Option<Level>, part_of: &[usize], domains: &[usize]) -> Tier {
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        part_of.iter().for_each(|part| *sizes.entry(*part).or_insert(0) += 1);
        let pairs: BTreeSet<(usize, usize)> = domains.iter().copied().zip(part_of.iter().copied()).collect();
        let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
        pairs.iter().for_each(|(domain, _)| *parts.entry(*domain).or_insert(0) += 1);
        Tier {
            level,
            parts: parts.into_values().max().unwrap_or(1),
            nodes_of_part: sizes.into_values().min().unwrap_or(1),
        }
    }
}

/// Converts a count to a floating-point number; gangs are far smaller than 2^32 nodes.
fn real(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// How close to each other a gang's nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closeness {
    /// The narrowest domain that contains them all; none if only the whole cluster does.
    pub domain: Option<(Level, String)>,
    /// The estimated all-reduce time on the nodes that would be chosen without regard to the network, in
    /// hundredths of the time on these nodes; none if the bandwidths are unknown.
    pub speedup_percent: Option<u32>,
}

impl Closeness {
    /// Computes the closeness of these nodes. `others` are the nodes that would be chosen without regard to
    /// the network.
    pub(crate) fn of(
        gang: &GangShape,
        nodes: &[&Node],
        others: &[&Node],
        fabric: Option<&Fabric>,
    ) -> Option<Closeness> {
        let first = nodes.first().filter(|_| nodes.len() > 1)?;
        if nodes.iter().all(|node| node.spec.location.iter().next().is_none()) {
            return None;
        }
        let holds_all = |(level, name): &(Level, &str)| nodes.iter().all(|n| n.spec.location.at(*level) == Some(*name));
        let domain = first.spec.location.iter().find(holds_all).map(|(level, name)| (level, name.to_owned()));
        let ratio = |fabric: &Fabric| percent(fabric.all_reduce(gang, others) / fabric.all_reduce(gang, nodes));
        Some(Closeness { domain, speedup_percent: fabric.filter(|_| others.len() == nodes.len()).map(ratio) })
    }
}

/// Returns a ratio in hundredths, at most ten thousandfold.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and a million")]
fn percent(ratio: f64) -> u32 {
    (ratio * 100.0).round().clamp(0.0, 1e6) as u32
}

impl fmt::Display for Closeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.domain {
            Some((level, name)) => write!(f, "in {level} {name}")?,
            None => f.write_str("in no one domain")?,
        }
        match self.speedup_percent.filter(|percent| *percent > 104) {
            Some(percent) => {
                let ratio = f64::from(percent) / 100.0;
                write!(f, "; all-reduce about {ratio:.1}x faster than on the fullest nodes anywhere, estimated")
            }
            None => Ok(()),
        }
    }
}
