//! How many devices to reserve under uncertain demand: the newsvendor problem (Arrow, Harris and Marschak, Econometrica
//! 19(3), 1951) on the hourly load-duration curve.
//!
//! A reserved device costs its price in every hour, and what is wanted beyond the reserved ones is bought on demand. The
//! cheapest number `q` is the quantile `F⁻¹(1 - reserved / on demand)` of the hourly demand: one more device is worth its
//! price while it is wanted in at least `reserved / on demand` of the hours. The mean utilisation says less.

use super::demand::Demand;
use super::spot::Spot;

/// How far from the cheapest cost a number of devices may be to count as good as the best.
const AS_GOOD: f64 = 0.01;

/// Prices of a device for an hour, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Of a reserved device, held or not.
    pub reserved: f64,
    /// Of a device bought for the hour.
    pub on_demand: f64,
    /// What it is worth an hour not to be bound: added to the reserved price in the decision, and not to its cost.
    pub flexibility: f64,
    /// Interruptible devices, for the part of the work that can be interrupted.
    pub spot: Option<(Spot, f64)>,
}

/// The reason why prices can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PricesError {
    /// A price is negative, zero or not finite.
    #[error("the {which} price is {found}: write dollars for an hour above 0")]
    Unfit {
        /// Which price.
        which: &'static str,
        /// Its value.
        found: f64,
    },
    /// A share is not between 0 and 1.
    #[error("the {which} is {found}: write a share between 0 and 1")]
    NoShare {
        /// Which share.
        which: &'static str,
        /// Its value.
        found: f64,
    },
}

/// How many devices to reserve, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The share of hours in which a device must be wanted to be worth its reservation.
    pub break_even: f64,
    /// The number of devices that costs least.
    pub devices: u32,
    /// The quantile of the demand of which it is the whole number.
    pub quantile: f64,
    /// The fewest and the most devices whose cost is within 1 % of the least: the optimum is flat.
    pub as_good: (u32, u32),
    /// What an hour costs at the best number, in dollars.
    pub cost: f64,
    /// What it costs with nothing reserved, with the mean reserved, and with the peak reserved.
    pub others: [f64; 3],
    /// The share of the reserved device-hours in which jobs held them.
    pub busy: f64,
    /// The price that reserved devices were weighed against: of devices on demand, less where a part of the work runs on
    /// spot devices.
    pub alternative: f64,
}

impl Prices {
    /// Returns the mean price of a device-hour that isn't reserved.
    #[must_use]
    pub fn alternative(&self) -> f64 {
        self.spot.map_or(self.on_demand, |(spot, share)| {
            share * spot.price_for_interruptible(self.on_demand) + (1.0 - share) * self.on_demand
        })
    }

    fn check(&self) -> Result<(), PricesError> {
        let spot = self.spot.map(|(spot, _)| ("spot", spot.price));
        let prices = [("reserved", self.reserved), ("on-demand", self.on_demand)];
        for (which, found) in prices.into_iter().chain(spot) {
            if !(found.is_finite() && found > 0.0) {
                return Err(PricesError::Unfit { which, found });
            }
        }
        if !(self.flexibility.is_finite() && self.flexibility >= 0.0) {
            return Err(PricesError::Unfit { which: "flexibility", found: self.flexibility });
        }
        let Some((spot, share)) = self.spot else { return Ok(()) };
        let shares = [("interruptible share", share), ("availability of spot devices", spot.availability)];
        for (which, found) in shares {
            if !(0.0..=1.0).contains(&found) {
                return Err(PricesError::NoShare { which, found });
            }
        }
        if !(0.0..1.0).contains(&spot.wasted) {
            return Err(PricesError::NoShare { which: "part of spot time that is lost", found: spot.wasted });
        }
        Ok(())
    }
}

