//! The victim search: which running jobs to stop or shrink so that the freed devices **fit** a waiting gang.
//!
//! One search decides quota and topology together: decided separately, one frees scattered nodes that the
//! other rejects, and nothing moves (Kueue #10815 and #5243, Volcano #4374). A [`Problem`] is plain values:
//! domains that could hold the gang, offers by running jobs, and what may be taken from each queue.
//! [`find_victims`] returns the cheapest set; ties go to fewer victims, then to lower job ids, then to
//! earlier offers. The same problem always has the same answer. `../../cost.rs` prices victims by lost
//! work rather than by priority alone (Kueue #477).
//!
//! - A set is always inclusion-minimal: without any one victim, the gang doesn't fit.
//! - No more than its bound is taken from a queue or any of its ancestors.
//! - A gang with segments gets room for one segment after another (`segments.rs`).
//! - [`Victims::is_exact`] says whether the set is proved to be the cheapest, by branch and bound (Land and
//!   Doig 1960; the bound is the fractional knapsack of Dantzig 1957). If the gang lacks one node, or each
//!   victim is on one node only, the problem decomposes into nodes that are solved separately. Otherwise a
//!   domain with at most [`EXACT_JOBS_MAX`] candidates is solved as a whole. Beyond that, or beyond
//!   [`WORK_MAX`], the answer is the best of several greedy sets after local improvement.

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

/// Resources that a job has or wants on one node.
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

/// Resources on one node: free ones, or those that a victim would free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeResources {
    /// The node.
    pub node: NodeId,
    /// The amounts.
    pub resources: Resources,
}

/// The shape of the waiting gang, or of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of different nodes.
    pub nodes: u32,
    /// The resources on each node.
    pub per_node: Resources,
}

/// The most that may be taken from a queue including its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The index of its parent in the problem's list of queues; parents come first.
    pub parent: Option<usize>,
    /// The most devices, for example what it borrows beyond its quota or holds above its fair share.
    pub devices_max: u32,
}

/// The input of a search.
#[derive(Clone, Debug)]
pub struct Problem {
    wanted: Wanted,
    queues: Vec<QueueBound>,
    domains: Vec<Vec<NodeResources>>,
    /// For each domain that could hold a segment, the index of the wider domain that has to hold the whole
    /// gang.
    outer: Vec<usize>,
    /// The number of segments, if the gang has any; `wanted` is then one segment.
    segments: Option<u32>,
    offers: Vec<Offer>,
    freed: Vec<NodeResources>,
}

/// One way for a running job to free devices. At most one offer of a job is taken.
#[derive(Clone, Debug)]
struct Offer {
    job: JobId,
    queue: usize,
    cost: GpuSeconds,
    /// All devices freed on any node, as counted against its queue's bound.
    devices: u32,
    /// The range in the problem's `freed`.
    freed: Range<usize>,
}

impl Problem {
    /// Creates a problem without domains or offers. Queues are identified by their index.
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

    /// Adds a domain that could hold the whole gang (a rack, an NVLink island, or the cluster if nothing is
    /// required): the nodes that the gang may use, with what is free on each. Node ids should be dense, since
    /// they index a table.
    pub fn add_domain(&mut self, nodes: impl IntoIterator<Item = NodeResources>) {
        self.add_domain_within(self.domains.len(), nodes);
    }

    /// Searches for this many segments of the wanted shape, each within one domain and all within one wider
    /// domain.
    pub fn cut_into(&mut self, segments: u32) {
        self.segments = Some(segments);
    }

    /// Adds a domain that could hold a segment and that lies in the wider domain of this index.
    pub fn add_domain_within(&mut self, outer: usize, nodes: impl IntoIterator<Item = NodeResources>) {
        let mut nodes: Vec<NodeResources> = nodes.into_iter().collect();
        nodes.sort_by_key(|free| free.node);
        nodes.dedup_by_key(|free| free.node);
        self.domains.push(nodes);
        self.outer.push(outer);
    }

    /// Adds an offer of a running job, to be stopped or shrunk, that frees `freed` at `cost`. Offers of one
    /// job exclude each other.
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

/// An offer's index, in the order in which offers were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferId(pub usize);

/// A set of victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimSet {
    /// The victims, by id.
    pub jobs: Vec<JobId>,
    /// The offer taken from each job.
    pub offers: Vec<OfferId>,
    /// The total cost.
    pub cost: GpuSeconds,
    /// The index of the domain, in the order in which domains were added.
    pub domain: usize,
    /// The nodes for the gang, by id; each has room once the victims are gone.
    pub nodes: Vec<NodeId>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victims {
    /// The best set found.
    pub chosen: VictimSet,
    /// The next best sets found on other nodes or in other domains; at most [`ALTERNATIVES_MAX`].
    pub alternatives: Vec<VictimSet>,
    /// The number of states searched.
    pub states: u32,
    /// Whether the search proved that no allowed set is better.
    pub is_exact: bool,
}

/// Why no set of victims makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVictims {
    /// No domain could hold the gang even if every candidate gave up everything it offers.
    #[error("at most {nodes} node(s) of one domain could be freed")]
    TooFewNodes {
        /// The most nodes that one domain could offer the gang.
        nodes: u32,
    },
    /// Making room would exceed some queue's bound, or need more than one offer of some job.
    #[error("the victims needed are more than may be taken from their queues")]
    Bounded,
    /// The search reached its limit without finding a set.
    #[error("no victims were found within the limit of the search")]
    Unproven,
}
