//! Notes what each node offers whenever that changes, for bills: the engine keeps only the present state, and no prices.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_accounting::bill::{Capacity, NodeState, Overheads};
use gangline_base::{Money, NodeName, Timestamp};
use gangline_orchestration::{Event, Node, NodeStatus};
use gangline_store::codec::{CapacityChanged, Noted};
use gangline_store::db;
use gangline_store::ports::Queries as _;

use super::actor::Actor;
use super::batch::Batch;
use super::overheads::{fault_of, overheads_of};

/// How often nodes are looked through for changes that no event tells of, such as the end of a suspicion.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What is noted of each node.
#[derive(Debug, Default)]
pub(super) struct Capacities {
    noted: BTreeMap<NodeName, Capacity>,
    looked_at: Option<Timestamp>,
}

impl Capacities {
    /// Has the nodes looked through at the next opportunity, if the event may have changed one.
    pub(super) fn mind(&mut self, event: &Event) {
        let is_of_nodes = matches!(
            event,
            Event::NodeJoined(_)
                | Event::NodeLost { .. }
                | Event::DrainRequested { .. }
                | Event::DrainCancelled { .. }
                | Event::NodeObserved { .. }
                | Event::NodeFaulty { .. }
                | Event::Configured(_)
        );
        if is_of_nodes {
            self.looked_at = None;
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.looked_at.is_none_or(|at| now < at || now.since(at) >= LOOK_EVERY)
    }
}

impl Actor {
    /// Restores what the journal has noted of each node. Nodes went on existing while no control plane ran.
    pub(super) fn recall_capacities(&mut self, now: Timestamp) -> Result<(), db::Error> {
        for (_, changed) in self.reader.capacities((now, now))? {
            if let Ok(node) = NodeName::new(&changed.node) {
                self.capacities.noted.insert(node, changed.capacity());
            }
        }
        Ok(())
    }

    /// Journals the changes of what nodes offer.
    pub(super) fn note_capacities(&mut self, now: Timestamp, batch: &mut Batch) {
        if self.journal.poison().is_some() || !self.capacities.is_due(now) {
            return;
        }
        self.capacities.looked_at = Some(now);
        let configured = self.options.nodes.iter().map(|config| (&config.name, config.price_per_hour));
        let prices: BTreeMap<&NodeName, Option<Money>> = configured.collect();
        let offered = self.engine.cluster().nodes().map(|node| {
            let name = node.spec.name.clone();
            let price = prices.get(&name).copied().flatten();
            let overheads = overheads_of(&self.options.billing.overheads, &node.spec.capacity.accelerator, price);
            (name, Capacity { overheads, ..capacity_of(node, price) })
        });
        let changed = offered.filter(|(name, capacity)| self.capacities.noted.get(name) != Some(capacity));
        for (name, capacity) in changed.collect::<Vec<_>>() {
            let changed = CapacityChanged::of(name.as_str(), &capacity);
            let fault =
                fault_of(&name, self.capacities.noted.get(&name), &capacity, self.options.billing.people.as_ref());
            self.note_for_bills(now, Noted::Capacity(changed), batch);
            fault.into_iter().for_each(|fault| self.note_for_bills(now, Noted::Incident(fault), batch));
            self.capacities.noted.insert(name, capacity);
        }
    }
}

fn capacity_of(node: &Node, price: Option<Money>) -> Capacity {
    Capacity {
        state: match node.status {
            NodeStatus::Ready => NodeState::Ready,
            NodeStatus::Suspect => NodeState::Suspect,
            NodeStatus::Draining => NodeState::Draining,
            NodeStatus::Lost => NodeState::Lost,
        },
        accelerator: node.spec.capacity.accelerator.clone(),
        devices: node.spec.capacity.accelerators,
        others: node.condition.outside.accelerators,
        price,
        overheads: Overheads::default(),
    }
}
