//! The offers taken so far, what they free, and what they take from their queues. Taking and giving back are
//! exact inverses.

use super::region::{Price, Region};
use super::{Problem, Resources};

/// Devices taken from each queue including its descendants.
#[derive(Clone)]
pub(super) struct Quotas {
    taken: Vec<u32>,
}

impl Quotas {
    pub(super) fn new(problem: &Problem) -> Self {
        Quotas { taken: vec![0; problem.queues.len()] }
    }

    /// Reports whether `devices` more may be taken from `queue` and all its ancestors.
    pub(super) fn admit(&self, problem: &Problem, queue: usize, devices: u32) -> bool {
        ancestry(problem, queue).all(|queue| {
            let taken = self.taken[queue].checked_add(devices);
            taken.is_some_and(|taken| taken <= problem.queues[queue].devices_max)
        })
    }

    pub(super) fn take(&mut self, problem: &Problem, queue: usize, devices: u32) {
        ancestry(problem, queue).for_each(|queue| self.taken[queue] += devices);
    }

    pub(super) fn give_back(&mut self, problem: &Problem, queue: usize, devices: u32) {
        ancestry(problem, queue).for_each(|queue| self.taken[queue] -= devices);
    }
}

/// Returns a queue and its ancestors; terminates because parents come before their children.
fn ancestry(problem: &Problem, queue: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(queue), |queue| problem.queues[*queue].parent)
}

/// A set of offers of a region.
#[derive(Clone)]
pub(super) struct State {
    /// What each short node gains.
    pub(super) freed: Vec<Resources>,
    pub(super) quotas: Quotas,
    /// The offer taken from each job.
    pub(super) given: Vec<Option<usize>>,
    /// The price of the offers taken.
    pub(super) price: Price,
    /// The number of short nodes that now have room.
    pub(super) rooms: usize,
}

impl State {
    pub(super) fn new(region: &Region) -> Self {
        State {
            freed: vec![Resources::default(); region.short.len()],
            quotas: Quotas::new(region.problem),
            given: vec![None; region.jobs.len()],
            price: 0,
            rooms: 0,
        }
    }

    pub(super) fn has_room(&self, region: &Region, node: usize) -> bool {
        self.freed[node].cover(region.short[node].shortfall)
    }

    /// Returns the offers taken, by job id.
    pub(super) fn chosen(&self) -> impl Iterator<Item = usize> + '_ {
        self.given.iter().copied().flatten()
    }

    /// Reports whether another offer may be taken.
    pub(super) fn admits(&self, region: &Region, offer: usize) -> bool {
        let of = &region.problem.offers[region.offers[offer].offer];
        self.given[region.offers[offer].job].is_none() && self.quotas.admit(region.problem, of.queue, of.devices)
    }

    pub(super) fn take(&mut self, region: &Region, offer: usize) {
        let (local, global) = (&region.offers[offer], &region.problem.offers[region.offers[offer].offer]);
        for (node, resources) in &region.freed[local.freed.clone()] {
            let had_room = self.has_room(region, *node);
            self.freed[*node] = self.freed[*node].plus(*resources);
            self.rooms += usize::from(!had_room && self.has_room(region, *node));
        }
        self.quotas.take(region.problem, global.queue, global.devices);
        self.given[local.job] = Some(offer);
        self.price += local.price;
    }

    /// Gives an offer back.
    pub(super) fn give_back(&mut self, region: &Region, offer: usize) {
        let (local, global) = (&region.offers[offer], &region.problem.offers[region.offers[offer].offer]);
        for (node, resources) in &region.freed[local.freed.clone()] {
            let had_room = self.has_room(region, *node);
            self.freed[*node] = self.freed[*node].saturating_minus(*resources);
            self.rooms -= usize::from(had_room && !self.has_room(region, *node));
        }
        self.quotas.give_back(region.problem, global.queue, global.devices);
        self.given[local.job] = None;
        self.price -= local.price;
    }
}