/// Returns how many devices to reserve.
///
/// # Errors
/// [`PricesError`] names the price or share.
pub fn reserve(demand: &Demand, prices: Prices) -> Result<Plan, PricesError> {
    prices.check()?;
    let alternative = prices.alternative();
    let break_even = (prices.reserved + prices.flexibility) / alternative;
    let cost = |devices: f64| prices.reserved * devices + alternative * demand.beyond(devices);
    let is_worth_it = |devices: u32| demand.share_of_hours_with(f64::from(devices)) >= break_even;
    let peak = whole(demand.peak());
    // Whether a device is worth its reservation never changes back with their number.
    let devices = partition(0, peak, |devices| is_worth_it(devices + 1));
    let least = cost(f64::from(devices));
    let is_good = |devices: u32| cost(f64::from(devices)) <= least * (1.0 + AS_GOOD);
    let fewest = partition(0, devices, |fewer| !is_good(fewer));
    let most = partition(devices, peak.max(devices), |more| is_good(more + 1));
    let reserved = f64::from(devices);
    let busy = if devices == 0 { 0.0 } else { (demand.mean() - demand.beyond(reserved)) / reserved };
    Ok(Plan {
        break_even,
        devices,
        quantile: if break_even >= 1.0 { 0.0 } else { demand.quantile(1.0 - break_even) },
        as_good: (fewest, most),
        cost: least,
        others: [cost(0.0), cost(demand.mean()), cost(demand.peak())],
        busy,
        alternative,
    })
}

