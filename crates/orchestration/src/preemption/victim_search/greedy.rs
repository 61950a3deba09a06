//! Good sets fast, where the exact search would take too long: node by node, the cheapest to free first.
//! Superfluous victims are then dropped, and each victim is spared in turn to see whether something cheaper
//! can replace it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Resources;
use super::region::{OfferOnNode, Price, Region};
use super::state::State;

/// The most nodes priced by local improvement over all domains; each try prices every short node of its
/// region by each rule.
pub(super) const NODES_PRICED_MAX: usize = 30_000;

/// The most victims that local improvement tries to spare.
const TRIES_MAX: usize = 64;

/// The order in which the offers on a node are taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Least price per device, with the price of an offer divided among the nodes for which it is useful.
    SharedPrice,
    /// Least price per device, with the full price charged on each node.
    WholePrice,
    /// Most devices first: taking a small offer early can exclude a larger one of the same job.
    LargestFirst,
}

/// All rules.
pub(super) const RULES: [Rule; 3] = [Rule::SharedPrice, Rule::WholePrice, Rule::LargestFirst];

/// Completes a set by a rule, without the `spared` job, and trims it; none if the rule finds no allowed set.
pub(super) fn complete(region: &Region, rule: Rule, mut state: State, spared: Option<usize>) -> Option<State> {
    let mut cheapest = BinaryHeap::new();
    for node in 0..region.short.len() {
        cheapest.extend(price_node(region, rule, &mut state, node, spared).map(|(price, _)| Reverse((price, node))));
    }
    // Terminates: each iteration settles a node for good, or puts it back at a price that rises at most once
    // for each offer taken.
    while state.rooms < region.wanted {
        let Reverse((price, node)) = cheapest.pop()?;
        if state.has_room(region, node) {
            continue;
        }
        let Some((price_now, offers)) = price_node(region, rule, &mut state, node, spared) else { continue };
        if price_now > price {
            cheapest.push(Reverse((price_now, node)));
            continue;
        }
        for offer in &offers {
            state.take(region, *offer);
        }
        let touched = offers.into_iter().flat_map(|offer| &region.freed[region.offers[offer].freed.clone()]);
        for (touched, _) in touched.filter(|(touched, _)| *touched != node) {
            let price = price_node(region, rule, &mut state, *touched, spared);
            cheapest.extend(price.map(|(price, _)| Reverse((price, *touched))));
        }
    }
    trim(region, &mut state);
    Some(state)
}

/// Returns what a rule takes to make room on a node; none if the node has room or the rule can't make any.
fn price_node(
    region: &Region,
    rule: Rule,
    state: &mut State,
    node: usize,
    spared: Option<usize>,
) -> Option<(Price, Vec<usize>)> {
    let short = &region.short[node];
    let lack = short.shortfall.saturating_minus(state.freed[node]);
    if lack == Resources::default() {
        return None;
    }
    let mut on_node: Vec<&OfferOnNode> = short.offers.iter().collect();
    match rule {
        Rule::SharedPrice => {}
        Rule::WholePrice => on_node.sort_by_key(|on| {
            let devices = on.resources.devices.min(lack.devices).max(1);
            region.offers[on.offer].price / u128::from(devices)
        }),
        Rule::LargestFirst => on_node.sort_by_key(|on| (Reverse(on.resources.devices), region.offers[on.offer].price)),
    }
    let picks = pick(region, state, lack, spared, &on_node);
    let needed = needed(&picks, lack)?;
    let price = |offer: &usize| match rule {
        Rule::SharedPrice => region.offers[*offer].part,
        Rule::WholePrice | Rule::LargestFirst => region.offers[*offer].price,
    };
    Some((needed.iter().map(price).sum(), needed))
}

