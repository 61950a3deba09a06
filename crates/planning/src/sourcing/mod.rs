//! Where to get the accelerators: rent by the hour, reserve, bid, rent machines, own, or mix.
//!
//! The five questions: how big the model is and how it is trained (so how many accelerators a job needs, and for how long), how often
//! jobs come, for how long the money is planned, and who can run machines. [`advise`] prices every option for the demand and says what speaks
//! against it; [`break_even`] says from which rent and which use on owning pays, as a curve, because one number hides its assumptions.
//! All results are estimates from stated prices.

pub mod break_even;

use gangline_accounting::{PriceBook, Terms};

use crate::units::{Dollars, real};

/// Hours of a month: 8,760 / 12, as providers bill it.
pub const HOURS_OF_MONTH: f64 = 730.0;
/// Months that a short reservation binds for.
const MONTHS_OF_YEAR: u32 = 12;
/// Months that a long reservation binds for.
const MONTHS_OF_THREE_YEARS: u32 = 36;
/// Accelerators of a machine that is rented or bought whole.
const MACHINE: u64 = 8;
/// Shortest plan for which machines are bought: they take half a year to come and lose most of their price in two.
const MONTHS_TO_OWN: u32 = 24;
/// Part of spot time that is lost to interruptions and restarts, where jobs keep checkpoints: 30 minutes for each of 4 a day. An assumption;
/// published rates differ by region and hour.
const SPOT_LOSS: f64 = 4.0 * 0.5 / 24.0;

/// What is to be run, month after month.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Accelerators of a job: what the plan says for this model and method.
    pub accelerators: u32,
    /// Hours that a job takes.
    pub hours: f64,
    /// Jobs that come in a month.
    pub jobs_per_month: f64,
    /// Months for which the money is planned.
    pub months: u32,
    /// Who can run machines.
    pub operations: Operations,
    /// Whether jobs go on from a checkpoint after an interruption.
    pub is_interruptible: bool,
}

/// Who can run machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operations {
    /// Nobody: somebody else keeps the machines alive.
    Nobody,
    /// A few people, besides other work: an operating system and drivers, not power and spare parts.
    PartTime,
    /// A team with hands in the data centre.
    Team,
}

impl Demand {
    /// Jobs that run at the same time on average: hours x jobs / 730.
    #[must_use]
    pub fn concurrent_jobs(&self) -> f64 {
        self.hours * self.jobs_per_month / HOURS_OF_MONTH
    }

    /// Accelerator-hours in a month that jobs use.
    #[must_use]
    pub fn busy_hours(&self) -> f64 {
        f64::from(self.accelerators) * self.hours * self.jobs_per_month
    }

    /// Accelerators for as many jobs at once as there are on average, rounded up to whole jobs.
    #[must_use]
    pub fn accelerators_held(&self) -> f64 {
        f64::from(self.accelerators) * self.concurrent_jobs().ceil().max(1.0)
    }

    /// Part of the accelerators' time that jobs use, if so many are held all month.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.busy_hours() / (self.accelerators_held() * HOURS_OF_MONTH)
    }
}

/// Prices of one kind of accelerator, each for one and an hour; none where there is no such offer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rents {
    /// By the hour.
    pub on_demand: Option<Dollars>,
    /// Reserved for a year.
    pub one_year: Option<Dollars>,
    /// Reserved for three years.
    pub three_years: Option<Dollars>,
    /// Until somebody pays more.
    pub spot: Option<Dollars>,
    /// A whole machine by the month.
    pub bare_metal: Option<Dollars>,
}

impl Rents {
    /// The cheapest of each in a price book. `name` is as in the book of hardware.
    #[must_use]
    pub fn cheapest(book: &PriceBook, name: &str) -> Self {
        let price = |terms| {
            let cheapest = book.accelerator(name, terms).first().map(|price| price.per_hour);
            cheapest.map(Dollars::from_money)
        };
        Rents {
            on_demand: price(Terms::OnDemand),
            one_year: price(Terms::ReservedOneYear),
            three_years: price(Terms::ReservedThreeYears),
            spot: price(Terms::Spot),
            bare_metal: price(Terms::BareMetal),
        }
    }
}

