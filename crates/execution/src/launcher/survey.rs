//! Nodes as a launcher's own system sees them.

use gangline_base::{Bytes, Level};

/// A node on which a launcher can start supervisors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedNode {
    /// The node's name.
    pub name: String,
    /// The name or address by which other nodes reach it.
    pub address: String,
    /// Kind of its accelerators; `cpu` for CPU slots.
    pub kind: String,
    /// Number of accelerators.
    pub accelerators: u32,
    /// Number of CPU cores.
    pub cpus: u32,
    /// Size of its memory.
    pub memory: Bytes,
    /// Its network domains; empty if unknown.
    pub domains: Vec<(Level, String)>,
    /// Whether gangs may start on it.
    pub openness: Openness,
    /// External usage of it.
    pub taken: Taken,
}

/// Whether gangs may start on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Openness {
    /// They may.
    Open,
    /// No new gangs; running ones continue.
    Closed {
        /// The reason.
        because: String,
    },
    /// The node doesn't respond for now: no new gangs, but running ones may be fine. A node that was lost
    /// stays lost.
    Silent {
        /// The sign of it.
        because: String,
    },
    /// The node is gone, with everything that ran on it.
    Down {
        /// The reason.
        because: String,
    },
}

/// External usage of a node: resources held by users who don't come through this launcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Number of accelerators.
    pub accelerators: u32,
    /// Number of CPU cores.
    pub cpus: u32,
    /// Amount of memory.
    pub memory: Bytes,
}
