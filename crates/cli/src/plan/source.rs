//! `gangline plan source`: asks five questions, and compares the cost of every way of getting accelerators,
//! with break-evens.

mod explain;

use clap::{Args, ValueEnum};
use gangline_accounting::{AcceleratorPrice, PriceBook, Terms};
use gangline_base::Money;
use gangline_planning::hardware::Accelerator;
use gangline_planning::plan::{Plan, make};
use gangline_planning::sourcing::break_even::{curve, utilisation_to_reserve};
use gangline_planning::sourcing::{Demand, HOURS_OF_MONTH, Operations, Ownership, Priced, Rents, Sourcing, advise};
use gangline_planning::units::{Dollars, GIBIBYTE};
use serde_json::json;

use super::books::wrong;
use super::refused;
use super::request::{RunArgs, dollars};
use super::show::class;
use crate::failure::Failure;
use crate::output;

/// Rents of the break-even curve, as fractions of the known rent.
const RENT_PARTS: [f64; 5] = [0.25, 0.5, 0.75, 1.0, 1.5];
/// Utilisations of the curve.
const UTILISATIONS: [f64; 5] = [0.3, 0.5, 0.7, 0.85, 1.0];
/// Nobody keeps machines for more months than this.
const MONTHS_MAX: f64 = 120.0;
/// Power of a machine relative to its accelerators': a DGX H100 takes up to 10.2 kW, its eight H100 5.6
/// (NVIDIA's data sheets).
const MACHINE_POWER: f64 = 1.8;
/// The accelerator with a known price including its share of machine, network and installation: $2.5M for 64.
const PRICED: &str = "H100-SXM5";
const PRICE: f64 = 39_000.0;
/// Printed where there is no break-even.
const NOT_PRICED: &str =
    "Owning isn't priced: give what one costs, with its part of machine, network and installation, with --own-price.\n";
/// Seconds in an hour, the unit of planning.
const HOUR_SECONDS: f64 = 3_600.0;
/// Value of the freedom to leave, in dollars an hour: it makes a published break-even of 75 % right for $1.80
/// against $3.00.
const FLEXIBILITY: f64 = 0.45;

#[derive(Args, Debug)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    run: RunArgs,
    /// How many such runs come in a month [default: one, or one after the other if they take longer]
    #[arg(long, value_name = "N")]
    jobs_per_month: Option<f64>,
    /// For how many months the money is planned
    #[arg(long, value_name = "MONTHS", default_value = "12")]
    months: u32,
    /// Who can run machines
    #[arg(long, value_enum, default_value = "nobody")]
    operations: Hands,
    /// Jobs can't go on from a checkpoint
    #[arg(long)]
    uninterruptible: bool,
    /// To own: the price of an accelerator with its part of machine, network and installation [default: 39000 for an H100 SXM, as
    /// $2.5M for 64; without one for others, owning isn't priced]
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    own_price: Option<Money>,
    /// To own: the part of that price that is got back at the end
    #[arg(long, value_name = "PART", default_value = "0.2")]
    own_residual: f64,
    /// To own: months until then
    #[arg(long, value_name = "MONTHS", default_value = "48")]
    own_months: u32,
    /// To own: power of an accelerator with its part of the machine [default: 1.8 times what the accelerator takes, as in a DGX H100]
    #[arg(long, value_name = "KW")]
    own_kilowatts: Option<f64>,
    /// To own: room, power and cooling of a kilowatt for a month
    #[arg(long, value_name = "DOLLARS", value_parser = dollars, default_value = "200")]
    own_per_kilowatt: Money,
    /// To own: people and spare parts of an accelerator for a month
    #[arg(long, value_name = "DOLLARS", value_parser = dollars, default_value = "235")]
    own_people: Money,
    /// Somebody's break-even to be explained: price=2.5e6,accelerators=64,rent=12.25,months=18, or
    /// reserved=1.80,hourly=3,use=0.75 (rents for an accelerator and hour)
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = explain::stated)]
    explain: Option<explain::Claim>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Hands {
    /// Nobody
    Nobody,
    /// A few people besides other work
    PartTime,
    /// A team with hands in the data centre
    Team,
}

