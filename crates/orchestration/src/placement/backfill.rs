//! Backfill with reservations: the first job in line that waits for devices is promised nodes and a time, and
//! jobs behind it may start only if they don't break that promise.
//!
//! This is EASY backfilling (Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001) with reservations in
//! space as well as in time, for each kind of accelerator. End times are upper bounds, from time limits plus
//! the grace period, never estimates, so a job that runs on can't break a promise. The end of a job without a
//! limit is unknown; then the reservation has no time, and its nodes take nothing that could run beyond it.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{GangShape, JobId, JobSpec, NodeId, Timestamp};

use crate::job::Attempt;
use crate::placement::cluster::{Bound, Cluster};
use crate::placement::outlook::Outlook;
use crate::queueing::Span;
use crate::{Node, Share};

/// Nodes held for a waiting job.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    /// The job.
    pub(crate) job: JobId,
    /// The latest start time; unknown if something in its way has no time limit.
    pub(crate) at: Option<Timestamp>,
    /// For each of its nodes, the accelerators it leaves to jobs that run beyond `at`. Sorted by node.
    spare: Vec<(NodeId, u32)>,
}

impl Reservation {
    pub(crate) fn new(job: JobId, at: Option<Timestamp>, mut spare: Vec<(NodeId, u32)>) -> Self {
        spare.sort_unstable();
        Reservation { job, at, spare }
    }

    /// Returns the reserved nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.spare.iter().map(|(node, _)| *node)
    }

    /// Reports whether it has enough nodes for the gang; it has too few if more are closed than may be.
    pub(crate) fn is_for(&self, gang: &GangShape) -> bool {
        u32::try_from(self.spare.len()).is_ok_and(|nodes| nodes >= gang.nodes.get())
    }

    /// Returns a node's index among the reserved nodes.
    fn place_of(&self, node: NodeId) -> Option<usize> {
        self.spare.binary_search_by_key(&node, |(node, _)| *node).ok()
    }

    /// Returns how many of a node's free accelerators a job that ends by `end` may use.
    pub(crate) fn usable(&self, node: &Node, end: Option<Timestamp>) -> u32 {
        let is_over_in_time = end.zip(self.at).is_some_and(|(end, at)| end <= at);
        match self.place_of(node.id).filter(|_| !is_over_in_time) {
            Some(place) => node.free_count().min(self.spare[place].1),
            None => node.free_count(),
        }
    }

    /// Records that a job which runs beyond `at` was placed on these shares.
    pub(crate) fn take(&mut self, shares: &[Share], end: Option<Timestamp>) {
        if end.zip(self.at).is_some_and(|(end, at)| end <= at) {
            return;
        }
        for share in shares {
            if let Some(place) = self.place_of(share.node) {
                let spare = &mut self.spare[place].1;
                *spare = spare.saturating_sub(u32::try_from(share.devices.len()).unwrap_or(u32::MAX));
            }
        }
    }
}

/// Returns when a job that starts at `start` ends at the latest; unknown without a time limit.
pub(crate) fn latest_end(spec: &JobSpec, start: Timestamp) -> Option<Timestamp> {
    Span::of(spec).end(start)
}

/// Returns when a running job ends at the latest: within its grace period once it has been told to stop.
pub(crate) fn latest_end_of(spec: &JobSpec, attempt: &Attempt) -> Option<Timestamp> {
    let stopped = attempt.stop_at.map(|at| at + spec.checkpoint.grace);
    let limited = latest_end(spec, attempt.allocated_at);
    stopped.into_iter().chain(limited).min()
}

/// Nodes that can take a share by now, in the order of when they could; kept per domain if one domain has to
/// hold the whole gang.
struct Gathering<'a> {
    gang: &'a GangShape,
    /// Excluded nodes, by id: reserved, claimed or promised to other jobs.
    promised: &'a [NodeId],
    domains: BTreeMap<Bound<'a>, Vec<NodeId>>,
}

/// Makes reservations from what nodes have free now and when they will have more.
pub(crate) struct Backfill<'c> {
    cluster: &'c Cluster,
    outlook: &'c Outlook,
}

impl<'c> Backfill<'c> {
    /// Looks at these nodes.
    pub(crate) fn new(cluster: &'c Cluster, outlook: &'c Outlook) -> Self {
        Backfill { cluster, outlook }
    }

