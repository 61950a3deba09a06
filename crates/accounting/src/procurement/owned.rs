//! What an hour of a device of one's own costs: the value that it loses, its part of the network, power and room, and its upkeep.
//!
//! A chip's value falls by a share each year, as those of better ones rise; the rest are Epoch AI's figures for training clusters
//! ("The rising costs of training frontier AI models", arXiv 2405.21015), which a file may replace: 0.14 orders of magnitude a
//! year, 19 % of a cluster's cost for its network, a server's power of 1.82 times its chips', three quarters of it drawn on average,
//! and 8.26 cents a kilowatt-hour (2025). In US dollars.

use serde::Deserialize;

use super::offer::HOURS_PER_MONTH;

/// Hours of a year.
const HOURS_PER_YEAR: f64 = 8_766.0;
const MONTHS_PER_YEAR: f64 = 12.0;
const WATTS: f64 = 1_000.0;

/// A device of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owned {
    /// What a device cost with its part of the server, without the network between servers.
    pub price: f64,
    /// Orders of magnitude that its value falls in a year: 0.14 is 28 %.
    #[serde(default = "decline")]
    pub decline: f64,
    /// The network's share of what the whole cluster cost.
    #[serde(default = "network")]
    pub network: f64,
    /// The device's power at full load, in watts.
    pub watts: f64,
    /// The server's power for each watt of its devices.
    #[serde(default = "server")]
    pub server: f64,
    /// The part of that power which is drawn on average.
    #[serde(default = "load")]
    pub load: f64,
    /// The room's power for each watt of a server.
    #[serde(default = "pue")]
    pub pue: f64,
    /// Price of a kilowatt-hour.
    #[serde(default = "per_kwh")]
    pub per_kwh: f64,
    /// Rent of the room for a kilowatt of servers each month, without power.
    #[serde(default)]
    pub per_kilowatt_month: f64,
    /// Repairs and support in a year, as a share of the price.
    #[serde(default)]
    pub upkeep: f64,
}

const fn decline() -> f64 {
    0.14
}

const fn network() -> f64 {
    0.19
}

const fn server() -> f64 {
    1.82
}

const fn load() -> f64 {
    0.75
}

const fn pue() -> f64 {
    1.25
}

const fn per_kwh() -> f64 {
    0.0826
}

impl Owned {
    /// Returns what an hour costs, by part.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        let depreciation = self.price * self.decline * std::f64::consts::LN_10 / HOURS_PER_YEAR;
        let kilowatts = self.watts * self.server / WATTS;
        [
            ("depreciation", depreciation),
            ("network", depreciation * self.network / (1.0 - self.network)),
            ("energy", kilowatts * self.load * self.pue * self.per_kwh),
            ("room", kilowatts * self.per_kilowatt_month / HOURS_PER_MONTH),
            ("upkeep", self.price * self.upkeep / (MONTHS_PER_YEAR * HOURS_PER_MONTH)),
        ]
    }

    /// Returns what an hour costs in all.
    #[must_use]
    pub fn per_hour(&self) -> f64 {
        self.parts().iter().map(|(_, cost)| cost).sum()
    }

    /// Returns the first figure that makes no sense, and what is expected of it.
    pub(super) fn unfit(&self) -> Option<(&'static str, f64, &'static str)> {
        let amounts = [
            ("owned.decline", self.decline),
            ("owned.server", self.server),
            ("owned.load", self.load),
            ("owned.per_kwh", self.per_kwh),
            ("owned.per_kilowatt_month", self.per_kilowatt_month),
            ("owned.upkeep", self.upkeep),
        ];
        let is_amount = |found: f64| found.is_finite() && found >= 0.0;
        let positive = [("owned.price", self.price), ("owned.watts", self.watts)];
        let positive = positive.into_iter().find(|(_, found)| !(is_amount(*found) && *found > 0.0));
        let positive = positive.map(|(key, found)| (key, found, "above 0"));
        let amount =
            amounts.into_iter().find(|(_, found)| !is_amount(*found)).map(|(k, found)| (k, found, "not below 0"));
        let network = Some(self.network).filter(|share| !(0.0..1.0).contains(share));
        let pue = Some(self.pue).filter(|pue| !(pue.is_finite() && *pue >= 1.0));
        positive
            .or(amount)
            .or(network.map(|found| ("owned.network", found, "from 0 to below 1")))
            .or(pue.map(|found| ("owned.pue", found, "of at least 1")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Epoch AI's worked example: an H100 in an HGX at $31,904.63 (January 2025), always in use, costs $1.55 an hour.
    #[test]
    fn an_hour_of_a_cluster_of_ones_own_costs_what_epoch_ai_says() {
        let file = "price = 31904.63\nwatts = 700\n";
        let owned: Owned = toml::from_str(file).expect("sound");
        let [depreciation, network, energy, room, upkeep] = owned.parts().map(|(_, cost)| (cost * 1e3).round() / 1e3);
        assert_eq!([depreciation, network, energy, room, upkeep], [1.173, 0.275, 0.099, 0.0, 0.0]);
        assert_eq!(format!("{:.2}", owned.per_hour()), "1.55");
        let colocated = Owned { per_kilowatt_month: 150.0, upkeep: 0.05, ..owned };
        let more = colocated.per_hour() - owned.per_hour();
        let expected = 0.7 * 1.82 * 150.0 / 730.0 + 31_904.63 * 0.05 / 8_760.0;
        assert!((more - expected).abs() < 1e-12, "{more} beside {expected}");
    }
}
