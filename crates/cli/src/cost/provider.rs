//! Reads the rows of a provider's bill: FOCUS, or AWS's Cost and Usage Report in either spelling of its columns.

use std::fs::File;
use std::path::Path;

use csv::{Reader, StringRecord};
use gangline_accounting::reconcile::{Charge, ChargeKind, Quantity, Reconciler};
use gangline_api::Time;
use gangline_base::Timestamp;

use crate::failure::Failure;

/// Nano-dollars of a dollar.
const NANO: f64 = 1e9;
/// The largest cost of a row that isn't surely a mistake, in dollars.
const COST_MAX: f64 = 1e12;

/// Which cost of a FOCUS row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum CostColumn {
    /// What is invoiced
    Billed,
    /// With purchases spread over what they cover
    Effective,
}

/// US dollars for a unit of another currency.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    currency: String,
    dollars: f64,
}

/// Parses `EUR=1.08`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let expected = || format!("\"{text}\" is not of the form CURRENCY=DOLLARS such as EUR=1.08");
    let (currency, dollars) = text.split_once('=').ok_or_else(expected)?;
    let dollars: f64 = dollars.parse().map_err(|_| expected())?;
    if currency.len() != 3 || !dollars.is_finite() || dollars <= 0.0 {
        return Err(expected());
    }
    Ok(Rate { currency: currency.to_uppercase(), dollars })
}

/// The columns that are read, each by its names in FOCUS, in AWS's CUR and in CUR 2.0.
struct Columns {
    from: usize,
    to: usize,
    cost: usize,
    currency: usize,
    resource: usize,
    resource_name: Option<usize>,
    sku: Option<usize>,
    description: Option<usize>,
    service: Option<usize>,
    category: Option<usize>,
    service_category: Option<usize>,
    class: Option<usize>,
    quantity: Option<usize>,
    unit: Option<usize>,
}

impl Columns {
    fn of(header: &StringRecord, cost: CostColumn, path: &Path) -> Result<Columns, Failure> {
        let find = |names: &[&str]| names.iter().find_map(|name| header.iter().position(|column| column == *name));
        let need = |names: &[&str]| {
            find(names).ok_or_else(|| {
                let message = format!("{}: line 1: there is no column {}", path.display(), names.join(" or "));
                Failure::local(
                    message,
                    "export the bill as FOCUS (1.0 or later) or as an AWS Cost and Usage Report, in CSV",
                )
            })
        };
        let costs = match cost {
            CostColumn::Billed => ["BilledCost", "lineItem/UnblendedCost", "line_item_unblended_cost"],
            CostColumn::Effective => ["EffectiveCost", "lineItem/NetUnblendedCost", "line_item_net_unblended_cost"],
        };
        Ok(Columns {
            from: need(&["ChargePeriodStart", "lineItem/UsageStartDate", "line_item_usage_start_date"])?,
            to: need(&["ChargePeriodEnd", "lineItem/UsageEndDate", "line_item_usage_end_date"])?,
            cost: need(&costs)?,
            currency: need(&["BillingCurrency", "lineItem/CurrencyCode", "line_item_currency_code"])?,
            resource: need(&["ResourceId", "lineItem/ResourceId", "line_item_resource_id"])?,
            resource_name: find(&["ResourceName"]),
            sku: find(&["SkuId", "lineItem/UsageType", "line_item_usage_type"]),
            description: find(&[
                "ChargeDescription",
                "lineItem/LineItemDescription",
                "line_item_line_item_description",
            ]),
            service: find(&["ServiceName", "lineItem/ProductCode", "line_item_product_code"]),
            category: find(&["ChargeCategory", "lineItem/LineItemType", "line_item_line_item_type"]),
            service_category: find(&["ServiceCategory"]),
            class: find(&["ChargeClass"]),
            quantity: find(&["ConsumedQuantity", "lineItem/UsageAmount", "line_item_usage_amount"]),
            unit: find(&["ConsumedUnit", "pricing/unit", "pricing_unit"]),
        })
    }
}

/// Reads a bill; returns its rows' number.
pub(super) fn read(
    path: &Path,
    (cost, rates): (CostColumn, &[Rate]),
    reconciler: &mut Reconciler,
) -> Result<u64, Failure> {
    let refused = |line: u64, message: String| {
        Failure::local(
            format!("{}: line {line}: {message}", path.display()),
            "nothing was compared: mend the file first",
        )
    };
    let unreadable = |error: &csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        refused(line, format!("it can't be read: {error}"))
    };
    let file = File::open(path)
        .map_err(|error| Failure::local(format!("{} can't be read: {error}", path.display()), "name a bill in CSV"))?;
    let mut reader = Reader::from_reader(std::io::BufReader::with_capacity(1 << 20, file));
    let columns = Columns::of(reader.headers().map_err(|error| unreadable(&error))?, cost, path)?;
    let (mut row, mut rows) = (StringRecord::new(), 0);
    let mut times = Times::default();
    while reader.read_record(&mut row).map_err(|error| unreadable(&error))? {
        let line = row.position().map_or(0, csv::Position::line);
        let charge = charge(&row, &columns, rates, &mut times).map_err(|message| refused(line, message))?;
        reconciler.add(&Charge { line, ..charge });
        rows += 1;
    }
    Ok(rows)
}

