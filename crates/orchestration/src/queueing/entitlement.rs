//! A queue's entitlement: its quota plus a part, by weight, of what is left.
//!
//! The part is computed among siblings that hold or want something: the quota of an idle queue is lent to the
//! others until it wants it back. Quotas that exceed the total (because nodes are lost) are cut in
//! proportion. The arithmetic is integral, so that rounding never decides which gang is preempted. This
//! combines KAI's deserved quota plus over-quota weight with Kueue's nominal quota and fair sharing of
//! borrowed capacity.

use gangline_base::AcceleratorKind;

use crate::queueing::queue::{QueueIndex, Queues};

/// What a queue holds of a kind of accelerator, and its entitlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entitlement {
    pub(crate) held: u32,
    pub(crate) entitled: u32,
}

impl Entitlement {
    /// Returns what it holds beyond its entitlement.
    pub(crate) fn excess(self) -> u32 {
        self.held.saturating_sub(self.entitled)
    }
}

impl Queues {
    /// Returns a queue's entitlement to `total` accelerators of a kind, and what it holds.
    pub(crate) fn entitlement(&self, queue: QueueIndex, kind: &AcceleratorKind, total: u32) -> Entitlement {
        let mut path: Vec<QueueIndex> = self.path_up(queue).collect();
        path.reverse();
        let entitled = path.windows(2).fold(total, |above, pair| self.part(pair[0], pair[1], kind, above));
        Entitlement { held: self.held(queue, kind), entitled }
    }

    /// Returns a queue's part of its parent's entitlement `above`.
    fn part(&self, parent: QueueIndex, own: QueueIndex, kind: &AcceleratorKind, above: u32) -> u32 {
        self.part_of(own, kind, above, self.demand_below(parent, kind, own))
    }

    /// Returns the quotas and weights of a queue's children in demand, and of `own`.
    pub(super) fn demand_below(&self, parent: QueueIndex, kind: &AcceleratorKind, own: QueueIndex) -> Demand {
        if self.kinds.contains(kind) {
            let booked = self.queues[parent.0].demand.get(kind).copied().unwrap_or_default();
            let is_booked = own == parent || self.queues[own.0].wants.contains(kind);
            return if is_booked { booked } else { booked.with(self.promised(own, kind)) };
        }
        let counts = |queue: &QueueIndex| *queue == own || self.is_in_demand(*queue, kind);
        let demand = |queue: QueueIndex| self.promised(queue, kind);
        self.children(parent).filter(counts).map(demand).fold(Demand::default(), Demand::with)
    }

    /// Returns a queue's guaranteed quota and weight.
    fn promised(&self, queue: QueueIndex, kind: &AcceleratorKind) -> Demand {
        Demand { quotas: u64::from(self.quota(queue, kind)), weights: u64::from(self.weight(queue)) }
    }

    /// Updates the demand booked in a queue's parent.
    pub(super) fn book_demand(&mut self, queue: QueueIndex) {
        let Some(parent) = self.parent(queue) else { return };
        for kind in self.kinds.clone().iter() {
            let (is, was) = (self.is_in_demand(queue, kind), self.queues[queue.0].wants.contains(kind));
            if is == was {
                continue;
            }
            let promised = self.promised(queue, kind);
            let demand = self.queues[parent.0].demand.entry(kind.clone()).or_default();
            if is {
                *demand = demand.with(promised);
                self.queues[queue.0].wants.insert(kind.clone());
            } else {
                *demand = demand.without(promised);
                self.queues[queue.0].wants.remove(kind);
            }
        }
    }

    /// Returns a queue whose demand is booked wrongly, for the invariant check.
    pub(crate) fn misbooked(&self) -> Option<QueueIndex> {
        let sum = |queue: QueueIndex, kind: &AcceleratorKind| {
            let wanting = self.children(queue).filter(|child| self.is_in_demand(*child, kind));
            wanting.map(|child| self.promised(child, kind)).fold(Demand::default(), Demand::with)
        };
        let is_wrong = |queue: QueueIndex| {
            let booked = |kind| self.queues[queue.0].demand.get(kind).copied().unwrap_or_default();
            self.kinds.iter().any(|kind| booked(kind) != sum(queue, kind))
        };
        (0..self.queues.len()).map(QueueIndex).find(|queue| is_wrong(*queue))
    }