    /// Makes the earliest possible reservation of a gang for a waiting job, on nodes that are neither closed
    /// to it nor promised to `others`.
    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        (job, gang): (JobId, &GangShape),
        closed: Vec<NodeId>,
        others: &[Reservation],
    ) -> Reservation {
        let mut promised = closed;
        promised.extend(others.iter().flat_map(|other| &other.spare).map(|(node, _)| *node));
        promised.sort_unstable();
        let mut gathering = Gathering { gang, promised: &promised, domains: BTreeMap::new() };
        let found = self.gather(now, &mut gathering);
        // When nodes for whole segments become free is not computed, so such a reservation has no time.
        let at = found.as_ref().map(|(at, _)| *at).filter(|_| gang.topology.segment.is_none());
        let nodes = found.map_or_else(|| self.filled_up(&gathering), |(_, nodes)| nodes);
        let spare = nodes.into_iter().map(|node| (node, at.map_or(0, |at| self.spare(node, gang, at)))).collect();
        Reservation::new(job, at, spare)
    }

    /// Collects nodes until enough fit, and returns when they do; none if that is unknown.
    fn gather<'a>(&'a self, now: Timestamp, gathering: &mut Gathering<'a>) -> Option<(Timestamp, Vec<NodeId>)> {
        let gang = gathering.gang;
        for node in self.cluster.with_room_for(gang) {
            if let Some(nodes) = gathering.add(node) {
                return Some((now, nodes));
            }
        }
        for (at, node) in self.coming(gang, gathering.promised) {
            if let Some(nodes) = gathering.add(node) {
                return Some((now.max(at), nodes));
            }
        }
        None
    }

    /// Returns nodes that have no room for a share now but will have, earliest first, except promised ones.
    fn coming<'a>(
        &'a self,
        gang: &'a GangShape,
        promised: &'a [NodeId],
    ) -> Box<dyn Iterator<Item = (Timestamp, &'a Node)> + 'a> {
        let suits = |node: &&Node| node.takes_shares_of(gang);
        let with_devices = self.outlook.with_devices_for(gang);
        let with_devices = with_devices.filter(|(_, id)| promised.binary_search(id).is_err());
        let with_devices = with_devices.filter_map(move |(at, id)| Some((at, self.cluster.node(id).filter(suits)?)));
        if gang.cpus_per_node == 0 && gang.memory_per_node.0 == 0 {
            return Box::new(with_devices);
        }
        // Cores and memory become free at other times than devices, so all candidate nodes are sorted.
        let from = gang.accelerators_per_node.get();
        let has_devices = self.cluster.emptiest_of(gang).take_while(move |node| node.free_count() >= from);
        let lack_others = has_devices.filter(suits).filter(|node| !node.has_left_for_share_of(gang));
        let nodes = with_devices.map(|(_, node)| node).chain(lack_others);
        let mut coming: Vec<_> =
            nodes.filter_map(|node| Some((self.outlook.fits_from(node, gang)?, node.id, node))).collect();
        coming.sort_unstable_by_key(|(at, id, _)| (*at, *id));
        Box::new(coming.into_iter().map(|(at, _, node)| (at, node)))
    }

    /// Returns the domain that lacks the fewest nodes, filled with the nodes that lack least, although it is
    /// unknown when they will have room.
    fn filled_up(&self, gathering: &Gathering<'_>) -> Vec<NodeId> {
        let (gang, wanted) = (gathering.gang, gathering.wanted());
        let mut domains: BTreeMap<Bound<'_>, Vec<NodeId>> = gathering.domains.clone();
        let taken: BTreeSet<NodeId> = domains.values().flatten().copied().collect();
        let others = self.cluster.emptiest_of(gang).filter(|node| !taken.contains(&node.id));
        for node in others.filter(|node| node.takes_shares_of(gang) && !gathering.is_promised(node.id)) {
            if let Some(domain) = node.domain_for(gang) {
                let nodes = domains.entry(domain).or_default();
                nodes.push(node.id);
                if gang.topology.require.is_none() && nodes.len() >= wanted {
                    break;
                }
            }
        }
        let fitting = |domain: &Bound<'_>| gathering.domains.get(domain).map_or(0, Vec::len);
        let large_enough = domains.into_iter().filter(|(_, nodes)| nodes.len() >= wanted);
        let best = large_enough.max_by_key(|(domain, _)| fitting(domain));
        best.map(|(_, nodes)| nodes.into_iter().take(wanted).collect()).unwrap_or_default()
    }

    /// Returns what the gang leaves of a node's accelerators when it starts at `at`. Zero where it also uses
    /// cores or memory, which are not counted separately.
    fn spare(&self, node: NodeId, gang: &GangShape, at: Timestamp) -> u32 {
        let shares_more = gang.cpus_per_node > 0 || gang.memory_per_node.0 > 0;
        let devices = self.cluster.node(node).map_or(0, |node| self.outlook.free_at(node, at));
        if shares_more { 0 } else { devices.saturating_sub(gang.accelerators_per_node.get()) }
    }
}

impl<'a> Gathering<'a> {
    /// Adds a node; returns nodes for the whole gang once there are enough.
    fn add(&mut self, node: &'a Node) -> Option<Vec<NodeId>> {
        if self.is_promised(node.id) {
            return None;
        }
        let wanted = self.wanted();
        let nodes = self.domains.entry(node.domain_for(self.gang)?).or_default();
        nodes.push(node.id);
        (nodes.len() >= wanted).then(|| std::mem::take(nodes))
    }

    fn is_promised(&self, node: NodeId) -> bool {
        self.promised.binary_search(&node).is_ok()
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.gang.nodes.get()).expect("a usize holds 32 bits")
    }
}
