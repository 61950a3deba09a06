//! Preemption: which running jobs to stop, or to shrink, so that what is freed **fits** a waiting gang.
//!
//! One search decides quota and topology together: decided apart, the one frees scattered nodes that the other rejects,
//! and nothing moves (Kueue #10815 and #5243, Volcano #4374). A [`Problem`] is plain values: domains that could hold the
//! gang, offers by running jobs, and what may be taken from each queue. [`find_victims`] gives the cheapest set, ties by
//! fewer victims, then by lower job ids, then by earlier offers; the same problem always gets the same answer.
//! What a victim costs is in [`cost`]: lost work rather than priority alone (Kueue #477).
//!
//! - A set is always inclusion-minimal: with any victim less, the gang doesn't fit.
//! - From no queue, and no ancestor of one, is more taken than its bound.
//! - A gang that is cut into segments gets room for each of them, one after the other (`segments.rs`).
//! - [`Victims::is_exact`] says whether the set is proved to be the cheapest, by branch and bound (Land and Doig 1960; the
//!   bound is the fractional knapsack of Dantzig 1957). A gang that lacks one node, and one whose victims each touch one
//!   node only, decomposes into nodes, each solved by itself. Else a domain with at most [`EXACT_JOBS_MAX`] candidates is
//!   solved as a whole. Beyond that, or beyond [`WORK_MAX`], the set is the best of some greedy ones after local
//!   improvement.

pub mod cost;
mod exact;
mod greedy;
mod region;
mod search;
#[cfg(test)]
mod segment_tests;
mod segments;
mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;

use gangline_base::{Bytes, GpuSeconds, JobId, NodeId};

pub use exact::{EXACT_JOBS_MAX, WORK_MAX};
pub use search::{ALTERNATIVES_MAX, find_victims};
pub use segments::SEGMENTS_MAX;

/// What a job has, or wants, of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    /// Accelerators.
    pub devices: u32,
    /// CPU cores.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
}

impl Resources {
    fn cover(self, wanted: Resources) -> bool {
        self.devices >= wanted.devices && self.cpus >= wanted.cpus && self.memory >= wanted.memory
    }

    fn plus(self, other: Resources) -> Self {
        let memory = self.memory + other.memory;
        Resources { devices: self.devices + other.devices, cpus: self.cpus + other.cpus, memory }
    }

    fn saturating_minus(self, other: Resources) -> Self {
        Resources {
            devices: self.devices.saturating_sub(other.devices),
            cpus: self.cpus.saturating_sub(other.cpus),
            memory: Bytes(self.memory.0.saturating_sub(other.memory.0)),
        }
    }
}

/// Something of one node: what is free there, or what a victim would free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeResources {
    /// The node.
    pub node: NodeId,
    /// How much of it.
    pub resources: Resources,
}

/// The shape of the waiting gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// On how many different nodes.
    pub nodes: u32,
    /// What it wants of each.
    pub per_node: Resources,
}

/// How much may be taken from a queue, its descendants included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The place of its parent in the problem's list of queues; before its own.
    pub parent: Option<usize>,
    /// The most devices: what it borrows beyond its guaranteed quota, say, or what it has above its fair share.
    pub devices_max: u32,
}

/// What to search.
#[derive(Clone, Debug)]
pub struct Problem {
    wanted: Wanted,
    queues: Vec<QueueBound>,
    domains: Vec<Vec<NodeResources>>,
    /// For each domain, the wider one that it lies in and that has to hold the whole gang.
    outer: Vec<usize>,
    /// How many segments there are, if the gang is cut into some: then `wanted` is one of them.
    segments: Option<u32>,
    offers: Vec<Offer>,
    freed: Vec<NodeResources>,
}

/// One way in which a running job can give something up. A job gives at most one of its offers.
#[derive(Clone, Debug)]
struct Offer {
    job: JobId,
    queue: usize,
    cost: GpuSeconds,
    /// All devices freed, wherever they are: what its queue loses.
    devices: u32,
    /// What it frees: a range of the problem's `freed`.
    freed: Range<usize>,
}

