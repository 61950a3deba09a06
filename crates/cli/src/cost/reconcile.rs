//! `cost reconcile`: a provider's bill beside the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_accounting::reconcile::{Booked, NodeMatch, Reconciler, Reconciliation, Verdict};
use gangline_api::{self as api, Time};
use gangline_base::{Money, Timestamp};
use serde_json::json;

use super::provider::{self, CostColumn, Rate};
use super::query;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// What to compare.
#[derive(Args, Debug)]
pub(crate) struct ReconcileArgs {
    /// The bill: FOCUS or an AWS Cost and Usage Report, as CSV
    #[arg(value_name = "BILL.csv")]
    bill: PathBuf,
    /// The cost that counts
    #[arg(long, value_enum, default_value = "billed")]
    cost: CostColumn,
    /// US dollars for a unit of another currency of the bill, as EUR=1.08 (may be repeated)
    #[arg(long = "rate", value_name = "CURRENCY=DOLLARS", value_parser = provider::rate)]
    rates: Vec<Rate>,
    /// The resource that a node is in the bill, as NODE=RESOURCE (may be repeated) [default: of the node's name]
    #[arg(long = "node", value_name = "NODE=RESOURCE", value_parser = pair)]
    nodes: Vec<(String, String)>,
    /// The difference up to which a node counts as matched, in percent of what the ledger has
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percentage)]
    tolerance: f64,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (node, resource) =
        text.split_once('=').ok_or_else(|| format!("\"{text}\" is not of the form NODE=RESOURCE"))?;
    Ok((node.to_owned(), resource.to_owned()))
}

fn percentage(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| format!("\"{text}\" is not from 0 to 100"))
}

pub(super) fn run(client: &Client, args: &ReconcileArgs, is_json: bool) -> Result<(), Failure> {
    let mut reconciler = Reconciler::default();
    let rows = provider::read(&args.bill, (args.cost, &args.rates), &mut reconciler)?;
    let Some(period) = reconciler.period() else {
        return Err(Failure::local(format!("{} has no rows", args.bill.display()), "name a bill with charges"));
    };
    let (ledger, since) = ledger(client, period)?;
    let names: BTreeMap<&str, &str> = args.nodes.iter().map(|(node, name)| (node.as_str(), name.as_str())).collect();
    let resources: BTreeSet<&str> = names.values().copied().collect();
    if resources.len() < args.nodes.len() {
        return Err(Failure::local("--node names a node or a resource twice", "each node is one resource of the bill"));
    }
    if let Some(unknown) = names.keys().find(|node| !ledger.contains_key(**node)) {
        let message = format!("the ledger has no node {unknown} between {} and {}", Time(period.0), Time(period.1));
        return Err(Failure::local(message, "gangline cost report --by node lists them"));
    }
    let resource_of = |node: &str| names.get(node).map_or_else(|| node.to_owned(), |name| (*name).to_owned());
    let result = reconciler.finish(&ledger, resource_of, args.tolerance / 100.0);
    if is_json {
        return output::json(&as_json(&result, period, rows));
    }
    output::print(&text(&result, (&args.bill, rows, period), args.tolerance))?;
    if let Some(since) = since.filter(|since| *since > period.0) {
        output::tell(&format!("what nodes offered is known since {} only", output::time(Time(since))));
    }
    Ok(())
}

/// Returns what the ledger has of each node, and since when what nodes offered is known.
fn ledger(
    client: &Client,
    (from, to): (Timestamp, Timestamp),
) -> Result<(BTreeMap<String, Booked>, Option<Timestamp>), Failure> {
    let report: api::CostReport = client.get(&format!("/cost/report?{}&by=node", query(from, Some(to))))?;
    let nodes: api::NodeList = client.get("/nodes")?;
    let counted =
        nodes.nodes.iter().map(|node| (node.name.as_str(), u32::try_from(node.slots.len()).unwrap_or(u32::MAX)));
    let devices: BTreeMap<&str, u32> = counted.collect();
    let of_nodes = report.groups.into_iter().filter(|group| group.gpu_seconds > 0.0);
    let booked = of_nodes.map(|group| {
        let booked = Booked {
            devices: devices.get(group.name.as_str()).copied().unwrap_or(0),
            device_hours: group.gpu_seconds / 3_600.0,
            // The provider's row of a node is for its devices; overheads have rows of no node.
            cost: group
                .lines
                .iter()
                .filter(|line| line.gpu_seconds > 0.0)
                .map(|line| i128::from(line.cost_nano_dollars))
                .sum(),
            is_unpriced: group.unpriced_gpu_seconds > 0.0,
        };
        (group.name, booked)
    });
    Ok((booked.collect(), report.capacity_since.map(|Time(since)| since)))
}

