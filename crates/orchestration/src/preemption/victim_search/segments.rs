//! Victims for a gang with segments, each within one domain: the freed devices have to fit all of them.
//!
//! Segments are solved one after another: the cheapest victims for one more segment, as if the earlier
//! victims were gone and their nodes taken. If each victim is on one node and no bound interferes, that is
//! the cheapest set, since each domain's next segment never costs less than the one before (a sum of convex
//! costs: Gross 1956, Fox 1966). Otherwise it is the best set found, and [`Victims::is_exact`] is false;
//! under tight bounds the search may miss a set that exists, and the gang waits. If one of several wider
//! domains has to hold the whole gang, each is searched separately. Superfluous victims are dropped, so a set
//! is always inclusion-minimal.

use std::collections::BTreeMap;

use gangline_base::{GpuSeconds, NodeId};

use super::search::{ALTERNATIVES_MAX, find_in_domains};
use super::{NoVictims, NodeResources, OfferId, Problem, Resources, VictimSet, Victims};

/// The most segments for which victims are searched; each costs a search.
pub const SEGMENTS_MAX: u32 = 64;

/// Returns the cheapest sets found, one for each wider domain that could hold all segments.
pub(super) fn find(problem: &Problem, count: u32) -> Result<Victims, NoVictims> {
    if count > SEGMENTS_MAX {
        return Err(NoVictims::Unproven);
    }
    let mut outer = problem.outer.clone();
    outer.sort_unstable();
    outer.dedup();
    let (mut sets, mut states, mut refusals) = (Vec::new(), 0, Vec::new());
    for outer in outer {
        match SegmentSearch::new(problem, outer).run(count) {
            Ok((set, searched)) => {
                sets.push(set);
                states += searched;
            }
            Err(refusal) => refusals.push(refusal),
        }
    }
    sets.sort_by(|a: &VictimSet, b| (a.cost, a.jobs.len(), &a.jobs).cmp(&(b.cost, b.jobs.len(), &b.jobs)));
    let mut sets = sets.into_iter();
    match sets.next() {
        Some(chosen) => {
            let (is_exact, alternatives) = (chosen.jobs.is_empty(), sets.take(ALTERNATIVES_MAX).collect());
            Ok(Victims { chosen, alternatives, states, is_exact })
        }
        None => Err(worst_of(&refusals)),
    }
}

/// Returns why none of the wider domains has victims; reasons that a looser bound could change come first.
fn worst_of(refusals: &[NoVictims]) -> NoVictims {
    let said = |wanted: NoVictims| refusals.contains(&wanted).then_some(wanted);
    let nodes = refusals.iter().filter_map(|refusal| match refusal {
        NoVictims::TooFewNodes { nodes } => Some(*nodes),
        NoVictims::Bounded | NoVictims::Unproven => None,
    });
    let too_few = NoVictims::TooFewNodes { nodes: nodes.max().unwrap_or(0) };
    said(NoVictims::Bounded).or_else(|| said(NoVictims::Unproven)).unwrap_or(too_few)
}

/// The search for one segment after another in one wider domain.
struct SegmentSearch<'a> {
    whole: &'a Problem,
    outer: usize,
    /// The remaining problem: domains without the nodes taken, bounds less what was already taken.
    left: Problem,
    /// The offers of `left`, by their indices in `whole`.
    offers: Vec<usize>,
    chosen: Vec<usize>,
}

impl<'a> SegmentSearch<'a> {
    fn new(whole: &'a Problem, outer: usize) -> Self {
        let mut left = Problem::new(whole.wanted, whole.queues.clone());
        left.domains = whole.domains.clone();
        // Domains keep their indices; those in other wider domains have no nodes.
        for (domain, of) in left.domains.iter_mut().zip(&whole.outer) {
            if *of != outer {
                domain.clear();
            }
        }
        let offers = (0..whole.offers.len()).collect();
        (left.offers, left.freed) = (whole.offers.clone(), whole.freed.clone());
        SegmentSearch { whole, outer, left, offers, chosen: Vec::new() }
    }

    /// Returns the victims for this many segments, and the number of states searched.
    fn run(mut self, count: u32) -> Result<(VictimSet, u32), NoVictims> {
        let mut states = 0;
        for _ in 0..count {
            let found = find_in_domains(&self.left)?;
            states += found.states;
            self.take(&found.chosen);
        }
        self.chosen.sort_unstable();
        self.leave_out_superfluous(count);
        Ok((self.set(count), states))
    }