impl SourceArgs {
    fn demand(&self, plan: &Plan) -> Demand {
        let hours = plan.run.expected_seconds / HOUR_SECONDS;
        Demand {
            accelerators: plan.cluster.accelerators,
            hours,
            jobs_per_month: self.jobs_per_month.unwrap_or((HOURS_OF_MONTH / hours).min(1.0)),
            months: self.months,
            operations: match self.operations {
                Hands::Nobody => Operations::Nobody,
                Hands::PartTime => Operations::PartTime,
                Hands::Team => Operations::Team,
            },
            is_interruptible: !self.uninterruptible,
        }
    }

    /// Returns the cost of owning this many; none where no price is known.
    fn ownership(&self, accelerator: &Accelerator, held: f64) -> Result<Option<Ownership>, Failure> {
        let kilowatts = self.own_kilowatts.unwrap_or(accelerator.watts * MACHINE_POWER / 1e3);
        if !((0.0..1.0).contains(&self.own_residual) && kilowatts >= 0.0 && self.own_months > 0) {
            let message = "failed to plan: --own-residual is a part from 0 to 1, and --own-kilowatts and --own-months are above 0";
            return Err(Failure::coded("G0601", message, ""));
        }
        let known = accelerator.name.starts_with(PRICED).then_some(Dollars::new(PRICE));
        let price = self.own_price.map(Dollars::from_money).or(known);
        Ok(price.map(|price| Ownership {
            price,
            residual: self.own_residual,
            months: f64::from(self.own_months),
            kilowatts,
            per_kilowatt_month: Dollars::from_money(self.own_per_kilowatt),
            per_month: Dollars::from_money(self.own_people) * held,
        }))
    }
}

pub(crate) fn run(args: &SourceArgs, is_json: bool) -> Result<(), Failure> {
    let request = args.run.request()?;
    let plan = make(&request).map_err(|error| refused(&error))?;
    let demand = args.demand(&plan);
    let own = args.ownership(&request.cluster.accelerator, demand.accelerators_held())?;
    let book = args.run.books().prices()?;
    let rents = rents(&book, &plan);
    let options = advise(&demand, &rents, own.as_ref()).map_err(|error| wrong(&error))?;
    if is_json {
        return output::json(&as_json(&plan, &demand, &options));
    }
    let mut text = questions(&plan, args, &demand);
    text += &table(&options);
    text += &own.map_or(NOT_PRICED.to_owned(), |own| break_even(&demand, &rents, &own));
    text += &reserving(&book, &plan.cluster.accelerator);
    text += &args.explain.map(|claim| claim.explained()).unwrap_or_default();
    output::print(&text)
}

/// Returns the book's prices, and the hourly one that the plan assumes.
fn rents(book: &PriceBook, plan: &Plan) -> Rents {
    let given = plan.cost.as_ref().map(|cost| Dollars::from_money(cost.hourly_nano_dollars));
    let known = Rents::cheapest(book, &plan.cluster.accelerator);
    Rents { on_demand: given.or(known.on_demand), ..known }
}

fn questions(plan: &Plan, args: &SourceArgs, demand: &Demand) -> String {
    let hands = match args.operations {
        Hands::Nobody => "nobody runs machines here",
        Hands::PartTime => "a few people run machines besides other work",
        Hands::Team => "a team runs machines, with hands in the data centre",
    };
    format!(
        "Where to get {} x {} for {} of {}; every figure is estimated\n\n\
         1 model size   {} parameters: {:.1} of {:.1} GiB on the fullest accelerator\n\
         2 method       {}: {}\n\
         3 jobs         {:.1} h each, {} a month: {:.2} at once, {:.0} % of what would be held is used\n\
         4 horizon      {} months\n\
         5 operations   {hands}\n\n",
        plan.cluster.accelerators,
        plan.cluster.accelerator,
        plan.workload.task,
        plan.model.name,
        super::show::grouped(plan.model.parameters),
        plan.memory.iter().map(|stage| stage.occupied_bytes).fold(0.0, f64::max) / GIBIBYTE,
        plan.cluster.memory_bytes / GIBIBYTE,
        class(plan.class),
        plan.class_reason,
        demand.hours,
        demand.jobs_per_month,
        demand.concurrent_jobs(),
        demand.utilisation() * 100.0,
        demand.months,
    )
}

fn table(options: &[Priced]) -> String {
    let row = |(at, option): (usize, &Priced)| {
        let against: Vec<String> = option.objections.iter().map(ToString::to_string).collect();
        let is_taken = at == 0 && option.is_possible();
        vec![
            if is_taken { "*".to_owned() } else { String::new() },
            name(option.sourcing).to_owned(),
            option.monthly.map_or("unknown".to_owned(), |monthly| format!("${:.0}", monthly.get())),
            if against.is_empty() { "possible".to_owned() } else { against.join("; ") },
        ]
    };
    let rows = options.iter().enumerate().map(row).collect();
    output::table(&["", "WAY", ">A MONTH", "WHAT SPEAKS AGAINST IT"], rows) + "\n"
}

