//! What devices cost beside their price, and the incidents that people look after, noted for bills with the prices of then.

use std::time::Duration;

use gangline_accounting::bill::{Capacity, Energy, NodeState, Overheads};
use gangline_base::{AcceleratorKind, Money, NodeName};
use gangline_specs::config::{self, DeviceOverheads, People, Power};
use gangline_store::codec::{IncidentMet, IncidentOf};
use gangline_store::model::{JobRecord, StateRecord};

use super::storage::owner_of;

/// Returns what a device of this kind and price costs beside its price.
pub(super) fn overheads_of(
    rules: &config::Overheads,
    accelerator: &AcceleratorKind,
    price: Option<Money>,
) -> Overheads {
    let DeviceOverheads { network, support, energy } = rules.of(accelerator, price);
    let energy = energy.map(|(Power { held, unheld }, per_kilowatt_hour)| Energy {
        held_milliwatts: held,
        unheld_milliwatts: unheld,
        per_kilowatt_hour,
    });
    Overheads { network, support, energy }
}

/// Returns the incident of a job that has failed in the end, if people's time is billed.
pub(super) fn failure_of(record: &JobRecord, people: Option<&People>) -> Option<IncidentMet> {
    let people = people.filter(|_| record.state == StateRecord::Failed)?;
    incident(IncidentOf::Job(record.id), people, people.per_failed_job)
        .map(|incident| IncidentMet { owner: Some(owner_of(record)), ..incident })
}

/// Returns the incident of a node whose state has changed, if it had a fault and people's time is billed. A node that the control plane
/// hears of for the first time has had none, and neither has one that was taken away.
pub(super) fn fault_of(
    node: &NodeName,
    before: Option<&Capacity>,
    now: &Capacity,
    people: Option<&People>,
) -> Option<IncidentMet> {
    let is_faulty = |capacity: &Capacity| matches!(capacity.state, NodeState::Suspect | NodeState::Lost);
    let is_new = before.is_some_and(|before| !is_faulty(before)) && is_faulty(now) && now.devices > 0;
    let people = people.filter(|_| is_new)?;
    incident(IncidentOf::Node(node.to_string()), people, people.per_node_fault)
}

fn incident(subject: IncidentOf, people: &People, time: Duration) -> Option<IncidentMet> {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    (nanos > 0).then_some(IncidentMet { subject, owner: None, nanos, per_hour: people.per_hour })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_is_there_and_was_sound_has_a_fault() {
        use NodeState::{Draining, Lost, Ready, Suspect};
        let per_node_fault = Duration::from_mins(1);
        let people = People { per_hour: Money::ZERO, per_failed_job: Duration::ZERO, per_node_fault };
        let node = NodeName::new("n1").expect("a name");
        let capacity = |(state, devices)| Capacity {
            state,
            accelerator: AcceleratorKind("cpu".to_owned()),
            devices,
            others: 0,
            price: None,
            overheads: Overheads::default(),
        };
        let has_fault = |before: Option<(NodeState, u32)>, now| {
            let before = before.map(capacity);
            fault_of(&node, before.as_ref(), &capacity(now), Some(&people)).is_some()
        };
        assert!(has_fault(Some((Ready, 8)), (Suspect, 8)) && has_fault(Some((Draining, 8)), (Lost, 8)));
        assert!(!has_fault(Some((Suspect, 8)), (Lost, 8)), "it is the same fault");
        assert!(!has_fault(Some((Lost, 8)), (Ready, 8)) && !has_fault(Some((Ready, 8)), (Draining, 8)));
        assert!(!has_fault(Some((Draining, 8)), (Lost, 0)), "it was taken away");
        assert!(!has_fault(None, (Lost, 8)), "nobody knows since when");
        assert!(
            fault_of(&node, Some(&capacity((Ready, 8))), &capacity((Lost, 8)), None).is_none(),
            "bills have no people"
        );
    }
}
