//! From when on owning, or reserving, is cheaper: as functions of rent and use, never as one number.

use super::{HOURS_OF_MONTH, Ownership};
use crate::units::Dollars;

/// Months after which rent paid would have bought the machines: price / (rent x 730 x utilisation - running costs), each for one accelerator.
/// `accelerators` share what is paid for all of them (people). None: never, because running them costs as much as renting.
#[must_use]
pub fn months_to_own(own: &Ownership, accelerators: f64, rent: Dollars, utilisation: f64) -> Option<f64> {
    let saved = rent * (accelerators * HOURS_OF_MONTH * utilisation) - own.running(accelerators);
    (saved > Dollars::ZERO).then(|| own.price * accelerators / saved)
}

/// The part of the time from which on a reservation is cheaper than paying by the hour: (reserved + flexibility) / on demand. `flexibility` is
/// what being free to leave is worth, for an hour.
#[must_use]
pub fn utilisation_to_reserve(reserved: Dollars, on_demand: Dollars, flexibility: Dollars) -> f64 {
    (reserved + flexibility) / on_demand
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rent of an accelerator and hour.
    pub rent: Dollars,
    /// Part of the time that it is used.
    pub utilisation: f64,
    /// Months until owning has paid; none: never.
    pub months: Option<f64>,
}

/// Most points of a curve.
const POINTS_MAX: usize = 10_000;

/// Months until owning pays for every pair of these rents and utilisations, rents outside; at most the first 10,000.
#[must_use]
pub fn curve(own: &Ownership, accelerators: f64, rents: &[Dollars], utilisations: &[f64]) -> Vec<Point> {
    let pairs = rents.iter().flat_map(|rent| utilisations.iter().map(|utilisation| (*rent, *utilisation)));
    let point = |(rent, utilisation)| {
        let months = months_to_own(own, accelerators, rent, utilisation);
        Point { rent, utilisation, months }
    };
    pairs.take(POINTS_MAX).map(point).collect()
}

/// A break-even that somebody states, with what they say of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stated {
    /// Price of the whole cluster.
    pub price: Dollars,
    /// Its accelerators.
    pub accelerators: f64,
    /// Rent of an accelerator and hour that it is compared with.
    pub rent: Dollars,
    /// Months that are stated.
    pub months: f64,
}

/// What would have to be so that a stated break-even is right: any one of these, the others as stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// Months that follow from price and rent alone, always in use and without running costs.
    pub months: f64,
    /// Part of the time that the cluster is used; above 1: no use explains it.
    pub utilisation: f64,
    /// Rent of an accelerator and hour.
    pub rent: Dollars,
    /// Running costs of the cluster for a month; negative: none explain it.
    pub running: Dollars,
}

impl Stated {
    /// What explains it: months = price / (accelerators x rent x 730 x utilisation - running costs), solved for each.
    #[must_use]
    pub fn explanation(&self) -> Explanation {
        let rented = self.rent * (self.accelerators * HOURS_OF_MONTH);
        let saved = self.price / self.months;
        Explanation {
            months: self.price / rented,
            utilisation: saved / rented,
            rent: saved / (self.accelerators * HOURS_OF_MONTH),
            running: rented - saved,
        }
    }
}

/// A use from which on a reservation is said to pay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatedReservation {
    /// Rent of an accelerator and hour, reserved.
    pub reserved: Dollars,
    /// The same by the hour.
    pub on_demand: Dollars,
    /// Part of the time that is stated.
    pub utilisation: f64,
}

/// What would have to be so that a stated use is right: any one of these, the others as stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReservationExplanation {
    /// The use that follows from the rents alone.
    pub utilisation: f64,
    /// What being free to leave is worth, for an accelerator and hour; negative: being bound would be.
    pub flexibility: Dollars,
    /// Rent of the reservation.
    pub reserved: Dollars,
    /// Rent by the hour.
    pub on_demand: Dollars,
}

impl StatedReservation {
    /// What explains it: utilisation = (reserved + flexibility) / on demand, solved for each.
    #[must_use]
    pub fn explanation(&self) -> ReservationExplanation {
        let pays_at = self.on_demand * self.utilisation;
        ReservationExplanation {
            utilisation: utilisation_to_reserve(self.reserved, self.on_demand, Dollars::ZERO),
            flexibility: pays_at - self.reserved,
            reserved: pays_at,
            on_demand: self.reserved / self.utilisation,
        }
    }
}