    /// Returns the part of `above` to which a queue in demand is entitled.
    pub(super) fn part_of(&self, own: QueueIndex, kind: &AcceleratorKind, above: u32, demand: Demand) -> u32 {
        let Demand { quotas, weights } = demand;
        let (above, quota, weight) = (u64::from(above), u64::from(self.quota(own, kind)), u64::from(self.weight(own)));
        let part = if quotas > above { above * quota / quotas } else { quota + (above - quotas) * weight / weights };
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        self.limit(own, kind).map_or(part, |limit| part.min(limit))
    }

    /// Returns the children of a queue that hold more than their entitlement, given the queue's own
    /// entitlement `above`.
    pub(crate) fn exceeding_below<'a>(
        &'a self,
        parent: QueueIndex,
        kind: &'a AcceleratorKind,
        above: u32,
    ) -> impl Iterator<Item = QueueIndex> + 'a {
        let demand = self.demand_below(parent, kind, parent);
        let exceeds = move |queue: &QueueIndex| {
            let held = self.held(*queue, kind);
            held > 0 && held > self.part_of(*queue, kind, above, demand)
        };
        self.children(parent).filter(exceeds)
    }
}

/// The summed quotas and weights of a queue's children in demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    quotas: u64,
    weights: u64,
}

impl Demand {
    fn with(self, other: Demand) -> Demand {
        Demand { quotas: self.quotas + other.quotas, weights: self.weights + other.weights }
    }

    fn without(self, other: Demand) -> Demand {
        Demand { quotas: self.quotas - other.quotas, weights: self.weights - other.weights }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    use gangline_base::{JobSpec, QueueName, Timestamp};

    use super::*;
    use crate::fixture;
    use crate::queueing::usage::Resource;
    use crate::{Configuration, QueueSpec};

    fn kind() -> AcceleratorKind {
        AcceleratorKind("h100".to_owned())
    }

    fn queue(name: &str, parent: Option<&str>, weight: u32, quota: u32) -> QueueSpec {
        let named = |name: &str| QueueName::new(name).expect("a name");
        QueueSpec {
            name: named(name),
            parent: parent.map(named),
            weight: NonZeroU32::new(weight).expect("not zero"),
            quota: BTreeMap::from([(kind(), quota)]),
            borrowing_limit: BTreeMap::new(),
        }
    }

    fn queues(specs: Vec<QueueSpec>, held: &[(&str, u64)]) -> Queues {
        let mut queues = Queues::new(Configuration { queues: specs, ..Configuration::default() }.queueing());
        for (name, held) in held {
            let name = QueueName::new(name).expect("a name");
            queues.take(Timestamp::EPOCH, &name, &[(Resource::Accelerator(kind()), *held)]);
        }
        queues
    }

    fn check(queues: &Queues, name: &str, total: u32, expected: u32) {
        let leaf = queues.leaf(&QueueName::new(name).expect("a name"));
        assert_eq!(queues.entitlement(leaf, &kind(), total).entitled, expected, "{name} of {total}");
    }

    #[test]
    fn what_no_quota_covers_is_shared_by_weight() {
        let queues = queues(vec![queue("a", None, 1, 8), queue("b", None, 3, 0)], &[("a", 1), ("b", 1)]);
        check(&queues, "a", 24, 8 + 4);
        check(&queues, "b", 24, 12);
    }

    #[test]
    fn an_idle_queue_lends_its_quota_until_it_wants_it() {
        let specs = || vec![queue("a", None, 1, 8), queue("b", None, 1, 8)];
        check(&queues(specs(), &[("b", 16)]), "b", 16, 16);
        check(&queues(specs(), &[("b", 16)]), "a", 16, 8);
        let mut wanted = queues(specs(), &[("b", 16)]);
        let job = fixture::waiting(JobSpec { queue: fixture::queue("a"), ..fixture::job(fixture::gang(1, 1)) });
        wanted.insert(&job.spec, job.key());
        check(&wanted, "b", 16, 8);
    }

    #[test]
    fn too_large_quotas_are_cut_in_proportion() {
        let queues = queues(vec![queue("a", None, 1, 12), queue("b", None, 1, 4)], &[("a", 1), ("b", 1)]);
        check(&queues, "a", 8, 6);
        check(&queues, "b", 8, 2);
    }

    #[test]
    fn a_child_is_entitled_to_a_part_of_its_parents() {
        let specs = vec![
            queue("lab", None, 1, 8),
            queue("x", Some("lab"), 1, 2),
            queue("y", Some("lab"), 1, 0),
            queue("ops", None, 1, 0),
        ];
        let queues = queues(specs, &[("x", 1), ("y", 1), ("ops", 1)]);
        check(&queues, "lab", 16, 12);
        check(&queues, "x", 16, 2 + 5);
        check(&queues, "y", 16, 5);
    }
}
