//! Examples of nodes, and of what the engine remembers of run times, speeds, data and losses.

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, DeviceLayout, Flavour, JobId, Level, NodeName, Pin, PoolName, Step,
    Submitter,
};
use gangline_orchestration::{
    BudgetScope, CachedDataset, ExternalUsage, Health, History, Kin, Location, LossHistory, LossRecord, NodeCache,
    NodeCapacity, NodeCondition, NodeSpec, OverBudget, Pace, Sample, SpareRules, SpareSizing, SpentBudget,
};

use super::{Examples, queue_name};

impl Examples {
    pub(super) fn pins(&mut self) -> BTreeSet<Pin> {
        let all = [Pin::Logs, Pin::Record, Pin::Checkpoints];
        if self.has_network { all.into_iter().filter(|_| self.below(2) == 0).collect() } else { BTreeSet::new() }
    }

    pub(super) fn node(&mut self) -> NodeSpec {
        let name = NodeName::new(&format!("node-{}.rack_1", self.below(1_000))).expect("a valid name");
        let (accelerator, accelerators) = (AcceleratorKind(self.text()), self.number());
        let (cpus, memory) = (self.number(), Bytes(self.large()));
        if !self.has_network {
            let capacity = NodeCapacity { pool: PoolName::default(), accelerator, accelerators, cpus, memory };
            return NodeSpec { name, capacity, location: Location::default(), layout: Default::default() };
        }
        let levels = Level::ALL.into_iter().filter(|_| self.below(2) == 0).collect::<Vec<_>>();
        let location = levels.into_iter().map(|level| (level, self.text())).collect();
        NodeSpec {
            name,
            capacity: NodeCapacity { pool: self.pool(), accelerator, accelerators, cpus, memory },
            location,
            layout: self.layout(),
        }
    }

    /// Returns none for examples from before budgets held jobs.
    pub(super) fn spent_budgets(&mut self) -> Vec<SpentBudget> {
        if !self.has_network {
            return Vec::new();
        }
        let user = BudgetScope::User(Submitter(self.text()));
        let scopes = [BudgetScope::Everything, BudgetScope::Queues([queue_name()].into()), user];
        let spent = |scope| {
            let (name, limit, until, stops) = (self.text(), self.money(), self.time(), self.below(2) == 0);
            SpentBudget { name, scope, limit, until, stops }
        };
        scopes.map(spent).into()
    }

    pub(super) fn over_budget(&mut self) -> OverBudget {
        OverBudget { budget: self.text(), limit: self.money(), until: self.time() }
    }

    pub(super) fn node_cache(&mut self) -> NodeCache {
        let held = |examples: &mut Self| CachedDataset {
            dataset: examples.text(),
            here: Bytes(examples.large()),
            total: Bytes(examples.large()),
        };
        NodeCache { folder: self.text(), datasets: (0..self.below(3)).map(|_| held(self)).collect() }
    }

    pub(super) fn datasets(&mut self) -> Vec<String> {
        let count = if self.has_network { self.below(3) } else { 0 };
        (0..count).map(|number| format!("{} {number}", self.text())).collect()
    }

    /// Returns no speeds for examples from before they were measured.
    pub(super) fn pace(&mut self) -> Pace {
        if !self.has_network {
            return Pace::default();
        }
        let widths = (0..self.below(3)).map(|width| (width, (self.large(), Duration::from_nanos(self.large()))));
        let widths = widths.collect();
        let since = self.maybe(|random| (AttemptNumber(random.number()), Step(random.large()), random.time()));
        Pace { widths, since }
    }

    pub(super) fn layout(&mut self) -> DeviceLayout {
        let (pairs, sockets) = (vec![0, 0, 1, 1, 2, 2, 3, 3], vec![0, 0, 0, 0, 1, 1, 1, 1]);
        let tiers =
            self.maybe(|random| if random.below(2) == 0 { vec![sockets.clone()] } else { vec![pairs, sockets] });
        DeviceLayout::new(tiers.unwrap_or_default()).expect("nested")
    }

    pub(super) fn spare_rules(&mut self) -> SpareRules {
        let sizing = |random: &mut Self| SpareSizing { confidence_milli: random.number(), repair: random.duration() };
        SpareRules { nodes: self.amounts(), sizing: self.maybe(sizing) }
    }

    pub(super) fn losses(&mut self) -> LossHistory {
        let flavour = Flavour { accelerator: AcceleratorKind(self.text()), pool: self.pool() };
        let record = LossRecord { losses: self.number(), node_time: self.duration() };
        LossHistory { at: self.time(), flavours: [(flavour, record)].into() }
    }

    pub(super) fn history(&mut self) -> (Kin, History) {
        let kin = Kin {
            queue: self.maybe(|_| queue_name()),
            submitter: self.maybe(|random| Submitter(random.text())),
            name: self.maybe(Self::text),
        };
        let ran = Duration::from_nanos(self.large());
        let sample = Sample { ran, of_limit: self.maybe(Self::number) };
        (kin, History { at: self.time(), samples: vec![sample; 2] })
    }

    pub(super) fn standing(&mut self, is_lost: bool, is_draining: bool) -> NodeCondition {
        if !self.has_network {
            return NodeCondition { is_lost, is_draining, ..NodeCondition::default() };
        }
        let last_failed = self.maybe(|random| JobId(random.large()));
        let health = Health { score: self.number(), at: self.time(), is_suspect: self.below(2) == 0, last_failed };
        NodeCondition { is_lost, is_draining, outside: self.outside(), health }
    }

    pub(super) fn outside(&mut self) -> ExternalUsage {
        let (is_closed, memory) = (self.below(2) == 0, Bytes(self.large()));
        ExternalUsage { is_closed, accelerators: self.number(), cpus: self.number(), memory }
    }
}
