//! What a node offers from some time on, as stored on disk. Like an attempt's result, this entry is the control plane's
//! own: the engine knows no prices. Bills are made of these entries and of the ledger.

use gangline_accounting::bill::{Capacity, Energy, NodeState, Overheads};
use gangline_base::{AcceleratorKind, Money};
use serde::{Deserialize, Serialize};

use super::{VERSION_CAPACITY, VERSION_STORAGE, encode};

/// A change of what a node offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityChanged {
    /// The node's name.
    pub node: String,
    /// Whether it takes jobs.
    pub state: NodeStateV1,
    /// The kind of its devices.
    pub accelerator: String,
    /// The number of its devices.
    pub devices: u32,
    /// Devices that programs outside Gangline hold.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u32,
    /// The price of a device for an hour, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    /// What a device costs beside its price, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overheads: Option<OverheadsV1>,
}

/// What a device costs beside its price; see [`Overheads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverheadsV1 {
    /// The network, for each hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Money>,
    /// Support, for each hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub support: Option<Money>,
    /// Its energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyV1>,
}

/// The energy of a device; see [`Energy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyV1 {
    /// The power that it draws while somebody holds it.
    pub held_milliwatts: u64,
    /// The power that it draws while nobody does.
    pub unheld_milliwatts: u64,
    /// What a kilowatt-hour costs.
    pub per_kilowatt_hour: Money,
}

impl OverheadsV1 {
    fn of(overheads: &Overheads) -> Option<OverheadsV1> {
        let Overheads { network, support, energy } = *overheads;
        let energy = energy.map(|energy| {
            let Energy { held_milliwatts, unheld_milliwatts, per_kilowatt_hour } = energy;
            EnergyV1 { held_milliwatts, unheld_milliwatts, per_kilowatt_hour }
        });
        (!overheads.is_empty()).then_some(OverheadsV1 { network, support, energy })
    }

    fn overheads(self) -> Overheads {
        let OverheadsV1 { network, support, energy } = self;
        let energy = energy.map(|energy| {
            let EnergyV1 { held_milliwatts, unheld_milliwatts, per_kilowatt_hour } = energy;
            Energy { held_milliwatts, unheld_milliwatts, per_kilowatt_hour }
        });
        Overheads { network, support, energy }
    }
}

/// Whether a node takes jobs; see [`NodeState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStateV1 {
    /// It takes jobs.
    Ready,
    /// It had faults of its own.
    Suspect,
    /// Somebody wants it empty.
    Draining,
    /// It is gone.
    Lost,
}

impl CapacityChanged {
    /// Returns the entry of a node.
    #[must_use]
    pub fn of(node: &str, capacity: &Capacity) -> CapacityChanged {
        let Capacity { state, accelerator, devices, others, price, overheads } = capacity;
        let state = match state {
            NodeState::Ready => NodeStateV1::Ready,
            NodeState::Suspect => NodeStateV1::Suspect,
            NodeState::Draining => NodeStateV1::Draining,
            NodeState::Lost => NodeStateV1::Lost,
        };
        let (node, accelerator) = (node.to_owned(), accelerator.0.clone());
        let overheads = OverheadsV1::of(overheads);
        CapacityChanged { node, state, accelerator, devices: *devices, others: *others, price: *price, overheads }
    }

    /// Returns what the node offers.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let state = match self.state {
            NodeStateV1::Ready => NodeState::Ready,
            NodeStateV1::Suspect => NodeState::Suspect,
            NodeStateV1::Draining => NodeState::Draining,
            NodeStateV1::Lost => NodeState::Lost,
        };
        Capacity {
            state,
            accelerator: AcceleratorKind(self.accelerator.clone()),
            devices: self.devices,
            others: self.others,
            price: self.price,
            overheads: self.overheads.map(OverheadsV1::overheads).unwrap_or_default(),
        }
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Body<'a> {
            CapacityChanged(&'a CapacityChanged),
        }
        let version = if self.overheads.is_some() { VERSION_STORAGE } else { VERSION_CAPACITY };
        encode(version, Body::CapacityChanged(self))
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Noted, Recorded, decode_entry};

    /// Proves A-9: every later version reads what this version wrote.
    #[test]
    fn a_change_of_capacity_reads_back_and_stays_readable() {
        let capacity = Capacity {
            state: NodeState::Draining,
            accelerator: AcceleratorKind("H100".to_owned()),
            devices: 8,
            others: 2,
            price: Some(Money::from_nano_dollars(2_500_000_000)),
            overheads: Overheads::default(),
        };
        let changed = CapacityChanged::of("n1", &capacity);
        assert_eq!(changed.capacity(), capacity);
        let written = r#"{"v":4,"body":{"capacity_changed":{"node":"n1","state":"draining","accelerator":"H100","devices":8,"others":2,"price":2500000000}}}"#;
        assert_eq!(String::from_utf8_lossy(&changed.encode()), written);
        assert!(
            matches!(decode_entry(written.as_bytes()), Ok(Recorded::Noted(read)) if *read == Noted::Capacity(changed.clone()))
        );
        let energy = Energy {
            held_milliwatts: 900_000,
            unheld_milliwatts: 100_000,
            per_kilowatt_hour: Money::from_nano_dollars(82_600_000),
        };
        let overheads = Overheads { network: Some(Money::from_nano_dollars(7)), support: None, energy: Some(energy) };
        let costly = Capacity { overheads, ..capacity };
        let written = r#"{"v":5,"body":{"capacity_changed":{"node":"n1","state":"draining","accelerator":"H100","devices":8,"others":2,"price":2500000000,"overheads":{"network":7,"energy":{"held_milliwatts":900000,"unheld_milliwatts":100000,"per_kilowatt_hour":82600000}}}}}"#;
        assert_eq!(String::from_utf8_lossy(&CapacityChanged::of("n1", &costly).encode()), written);
        let Ok(Recorded::Noted(read)) = decode_entry(written.as_bytes()) else { panic!("not a note") };
        assert!(matches!(*read, Noted::Capacity(read) if read.capacity() == costly));
        let less = CapacityChanged { others: 0, price: None, ..changed };
        assert!(matches!(decode_entry(&less.encode()), Ok(Recorded::Noted(read)) if *read == Noted::Capacity(less)));
    }
}
