//! How close to each other a gang's nodes have to be, in terms of the levels of a cluster's network.
//!
//! The levels are those of issue 3 and of the schedulers that users know (Slurm's block topology, Kueue's
//! topology-aware scheduling): each domain of a level lies within one domain of every wider level.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// A level of the network topology; the variants are ordered from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One node: every node is its own domain.
    Node,
    /// Nodes joined by one NVLink fabric.
    Nvlink,
    /// Nodes under one leaf switch.
    Rack,
    /// Nodes whose accelerators of the same index share a switch.
    RailGroup,
    /// Racks under one group of spine switches.
    Block,
    /// Blocks under one core switch.
    Pod,
}

impl Level {
    /// Every level, from narrow to wide.
    pub const ALL: [Level; 6] = [Level::Node, Level::Nvlink, Level::Rack, Level::RailGroup, Level::Block, Level::Pod];

    /// Returns the level's name in job files and configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Node => "node",
            Level::Nvlink => "nvlink",
            Level::Rack => "rack",
            Level::RailGroup => "rail",
            Level::Block => "block",
            Level::Pod => "pod",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a word that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a level of the network: write node, nvlink, rack, rail, block or pod")]
pub struct InvalidLevel(pub String);

impl FromStr for Level {
    type Err = InvalidLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLevel> {
        Level::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| InvalidLevel(text.to_owned()))
    }
}

/// Topology requirements and preferences for a gang's nodes. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopologyRequest {
    /// The level at which all nodes must share a domain; otherwise the gang waits.
    pub require: Option<Level>,
    /// The level at which all nodes should share a domain; if impossible, the narrowest possible wider level.
    pub prefer: Option<Level>,
    /// Groups into which the gang is divided; each must be within one domain.
    pub segment: Option<Segment>,
}

impl TopologyRequest {
    /// Reports whether the request forbids some placements, beyond expressing a preference.
    #[must_use]
    pub fn constrains(&self) -> bool {
        self.require.is_some() || self.segment.is_some()
    }
}

/// Groups of nodes that communicate more with each other than with the rest: tensor or pipeline parallel
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Nodes per segment; divides the gang's node count.
    pub nodes: NonZeroU32,
    /// The level at which all nodes of a segment share a domain.
    pub level: Level,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_read_back_and_grow_wider() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!(Level::ALL.is_sorted());
        let message = "zone".parse::<Level>().expect_err("no level").to_string();
        assert_eq!(message, "\"zone\" is not a level of the network: write node, nvlink, rack, rail, block or pod");
    }
}