/// The last times that were read: neighbouring rows have the same ones.
#[derive(Default)]
struct Times([Option<(String, Timestamp)>; 2]);

impl Times {
    fn read(&mut self, place: usize, text: &str) -> Result<Timestamp, String> {
        let last = &mut self.0[place];
        if let Some((known, at)) = last
            && known == text
        {
            return Ok(*at);
        }
        let at = time(text).ok_or_else(|| format!("\"{text}\" is not a time such as 2026-11-01T00:00:00Z"))?;
        *last = Some((text.to_owned(), at));
        Ok(at)
    }
}

/// Reads a time; one without a zone is in UTC, as AWS's reports have it.
fn time(text: &str) -> Option<Timestamp> {
    let civil = || text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let at = text.parse::<jiff::Timestamp>().ok().or_else(|| civil().map(|zoned| zoned.timestamp()))?;
    u64::try_from(at.as_nanosecond()).ok().map(Timestamp::from_unix_nanos)
}

fn charge<'a>(
    row: &'a StringRecord,
    columns: &Columns,
    rates: &[Rate],
    times: &mut Times,
) -> Result<Charge<'a>, String> {
    let field = |column: usize| row.get(column).unwrap_or("");
    let maybe = |column: Option<usize>| column.map_or("", field);
    let number = |text: &str| {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("\"{text}\" is not a number"))
    };
    let period = (times.read(0, field(columns.from))?, times.read(1, field(columns.to))?);
    if period.0 > period.1 {
        return Err(format!("its period ends at {}, before it starts", Time(period.1)));
    }
    let currency = field(columns.currency);
    let dollars = match currency {
        "USD" => 1.0,
        other => rates
            .iter()
            .find(|rate| rate.currency == other)
            .map(|rate| rate.dollars)
            .ok_or_else(|| format!("it is in \"{other}\": give its rate as --rate {other}=DOLLARS"))?,
    };
    let cost = number(field(columns.cost))? * dollars;
    if cost.abs() > COST_MAX {
        return Err(format!("a cost of {cost} dollars is surely a mistake"));
    }
    // What is charged for a machine beside its time, such as its network, is no part of its hours.
    let is_of_machines = matches!(maybe(columns.service_category), "" | "Compute" | "AI and Machine Learning");
    let [resource, name] = match is_of_machines {
        true => [field(columns.resource), maybe(columns.resource_name)],
        false => ["", ""],
    };
    let [sku, description] = [maybe(columns.sku), maybe(columns.description)];
    let quantity = maybe(columns.quantity);
    Ok(Charge {
        line: 0,
        resource: if resource.is_empty() { name } else { resource },
        sku: if sku.is_empty() { description } else { sku },
        service: maybe(columns.service),
        kind: kind(maybe(columns.category), maybe(columns.class))?,
        period,
        cost: nano_dollars(cost),
        quantity: if quantity.is_empty() { None } else { self::quantity(number(quantity)?, maybe(columns.unit)) },
    })
}

/// Returns what a row is for, by `ChargeCategory` and `ChargeClass` of FOCUS or the line item types of AWS ("Line item details" of
/// the AWS Data Exports guide).
fn kind(category: &str, class: &str) -> Result<ChargeKind, String> {
    if class == "Correction" {
        return Ok(ChargeKind::Correction);
    }
    match category {
        "" | "Usage" | "DiscountedUsage" | "SavingsPlanCoveredUsage" => Ok(ChargeKind::Usage),
        "Purchase" | "Fee" | "RIFee" | "SavingsPlanRecurringFee" | "SavingsPlanUpfrontFee" => Ok(ChargeKind::Purchase),
        "Tax" => Ok(ChargeKind::Tax),
        "Credit" | "Refund" => Ok(ChargeKind::Credit),
        "Adjustment"
        | "SavingsPlanNegation"
        | "Discount"
        | "EdpDiscount"
        | "PrivateRateDiscount"
        | "BundledDiscount"
        | "RiVolumeDiscount" => Ok(ChargeKind::Adjustment),
        other => Err(format!("\"{other}\" is no category of charges that is known")),
    }
}

/// Returns an amount of time; other units say nothing of hours.
fn quantity(number: f64, unit: &str) -> Option<Quantity> {
    match unit {
        "Hours" | "Hour" | "Hrs" | "hours" => Some(Quantity::MachineHours(number)),
        "GPU-Hours" | "GPU Hours" => Some(Quantity::DeviceHours(number)),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "costs are bounded")]
