//! Backfill with reservations: the first job in line that waits for devices is promised nodes and a time, and jobs behind
//! it may start only if that promise stands.
//!
//! This is EASY backfilling (Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001) with the reservation in space as
//! well as in time, for each kind of accelerator. What ends when is known from time limits alone, with the grace of a stop
//! on top: an upper bound, never a guess, so a promise is never broken by a job that runs on. What runs without a limit
//! ends at a time unknown; then the promise has no time, and its nodes take nothing that could outlast it.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{GangShape, JobId, JobSpec, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job};
use crate::{Cluster, Node, Share};

/// Nodes held for a job that waits.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    /// The job.
    pub(crate) job: JobId,
    /// When it can start at the latest; unknown if what is in its way has no time limit.
    pub(crate) at: Option<Timestamp>,
    /// For each of its nodes, the accelerators there that it leaves to jobs that outlast `at`.
    spare: BTreeMap<NodeId, u32>,
}

impl Reservation {
    pub(crate) fn new(job: JobId, at: Option<Timestamp>, spare: BTreeMap<NodeId, u32>) -> Self {
        Reservation { job, at, spare }
    }

    /// How many of a node's free accelerators a job that ends by `end` may have.
    pub(crate) fn usable(&self, node: &Node, end: Option<Timestamp>) -> u32 {
        let is_over_in_time = end.zip(self.at).is_some_and(|(end, at)| end <= at);
        match self.spare.get(&node.id) {
            Some(spare) if !is_over_in_time => node.free_count().min(*spare),
            _ => node.free_count(),
        }
    }

    /// A job that outlasts `at` was placed here.
    pub(crate) fn take(&mut self, shares: &[Share], end: Option<Timestamp>) {
        if end.zip(self.at).is_some_and(|(end, at)| end <= at) {
            return;
        }
        for share in shares {
            if let Some(spare) = self.spare.get_mut(&share.node) {
                *spare = spare.saturating_sub(u32::try_from(share.devices.len()).unwrap_or(u32::MAX));
            }
        }
    }
}

/// When a job that starts at `start` is over at the latest; unknown without a time limit.
pub(crate) fn latest_end(spec: &JobSpec, start: Timestamp) -> Option<Timestamp> {
    spec.time_limit.map(|limit| start + limit + spec.checkpoint.grace)
}

/// When a running job is over at the latest: within its grace once it has been told to stop.
pub(crate) fn latest_end_of(spec: &JobSpec, attempt: &Attempt) -> Option<Timestamp> {
    let stopped = attempt.stop_at.map(|at| at + spec.checkpoint.grace);
    let limited = latest_end(spec, attempt.placed_at);
    stopped.into_iter().chain(limited).min()
}

/// What of a node will be free.
struct Prospect {
    devices: u32,
    cpus: u32,
    memory: u64,
}

/// Nodes as running jobs end, one after another.
struct Outlook<'a> {
    cluster: &'a Cluster,
    gang: &'a GangShape,
    /// Nodes that are out of the question: reserved for others, or claimed by them.
    claimed: BTreeSet<NodeId>,
    prospects: BTreeMap<NodeId, Prospect>,
    /// Nodes that can take a share by now, those that could first first; apart for each domain that has to hold the whole
    /// gang, if it requires one.
    fitting: BTreeMap<&'a str, Vec<NodeId>>,
}

impl Engine {
    /// The earliest promise that can be made to a waiting job, on nodes that nobody else has a claim to.
    pub(crate) fn reserve(&self, now: Timestamp, job: JobId, gang: &GangShape) -> Reservation {
        let barred = self.jobs.get(&job).map(|job| self.barred_nodes(now, &job.applicant())).unwrap_or_default();
        let claimed = self.claimed_nodes_beside(job).into_iter().chain(barred).collect();
        let mut outlook = Outlook::now(&self.cluster, gang, claimed);
        let mut at = outlook.room().map(|_| now);
        for (end, other) in &self.ends {
            if at.is_some() {
                break;
            }
            let shares = self.jobs.get(other).and_then(Job::attempt).map(|attempt| attempt.shares.as_slice());
            outlook.free(shares.unwrap_or_default());
            at = outlook.room().map(|_| now.max(*end));
        }
        // Nobody works out when segments come together: a promise of nodes without a time.
        if gang.topology.segment.is_some() {
            at = None;
        }
        let nodes = outlook.room().unwrap_or_else(|| outlook.filled_up());
        let spare = nodes.into_iter().map(|node| (node, if at.is_some() { outlook.spare(node) } else { 0 })).collect();
        Reservation { job, at, spare }
    }
}

