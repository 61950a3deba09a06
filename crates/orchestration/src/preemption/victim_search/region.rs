//! A domain reduced to what the search needs: nodes with room, nodes that could get room, and the useful
//! offers.

use std::ops::Range;

use gangline_base::{JobId, NodeId};

use super::state::Quotas;
use super::{NodeResources, Problem, Resources};

/// The cost and size of a set of victims as one number: nano-GPU-seconds times [`VICTIMS_MAX`] plus one for
/// each victim. Comparing prices compares costs, then numbers of victims.
pub(super) type Price = u128;

/// A lower bound on the sets of a region: the price and the first victim. Sets of equal price are compared by
/// id, so this excludes most sets that can only tie.
pub(super) type Promise = (Price, Option<JobId>);

/// The most victims a price can count.
const VICTIMS_MAX: Price = 1 << 20;

/// The highest cost (480 years of 80,000 GPUs); higher costs are clamped so that sums of prices can't
/// overflow.
const NANOS_MAX: u128 = 1 << 80;

/// An index of the offers that free something on each node.
pub(super) struct Holdings {
    /// Where a node's entries begin, by node id; has one extra element at the end.
    starts: Vec<usize>,
    entries: Vec<Holding>,
}

#[derive(Clone, Copy)]
struct Holding {
    offer: usize,
    resources: Resources,
    /// Whether the bounds of its queues allow this offer by itself.
    is_admissible: bool,
}

fn slot(node: NodeId) -> usize {
    usize::try_from(node.0).expect("a usize holds 32 bits")
}

impl Holdings {
    pub(super) fn new(problem: &Problem) -> Self {
        let slots = problem.domains.iter().flatten().map(|free| slot(free.node) + 1).max().unwrap_or(0);
        let mut starts = vec![0; slots + 1];
        for freed in problem.freed.iter().filter(|freed| slot(freed.node) < slots) {
            starts[slot(freed.node) + 1] += 1;
        }
        for node in 0..slots {
            starts[node + 1] += starts[node];
        }
        let none = Holding { offer: 0, resources: Resources::default(), is_admissible: false };
        let mut entries = vec![none; starts[slots]];
        let mut next = starts.clone();
        let quotas = Quotas::new(problem);
        for (offer, of) in problem.offers.iter().enumerate() {
            let is_admissible = quotas.admit(problem, of.queue, of.devices);
            for freed in problem.freed[of.freed.clone()].iter().filter(|freed| slot(freed.node) < slots) {
                let place = &mut next[slot(freed.node)];
                entries[*place] = Holding { offer, resources: freed.resources, is_admissible };
                *place += 1;
            }
        }
        Holdings { starts, entries }
    }

    fn on(&self, node: NodeId) -> &[Holding] {
        &self.entries[self.starts[slot(node)]..self.starts[slot(node) + 1]]
    }
}

/// A part of a domain to search: make room on `wanted` of its short nodes.
pub(super) struct Region<'a> {
    pub(super) problem: &'a Problem,
    pub(super) domain: usize,
    /// The number of short nodes that must get room.
    pub(super) wanted: usize,
    /// Nodes that already have room; no more than the gang wants.
    pub(super) ready: Vec<NodeId>,
    /// Nodes that lack room and could get it.
    pub(super) short: Vec<ShortNode>,
    pub(super) offers: Vec<RegionOffer>,
    /// What each offer frees on short nodes, by index in `short`.
    pub(super) freed: Vec<(usize, Resources)>,
    /// The offers of each job, by job id.
    pub(super) jobs: Vec<Range<usize>>,
}

/// A node that lacks room.
pub(super) struct ShortNode {
    pub(super) free: NodeResources,
    /// The resources that must be freed there.
    pub(super) shortfall: Resources,
    /// The offers that free something there, least price per device first.
    pub(super) offers: Vec<OfferOnNode>,
}

pub(super) struct OfferOnNode {
    pub(super) offer: usize,
    pub(super) resources: Resources,
    /// Its part of the price for each device that is useful here.
    pub(super) device_price: Price,
}

/// An offer with what the search needs to know about it.
pub(super) struct RegionOffer {
    /// Its index in the problem.
    pub(super) offer: usize,
    /// Its job's index in the region.
    pub(super) job: usize,
    pub(super) price: Price,
    /// The price divided among the wanted nodes for which it is useful; the sum over these never exceeds the
    /// price.
    pub(super) part: Price,
    /// The range in the region's `freed`.
    pub(super) freed: Range<usize>,
}

impl<'a> Region<'a> {
    /// Reduces a domain; otherwise returns how many of its nodes could have room, if they are too few even
    /// with all offers taken.
    pub(super) fn of_domain(problem: &'a Problem, domain: usize, holdings: &Holdings) -> Result<Self, u32> {
        let wanted = usize::try_from(problem.wanted.nodes).expect("a usize holds 32 bits");
        let mut region = Region::new(problem, domain, wanted);
        let mut possible: u32 = 0;
        for free in &problem.domains[domain] {
            possible += u32::from(region.add_node(free, holdings));
        }
        if possible < problem.wanted.nodes {
            return Err(possible);
        }
        region.ready.truncate(wanted);
        region.wanted = wanted - region.ready.len();
        region.index(holdings);
        Ok(region)
    }

    /// Returns the region of one short node.
    pub(super) fn of_node(&self, node: usize, holdings: &Holdings) -> Self {
        let mut region = Region::new(self.problem, self.domain, 1);
        region.add_node(&self.short[node].free, holdings);
        region.index(holdings);
        region
    }

    fn new(problem: &'a Problem, domain: usize, wanted: usize) -> Self {
        let (ready, short, offers, freed, jobs) = Default::default();
        Region { problem, domain, wanted, ready, short, offers, freed, jobs }
    }