/// What owning costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ownership {
    /// For each accelerator with its part of machine, network and installation.
    pub price: Dollars,
    /// Part of the price that is got back at the end.
    pub residual: f64,
    /// Months until then.
    pub months: f64,
    /// Power of each accelerator with its part of the machine, in kilowatts.
    pub kilowatts: f64,
    /// Room, power and cooling, for each kilowatt and month.
    pub per_kilowatt_month: Dollars,
    /// People and spare parts for all of it, for a month.
    pub per_month: Dollars,
}

impl Ownership {
    /// Running costs of so many, for a month.
    #[must_use]
    pub fn running(&self, accelerators: f64) -> Dollars {
        self.per_kilowatt_month * (self.kilowatts * accelerators) + self.per_month
    }

    /// All costs of so many for a month: the price's loss in value spread over its months, and the running costs.
    #[must_use]
    pub fn monthly(&self, accelerators: f64) -> Dollars {
        self.price * (accelerators * (1.0 - self.residual) / self.months) + self.running(accelerators)
    }
}

/// A way to get accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sourcing {
    /// By the hour, from a cloud.
    OnDemand,
    /// Reserved for a year.
    OneYear,
    /// Reserved for three years.
    ThreeYears,
    /// Spot: taken away when somebody pays more.
    Spot,
    /// Whole machines by the month.
    BareMetal,
    /// Own machines in somebody's data centre.
    Colocation,
    /// What always runs reserved (or owned, if that is cheaper), the rest by the hour.
    Hybrid,
}

/// What speaks against an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// Nobody offers it at a known price.
    #[error("there is no price for it: give one")]
    NoPrice,
    /// The plan ends before the contract does.
    #[error("it binds for {binds} months, and the plan has {planned}")]
    TooShort {
        /// Months of the contract.
        binds: u32,
        /// Months of the plan.
        planned: u32,
    },
    /// Jobs can't be interrupted.
    #[error("jobs lose their work when the machines are taken away: let them keep checkpoints first")]
    Interruptions,
    /// Nobody can run the machines.
    #[error("nobody is there to run the machines")]
    Operations,
    /// Never does a whole job run all the time.
    #[error("there is no base load: less than one job runs at any time")]
    NoBaseLoad,
}

/// An option with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// The option.
    pub sourcing: Sourcing,
    /// What a month costs; none without a price.
    pub monthly: Option<Dollars>,
    /// What speaks against it; an option without objections is possible.
    pub objections: Vec<Objection>,
}

impl Priced {
    /// Whether nothing speaks against it.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.objections.is_empty()
    }
}

/// Why there is no advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A quantity is nothing or absurd.
    #[error("`{field}` must be more than 0 and at most {most}")]
    Absurd {
        /// The quantity.
        field: &'static str,
        /// The most that is taken.
        most: u32,
    },
}

/// Most of anything in a demand.
const DEMAND_MAX: u32 = 1_000_000;

/// Prices every option for a demand: the possible ones first, cheapest first; then the others, each with what speaks against it.
///
/// # Errors
/// [`DemandError`] if a quantity is nothing or absurd.
pub fn advise(demand: &Demand, rents: &Rents, own: Option<&Ownership>) -> Result<Vec<Priced>, DemandError> {
    let most = f64::from(DEMAND_MAX);
    let quantities = [
        ("accelerators", f64::from(demand.accelerators)),
        ("hours", demand.hours),
        ("jobs_per_month", demand.jobs_per_month),
        ("months", f64::from(demand.months)),
    ];
    let absurd = quantities.into_iter().find(|(_, amount)| !(*amount > 0.0 && *amount <= most));
    if let Some((field, _)) = absurd {
        return Err(DemandError::Absurd { field, most: DEMAND_MAX });
    }
    let mut options = vec![
        by_the_hour(demand, rents),
        reserved(demand, Sourcing::OneYear, rents.one_year, MONTHS_OF_YEAR),
        reserved(demand, Sourcing::ThreeYears, rents.three_years, MONTHS_OF_THREE_YEARS),
        spot(demand, rents),
        bare_metal(demand, rents),
        colocation(demand, own),
        hybrid(demand, rents, own),
    ];
    let cost = |option: &Priced| option.monthly.map_or(f64::INFINITY, Dollars::get);
    options.sort_by(|left, right| {
        let possible = right.is_possible().cmp(&left.is_possible());
        possible.then(cost(left).total_cmp(&cost(right))).then(left.sourcing.cmp(&right.sourcing))
    });
    Ok(options)
}

