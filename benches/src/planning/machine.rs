//! The machine that a row names: accelerator, nodes, fabric.
//!
//! A fabric is read from words such as `IB 8x400Gb/s`, `1600Gb/s per node` or `400Gb/s per GPU`; without them it is what nodes of a
//! generation usually have.

use gangline_planning::hardware::book::Book;
use gangline_planning::hardware::{Accelerator, Cluster, Fabric, Generation};
use gangline_planning::model::FeedForward;
use gangline_planning::units::{Bandwidth, Seconds};
use gangline_planning::workload::Workload;

use super::table::Row;

/// Bytes a second of a Gb/s.
const GIGABIT: f64 = 1e9 / 8.0;
/// Seconds before the first byte, as the built-in book of hardware has them.
const INFINIBAND: f64 = 2e-6;
const ROCE: f64 = 4e-6;
const TCP: f64 = 25e-6;
/// Accelerators of a node where a row doesn't say.
const NODE: u32 = 8;

/// The cluster of a row.
///
/// # Errors
/// When the row names no accelerator or none that is known, or no number of them.
pub(super) fn cluster(book: &Book, row: &Row) -> Result<Cluster, String> {
    let accelerator = accelerator(book, row)?;
    let accelerators = row.count("n_gpus").or_else(|| product(row)).ok_or("no number of accelerators")?;
    let per_node = row.count("gpus_per_node").unwrap_or(NODE).min(accelerators);
    let per_accelerator = stated(row, per_node).unwrap_or_else(|| usual(accelerator.generation));
    let fabric = Fabric { per_accelerator: Bandwidth::new(per_accelerator * GIGABIT), latency: latency(row) };
    Ok(Cluster { accelerator, accelerators, per_node, fabric })
}

/// Accelerators by the degrees, where a row says how many replicas there are.
fn product(row: &Row) -> Option<u32> {
    let cut = ["tp", "pp", "cp"].map(|column| row.count(column).unwrap_or(1));
    cut.into_iter().try_fold(row.count("dp")?, u32::checked_mul)
}

/// The accelerator by its name, without what stands in brackets; by name and memory, where the name alone may mean several; by its
/// family, where it is a variant. A power limit in the row's words goes over the book's.
fn accelerator(book: &Book, row: &Row) -> Result<Accelerator, String> {
    let name = row.text("gpu").split('(').next().unwrap_or_default().trim();
    if name.is_empty() {
        return Err("no accelerator".to_owned());
    }
    let with_memory = format!("{name}-{}GB", row.text("gpu_mem_gb"));
    let family = name.split(['-', ' ']).next().unwrap_or_default();
    let found = [name, &with_memory, family].into_iter().find_map(|name| book.accelerator(name).ok());
    let mut accelerator = found.map(|fact| fact.value.clone()).ok_or_else(|| format!("unknown accelerator {name}"))?;
    if let Some(watts) = watts(row.text("gpu")) {
        accelerator.watts = watts;
    }
    Ok(accelerator)
}

/// A power limit such as `500W` among words.
fn watts(text: &str) -> Option<f64> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter_map(|word| word.strip_suffix(['W', 'w'])).find_map(|number| number.parse().ok())
}

/// Time before the first byte: InfiniBand's unless the row says otherwise.
fn latency(row: &Row) -> Seconds {
    let text = row.lower("internode");
    Seconds::new(match () {
        () if text.contains("tcp") => TCP,
        () if text.contains("roce") || text.contains("ethernet") || text.contains("efa") => ROCE,
        () => INFINIBAND,
    })
}

/// Gb/s that each accelerator has, from the row's words.
fn stated(row: &Row, per_node: u32) -> Option<f64> {
    let text = row.lower("internode");
    let before = &text[..text.find("gb")?];
    let start = before.rfind(|c: char| !c.is_ascii_digit() && !"x/.".contains(c)).map_or(0, |index| index + 1);
    let (count, rates) =
        before[start..].split_once('x').map_or((None, &before[start..]), |(count, rates)| (Some(count), rates));
    let rate: f64 = rates.split('/').next()?.parse().ok()?;
    let nodes = f64::from(row.count("gpus_per_node").unwrap_or(per_node).max(1));
    match count {
        Some(count) => Some(count.parse::<f64>().ok()? * rate / nodes),
        None if text.contains("per node") => Some(rate / nodes),
        None => Some(rate),
    }
}

/// Gb/s that each accelerator of a generation usually has.
const fn usual(generation: Generation) -> f64 {
    match generation {
        Generation::Volta => 50.0,
        Generation::Turing | Generation::Ada | Generation::Other => 12.5,
        Generation::Ampere | Generation::Cdna2 => 200.0,
        Generation::Hopper | Generation::Blackwell | Generation::Cdna3 | Generation::Cdna4 | Generation::Tpu => 400.0,
    }
}

/// What a run is reported with.
pub(super) fn group(workload: &Workload, cluster: &Cluster) -> &'static str {
    let is_mixture = |work: &FeedForward| matches!(work, FeedForward::Experts(_));
    if workload.model.layers.iter().any(|group| is_mixture(&group.layer.feed_forward)) {
        return "moe";
    }
    match cluster.accelerator.generation {
        Generation::Blackwell => "blackwell",
        Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4 => "amd",
        Generation::Tpu => "tpu",
        _ => "dense",
    }
}