    /// Assigns a segment its nodes and removes its victims.
    fn take(&mut self, set: &VictimSet) {
        let taken: Vec<usize> = set.offers.iter().map(|OfferId(offer)| self.offers[*offer]).collect();
        for offer in taken.iter().map(|offer| &self.whole.offers[*offer]) {
            let mut queue = Some(offer.queue);
            while let Some(place) = queue {
                let bound = &mut self.left.queues[place];
                bound.devices_max = bound.devices_max.saturating_sub(offer.devices);
                queue = bound.parent;
            }
        }
        let gained = gains(self.whole, &taken);
        self.chosen.extend(taken);
        for domain in &mut self.left.domains {
            domain.retain(|free| !set.nodes.contains(&free.node));
            for free in domain.iter_mut() {
                free.resources = free.resources.plus(gained.get(&free.node).copied().unwrap_or_default());
            }
        }
        // A job gives at most one of its offers.
        self.offers.retain(|offer| !set.jobs.contains(&self.whole.offers[*offer].job));
        self.left.offers = self.offers.iter().map(|offer| self.whole.offers[*offer].clone()).collect();
    }

    /// Returns the nodes available to segments once these offers are taken: whole segments of each domain.
    fn rooms(&self, offers: &[usize]) -> Vec<NodeId> {
        let gained = gains(self.whole, offers);
        let size = usize::try_from(self.whole.wanted.nodes).expect("a usize holds 32 bits").max(1);
        let domains = self.whole.domains.iter().zip(&self.whole.outer).filter(|(_, of)| **of == self.outer);
        let has_room = |free: &&NodeResources| {
            let gain = gained.get(&free.node).copied().unwrap_or_default();
            free.resources.plus(gain).cover(self.whole.wanted.per_node)
        };
        let whole_segments = |domain: &Vec<NodeResources>| {
            let mut nodes: Vec<NodeId> = domain.iter().filter(has_room).map(|free| free.node).collect();
            nodes.truncate(nodes.len() / size * size);
            nodes
        };
        domains.flat_map(|(domain, _)| whole_segments(domain)).collect()
    }

    fn nodes_wanted(&self, count: u32) -> usize {
        usize::try_from(self.whole.wanted.nodes.saturating_mul(count)).expect("a usize holds 32 bits")
    }

    /// Drops superfluous victims, dearest first.
    fn leave_out_superfluous(&mut self, count: u32) {
        let mut dearest = self.chosen.clone();
        dearest.sort_by_key(|offer| std::cmp::Reverse(self.whole.offers[*offer].cost));
        for offer in dearest {
            let others: Vec<usize> = self.chosen.iter().copied().filter(|other| *other != offer).collect();
            if self.rooms(&others).len() >= self.nodes_wanted(count) {
                self.chosen = others;
            }
        }
    }

    fn set(&self, count: u32) -> VictimSet {
        let mut victims: Vec<(_, OfferId)> =
            self.chosen.iter().map(|offer| (self.whole.offers[*offer].job, OfferId(*offer))).collect();
        victims.sort_unstable();
        let cost: GpuSeconds = self.chosen.iter().map(|offer| self.whole.offers[*offer].cost).sum();
        let mut nodes = self.rooms(&self.chosen);
        // Whole segments come domain by domain, so truncation removes only whole segments.
        nodes.truncate(self.nodes_wanted(count));
        nodes.sort_unstable();
        let domain = self.whole.outer.iter().position(|of| *of == self.outer).unwrap_or(0);
        let (jobs, offers) = victims.into_iter().unzip();
        VictimSet { jobs, offers, cost, domain, nodes }
    }
}

/// Returns what offers free on each node.
fn gains(problem: &Problem, offers: &[usize]) -> BTreeMap<NodeId, Resources> {
    let mut gained: BTreeMap<NodeId, Resources> = BTreeMap::new();
    for gain in offers.iter().flat_map(|offer| &problem.freed[problem.offers[*offer].freed.clone()]) {
        let sum = gained.entry(gain.node).or_default();
        *sum = sum.plus(gain.resources);
    }
    gained
}