fn text(
    result: &Reconciliation,
    (bill, rows, (from, to)): (&Path, u64, (Timestamp, Timestamp)),
    tolerance: f64,
) -> String {
    let headings =
        ["NODE", ">BILL H", ">LEDGER H", ">BILL", ">LEDGER", ">DIFFERENCE", ">BY TIME", ">BY PRICE", "VERDICT"];
    let period = format!("{} to {}", output::time(Time(from)), output::time(Time(to)));
    let mut text = format!("{}: {rows} row(s), {period}; hours are of devices\n\n", bill.display());
    text += &output::table(&headings, result.nodes.iter().map(row).collect());
    if !result.unmatched.is_empty() {
        let rows = result.unmatched.iter().map(|other| {
            let service = if other.service.is_empty() { "-" } else { &other.service };
            vec![service.to_owned(), other.kind.name().to_owned(), other.rows.to_string(), money(other.cost)]
        });
        text += &format!("\n{}", output::table(&["OF NO NODE", "KIND", ">ROWS", ">COST"], rows.collect()));
    }
    let (nodes, count) = (result.nodes.iter().map(|node| node.billed).sum(), |verdict| {
        result.nodes.iter().filter(|node| node.verdict == verdict).count()
    });
    text += &format!(
        "\nthe bill of {} is {} of nodes and {} of none\n",
        money(result.billed),
        money(nodes),
        money(result.billed - nodes)
    );
    text += &format!(
        "nodes: {} matched within {tolerance} %, {} that differ, {} not billed, {} not priced\n",
        count(Verdict::Matched),
        count(Verdict::Differs),
        count(Verdict::NotBilled),
        count(Verdict::NotPriced)
    );
    if result.overlap_count > 0 {
        text += &format!("{} row(s) charge for a time that another row has charged for:", result.overlap_count);
        let told =
            result.overlaps.iter().map(|one| format!(" lines {} and {} of {}", one.lines.0, one.lines.1, one.resource));
        text += &(told.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

fn row(node: &NodeMatch) -> Vec<String> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let difference = node.billed - node.booked.cost;
    vec![
        node.node.clone(),
        or_none(node.billed_hours.map(|hours| format!("{hours:.1}"))),
        format!("{:.1}", node.booked.device_hours),
        money(node.billed),
        money(node.booked.cost),
        money(difference),
        or_none(node.by_time.map(money)),
        or_none(node.by_price.map(money)),
        node.verdict.name().to_owned(),
    ]
}

fn money(nano_dollars: i128) -> String {
    Money::from_nano_dollars_saturating(nano_dollars).to_string()
}

fn as_json(result: &Reconciliation, (from, to): (Timestamp, Timestamp), rows: u64) -> serde_json::Value {
    let nodes = result.nodes.iter().map(|node| {
        json!({
            "node": node.node,
            "verdict": node.verdict.name(),
            "billed_nano_dollars": Money::from_nano_dollars_saturating(node.billed),
            "corrections_nano_dollars": Money::from_nano_dollars_saturating(node.corrections),
            "billed_device_hours": node.billed_hours,
            "booked_nano_dollars": Money::from_nano_dollars_saturating(node.booked.cost),
            "booked_device_hours": node.booked.device_hours,
            "by_time_nano_dollars": node.by_time.map(Money::from_nano_dollars_saturating),
            "by_price_nano_dollars": node.by_price.map(Money::from_nano_dollars_saturating),
        })
    });
    let unmatched = result.unmatched.iter().map(|other| {
        json!({
            "service": other.service,
            "kind": other.kind.name(),
            "rows": other.rows,
            "cost_nano_dollars": Money::from_nano_dollars_saturating(other.cost),
        })
    });
    let overlaps =
        result.overlaps.iter().map(|one| json!({"resource": one.resource, "lines": [one.lines.0, one.lines.1]}));
    json!({
        "from": Time(from).to_string(),
        "to": Time(to).to_string(),
        "rows": rows,
        "billed_nano_dollars": Money::from_nano_dollars_saturating(result.billed),
        "nodes": nodes.collect::<Vec<_>>(),
        "unmatched": unmatched.collect::<Vec<_>>(),
        "overlap_count": result.overlap_count,
        "overlaps": overlaps.collect::<Vec<_>>(),
    })
}
