//! Offers for a cluster, compared by all that a month costs. Its parts are those of SemiAnalysis' ClusterMAX cost model
//! (clustermax.ai/tco): devices, storage, network, support, time lost to faults, setting up, and debugging.

use serde::Deserialize;

use super::owned::Owned;

/// The most offers in a file.
const OFFERS_MAX: usize = 100;
/// Hours of a month, on average.
pub(super) const HOURS_PER_MONTH: f64 = 730.0;

/// An offer for a cluster, in dollars.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Number of devices.
    pub devices: f64,
    /// Price of a device for an hour; of devices of one's own, `owned` says what it is made of.
    #[serde(default)]
    pub per_device_hour: Option<f64>,
    /// The devices are one's own.
    #[serde(default)]
    pub owned: Option<Owned>,
    /// Hours of a month, as the offer counts them: 730 unless it says 720.
    #[serde(default = "average_month")]
    pub hours_per_month: f64,
    /// What else is paid each month, such as storage and network.
    #[serde(default)]
    pub monthly: f64,
    /// Support, as a share of all that is paid for devices and each month.
    #[serde(default)]
    pub support: f64,
    /// Device time that is lost to faults, as a share.
    #[serde(default)]
    pub lost: f64,
    /// What is paid or lost once, such as the time to set up.
    #[serde(default)]
    pub once: f64,
    /// Months over which that is spread.
    #[serde(default = "one")]
    pub months: f64,
    /// What engineers' work on faults costs each month.
    #[serde(default)]
    pub debugging: f64,
}

/// The reason why a file of offers can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The file isn't TOML of the expected form.
    #[error("it is not a file of offers: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A figure is negative or not finite, or zero where it can't be.
    #[error("`{key}` of offer \"{offer}\" is {found}: write a number {expected}")]
    Unfit {
        /// The offer.
        offer: String,
        /// The key.
        key: &'static str,
        /// The value.
        found: f64,
        /// What is expected.
        expected: &'static str,
    },
    /// There are two prices, or none.
    #[error("offer \"{0}\" has per_device_hour and owned, or neither: write one of them")]
    Price(String),
    /// There are none, or too many.
    #[error("it has {0} offers: write 1 to {OFFERS_MAX} of them, each under [[offer]]")]
    Count(usize),
}

const fn average_month() -> f64 {
    HOURS_PER_MONTH
}

const fn one() -> f64 {
    1.0
}

