//! `cost plan`: how many devices to reserve, and what offers cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_accounting::procurement::{Demand, Offer, Plan, Prices, Spot, reserve};
use gangline_api as api;
use serde_json::json;

use super::PeriodArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, output};

/// Largest file of hours or offers, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Shares of the hours at which the load-duration curve is printed.
const CURVE: [f64; 7] = [0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9];

/// From which demand, and at which prices.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    period: PeriodArgs,
    /// Only this kind of device
    #[arg(long, value_name = "KIND")]
    accelerator: Option<String>,
    /// Take the demand from a file instead: the devices wanted in each hour, one number a line; needs no control plane
    #[arg(long, value_name = "FILE")]
    hours: Option<PathBuf>,
    /// Price of a reserved device for an hour, in dollars
    #[arg(long, value_name = "DOLLARS", required_unless_present = "offers")]
    reserved: Option<f64>,
    /// Price of a device bought for the hour
    #[arg(long, value_name = "DOLLARS", required_unless_present = "offers")]
    on_demand: Option<f64>,
    /// What it is worth an hour not to be bound to a device
    #[arg(long, value_name = "DOLLARS", default_value_t = 0.0)]
    flexibility: f64,
    /// Price of a spot device for an hour
    #[arg(long, value_name = "DOLLARS", requires = "interruptible")]
    spot: Option<f64>,
    /// Part of spot time that interruptions waste
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    spot_wasted: f64,
    /// Part of the time in which spot devices for a whole gang can be had
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    spot_availability: f64,
    /// Part of the work that may be interrupted
    #[arg(long, value_name = "SHARE", requires = "spot")]
    interruptible: Option<f64>,
    /// Compare offers for a cluster instead, from a file (TOML)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reserved", "on_demand", "hours", "accelerator"])]
    offers: Option<PathBuf>,
}

/// The demand for a kind of device.
struct Wanted {
    kind: String,
    source: String,
    demand: Demand,
}

pub(super) fn run(global: &Global, args: &PlanArgs) -> Result<(), Failure> {
    if let Some(file) = &args.offers {
        return offers(file, global.json);
    }
    let prices = prices(args);
    let wanted = match &args.hours {
        Some(file) => vec![from_file(file)?],
        None => from_journal(&Client::connect(global)?, args)?,
    };
    let mut plans = Vec::new();
    for wanted in wanted {
        let hint = "docs/guides/cost.md says what each option means";
        let plan = reserve(&wanted.demand, prices).map_err(|error| Failure::local(error.to_string(), hint))?;
        plans.push((wanted, plan));
    }
    if global.json {
        return output::json(&plans.iter().map(|(wanted, plan)| value(wanted, plan, prices)).collect::<Vec<_>>());
    }
    let texts: Vec<String> = plans.iter().map(|(wanted, plan)| text(wanted, plan, prices)).collect();
    output::print(&texts.join("\n"))
}

fn prices(args: &PlanArgs) -> Prices {
    let spot = args.spot.map(|price| Spot { price, wasted: args.spot_wasted, availability: args.spot_availability });
    Prices {
        // Clap requires both unless offers are compared.
        reserved: args.reserved.unwrap_or(f64::NAN),
        on_demand: args.on_demand.unwrap_or(f64::NAN),
        flexibility: args.flexibility,
        spot: spot.zip(args.interruptible),
    }
}

fn from_journal(client: &Client, args: &PlanArgs) -> Result<Vec<Wanted>, Failure> {
    let found: api::CostDemand = client.get(&format!("/cost/demand?{}", args.period.query()))?;
    let is_wanted = |kind: &api::KindDemand| args.accelerator.as_ref().is_none_or(|wanted| *wanted == kind.accelerator);
    let (from, to) = (found.from, found.to);
    let kinds = found.kinds.into_iter().filter(is_wanted);
    let wanted = kinds.filter_map(|api::KindDemand { accelerator, devices, held }| {
        let source =
            format!("held from {} to {} (measured); the nodes offer {devices}", output::time(from), output::time(to));
        Some(Wanted { kind: accelerator, source, demand: Demand::of_hours(held)? })
    });
    let wanted: Vec<Wanted> = wanted.collect();
    if wanted.is_empty() {
        let hint = "choose a longer period with --from, or give hours of your own with --hours FILE";
        return Err(Failure::local("no whole hour of such devices is in the period", hint));
    }
    Ok(wanted)
}

fn from_file(file: &Path) -> Result<Wanted, Failure> {
    let name = file.display();
    let refused = |message: String| Failure::local(message, "write the devices wanted in each hour, one number a line");
    let text = read(file)?;
    let mut hours = Vec::new();
    for (line, number) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let hour: f64 =
            number.trim().parse().map_err(|_| refused(format!("{name}, line {line}: \"{number}\" is no number")))?;
        if !(hour.is_finite() && hour >= 0.0) {
            return Err(refused(format!("{name}, line {line}: {hour} devices can't be wanted")));
        }
        hours.push(hour);
    }
    let demand = Demand::of_hours(hours).ok_or_else(|| refused(format!("{name} has no hours")))?;
    Ok(Wanted { kind: "devices".to_owned(), source: format!("wanted by {name}"), demand })
}