impl<'a> Outlook<'a> {
    fn now(cluster: &'a Cluster, gang: &'a GangShape, claimed: BTreeSet<NodeId>) -> Self {
        let mut outlook = Outlook { cluster, gang, claimed, prospects: BTreeMap::new(), fitting: BTreeMap::new() };
        for node in cluster.with_room_for(gang) {
            outlook.note(node);
        }
        outlook
    }

    /// The domain that would hold the whole gang if it had this node.
    fn domain_of(&self, node: &'a Node) -> Option<&'a str> {
        if self.claimed.contains(&node.id) { None } else { node.domain_for(self.gang) }
    }

    fn note(&mut self, node: &'a Node) {
        if let Some(domain) = self.domain_of(node) {
            self.fitting.entry(domain).or_default().push(node.id);
        }
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.gang.nodes.get()).expect("a usize holds 32 bits")
    }

    /// Nodes for the whole gang, if enough fit by now.
    fn room(&self) -> Option<Vec<NodeId>> {
        let enough = self.fitting.values().find(|nodes| nodes.len() >= self.wanted())?;
        Some(enough.iter().copied().take(self.wanted()).collect())
    }

    fn free(&mut self, shares: &[Share]) {
        for share in shares {
            let Some(node) = self.cluster.node(share.node).filter(|node| node.takes_shares_of(self.gang)) else {
                continue;
            };
            let fresh = || Prospect { devices: node.free_count(), cpus: node.free_cpus, memory: node.free_memory.0 };
            let prospect = self.prospects.entry(node.id).or_insert_with(fresh);
            let did_fit = prospect.fits(self.gang);
            prospect.devices += u32::try_from(share.devices.len()).unwrap_or(u32::MAX);
            prospect.cpus += share.cpus;
            prospect.memory += share.memory.0;
            if !did_fit && prospect.fits(self.gang) {
                self.note(node);
            }
        }
    }

    /// The domain that lacks fewest nodes, filled up with those that lack least, though nothing says when they will have it.
    fn filled_up(&self) -> Vec<NodeId> {
        let cluster = self.cluster;
        let mut domains: BTreeMap<&str, Vec<NodeId>> = self.fitting.clone();
        let taken: BTreeSet<NodeId> = domains.values().flatten().copied().collect();
        let others = cluster.emptiest_of(&self.gang.lane()).filter(|node| !taken.contains(&node.id));
        for node in others.filter(|node| node.takes_shares_of(self.gang)) {
            if let Some(domain) = self.domain_of(node) {
                domains.entry(domain).or_default().push(node.id);
            }
        }
        let fitting = |domain: &str| self.fitting.get(domain).map_or(0, Vec::len);
        let large_enough = domains.into_iter().filter(|(_, nodes)| nodes.len() >= self.wanted());
        let best = large_enough.max_by_key(|(domain, _)| fitting(domain));
        best.map(|(_, nodes)| nodes.into_iter().take(self.wanted()).collect()).unwrap_or_default()
    }

    /// What the gang leaves of a node's accelerators when it starts. None where it shares cores or memory as well: those
    /// are not counted apart.
    fn spare(&self, id: NodeId) -> u32 {
        let devices = match self.prospects.get(&id) {
            Some(prospect) => prospect.devices,
            None => self.cluster.node(id).map_or(0, Node::free_count),
        };
        let shares_more = self.gang.cpus_per_node > 0 || self.gang.memory_per_node.0 > 0;
        if shares_more { 0 } else { devices.saturating_sub(self.gang.accelerators_per_node.get()) }
    }
}

impl Prospect {
    fn fits(&self, gang: &GangShape) -> bool {
        self.devices >= gang.accelerators_per_node.get()
            && self.cpus >= gang.cpus_per_node
            && self.memory >= gang.memory_per_node.0
    }
}