/// The option at this cost, with the objections that hold.
fn priced(sourcing: Sourcing, monthly: Option<Dollars>, objections: &[(bool, Objection)]) -> Priced {
    let held = objections.iter().filter(|(holds, _)| *holds).map(|(_, objection)| *objection);
    let unpriced = monthly.is_none().then_some(Objection::NoPrice);
    Priced { sourcing, monthly, objections: unpriced.into_iter().chain(held).collect() }
}

/// Only the hours that jobs use are paid.
fn by_the_hour(demand: &Demand, rents: &Rents) -> Priced {
    priced(Sourcing::OnDemand, rents.on_demand.map(|rent| rent * demand.busy_hours()), &[])
}

/// All hours are paid, used or not.
fn reserved(demand: &Demand, sourcing: Sourcing, rent: Option<Dollars>, binds: u32) -> Priced {
    let monthly = rent.map(|rent| rent * (demand.accelerators_held() * HOURS_OF_MONTH));
    let planned = demand.months;
    priced(sourcing, monthly, &[(planned < binds, Objection::TooShort { binds, planned })])
}

/// The hours that jobs use, and those that interruptions cost.
fn spot(demand: &Demand, rents: &Rents) -> Priced {
    let monthly = rents.spot.map(|rent| rent * (demand.busy_hours() / (1.0 - SPOT_LOSS)));
    priced(Sourcing::Spot, monthly, &[(!demand.is_interruptible, Objection::Interruptions)])
}

/// Whole machines, all hours.
fn bare_metal(demand: &Demand, rents: &Rents) -> Priced {
    let machines = (demand.accelerators_held() / real(MACHINE)).ceil();
    let monthly = rents.bare_metal.map(|rent| rent * (machines * real(MACHINE) * HOURS_OF_MONTH));
    priced(Sourcing::BareMetal, monthly, &[(demand.operations == Operations::Nobody, Objection::Operations)])
}

fn colocation(demand: &Demand, own: Option<&Ownership>) -> Priced {
    let machines = (demand.accelerators_held() / real(MACHINE)).ceil();
    let monthly = own.map(|own| own.monthly(machines * real(MACHINE)));
    let (binds, planned) = (MONTHS_TO_OWN, demand.months);
    let objections = [
        (planned < binds, Objection::TooShort { binds, planned }),
        (demand.operations != Operations::Team, Objection::Operations),
    ];
    priced(Sourcing::Colocation, monthly, &objections)
}

/// As many jobs as always run on what is held, at the cheapest price that this demand allows; the rest by the hour.
fn hybrid(demand: &Demand, rents: &Rents, own: Option<&Ownership>) -> Priced {
    let base = demand.concurrent_jobs().floor() * f64::from(demand.accelerators);
    let held = |rent: Dollars| rent * (base * HOURS_OF_MONTH);
    let one_year = rents.one_year.filter(|_| demand.months >= MONTHS_OF_YEAR).map(held);
    let three_years = rents.three_years.filter(|_| demand.months >= MONTHS_OF_THREE_YEARS).map(held);
    let can_own = demand.operations == Operations::Team && demand.months >= MONTHS_TO_OWN;
    let owned = own.filter(|_| can_own).map(|own| own.monthly(base));
    let cheapest = [one_year, three_years, owned].into_iter().flatten().reduce(Dollars::min);
    let rest = demand.busy_hours() - base * HOURS_OF_MONTH;
    let monthly = cheapest.zip(rents.on_demand).map(|(held, rent)| held + rent * rest);
    priced(Sourcing::Hybrid, monthly, &[(base < 1.0, Objection::NoBaseLoad)])
}

#[cfg(test)]
mod tests;
