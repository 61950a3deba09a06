//! The tables `[[overhead]]` and `[energy]` of the configuration file: what devices cost beside their price.

use std::collections::BTreeMap;

use gangline_base::{AcceleratorKind, Money};
use serde::Deserialize;

use super::PRICE_MAX;

/// The most entries.
const ENTRIES_MAX: usize = 1_000;
/// The highest price of a kilowatt-hour: above any real one.
const KILOWATT_HOUR_MAX: Money = Money::from_nano_dollars(10_000_000_000);
/// The most that a device with its part of a node can draw, in watts.
const WATTS_MAX: f64 = 100_000.0;
/// The highest power usage effectiveness: above that of any building.
const PUE_MAX: f64 = 5.0;
/// Parts of a whole.
const MILLION: u64 = 1_000_000;

/// What devices cost beside their price.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overheads {
    entries: Vec<Overhead>,
    /// What energy costs, and how much of it devices draw.
    pub(super) energy: Option<Energy>,
}

/// What a device of one kind costs beside its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOverheads {
    /// The network, for each hour.
    pub network: Option<Money>,
    /// Support and other surcharges, for each hour.
    pub support: Option<Money>,
    /// The power that it draws, and what a kilowatt-hour costs.
    pub energy: Option<(Power, Money)>,
}

