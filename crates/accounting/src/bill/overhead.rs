//! What devices cost beside their price: the network between them, support, and the energy that they draw; and the time of people
//! that incidents take.

use gangline_base::{Money, Timestamp};

use super::apportion::{charge, cost_of, nanos_between};
use super::line::{Amount, Line};

/// Picojoules of a kilowatt-hour: a milliwatt for a nanosecond is a picojoule.
const PICOJOULES_PER_KILOWATT_HOUR: i128 = 3_600_000_000_000_000_000;

/// What a device of a node costs beside its price. What is missing has no line of its own: the price includes it, or nobody charges
/// for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overheads {
    /// The network, for each hour of a device.
    pub network: Option<Money>,
    /// Support and the provider's other surcharges, for each hour of a device.
    pub support: Option<Money>,
    /// Its energy.
    pub energy: Option<Energy>,
}

/// The energy of a device with its part of the node and of the cooling. Estimated: draws are constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Energy {
    /// The power that it draws while somebody holds it, in milliwatts.
    pub held_milliwatts: u64,
    /// The power that it draws while nobody does.
    pub unheld_milliwatts: u64,
    /// What a kilowatt-hour costs.
    pub per_kilowatt_hour: Money,
}

/// Something that people had to look after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The time that it takes a person, in nanoseconds.
    pub nanos: u64,
    /// What an hour of the person costs.
    pub per_hour: Money,
}

impl Overheads {
    /// Reports whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.network.is_none() && self.support.is_none() && self.energy.is_none()
    }

    /// Returns what the unit of a line costs: an hour of a device, or a kilowatt-hour.
    #[must_use]
    pub const fn price_of(&self, line: Line) -> Option<Money> {
        match (line, &self.energy) {
            (Line::Network, _) => self.network,
            (Line::Support, _) => self.support,
            (Line::Energy, Some(energy)) => Some(energy.per_kilowatt_hour),
            _ => None,
        }
    }

    /// Returns the amounts of `devices` from one time to another. As with the devices themselves, they are differences of what each
    /// has cost since the epoch, so that they add up over time and over devices.
    pub(super) fn amounts(
        &self,
        devices: u32,
        is_held: bool,
        span: (Timestamp, Timestamp),
    ) -> impl Iterator<Item = (Line, Amount)> {
        let hourly = move |price: Option<Money>| price.map(|price| charge(devices, span, Some(price)));
        let lines = [
            (Line::Network, hourly(self.network)),
            (Line::Support, hourly(self.support)),
            (Line::Energy, self.energy.map(|energy| energy.amount(devices, is_held, span))),
        ];
        lines.into_iter().filter_map(|(line, amount)| Some((line, amount?)))
    }
}

impl Energy {
    fn amount(&self, devices: u32, is_held: bool, (from, to): (Timestamp, Timestamp)) -> Amount {
        let milliwatts = i128::from(if is_held { self.held_milliwatts } else { self.unheld_milliwatts });
        let price = i128::from(self.per_kilowatt_hour.nano_dollars());
        let since_epoch = |at: Timestamp| {
            milliwatts.saturating_mul(i128::from(at.unix_nanos())).saturating_mul(price) / PICOJOULES_PER_KILOWATT_HOUR
        };
        let devices = i128::from(devices);
        let quantity = devices.saturating_mul(milliwatts).saturating_mul(nanos_between(from, to));
        Amount { quantity, cost: devices.saturating_mul(since_epoch(to) - since_epoch(from)), unpriced: 0 }
    }
}

impl Incident {
    pub(super) fn amount(&self) -> Amount {
        let nanos = i128::from(self.nanos);
        Amount { quantity: nanos, cost: cost_of(self.per_hour, nanos), unpriced: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(count: u64) -> Timestamp {
        Timestamp::from_unix_nanos(count * 3_600_000_000_000)
    }

    /// Epoch AI's figures for an H100 (github.com/epoch-research/training-cost-trends): 700 W, 1.82 with its part of the server, 0.75
    /// of that under load, and 1.25 with cooling are 1,194 W, which at $0.0826 a kilowatt-hour cost $0.099 an hour.
    #[test]
    fn the_energy_of_a_device_is_the_published_one() {
        let energy = Energy {
            held_milliwatts: 1_194_375,
            unheld_milliwatts: 0,
            per_kilowatt_hour: "0.0826".parse().expect("a price"),
        };
        let hour = energy.amount(1, true, (hours(1_000), hours(1_001)));
        assert_eq!(format!("{:.3}", hour.cost as f64 / 1e9), "0.099");
        assert_eq!(hour.quantity, 1_194_375 * 3_600_000_000_000);
        assert_eq!(energy.amount(8, false, (hours(1_000), hours(1_001))), Amount::default());
    }

    #[test]
    fn only_what_has_a_price_has_a_line() {
        let overheads = Overheads { support: Some("0.30".parse().expect("a price")), ..Overheads::default() };
        let amounts: Vec<_> = overheads.amounts(4, true, (hours(0), hours(10))).collect();
        assert_eq!(
            amounts.iter().map(|(line, amount)| (*line, amount.cost)).collect::<Vec<_>>(),
            [(Line::Support, 12_000_000_000)]
        );
        assert_eq!([Line::Support, Line::Energy].map(|line| overheads.price_of(line).is_some()), [true, false]);
        assert!(!overheads.is_empty() && Overheads::default().is_empty());
    }
}