fn nano_dollars(dollars: f64) -> i128 {
    (dollars * NANO).round() as i128
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gangline_accounting::reconcile::{Booked, Reconciliation, Verdict};

    use super::*;

    const FOCUS: &str = "BilledCost,BillingCurrency,ChargeCategory,ChargeClass,ChargePeriodEnd,ChargePeriodStart,\
        ConsumedQuantity,ConsumedUnit,EffectiveCost,ResourceId,ServiceName,SkuId\n";
    const CUR: &str = "lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/UnblendedCost,lineItem/CurrencyCode,\
        lineItem/ResourceId,lineItem/UsageType,lineItem/ProductCode,lineItem/LineItemType,lineItem/UsageAmount,pricing/unit\n";

    fn read_text(text: &str, cost: CostColumn, rates: &[&str]) -> Result<(u64, Reconciliation), String> {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = folder.path().join("bill.csv");
        std::fs::write(&path, text).expect("writable");
        let rates: Vec<Rate> = rates.iter().map(|text| rate(text).expect("a rate")).collect();
        let mut reconciler = Reconciler::default();
        let rows = read(&path, (cost, &rates), &mut reconciler).map_err(|failure| match failure {
            Failure::Local { message, .. } => message,
            other => panic!("not this side's: {other:?}"),
        })?;
        Ok((rows, reconciler.finish(&BTreeMap::new(), str::to_owned, 0.0)))
    }

    #[test]
    fn focus_and_both_costs_and_currencies_are_read() {
        let rows = "10.5,USD,Usage,,2026-11-01T01:00:00Z,2026-11-01T00:00:00Z,1,Hours,7,i-a,EC2,p5\n\
            2,EUR,Usage,Correction,2026-10-01T01:00:00Z,2026-10-01T00:00:00Z,,,2,i-a,EC2,p5\n";
        let text = format!("{FOCUS}{rows}");
        let (count, billed) = read_text(&text, CostColumn::Billed, &["EUR=1.10"]).expect("a sound bill");
        assert_eq!((count, billed.billed), (2, 12_700_000_000));
        let (_, effective) = read_text(&text, CostColumn::Effective, &["eur=1.10"]).expect("a sound bill");
        assert_eq!(effective.billed, 9_200_000_000);
        let refused = read_text(&text, CostColumn::Billed, &[]).expect_err("no rate");
        assert!(refused.contains("line 3") && refused.contains("--rate EUR"), "{refused}");
    }

    #[test]
    fn what_is_charged_for_a_machine_beside_its_time_is_of_no_node() {
        let row = |category: &str| {
            format!("1,USD,Usage,,2026-11-01T01:00:00Z,2026-11-01T00:00:00Z,1,Hours,1,a,X,p5,{category}\n")
        };
        let text = format!("{},ServiceCategory\n{}{}", FOCUS.trim_end(), row("Compute"), row("Networking"));
        let mut reconciler = Reconciler::default();
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let path = folder.path().join("bill.csv");
        std::fs::write(&path, text).expect("writable");
        read(&path, (CostColumn::Billed, &[]), &mut reconciler).expect("a sound bill");
        let booked = Booked { devices: 1, device_hours: 1.0, cost: 1_000_000_000, is_unpriced: false };
        let read = reconciler.finish(&BTreeMap::from([("a".to_owned(), booked)]), str::to_owned, 0.0);
        assert_eq!((read.nodes[0].billed, read.nodes[0].verdict), (1_000_000_000, Verdict::Matched));
        assert_eq!((read.billed, read.unmatched.len()), (2_000_000_000, 1));
    }

    #[test]
    fn a_cost_and_usage_report_is_read_in_both_spellings() {
        let rows = "2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,1.5E-1,USD,i-a,BoxUsage:p5,AmazonEC2,Usage,1,Hrs\n\
            2026-11-01 00:00:00.000,2026-11-01 01:00:00.000,-0.05,USD,,,AmazonEC2,Credit,,\n";
        let newer = CUR
            .replace("pricing/unit", "pricing_unit")
            .replace("lineItem/UsageStartDate", "line_item_usage_start_date")
            .replace("lineItem/UnblendedCost", "line_item_unblended_cost");
        for header in [CUR, &newer] {
            let (_, read) = read_text(&format!("{header}{rows}"), CostColumn::Billed, &[]).expect("a sound bill");
            assert_eq!(read.billed, 100_000_000);
            assert_eq!(read.unmatched.len(), 2, "usage and a credit");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let refused = |text: String| read_text(&text, CostColumn::Billed, &[]).expect_err("a refusal");
        let row = "1,USD,Usage,,2026-11-01T01:00:00Z,2026-11-01T00:00:00Z,1,Hours,7,i-a,EC2,p5\n";
        let with = |from: &str, to: &str| refused(format!("{FOCUS}{row}{}", row.replacen(from, to, 1)));
        assert!(refused("a,b\n1,2\n".to_owned()).contains("no column ChargePeriodStart"));
        for (from, to, part) in [
            ("1,USD", "one,USD", "\"one\" is not a number"),
            ("1,USD", "NaN,USD", "is not a number"),
            ("1,USD", "1e300,USD", "surely a mistake"),
            ("T01:00:00Z", "T25:00:00Z", "is not a time"),
            ("2026-11-01T01", "2026-10-01T01", "before it starts"),
            ("Usage", "Barter", "no category of charges"),
            (",p5", "", "can't be read"),
        ] {
            let message = with(from, to);
            assert!(message.contains("line 3") && message.contains(part), "{message}");
        }
    }
}
