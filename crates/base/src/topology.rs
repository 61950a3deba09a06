//! How close to each other a gang's nodes have to be, in the levels a cluster's network has.
//!
//! The levels are those of issue 3 and of the schedulers users come from (Slurm's block topology, Kueue's topology-aware
//! scheduling): each domain of a level lies within one domain of every wider level.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// A kind of domain that nodes can share, from narrow to wide: the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One node: every node is its own domain.
    Node,
    /// Nodes joined by one NVLink fabric.
    Nvlink,
    /// Nodes under one leaf switch.
    Rack,
    /// Nodes whose accelerators of one number share a switch.
    RailGroup,
    /// Racks under one group of spine switches.
    Block,
    /// Blocks under one core.
    Pod,
}

impl Level {
    /// Every level, narrow to wide.
    pub const ALL: [Level; 6] = [Level::Node, Level::Nvlink, Level::Rack, Level::RailGroup, Level::Block, Level::Pod];

    /// Its word in a job file and a configuration.
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

/// A word that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a level of the network: write node, nvlink, rack, rail, block or pod")]
pub struct InvalidLevel(pub String);

impl FromStr for Level {
    type Err = InvalidLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLevel> {
        Level::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| InvalidLevel(text.to_owned()))
    }
}

/// Where a gang's nodes may and should be. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopologyRequest {
    /// All nodes are in one domain of this level, or the gang waits.
    pub require: Option<Level>,
    /// All nodes are in one domain of this level if that can be, else in one of the narrowest wider level that can.
    pub prefer: Option<Level>,
    /// The gang is cut into groups that must each be in one domain.
    pub segment: Option<Segment>,
}

impl TopologyRequest {
    /// Whether some placements are forbidden: more than preferred against.
    #[must_use]
    pub fn constrains(&self) -> bool {
        self.require.is_some() || self.segment.is_some()
    }
}

/// Groups of nodes that talk more with each other than with the rest: a tensor or pipeline parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Nodes in each; divides those of the gang.
    pub nodes: NonZeroU32,
    /// The level of the domain that all of a segment's nodes share.
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