/// Returns the first offers that together cover the shortfall, or all permitted offers.
fn pick<'a>(
    region: &Region,
    state: &mut State,
    lack: Resources,
    spared: Option<usize>,
    on_node: &[&'a OfferOnNode],
) -> Vec<&'a OfferOnNode> {
    let mut picks: Vec<&OfferOnNode> = Vec::new();
    let mut gain = Resources::default();
    for on in on_node {
        let job = region.offers[on.offer].job;
        if gain.cover(lack) {
            break;
        }
        let is_picked = picks.iter().any(|pick| region.offers[pick.offer].job == job);
        if is_picked || Some(job) == spared || !state.admits(region, on.offer) {
            continue;
        }
        let of = &region.problem.offers[region.offers[on.offer].offer];
        state.quotas.take(region.problem, of.queue, of.devices);
        gain = gain.plus(on.resources);
        picks.push(on);
    }
    for pick in &picks {
        let of = &region.problem.offers[region.offers[pick.offer].offer];
        state.quotas.give_back(region.problem, of.queue, of.devices);
    }
    picks
}

/// Returns the picks that are needed to cover the shortfall; none if the picks don't cover it.
fn needed(picks: &[&OfferOnNode], lack: Resources) -> Option<Vec<usize>> {
    let gain_of = |picks: &[&OfferOnNode]| picks.iter().fold(Resources::default(), |sum, on| sum.plus(on.resources));
    let mut kept = picks.to_vec();
    if !gain_of(&kept).cover(lack) {
        return None;
    }
    for place in (0..kept.len()).rev() {
        let superfluous = kept.remove(place);
        if !gain_of(&kept).cover(lack) {
            kept.insert(place, superfluous);
        }
    }
    Some(kept.into_iter().map(|on| on.offer).collect())
}

/// Drops superfluous victims, replaces offers by cheaper ones of the same victims where possible, then drops
/// again.
pub(super) fn trim(region: &Region, state: &mut State) {
    replace(region, state, false);
    replace(region, state, true);
    replace(region, state, false);
}

/// Gives back each victim, dearest first, if the rest is enough, or if it is enough with a cheaper offer of
/// that victim.
fn replace(region: &Region, state: &mut State, with_cheaper: bool) {
    for offer in dearest_first(region, state) {
        state.give_back(region, offer);
        if state.rooms >= region.wanted {
            continue;
        }
        let job = region.jobs[region.offers[offer].job].clone();
        let is_cheaper = |other: &usize| region.offers[*other].price < region.offers[offer].price;
        let mut others: Vec<usize> = job.filter(|other| with_cheaper && is_cheaper(other)).collect();
        others.sort_by_key(|other| region.offers[*other].price);
        let will_do = others.into_iter().find(|other| is_enough(region, state, *other));
        state.take(region, will_do.unwrap_or(offer));
    }
}

fn is_enough(region: &Region, state: &mut State, offer: usize) -> bool {
    if !state.admits(region, offer) {
        return false;
    }
    state.take(region, offer);
    let is_enough = state.rooms >= region.wanted;
    state.give_back(region, offer);
    is_enough
}

fn dearest_first(region: &Region, state: &State) -> Vec<usize> {
    let mut offers: Vec<usize> = state.chosen().collect();
    offers.sort_by_key(|offer| Reverse((region.offers[*offer].price, *offer)));
    offers
}

/// Returns a trimmed set that is no worse: spares each victim in turn, dearest first, and completes the set
/// without it. Counts priced nodes against `nodes_left`.
pub(super) fn improve(region: &Region, mut state: State, nodes_left: &mut usize) -> State {
    trim(region, &mut state);
    for offer in dearest_first(region, &state).into_iter().take(TRIES_MAX) {
        if state.given[region.offers[offer].job] != Some(offer) {
            continue;
        }
        let Some(left) = nodes_left.checked_sub(region.short.len() * RULES.len()) else { break };
        *nodes_left = left;
        let mut without = state.clone();
        without.give_back(region, offer);
        let spared = Some(region.offers[offer].job);
        let others = RULES.iter().filter_map(|rule| complete(region, *rule, without.clone(), spared));
        if let Some(better) = others.min_by_key(|other| other.price).filter(|other| other.price < state.price) {
            state = better;
        }
    }
    state
}
