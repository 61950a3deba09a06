//! Nodes as a launcher's own system sees them.

use gangline_base::{Bytes, Level};

/// A node that a launcher can start supervisors on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedNode {
    /// Its name.
    pub name: String,
    /// The name or address by which other nodes reach it.
    pub address: String,
    /// The kind of its accelerators; `cpu` for CPU slots.
    pub kind: String,
    /// How many.
    pub accelerators: u32,
    /// Its CPU cores.
    pub cpus: u32,
    /// Its memory.
    pub memory: Bytes,
    /// The domains of the network that it is in; none if nobody says.
    pub domains: Vec<(Level, String)>,
    /// Whether gangs may start there.
    pub openness: Openness,
    /// What others hold there.
    pub taken: Taken,
}

/// Whether gangs may start on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Openness {
    /// They may.
    Open,
    /// Nothing new may; what runs there goes on.
    Closed {
        /// Why.
        because: String,
    },
    /// It doesn't answer for now: nothing new may, and what runs there may be well. If it was lost it stays so.
    Silent {
        /// How that shows.
        because: String,
    },
    /// It is gone, with what ran there.
    Down {
        /// Why.
        because: String,
    },
}

/// What those who don't come through this launcher hold of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Accelerators.
    pub accelerators: u32,
    /// CPU cores.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
}