/// What a device draws with its part of the node and of the cooling, in milliwatts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// While somebody holds it.
    pub held: u64,
    /// While nobody does.
    pub unheld: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Overhead {
    line: LineV1,
    accelerator: Option<AcceleratorKind>,
    charge: Charge,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Charge {
    PerDeviceHour(Money),
    /// Millionths of the device's price.
    OfPrice(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Energy {
    per_kilowatt_hour: Money,
    devices: BTreeMap<AcceleratorKind, Power>,
}

/// An entry of `[[overhead]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverheadV1 {
    line: LineV1,
    accelerator: Option<String>,
    usd_per_device_hour: Option<String>,
    share_of_price: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LineV1 {
    Network,
    Support,
}

/// The table `[energy]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnergyV1 {
    usd_per_kwh: String,
    pue: Option<f64>,
    #[serde(default)]
    device: Vec<DrawV1>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawV1 {
    accelerator: String,
    watts: f64,
    idle_watts: Option<f64>,
}

impl Overheads {
    /// Returns what a device of this kind and price costs beside its price. A share of a price that isn't known is nothing.
    #[must_use]
    pub fn of(&self, accelerator: &AcceleratorKind, price: Option<Money>) -> DeviceOverheads {
        let sum = |line| {
            let entries = self.entries.iter().filter(|entry| {
                entry.line == line && entry.accelerator.as_ref().is_none_or(|kind| kind == accelerator)
            });
            let charges = entries.filter_map(|entry| match entry.charge {
                Charge::PerDeviceHour(money) => Some(money),
                Charge::OfPrice(millionths) => price.map(|price| part(price, millionths)),
            });
            charges.reduce(Money::saturating_add)
        };
        let energy = self
            .energy
            .as_ref()
            .and_then(|energy| energy.devices.get(accelerator).map(|power| (*power, energy.per_kilowatt_hour)));
        DeviceOverheads { network: sum(LineV1::Network), support: sum(LineV1::Support), energy }
    }
}

impl DeviceOverheads {
    /// Returns what they cost for an hour of a device that a job holds; none if there are none.
    #[must_use]
    pub fn per_held_hour(&self) -> Option<Money> {
        let energy = self.energy.map(|(power, per_kilowatt_hour)| part(per_kilowatt_hour, power.held));
        [self.network, self.support, energy].into_iter().flatten().reduce(Money::saturating_add)
    }
}

/// Returns so many millionths of an amount.
fn part(money: Money, millionths: u64) -> Money {
    let nano_dollars = i128::from(money.nano_dollars()) * i128::from(millionths) / i128::from(MILLION);
    Money::from_nano_dollars_saturating(nano_dollars)
}

/// Returns the entries; an error says which one is invalid.
pub(super) fn read(written: Vec<OverheadV1>) -> Result<Overheads, String> {
    if written.len() > ENTRIES_MAX {
        return Err(format!("there are more than {ENTRIES_MAX} entries"));
    }
    let entries = (1_usize..)
        .zip(written)
        .map(|(number, entry)| entry.read().map_err(|message| format!("entry {number}: {message}")));
    Ok(Overheads { entries: entries.collect::<Result<_, _>>()?, energy: None })
}

impl OverheadV1 {
    fn read(self) -> Result<Overhead, String> {
        let charge = match (self.usd_per_device_hour, self.share_of_price) {
            (Some(text), None) => Charge::PerDeviceHour(money("usd_per_device_hour", &text, PRICE_MAX)?),
            (None, Some(share)) if share > 0.0 && share <= 1.0 => Charge::OfPrice(millionths(share)),
            (None, Some(_)) => {
                return Err("`share_of_price` has to be above 0 and at most 1: 0.03 is 3 %".to_owned());
            }
            _ => return Err("write one of `usd_per_device_hour` and `share_of_price`".to_owned()),
        };
        Ok(Overhead { line: self.line, accelerator: self.accelerator.map(AcceleratorKind), charge })
    }
}

impl EnergyV1 {
    pub(super) fn read(self) -> Result<Energy, String> {
        let per_kilowatt_hour = money("usd_per_kwh", &self.usd_per_kwh, KILOWATT_HOUR_MAX)?;
        let pue = self.pue.unwrap_or(1.0);
        if !(1.0..=PUE_MAX).contains(&pue) {
            return Err(format!(
                "`pue` has to be from 1 to {PUE_MAX}: what the building draws for each watt of its machines"
            ));
        }
        if self.device.is_empty() {
            return Err("there is no [[energy.device]] that says what a device draws".to_owned());
        }
        if self.device.len() > ENTRIES_MAX {
            return Err(format!("there are more than {ENTRIES_MAX} kinds of devices"));
        }
        let mut devices = BTreeMap::new();
        for DrawV1 { accelerator, watts, idle_watts } in self.device {
            let idle = idle_watts.unwrap_or(watts);
            if !(watts > 0.0 && watts <= WATTS_MAX && idle >= 0.0 && idle <= watts) {
                return Err(format!(
                    "the device {accelerator}: `watts` has to be above 0 and at most {WATTS_MAX}, and `idle_watts` from 0 to `watts`"
                ));
            }
            let power = Power { held: millionths(watts * pue / 1_000.0), unheld: millionths(idle * pue / 1_000.0) };
            if devices.insert(AcceleratorKind(accelerator.clone()), power).is_some() {
                return Err(format!("the device {accelerator} is there twice"));
            }
        }
        Ok(Energy { per_kilowatt_hour, devices })
    }
}

pub(super) fn money(key: &str, text: &str, most: Money) -> Result<Money, String> {
    let price: Money = text.parse().map_err(|error| format!("`{key}`: {error}"))?;
    if price > most {
        return Err(format!("`{key}` has to be at most {most}"));
    }
    Ok(price)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the callers' numbers are from 0 to 500")]
fn millionths(number: f64) -> u64 {
    (number * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Overheads, String> {
        Config::parse(text).map(|config| config.billing.overheads).map_err(|error| error.to_string())
    }

    fn dollars(text: &str) -> Money {
        text.parse().expect("an amount")
    }

    #[test]
    fn entries_of_a_line_and_a_kind_add_up() {
        let text = "[[overhead]]\nline = 'network'\nusd_per_device_hour = '0.20'\n\
            [[overhead]]\nline = 'network'\naccelerator = 'H100'\nusd_per_device_hour = '0.05'\n\
            [[overhead]]\nline = 'support'\nshare_of_price = 0.03\n\
            [energy]\nusd_per_kwh = '0.10'\npue = 1.25\n\
            [[energy.device]]\naccelerator = 'H100'\nwatts = 960\nidle_watts = 80\n";
        let overheads = read(text).expect("a sound file");
        let kind = |name: &str| AcceleratorKind(name.to_owned());
        let power = Power { held: 1_200_000, unheld: 100_000 };
        let expected = DeviceOverheads {
            network: Some(dollars("0.25")),
            support: Some(dollars("0.06")),
            energy: Some((power, dollars("0.10"))),
        };
        assert_eq!(overheads.of(&kind("H100"), Some(dollars("2"))), expected);
        assert_eq!(expected.per_held_hour(), Some(dollars("0.43")), "of 1.2 kW");
        let other = DeviceOverheads { network: Some(dollars("0.20")), ..DeviceOverheads::default() };
        assert_eq!(overheads.of(&kind("A100"), None), other, "a share of no price is nothing");
        assert_eq!(Overheads::default().of(&kind("H100"), None).per_held_hour(), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let overhead = |rest: &str| read(&format!("[[overhead]]\nline = 'support'\n{rest}")).expect_err("a refusal");
        assert!(overhead("").ends_with("overhead: entry 1: write one of `usd_per_device_hour` and `share_of_price`"));
        assert!(overhead("usd_per_device_hour = '1'\nshare_of_price = 0.1").contains("write one of"));
        assert!(overhead("share_of_price = 3.0").contains("0.03 is 3 %"));
        assert!(overhead("usd_per_device_hour = '1001'").contains("at most $1000"));
        assert!(overhead("usd_per_device_hour = 'much'").contains("`usd_per_device_hour`: "));
        assert!(read("[[overhead]]\nline = 'staff'\nshare_of_price = 0.1").is_err_and(|error| error.contains("staff")));
        let energy = |rest: &str| read(&format!("[energy]\nusd_per_kwh = '0.1'\n{rest}")).expect_err("a refusal");
        assert!(energy("").contains("there is no [[energy.device]]"));
        assert!(energy("pue = 0.9").contains("`pue` has to be from 1 to 5"));
        let device = |rest: &str| energy(&format!("[[energy.device]]\naccelerator = 'H100'\n{rest}"));
        assert!(device("watts = 0").contains("the device H100: `watts` has to be above 0"));
        assert!(device("watts = 700\nidle_watts = 701").contains("`idle_watts` from 0 to `watts`"));
        assert!(device("watts = 700\n[[energy.device]]\naccelerator = 'H100'\nwatts = 1").contains("twice"));
        assert!(read("[energy]\nusd_per_kwh = '11'").is_err_and(|error| error.contains("at most $10")));
    }
}
