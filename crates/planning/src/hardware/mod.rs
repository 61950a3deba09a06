//! What a run goes on: accelerators, the links between them, storage.
//!
//! The book ([`book`]) has what vendors state, as data with units, source and date; users' own files go over it.

mod amount;
pub mod book;
mod entries;

use crate::units::{Bandwidth, FlopRate, Seconds, Volume};

/// An accelerator as its vendor states it. Rates are of dense matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerator {
    /// As in the book: `H100-SXM5-80GB`.
    pub name: String,
    /// What it shares efficiency figures with.
    pub generation: Generation,
    /// Its memory as programs see it, which is less than what is sold where the driver or error correction takes some.
    pub memory: Volume,
    /// Rate of that memory.
    pub memory_bandwidth: Bandwidth,
    /// Peak rate of fp32 outside the matrix units.
    pub fp32: FlopRate,
    /// Peak rates of the matrix units; none where they can't.
    pub peaks: Peaks,
    /// Link to its neighbours, each way (half of what data sheets state for both); zero where there is only the host's.
    pub link: Bandwidth,
    /// Accelerators that this link joins; 1 where there is none.
    pub link_domain: u32,
    /// Link to the host, each way; zero where the vendor doesn't say.
    pub host_link: Bandwidth,
    /// Power at full load, in watts; 0 where the vendor doesn't say.
    pub watts: f64,
}

/// Peak rates of the matrix units, dense.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// tf32.
    pub tf32: Option<FlopRate>,
    /// fp16 with fp32 sums.
    pub fp16: Option<FlopRate>,
    /// bf16 with fp32 sums.
    pub bf16: Option<FlopRate>,
    /// fp8.
    pub fp8: Option<FlopRate>,
    /// fp4.
    pub fp4: Option<FlopRate>,
}

/// Families of accelerators whose kernels reach alike parts of their peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// NVIDIA V100.
    Volta,
    /// NVIDIA T4.
    Turing,
    /// NVIDIA A100, A10, RTX 30.
    Ampere,
    /// NVIDIA L4, L40, RTX 40.
    Ada,
    /// NVIDIA H100, H200, GH200.
    Hopper,
    /// NVIDIA B200, GB200, B300, GB300, RTX 50.
    Blackwell,
    /// AMD MI200.
    Cdna2,
    /// AMD MI300.
    Cdna3,
    /// AMD MI350.
    Cdna4,
    /// Google TPU.
    Tpu,
    /// Any other.
    Other,
}

/// Nodes of equal accelerators.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Each accelerator.
    pub accelerator: Accelerator,
    /// How many there are in all.
    pub accelerators: u32,
    /// How many a node has.
    pub per_node: u32,
    /// The network between nodes.
    pub fabric: Fabric,
}

/// Links that join so many accelerators go through racks, not boards: nodes are a part of them.
const RACK: u32 = 32;

impl Cluster {
    /// Accelerators that fast links join: those of a rack, or of a board as far as it is in one node.
    #[must_use]
    pub fn linked(&self) -> u32 {
        let domain = self.accelerator.link_domain.max(1);
        if domain >= RACK { domain } else { domain.min(self.per_node.max(1)) }
    }
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Rate that each accelerator has into it, each way.
    pub per_accelerator: Bandwidth,
    /// Time before the first byte arrives.
    pub latency: Seconds,
}

/// A kind of storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// As in the book: `lustre-1000`.
    pub name: String,
    /// What the rates are of.
    pub of: StorageUnit,
    /// Rate of reading.
    pub read: Bandwidth,
    /// Rate of writing.
    pub write: Bandwidth,
}

/// What a storage's rates are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageUnit {
    /// A node that has it, or reaches it.
    Node,
    /// A tebibyte that is provisioned.
    Tebibyte,
    /// All of it.
    System,
    /// One request or connection.
    Stream,
}
