//! Branch and bound over the jobs of a region: take one of a job's offers or none, cheapest jobs first, and
//! prune a branch when its bound can't beat the best known set.
//!
//! Twins, jobs that free the same from the same queue, are taken only in order of price and id: any other
//! choice of as many of them costs more or has higher ids. Without this, a node of identical jobs would be
//! searched in all combinations.

use super::region::{Price, Region};
use super::search::Solution;
use super::state::State;

/// The most jobs in a region that is searched exactly; this limits the recursion depth.
pub const EXACT_JOBS_MAX: usize = 256;

/// The most work for the exact search over all domains. The unit is one look at an offer on a node of the
/// region, about 5 ns; the bound does that for all of them in each state.
pub const WORK_MAX: usize = 1_500_000;

/// What is left of the search's limits, and the number of states searched.
pub(super) struct Budget {
    pub(super) states: u32,
    /// What is left of [`WORK_MAX`].
    pub(super) work: usize,
    /// What is left of [`super::greedy::NODES_PRICED_MAX`].
    pub(super) nodes_priced: usize,
}

struct BranchAndBound<'a> {
    region: &'a Region<'a>,
    budget: &'a mut Budget,
    /// Jobs in decision order.
    order: Vec<usize>,
    /// The index in `order` of each job.
    ranks: Vec<usize>,
    /// By index in `order`: the index of the preceding twin.
    twins: Vec<Option<usize>>,
    best: Option<Solution>,
    /// Sets above this price are not of interest.
    price_max: Price,
    is_complete: bool,
}

/// Returns the best set of a region that costs at most `price_max`, given the best known set, and whether it
/// is proved best.
pub(super) fn solve(
    region: &Region,
    known: Option<Solution>,
    price_max: Price,
    budget: &mut Budget,
) -> (Option<Solution>, bool) {
    if region.jobs.len() > EXACT_JOBS_MAX {
        return (known, false);
    }
    let order = decision_order(region);
    let mut ranks = vec![0; order.len()];
    for (rank, job) in order.iter().enumerate() {
        ranks[*job] = rank;
    }
    let is_twin = |a: usize, b: usize| are_twins(region, order[a], order[b]);
    let twins = (0..order.len()).map(|rank| (0..rank).rev().find(|earlier| is_twin(*earlier, rank))).collect();
    let price_max = known.as_ref().map_or(price_max, |known| known.price.min(price_max));
    let mut search = BranchAndBound { region, budget, order, ranks, twins, best: known, price_max, is_complete: true };
    search.descend(0, &mut State::new(region));
    (search.best, search.is_complete)
}

/// Orders jobs by the least price of a device on any node; among equal footprints the cheaper first, then the
/// lower id.
fn decision_order(region: &Region) -> Vec<usize> {
    let mut device_prices = vec![Price::MAX; region.jobs.len()];
    for on_node in region.short.iter().flat_map(|short| &short.offers) {
        let least = &mut device_prices[region.offers[on_node.offer].job];
        *least = on_node.device_price.min(*least);
    }
    let mut order: Vec<usize> = (0..region.jobs.len()).collect();
    order.sort_by_key(|job| (device_prices[*job], region.offers[region.jobs[*job].start].price, *job));
    order
}

/// Reports whether both jobs make exactly one offer, with the same resources from the same queue.
fn are_twins(region: &Region, a: usize, b: usize) -> bool {
    let (a, b) = (&region.jobs[a], &region.jobs[b]);
    if a.len() > 1 || b.len() > 1 {
        return false;
    }
    let (a, b) = (&region.offers[a.start], &region.offers[b.start]);
    let (of_a, of_b) = (&region.problem.offers[a.offer], &region.problem.offers[b.offer]);
    let is_same_loss = of_a.queue == of_b.queue && of_a.devices == of_b.devices;
    is_same_loss && region.freed[a.freed.clone()] == region.freed[b.freed.clone()]
}

impl BranchAndBound<'_> {
    fn descend(&mut self, rank: usize, state: &mut State) {
        let Some(work) = self.budget.work.checked_sub(self.region.freed.len()) else {
            self.is_complete = false;
            return;
        };
        self.budget.work = work;
        self.budget.states += 1;
        if state.rooms >= self.region.wanted {
            return self.keep(state);
        }
        let bound = self.region.bound(&state.freed, &|job| self.ranks[job] >= rank);
        if rank == self.order.len() || bound.is_none_or(|bound| state.price + bound > self.price_max) {
            return;
        }
        let region = self.region;
        let job = self.order[rank];
        let follows_twin = self.twins[rank].is_none_or(|twin| state.given[self.order[twin]].is_some());
        let offers = if follows_twin { region.jobs[job].clone() } else { 0..0 };
        for offer in offers {
            if state.admits(region, offer) {
                state.take(region, offer);
                self.descend(rank + 1, state);
                state.give_back(region, offer);
            }
        }
        self.descend(rank + 1, state);
    }

    fn keep(&mut self, state: &State) {
        let solution = Solution::new(self.region, state);
        if solution.price <= self.price_max && self.best.as_ref().is_none_or(|best| solution < *best) {
            self.price_max = solution.price;
            self.best = Some(solution);
        }
    }
}
