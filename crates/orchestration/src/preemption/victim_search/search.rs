//! The search over domains: those with the least bound first, until no other can contain a better set.

use gangline_base::{GpuSeconds, JobId, NodeId};

use super::exact::{self, Budget, EXACT_JOBS_MAX, WORK_MAX};
use super::greedy::{self, NODES_PRICED_MAX, RULES};
use super::region::{Holdings, Price, Promise, Region};
use super::state::State;
use super::{NoVictims, OfferId, Problem, VictimSet, Victims, segments};

/// The most sets kept besides the chosen one.
pub const ALTERNATIVES_MAX: usize = 3;

/// A set that makes room; less is better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Solution {
    pub(super) price: Price,
    jobs: Vec<JobId>,
    offers: Vec<OfferId>,
    domain: usize,
    nodes: Vec<NodeId>,
}

impl Solution {
    pub(super) fn new(region: &Region, state: &State) -> Self {
        let globally = |offer: usize| region.offers[offer].offer;
        let (jobs, offers) =
            state.chosen().map(globally).map(|offer| (region.problem.offers[offer].job, OfferId(offer))).unzip();
        let freed = (0..region.short.len()).filter(|node| state.has_room(region, *node)).take(region.wanted);
        let mut nodes = region.ready.clone();
        nodes.extend(freed.map(|node| region.short[node].free.node));
        nodes.sort_unstable();
        Solution { price: state.price, jobs, offers, domain: region.domain, nodes }
    }

    fn promise(&self) -> Promise {
        (self.price, self.jobs.first().copied())
    }

    /// Returns the indices of its offers in a region that has them all.
    fn local_offers(&self, region: &Region) -> Vec<usize> {
        let key = |offer: usize| (region.problem.offers[offer].job, offer);
        let place = |OfferId(offer): &OfferId| {
            let place = region.offers.binary_search_by_key(&key(*offer), |of| key(of.offer));
            place.expect("the region has every offer of its solution")
        };
        self.offers.iter().map(place).collect()
    }

    fn state(&self, region: &Region) -> State {
        let mut state = State::new(region);
        self.local_offers(region).into_iter().for_each(|offer| state.take(region, offer));
        state
    }

    fn into_victims(self, problem: &Problem) -> VictimSet {
        let cost: GpuSeconds = self.offers.iter().map(|OfferId(offer)| problem.offers[*offer].cost).sum();
        VictimSet { jobs: self.jobs, offers: self.offers, cost, domain: self.domain, nodes: self.nodes }
    }
}

/// The best sets found, best first.
struct Shortlist {
    kept: Vec<Solution>,
    len_max: usize,
}

impl Shortlist {
    fn new(len_max: usize) -> Self {
        Shortlist { kept: Vec::new(), len_max }
    }

    fn push(&mut self, solution: Solution) {
        let place = self.kept.partition_point(|kept| *kept < solution);
        self.kept.insert(place, solution);
        self.kept.dedup_by(|later, earlier| later.offers == earlier.offers);
        self.kept.truncate(self.len_max);
    }

    /// Returns the value above which a set would not be kept.
    fn worst(&self) -> Promise {
        let worst = self.kept.last().filter(|_| self.kept.len() == self.len_max);
        worst.map_or((Price::MAX, None), Solution::promise)
    }
}

struct Search {
    holdings: Holdings,
    shortlist: Shortlist,
    budget: Budget,
    /// The lower bound of what was not searched completely.
    unproven: Option<Promise>,
}

/// Finds the cheapest victims that make room for the gang in one of the domains, within the bounds of their
/// queues.
///
/// # Errors
/// [`NoVictims`], with the reason, if none are found.
pub fn find_victims(problem: &Problem) -> Result<Victims, NoVictims> {
    problem.segments.map_or_else(|| find_in_domains(problem), |count| segments::find(problem, count))
}

/// Finds the cheapest victims that make room for the wanted shape in one domain.
pub(super) fn find_in_domains(problem: &Problem) -> Result<Victims, NoVictims> {
    let holdings = Holdings::new(problem);
    let (mut regions, mut nodes_max, mut is_possible) = (Vec::new(), 0, false);
    for domain in 0..problem.domains.len() {
        let region = match Region::of_domain(problem, domain, &holdings) {
            Ok(region) => region,
            Err(nodes) => {
                nodes_max = nodes_max.max(nodes);
                continue;
            }
        };
        is_possible = true;
        regions.extend(region.promise().map(|promise| (promise, region)));
    }
    if !is_possible {
        return Err(NoVictims::TooFewNodes { nodes: nodes_max });
    }
    regions.sort_by_key(|(promise, _)| *promise);
    let mut search = Search {
        holdings,
        shortlist: Shortlist::new(1 + ALTERNATIVES_MAX),
        budget: Budget { states: 0, work: WORK_MAX, nodes_priced: NODES_PRICED_MAX },
        unproven: None,
    };
    for (promise, region) in &regions {
        if *promise > search.shortlist.worst() {
            break;
        }
        search.visit(region, *promise);
    }
    search.finish(problem)
}