const fn name(sourcing: Sourcing) -> &'static str {
    match sourcing {
        Sourcing::OnDemand => "cloud, by the hour",
        Sourcing::OneYear => "cloud, reserved for a year",
        Sourcing::ThreeYears => "cloud, reserved for three years",
        Sourcing::Spot => "cloud, spot",
        Sourcing::BareMetal => "bare metal by the month",
        Sourcing::Colocation => "own machines in colocation",
        Sourcing::Hybrid => "hybrid: base held, rest by the hour",
    }
}

/// Formats the months until owning pays off, by rent and utilisation.
fn break_even(demand: &Demand, rents: &Rents, own: &Ownership) -> String {
    let Some(known) = rents.on_demand else { return String::new() };
    let held = demand.accelerators_held();
    let rents: Vec<Dollars> = RENT_PARTS.iter().map(|part| known * *part).collect();
    let points = curve(own, held, &rents, &UTILISATIONS);
    let rows = points.chunks(UTILISATIONS.len()).map(|row| {
        let rent = row.first().map_or(String::new(), |point| format!("${:.2}", point.rent.get()));
        let months = row.iter().map(|point| point.months.map_or("never".to_owned(), months));
        std::iter::once(rent).chain(months).collect()
    });
    let headings: Vec<String> = UTILISATIONS.iter().map(|part| format!(">{:.0} % USED", part * 100.0)).collect();
    let headings: Vec<&str> = std::iter::once(">RENT AN HOUR").chain(headings.iter().map(String::as_str)).collect();
    format!(
        "Months until {held:.0} own accelerators have paid, at ${:.0} each and ${:.0} a month to run them all:\n{}\n",
        own.price.get(),
        own.running(held).get(),
        output::table(&headings, rows.collect())
    )
}

/// Formats months until something pays off; machines don't last for ever.
fn months(months: f64) -> String {
    if months > MONTHS_MAX { format!("over {MONTHS_MAX:.0}") } else { format!("{months:.1}") }
}

/// Formats the utilisation from which a reservation is cheaper than the same provider's hourly price.
fn reserving(book: &PriceBook, accelerator: &str) -> String {
    let hourly = book.accelerator(accelerator, Terms::OnDemand);
    let terms = [("a year", Terms::ReservedOneYear), ("three years", Terms::ReservedThreeYears)];
    let mut told = String::new();
    for (words, terms) in terms {
        for reserved in book.accelerator(accelerator, terms) {
            let same = hourly.iter().find(|price| price.provider == reserved.provider);
            told += &same.map_or(String::new(), |hourly| reservation(words, reserved, hourly));
        }
    }
    told
}

fn reservation(words: &str, reserved: &AcceleratorPrice, hourly: &AcceleratorPrice) -> String {
    let [rent, on_demand] = [reserved, hourly].map(|price| Dollars::from_money(price.per_hour));
    let pays = |flexibility: f64| {
        let part = utilisation_to_reserve(rent, on_demand, Dollars::new(flexibility));
        if part > 1.0 { "never pays".to_owned() } else { format!("pays from {:.0} % use on", part * 100.0) }
    };
    format!(
        "Reserving for {words} with {} (${:.2} against ${:.2} by the hour) {}; if being free to leave is worth ${FLEXIBILITY} an hour, it {}.\n",
        reserved.provider,
        rent.get(),
        on_demand.get(),
        pays(0.0),
        pays(FLEXIBILITY)
    )
}

fn as_json(plan: &Plan, demand: &Demand, options: &[Priced]) -> serde_json::Value {
    let told: Vec<_> = options
        .iter()
        .map(|option| {
            let against: Vec<String> = option.objections.iter().map(ToString::to_string).collect();
            json!({
                "way": name(option.sourcing),
                "monthly_dollars": option.monthly.map(Dollars::get),
                "objections": against,
            })
        })
        .collect();
    json!({
        "plan": plan,
        "hours_of_a_job": demand.hours,
        "jobs_per_month": demand.jobs_per_month,
        "concurrent_jobs": demand.concurrent_jobs(),
        "utilisation": demand.utilisation(),
        "months": demand.months,
        "options": told,
    })
}