    /// Adds a node; reports whether it could have room if every offer were taken, allowed or not.
    fn add_node(&mut self, free: &NodeResources, holdings: &Holdings) -> bool {
        let per_node = self.problem.wanted.per_node;
        if free.resources.cover(per_node) {
            self.ready.push(free.node);
            return true;
        }
        let (mut all, mut allowed) = (free.resources, free.resources);
        for holding in holdings.on(free.node) {
            all = all.plus(holding.resources);
            allowed = if holding.is_admissible { allowed.plus(holding.resources) } else { allowed };
        }
        if allowed.cover(per_node) {
            let shortfall = per_node.saturating_minus(free.resources);
            let offers = Vec::with_capacity(holdings.on(free.node).len());
            self.short.push(ShortNode { free: *free, shortfall, offers });
        }
        all.cover(per_node)
    }

    /// Collects the offers of its short nodes, by job and by node.
    fn index(&mut self, holdings: &Holdings) {
        let count = self.short.iter().map(|short| holdings.on(short.free.node).len()).sum();
        let mut entries = Vec::with_capacity(count);
        for (node, short) in self.short.iter().enumerate() {
            let admissible = holdings.on(short.free.node).iter().filter(|holding| holding.is_admissible);
            entries.extend(admissible.map(|h| (self.problem.offers[h.offer].job, h.offer, node, h.resources)));
        }
        entries.sort_unstable();
        self.freed = entries.iter().map(|(_, _, node, resources)| (*node, *resources)).collect();
        self.offers.reserve(count);
        let mut start = 0;
        for of_job in entries.chunk_by(|a, b| a.0 == b.0) {
            let first = self.offers.len();
            for of_offer in of_job.chunk_by(|a, b| a.1 == b.1) {
                self.index_offer(of_offer[0].1, start..start + of_offer.len());
                start += of_offer.len();
            }
            self.jobs.push(first..self.offers.len());
        }
        for short in &mut self.short {
            short.offers.sort_by_key(|on_node| on_node.device_price);
        }
    }

    fn index_offer(&mut self, offer: usize, freed: Range<usize>) {
        let price = self.problem.offers[offer].cost.nanos().min(NANOS_MAX) * VICTIMS_MAX + 1;
        let useful_to = freed.len().min(self.wanted).max(1);
        let part = price / u128::try_from(useful_to).expect("u128 holds a usize");
        for (node, resources) in &self.freed[freed.clone()] {
            let short = &mut self.short[*node];
            let devices = resources.devices.min(short.shortfall.devices).max(1);
            let device_price = part / u128::from(devices);
            short.offers.push(OfferOnNode { offer: self.offers.len(), resources: *resources, device_price });
        }
        self.offers.push(RegionOffer { offer, job: self.jobs.len(), price, part, freed });
    }

    /// Reports whether every job is useful on at most one short node, so that nodes can be solved separately.
    pub(super) fn is_separable(&self) -> bool {
        let is_on_one_node = |job: &Range<usize>| {
            let freed = self.offers[job.start].freed.start..self.offers[job.end - 1].freed.end;
            let mut nodes = self.freed[freed].iter().map(|(node, _)| *node);
            let first = nodes.next();
            nodes.all(|node| Some(node) == first)
        };
        self.jobs.iter().all(is_on_one_node)
    }

    /// Returns a lower bound on the cost of making room on a node that has already gained something, using
    /// offers of `open` jobs; none if they can't. The fractional knapsack over devices, and at least the
    /// smallest part of one offer.
    pub(super) fn node_bound(&self, node: usize, gain: Resources, is_open: &dyn Fn(usize) -> bool) -> Option<Price> {
        let short = &self.short[node];
        let lack = short.shortfall.saturating_minus(gain);
        if lack == Resources::default() {
            return Some(0);
        }
        let (mut devices, mut sum, mut least) = (lack.devices, 0, None);
        for on_node in short.offers.iter().filter(|on_node| is_open(self.offers[on_node.offer].job)) {
            let taken = on_node.resources.devices.min(devices);
            devices -= taken;
            sum += on_node.device_price * u128::from(taken);
            let part = self.offers[on_node.offer].part;
            least = Some(least.map_or(part, |least: Price| least.min(part)));
        }
        least.filter(|_| devices == 0).map(|least| least.max(sum))
    }

    /// Returns a lower bound on the sets for one node; none if there are none.
    pub(super) fn node_promise(&self, node: usize) -> Option<Promise> {
        let first = self.short[node].offers.iter().map(|on_node| on_node.offer).min();
        self.node_bound(node, Resources::default(), &|_| true)
            .map(|bound| (bound, first.map(|first| self.job_of(first))))
    }

    /// Returns a lower bound on the sets for the region; none if there are none.
    pub(super) fn promise(&self) -> Option<Promise> {
        let first = (self.wanted > 0 && !self.offers.is_empty()).then(|| self.job_of(0));
        self.bound(&vec![Resources::default(); self.short.len()], &|_| true).map(|bound| (bound, first))
    }

    fn job_of(&self, offer: usize) -> JobId {
        self.problem.offers[self.offers[offer].offer].job
    }

    /// Returns a lower bound on the cost of making room on all wanted nodes, using offers of `open` jobs;
    /// none if they can't.
    pub(super) fn bound(&self, freed: &[Resources], is_open: &dyn Fn(usize) -> bool) -> Option<Price> {
        let mut bounds: Vec<Price> =
            (0..self.short.len()).filter_map(|node| self.node_bound(node, freed[node], is_open)).collect();
        if bounds.len() < self.wanted {
            return None;
        }
        if self.wanted < bounds.len() {
            bounds.select_nth_unstable(self.wanted);
        }
        Some(bounds[..self.wanted].iter().sum())
    }
}