impl Offer {
    /// Reads a file of offers.
    ///
    /// # Errors
    /// [`OfferError`] names the place.
    pub fn read(text: &str) -> Result<Vec<Offer>, OfferError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            #[serde(default)]
            offer: Vec<Offer>,
        }
        let Written { offer: offers } = toml::from_str(text)?;
        if !(1..=OFFERS_MAX).contains(&offers.len()) {
            return Err(OfferError::Count(offers.len()));
        }
        offers.iter().try_for_each(Offer::check)?;
        Ok(offers)
    }

    fn check(&self) -> Result<(), OfferError> {
        let above_zero = [
            ("devices", self.devices),
            ("per_device_hour", self.per_device_hour.unwrap_or(1.0)),
            ("hours_per_month", self.hours_per_month),
            ("months", self.months),
        ];
        let others =
            [("monthly", self.monthly), ("support", self.support), ("once", self.once), ("debugging", self.debugging)];
        let is_positive = |(_, found): &(&str, f64)| found.is_finite() && *found > 0.0;
        let is_amount = |(_, found): &(&str, f64)| found.is_finite() && *found >= 0.0;
        let unfit = above_zero.into_iter().find(|figure| !is_positive(figure)).map(|figure| (figure, "above 0"));
        let unfit = unfit.or_else(|| others.into_iter().find(|figure| !is_amount(figure)).map(|f| (f, "not below 0")));
        if self.per_device_hour.is_some() == self.owned.is_some() {
            return Err(OfferError::Price(self.name.clone()));
        }
        if let Some((key, found, expected)) = self.owned.as_ref().and_then(Owned::unfit) {
            return Err(OfferError::Unfit { offer: self.name.clone(), key, found, expected });
        }
        let lost = Some(("lost", self.lost)).filter(|(_, lost)| !(0.0..1.0).contains(lost));
        match unfit.or(lost.map(|figure| (figure, "from 0 to 1"))) {
            None => Ok(()),
            Some(((key, found), expected)) => Err(OfferError::Unfit { offer: self.name.clone(), key, found, expected }),
        }
    }

    /// Returns what the devices cost a month.
    #[must_use]
    pub fn device_cost(&self) -> f64 {
        let per_hour = self.per_device_hour.or_else(|| self.owned.as_ref().map(Owned::per_hour)).unwrap_or(0.0);
        self.devices * per_hour * self.hours_per_month
    }

    /// Returns what a month costs in all.
    #[must_use]
    pub fn month(&self) -> f64 {
        let devices = self.device_cost();
        let paid = devices + self.monthly;
        paid * (1.0 + self.support) + devices * self.lost + self.once / self.months + self.debugging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published example of ClusterMAX (SemiAnalysis, April 2026): 4,096 devices for 36 months of 720 hours.
    #[test]
    fn the_monthly_totals_of_clustermax_are_met_to_the_dollar() {
        let offer = Offer {
            name: "gold".to_owned(),
            devices: 4_096.0,
            per_device_hour: Some(1.84),
            owned: None,
            hours_per_month: 720.0,
            monthly: 1_408.0,
            support: 0.0,
            lost: 111_349.0 / 5_426_380.8,
            once: 0.0,
            months: 36.0,
            debugging: 0.0,
        };
        let hyperscaler = Offer {
            per_device_hour: Some(2.178),
            monthly: 1_856.0 + 82.0 + 3_318.0,
            support: 0.05,
            lost: 131_804.0 / 6_423_183.36,
            once: 3_278_258.0,
            debugging: 16_667.0,
            ..offer.clone()
        };
        let silver = Offer {
            per_device_hour: Some(2.0),
            monthly: 0.0,
            lost: 202_015.0 / 5_898_240.0,
            once: 3_015_787.0,
            debugging: 16_667.0,
            ..offer.clone()
        };
        let totals = [&offer, &hyperscaler, &silver].map(|offer| offer.month().round());
        for (found, expected) in totals.into_iter().zip([5_539_138.0, 6_989_395.0, 6_200_693.0]) {
            // The published lines are rounded to a dollar each.
            assert!((found - expected).abs() <= 1.0, "{found} beside {expected}");
        }
    }

    #[test]
    fn a_file_of_offers_is_read_or_refused_with_its_place() {
        let text = "[[offer]]\nname = 'a'\ndevices = 8\nper_device_hour = 2.5\nsupport = 0.1\n";
        let offers = Offer::read(text).expect("an offer");
        assert!((offers[0].month() - 8.0 * 2.5 * 730.0 * 1.1).abs() < 1e-6);
        let refused = |text: &str| Offer::read(text).expect_err("not an offer").to_string();
        assert!(refused(&text.replace("devices = 8", "devices = 0")).starts_with("`devices` of offer \"a\" is 0"));
        assert!(refused(&text.replace("support = 0.1", "lost = 1")).contains("from 0 to 1"));
        assert!(
            refused(&text.replace("per_device_hour = 2.5", "")).contains("\"a\" has per_device_hour and owned, or")
        );
        let owned = |figures: &str| text.replace("per_device_hour = 2.5", &format!("owned = {{{figures}}}"));
        let bought = Offer::read(&owned("price = 31904.63, watts = 700")).expect("an offer");
        assert_eq!(format!("{:.2}", bought[0].device_cost() / 8.0 / 730.0), "1.55");
        assert!(refused(&owned("price = 0, watts = 700")).contains("`owned.price` of offer \"a\" is 0"));
        assert!(refused(&owned("price = 1, watts = 700, pue = 0.5")).contains("`owned.pue`"));
        assert!(refused(&text.replace("support", "suport")).contains("line 5"));
        assert_eq!(refused(""), "it has 0 offers: write 1 to 100 of them, each under [[offer]]");
    }
}