impl Search {
    fn visit(&mut self, region: &Region, promise: Promise) {
        if region.wanted == 0 {
            return self.shortlist.push(Solution::new(region, &State::new(region)));
        }
        if region.wanted == 1 {
            let (found, unproven) = self.cheapest_nodes(region, 1 + ALTERNATIVES_MAX, self.shortlist.worst());
            found.into_iter().for_each(|solution| self.shortlist.push(solution));
            return self.doubt(unproven);
        }
        if region.is_separable() && self.combine_nodes(region, promise) {
            return;
        }
        let (found, is_complete) = self.solve(region, self.shortlist.worst());
        self.doubt((!is_complete).then_some(promise));
        found.into_iter().for_each(|solution| self.shortlist.push(solution));
    }

    /// Returns sets of a region including the best, in any order, and whether none up to `worst` is better.
    fn solve(&mut self, region: &Region, worst: Promise) -> (Vec<Solution>, bool) {
        // On one node branch and bound needs no initial set.
        let is_easy = region.short.len() == 1 && region.jobs.len() <= EXACT_JOBS_MAX;
        let mut found = if is_easy { Vec::new() } else { greedy_sets(region) };
        let (best, is_complete) = exact::solve(region, found.first().cloned(), worst.0, &mut self.budget);
        if is_complete {
            found.extend(best);
            return (found, true);
        }
        if is_easy {
            found = greedy_sets(region);
        }
        let best = best.into_iter().chain(found.first().cloned()).min();
        let nodes_left = &mut self.budget.nodes_priced;
        let improved = best.map(|best| greedy::improve(region, best.state(region), nodes_left));
        found.extend(improved.map(|state| Solution::new(region, &state)));
        (found, false)
    }

    fn doubt(&mut self, promise: Option<Promise>) {
        self.unproven = [self.unproven, promise].into_iter().flatten().min();
    }

    /// Returns the cheapest sets that make room on one short node each, and a lower bound for nodes not
    /// searched completely.
    fn cheapest_nodes(&mut self, region: &Region, count: usize, worst: Promise) -> (Vec<Solution>, Option<Promise>) {
        let promise_of = |node| region.node_promise(node).map(|promise| (promise, node));
        let mut promises: Vec<(Promise, usize)> = (0..region.short.len()).filter_map(promise_of).collect();
        promises.sort_unstable();
        let (mut found, mut unproven) = (Shortlist::new(count), None);
        for (promise, node) in promises {
            let worst = worst.min(found.worst());
            if promise > worst {
                break;
            }
            let mut node = region.of_node(node, &self.holdings);
            node.ready.clone_from(&region.ready);
            let (sets, is_complete) = self.solve(&node, worst);
            unproven = if is_complete { unproven } else { unproven.or(Some(promise)) };
            sets.into_iter().min().into_iter().for_each(|best| found.push(best));
        }
        (found.kept, unproven)
    }

    /// Makes room on the cheapest nodes, each solved separately. Reports whether that settles the region: it
    /// does, unless the nodes together exceed some queue's bound.
    fn combine_nodes(&mut self, region: &Region, promise: Promise) -> bool {
        let (found, unproven) = self.cheapest_nodes(region, region.wanted, (Price::MAX, None));
        if found.len() < region.wanted {
            return unproven.is_none();
        }
        let mut state = State::new(region);
        for offer in found.iter().flat_map(|solution| solution.local_offers(region)) {
            if !state.admits(region, offer) {
                return false;
            }
            state.take(region, offer);
        }
        self.shortlist.push(Solution::new(region, &state));
        self.doubt(unproven.map(|_| promise));
        true
    }

    fn finish(self, problem: &Problem) -> Result<Victims, NoVictims> {
        let Search { shortlist, budget, unproven, .. } = self;
        let mut sets = shortlist.kept.into_iter();
        let Some(chosen) = sets.next() else {
            return Err(if unproven.is_none() { NoVictims::Bounded } else { NoVictims::Unproven });
        };
        Ok(Victims {
            is_exact: unproven.is_none_or(|promise| promise > chosen.promise()),
            chosen: chosen.into_victims(problem),
            alternatives: sets.map(|set| set.into_victims(problem)).collect(),
            states: budget.states,
        })
    }
}

/// Returns sets found by each rule, best first.
fn greedy_sets(region: &Region) -> Vec<Solution> {
    let complete = |rule| greedy::complete(region, rule, State::new(region), None);
    let mut found: Vec<Solution> =
        RULES.into_iter().filter_map(complete).map(|state| Solution::new(region, &state)).collect();
    found.sort_unstable();
    found
}