impl Problem {
    /// A problem without domains and offers. Queues are named by their place in `queues`.
    ///
    /// # Panics
    /// If a queue comes before its parent.
    #[must_use]
    pub fn new(wanted: Wanted, queues: Vec<QueueBound>) -> Self {
        let is_ordered =
            queues.iter().enumerate().all(|(place, queue)| queue.parent.is_none_or(|parent| parent < place));
        assert!(is_ordered, "a queue comes after its parent");
        let (domains, outer, offers, freed) = Default::default();
        Problem { wanted, queues, domains, outer, segments: None, offers, freed }
    }

    /// Adds a domain that could hold the whole gang (a rack, an NVLink island; the cluster, if nothing is required): its
    /// nodes that the gang may use, each with what is free there. Node ids should be dense: a table is indexed by them.
    pub fn add_domain(&mut self, nodes: impl IntoIterator<Item = NodeResources>) {
        self.add_domain_within(self.domains.len(), nodes);
    }

    /// Looks for room for so many segments, each of the shape that is wanted and within one domain, all within one wider one.
    pub fn cut_into(&mut self, segments: u32) {
        self.segments = Some(segments);
    }

    /// Adds a domain that could hold a segment, and that lies in the wider one of this number.
    pub fn add_domain_within(&mut self, outer: usize, nodes: impl IntoIterator<Item = NodeResources>) {
        let mut nodes: Vec<NodeResources> = nodes.into_iter().collect();
        nodes.sort_by_key(|free| free.node);
        nodes.dedup_by_key(|free| free.node);
        self.domains.push(nodes);
        self.outer.push(outer);
    }

    /// Adds an offer of a running job: to be stopped, or to be shrunk, freeing `freed` at `cost`. Offers of the same job
    /// exclude each other.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn add_offer(
        &mut self,
        job: JobId,
        queue: usize,
        cost: GpuSeconds,
        freed: impl IntoIterator<Item = NodeResources>,
    ) -> OfferId {
        assert!(queue < self.queues.len(), "an offer is made from a queue of the problem");
        let start = self.freed.len();
        self.freed.extend(freed);
        let devices = self.freed[start..].iter().map(|freed| freed.resources.devices).sum();
        self.offers.push(Offer { job, queue, cost, devices, freed: start..self.freed.len() });
        OfferId(self.offers.len() - 1)
    }
}

/// An offer, by the order in which offers were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferId(pub usize);

/// One set of victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimSet {
    /// The victims, by id.
    pub jobs: Vec<JobId>,
    /// The offer taken of each.
    pub offers: Vec<OfferId>,
    /// What the set costs in all.
    pub cost: GpuSeconds,
    /// Which domain, by the order in which they were added.
    pub domain: usize,
    /// As many nodes as the gang wants, by id; each has room for it once the victims are gone.
    pub nodes: Vec<NodeId>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victims {
    /// The set to take.
    pub chosen: VictimSet,
    /// The next best sets that were looked at, on other nodes or in other domains: at most [`ALTERNATIVES_MAX`].
    pub alternatives: Vec<VictimSet>,
    /// How many states the search went through.
    pub states: u32,
    /// Whether no allowed set is better than the chosen one, as proved by the search.
    pub is_exact: bool,
}

/// Why no victims make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVictims {
    /// No domain could hold the gang even if every candidate gave up all that it offers.
    #[error("at most {nodes} node(s) of one domain could be freed")]
    TooFewNodes {
        /// The most nodes that one domain could have for the gang.
        nodes: u32,
    },
    /// What would have to go is too much: more than may be taken from some queue, or more than one offer of some job.
    #[error("the victims needed are more than may be taken from their queues")]
    Bounded,
    /// The search reached its limit without finding any.
    #[error("no victims were found within the limit of the search")]
    Unproven,
}