pub(super) fn read(file: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::local(format!("{} can't be read: {error}", file.display()), "name a file of text");
    let mut text = String::new();
    let source = std::fs::File::open(file).map_err(failed)?;
    source.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn text(Wanted { kind, source, demand }: &Wanted, plan: &Plan, prices: Prices) -> String {
    let mut text =
        format!("{kind}, {} hours: {:.1} {source}; at most {:.1}\n\n", demand.hours(), demand.mean(), demand.peak());
    let rows =
        CURVE.map(|share| vec![format!("{:.0} %", share * 100.0), format!("{:.1}", demand.quantile(1.0 - share))]);
    text += &output::table(&[">OF THE HOURS", ">WANT MORE THAN"], rows.to_vec());
    let (fewest, most) = plan.as_good;
    let flexible = if prices.flexibility > 0.0 { format!(" + {}", prices.flexibility) } else { String::new() };
    let [nothing, mean, peak] = plan.others;
    // Writing to a String can't fail.
    let _ = write!(
        text,
        "\nreserve {} (from {fewest} to {most} cost at most 1 % more): ${:.2} an hour (estimated)\n\
         a device is worth its reservation if it is wanted in {:.1} % of the hours ({}{flexible} / {:.4})\n\
         nothing reserved: ${nothing:.2} an hour; the mean of {:.1}: ${mean:.2}; the most of {:.1}: ${peak:.2}\n\
         jobs would hold {:.1} % of the reserved device-hours\n",
        plan.devices,
        plan.cost,
        plan.break_even * 100.0,
        prices.reserved,
        plan.alternative,
        demand.mean(),
        demand.peak(),
        plan.busy * 100.0,
    );
    if let Some((spot, share)) = prices.spot {
        let _ = writeln!(
            text,
            "{:.0} % of the work may be interrupted: ${:.4} for a useful hour of spot devices, which are there {:.0} % of the time; they pay \
             until {:.0} % of their time is wasted",
            share * 100.0,
            spot.useful_price(),
            spot.availability * 100.0,
            Spot::most_wasted(spot.price, prices.on_demand) * 100.0,
        );
    }
    text
}

fn value(Wanted { kind, demand, .. }: &Wanted, plan: &Plan, prices: Prices) -> serde_json::Value {
    let [nothing, mean, peak] = plan.others;
    json!({
        "accelerator": kind,
        "hours": demand.hours(),
        "mean_devices": demand.mean(),
        "peak_devices": demand.peak(),
        "reserved_price": prices.reserved,
        "on_demand_price": prices.on_demand,
        "alternative_price": plan.alternative,
        "break_even": plan.break_even,
        "devices": plan.devices,
        "quantile": plan.quantile,
        "as_good": [plan.as_good.0, plan.as_good.1],
        "cost_per_hour": plan.cost,
        "cost_per_hour_with_nothing_reserved": nothing,
        "cost_per_hour_with_the_mean_reserved": mean,
        "cost_per_hour_with_the_peak_reserved": peak,
        "busy": plan.busy,
    })
}

fn offers(file: &Path, is_json: bool) -> Result<(), Failure> {
    let refused =
        |error| Failure::local(format!("{}: {error}", file.display()), "docs/guides/cost.md shows such a file");
    let mut offers = Offer::read(&read(file)?).map_err(refused)?;
    offers.sort_by(|left, right| left.month().total_cmp(&right.month()));
    let Some(least) = offers.first().map(Offer::month) else { return Ok(()) };
    let ratio = |offer: &Offer| offer.month() / least;
    if is_json {
        let value = |offer: &Offer| {
            let parts = offer.owned.map(|owned| BTreeMap::from(owned.parts()));
            let (name, month, devices) = (&offer.name, offer.month(), offer.device_cost());
            json!({ "name": name, "month": month, "devices": devices, "ratio": ratio(offer), "owned_per_device_hour": parts })
        };
        return output::json(&offers.iter().map(value).collect::<Vec<_>>());
    }
    let row = |offer: &Offer| {
        let per_hour = offer.month() / (offer.devices * offer.hours_per_month);
        vec![
            offer.name.clone(),
            format!("{:.0}", offer.device_cost()),
            format!("{:.0}", offer.month() - offer.device_cost()),
            format!("{:.0}", offer.month()),
            format!("{per_hour:.3}"),
            format!("{:.2}", ratio(offer)),
        ]
    };
    let headings = ["OFFER", ">DEVICES $", ">ALL ELSE $", ">A MONTH $", ">A DEVICE-HOUR $", ">RATIO"];
    output::print(&output::table(&headings, offers.iter().map(row).collect()))
}
