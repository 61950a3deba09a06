//! `nodes`, `drain`, `queues`, `top`.

mod node;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use gangline_api as api;
use gangline_base::{Bytes, Money};
use gangline_specs::jobfile::parse_duration;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{jobs, listing, output};

/// Maximum number of ids in a table's cell; --json has all.
const IDS_SHOWN: usize = 8;

/// Which node.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The node's name
    node: String,
    /// Take it back into use, and forget its faults
    #[arg(long)]
    undo: bool,
    /// The node goes after this time, as in 10m: what still runs there is asked to save and stop just before
    #[arg(long, value_name = "TIME", conflicts_with = "undo", value_parser = parse_duration)]
    within: Option<Duration>,
}

/// How to watch.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show once and leave; the default when stdout isn't a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
}

/// Which node.
#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Show this node only: its readings, what went wrong on it, who ran there
    node: Option<String>,
}

pub(crate) fn nodes(client: &Client, args: &NodesArgs, is_json: bool) -> Result<(), Failure> {
    if let Some(node) = &args.node {
        return node::show(client, node, is_json);
    }
    let list: api::NodeList = client.get("/nodes")?;
    if is_json { output::json(&list) } else { output::print(&(nodes_table(&list) + &reasons(&list))) }
}

/// Formats why nodes take no jobs, one line each.
fn reasons(list: &api::NodeList) -> String {
    let reason = |node: &api::Node| {
        let reason = node.status_reason.as_ref()?;
        Some(format!("{} is {}: {reason}\n", node.name, node.status))
    };
    list.nodes.iter().filter_map(reason).collect()
}

fn nodes_table(list: &api::NodeList) -> String {
    let headings =
        ["NODE", "POOL", "STATUS", ">FAULTS", "SLOTS", ">HELD", ">CPUS", ">MEMORY", ">PRICE/SLOT-HOUR", "HOLDERS"];
    let rows = list.nodes.iter().map(|node| {
        let held = node.slots.iter().filter(|slot| slot.job.is_some()).count();
        let mut holders: Vec<&str> = node.slots.iter().filter_map(|slot| slot.job.as_deref()).collect();
        holders.dedup();
        let price = node.price_nano_dollars_per_hour.map(Money::from_nano_dollars);
        vec![
            node.name.clone(),
            node.pool.clone(),
            node.status.clone(),
            format!("{:.1}", node.faults),
            format!("{}:{}", node.accelerator, node.slots.len()),
            held.to_string(),
            declared(node.cpus > 0, node.cpus.to_string()),
            declared(node.memory_bytes > 0, Bytes(node.memory_bytes).to_string()),
            price.map_or_else(|| "not set".to_owned(), |price| price.to_string()),
            holders.join(" "),
        ]
    });
    output::table(&headings, rows.collect())
}

/// Formats what the configuration may leave open.
fn declared(is_declared: bool, amount: String) -> String {
    if is_declared { amount } else { "not declared".to_owned() }
}

pub(crate) fn drain(client: &Client, args: &DrainArgs, is_json: bool) -> Result<(), Failure> {
    let verb = if args.undo { "undrain" } else { "drain" };
    let path = format!("/nodes/{}/{verb}", path_segment(&args.node));
    let within_seconds = args.within.map(|within| u32::try_from(within.as_secs()).unwrap_or(u32::MAX));
    let node: api::Node = client.post(&path, &api::Drain { within_seconds })?;
    if is_json {
        return output::json(&node);
    }
    let held = node.slots.iter().filter(|slot| slot.job.is_some()).count();
    output::say(&format!("{} is {}; {held} of its {} slots are held", node.name, node.status, node.slots.len()))
}

pub(crate) fn queues(client: &Client, is_json: bool) -> Result<(), Failure> {
    let list: api::QueueList = client.get("/queues")?;
    if is_json {
        return output::json(&list);
    }
    if list.queues.is_empty() {
        output::tell("no job is waiting or running; send one with: gangline submit job.yaml");
        return Ok(());
    }
    output::print(&queues_table(&list))
}

fn queues_table(list: &api::QueueList) -> String {
    let headings = [
        "QUEUE",
        "IN",
        "QUOTA",
        "LIMIT",
        "GPU-HOURS",
        "ENTITLED",
        ">WEIGHT",
        ">SHARE",
        ">SLOTS HELD",
        ">SLOTS WANTED",
        "RUNNING",
        "WAITING, IN ORDER",
    ];
    let rows = list.queues.iter().map(|queue| {
        vec![
            queue.name.clone(),
            queue.parent.clone().unwrap_or_default(),
            by_kind(&queue.quota),
            by_kind(&queue.limit),
            queue.gpu_hours.as_ref().map(gpu_hours).unwrap_or_default(),
            by_kind(&queue.entitled),
            queue.weight.map(|weight| weight.to_string()).unwrap_or_default(),
            queue.share.map(|share| format!("{share:.3}")).unwrap_or_default(),
            queue.accelerators_held.to_string(),
            queue.accelerators_wanted.to_string(),
            some(&queue.running),
            some(&queue.waiting),
        ]
    });
    output::table(&headings, rows.collect())
}

/// Formats counts by kind as a job file writes them: `A100:8 H100:16`.
fn by_kind(amounts: &BTreeMap<String, u32>) -> String {
    amounts.iter().map(|(kind, count)| format!("{kind}:{count}")).collect::<Vec<_>>().join(" ")
}

/// Formats what is used of a quota of hours: `12.5 of 5000 a month`.
fn gpu_hours(hours: &api::GpuHours) -> String {
    let tenths = hours.gpu_seconds_used / 360;
    let limit = hours.gpu_seconds_limit / 3_600;
    format!("{}.{} of {limit} a {}", tenths / 10, tenths % 10, hours.per)
}

/// Formats the first few of many ids.
fn some(ids: &[String]) -> String {
    let shown = ids.iter().take(IDS_SHOWN).map(String::as_str).collect::<Vec<_>>().join(" ");
    match ids.len().saturating_sub(IDS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns a line about problems of the control plane, such as a journal that is nearly full; empty if there
/// are none.
pub(crate) fn trouble(health: &api::Health) -> String {
    let line = |reason: &String| format!("the control plane is {}: {reason}\n\n", health.status);
    health.reason.as_ref().map(line).unwrap_or_default()
}

pub(crate) fn top(client: &Client, args: &TopArgs, is_json: bool) -> Result<(), Failure> {
    let is_live = !args.once && !is_json && std::io::stdout().is_terminal();
    loop {
        let health: api::Health = client.get("/health")?;
        let nodes: api::NodeList = client.get("/nodes")?;
        let queues: api::QueueList = client.get("/queues")?;
        let list = listing::live(client, &listing::Filter::default())?;
        if is_json {
            return output::json(
                &serde_json::json!({ "health": health, "nodes": nodes.nodes, "queues": queues.queues, "jobs": list.jobs }),
            );
        }
        let parts = [nodes_table(&nodes), queues_table(&queues), jobs::jobs_table(&list.jobs)];
        let screen = trouble(&health) + &parts.join("\n");
        if !is_live {
            return output::print(&screen);
        }
        // Move home, then clear the rest of each line and the screen below: no flicker.
        output::print(&format!("\x1b[H{}\x1b[J", screen.replace('\n', "\x1b[K\n")))?;
        std::thread::sleep(Duration::from_secs(args.every));
    }
}