/// Returns the first number from `low` on for which `goes_on` doesn't hold, `high` at most.
fn partition(mut low: u32, mut high: u32, goes_on: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = low + (high - low) / 2;
        if goes_on(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of devices")]
fn whole(devices: f64) -> u32 {
    devices.ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns hours whose demand is distributed normally: the quantiles of as many equal parts, by Acklam's rational
    /// approximation of the normal quantile (relative error below 1.2e-9).
    fn normal(mean: f64, deviation: f64) -> Demand {
        let parts = 200_000;
        let hours =
            (0..parts).map(|part| (mean + deviation * quantile((f64::from(part) + 0.5) / f64::from(parts))).max(0.0));
        Demand::of_hours(hours.collect()).expect("there are hours")
    }

    fn polynomial(coefficients: &[f64], x: f64) -> f64 {
        coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
    }

    fn quantile(p: f64) -> f64 {
        let a = [
            -39.696_830_286_653_76,
            220.946_098_424_520_5,
            -275.928_510_446_968_7,
            138.357_751_867_269,
            -30.664_798_066_147_16,
            2.506_628_277_459_239,
        ];
        let b = [
            -54.476_098_798_224_06,
            161.585_836_858_040_9,
            -155.698_979_859_886_6,
            66.801_311_887_719_72,
            -13.280_681_552_885_72,
            1.0,
        ];
        let c = [
            -0.007_784_894_002_430_293,
            -0.322_396_458_041_136_5,
            -2.400_758_277_161_838,
            -2.549_732_539_343_734,
            4.374_664_141_464_968,
            2.938_163_982_698_783,
        ];
        let d = [0.007_784_695_709_041_462, 0.322_467_129_070_039_8, 2.445_134_137_142_996, 3.754_408_661_907_416, 1.0];
        let tail = |p: f64| {
            let q = (-2.0 * p.ln()).sqrt();
            polynomial(&c, q) / polynomial(&d, q)
        };
        if p < 0.024_25 {
            tail(p)
        } else if p > 1.0 - 0.024_25 {
            -tail(1.0 - p)
        } else {
            let q = p - 0.5;
            polynomial(&a, q * q) * q / polynomial(&b, q * q)
        }
    }

    fn prices(reserved: f64, on_demand: f64) -> Prices {
        Prices { reserved, on_demand, flexibility: 0.0, spot: None }
    }

    /// Mean 64, deviations 19.2 and 32, at 1.80 and 3.00 dollars: worked figures of the project's reference on costs, by the
    /// closed form `r q + o s (phi(z) - z (1 - Phi(z)))`.
    #[test]
    fn normal_demand_gives_the_published_numbers() {
        let plan = reserve(&normal(64.0, 19.2), prices(1.8, 3.0)).expect("good prices");
        assert!((plan.quantile - 59.1).abs() < 0.05, "{plan:?}");
        assert_eq!(plan.devices, 59);
        assert!((plan.cost - 137.45).abs() < 0.01, "{plan:?}");
        assert!((plan.others[0] - 192.0).abs() < 0.05 && (plan.others[1] - 138.18).abs() < 0.01, "{plan:?}");
        // The published 90.7 % are of 59.136 devices.
        assert!((plan.busy - 0.907).abs() < 0.0015, "{plan:?}");
        assert!(plan.as_good.0 < 59 && plan.as_good.1 > 59, "{plan:?}");
        let wide = reserve(&normal(64.0, 32.0), prices(1.8, 3.0)).expect("good prices");
        assert!((wide.quantile - 55.9).abs() < 0.05, "{wide:?}");
        // The closed form lets demand be negative; here it is not, which costs 0.12 more on demand.
        assert!((wide.cost - 152.29).abs() < 0.5, "{wide:?}");
    }

    /// Tries every number of devices on a demand that isn't smooth.
    #[test]
    fn no_other_number_of_devices_is_cheaper() {
        let hours: Vec<f64> = (0..720_u32).map(|hour| f64::from(hour * 7 % 24) * f64::from(1 + hour % 3)).collect();
        let demand = Demand::of_hours(hours).expect("there are hours");
        for reserved in [0.1, 0.5, 0.9, 1.3, 2.9, 3.0, 3.5] {
            let plan = reserve(&demand, prices(reserved, 3.0)).expect("good prices");
            let cost = |devices: u32| reserved * f64::from(devices) + 3.0 * demand.beyond(f64::from(devices));
            let least = (0..80).map(cost).fold(f64::INFINITY, f64::min);
            assert!((plan.cost - least).abs() < 1e-9, "{reserved}: {plan:?}");
            let good: Vec<u32> = (0..80).filter(|devices| cost(*devices) <= least * 1.01).collect();
            assert_eq!((good.first(), good.last()), (Some(&plan.as_good.0), Some(&plan.as_good.1)), "{reserved}");
        }
    }

    /// Break-even utilisation is the ratio of the prices: published discounts of Google Cloud and AWS.
    #[test]
    fn break_even_is_the_ratio_of_the_prices() {
        let steady = Demand::of_hours(vec![8.0; 24]).expect("there are hours");
        let of = |reserved, on_demand| reserve(&steady, prices(reserved, on_demand)).expect("good prices").break_even;
        assert!((of(61.38, 88.49) - 0.694).abs() < 0.0005 && (of(38.86, 88.49) - 0.439).abs() < 0.0005);
        assert!((of(3.00, 5.12) - 0.585).abs() < 0.001 && (of(1.81, 5.12) - 0.354).abs() < 0.001);
        // A figure of 75 % at 1.80 and 3.00 holds only if not being bound is worth 0.45 an hour.
        let flexible = Prices { flexibility: 0.45, ..prices(1.8, 3.0) };
        assert!((reserve(&steady, flexible).expect("good prices").break_even - 0.75).abs() < 1e-9);
        assert!((of(1.8, 3.0) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn spot_devices_make_reservations_worth_less() {
        let spot = Spot { price: 1.0, wasted: 0.2, availability: 0.5 };
        let with = Prices { spot: Some((spot, 0.5)), ..prices(1.8, 3.0) };
        // Half of the work at half spot: 0.5 (0.5 x 1.25 + 0.5 x 3) + 0.5 x 3.
        assert!((with.alternative() - 2.5625).abs() < 1e-12);
        let useless = Spot { availability: 0.0, ..spot };
        assert!((Prices { spot: Some((useless, 1.0)), ..with }.alternative() - 3.0).abs() < 1e-12);
    }

    #[test]
    fn bad_prices_are_refused_by_name() {
        let steady = Demand::of_hours(vec![8.0; 24]).expect("there are hours");
        let refused = |prices| reserve(&steady, prices).expect_err("a bad price").to_string();
        assert!(refused(prices(0.0, 3.0)).starts_with("the reserved price is 0"));
        assert!(refused(prices(1.0, f64::NAN)).starts_with("the on-demand price is NaN"));
        let spot = Spot { price: 1.0, wasted: 1.0, availability: 0.5 };
        assert!(
            refused(Prices { spot: Some((spot, 0.5)), ..prices(1.8, 3.0) })
                .contains("part of spot time that is lost is 1")
        );
        assert!(Demand::of_hours(Vec::new()).is_none() && Demand::of_hours(vec![1.0, f64::NAN]).is_none());
    }
}
