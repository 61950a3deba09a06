//! `gangline simulate`: reads the trace and the cluster, runs the simulator, prints its figures.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use gangline_base::{AcceleratorKind, Bytes, NodeName, PoolName};
use gangline_orchestration::simulator::{
    BadRows, Charges, Distribution, FaultSpec, LimitModel, MuriQuirk, Options, PolicyName, Summary, TraceFormat,
    Workload, read_trace, simulate,
};
use gangline_orchestration::{Location, NodeCapacity, NodeSpec};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

/// A trace, unpacked, may have this many bytes.
const TRACE_BYTES_MAX: u64 = 4 << 30;
/// Nodes of a cluster.
const NODES_MAX: u32 = 100_000;
/// Accelerators of a node.
const NODE_GPUS_MAX: u32 = 1_024;

#[derive(Args)]
pub(crate) struct SimulateArgs {
    /// The trace: normalised CSV or SWF (by its name, .swf), plain or .gz
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// The cluster: NODESxGPUS, like 8x8
    #[arg(long, value_name = "NODESxGPUS")]
    cluster: String,
    /// The policy: fifo, sjf, srtf, srsf, las, easy-backfill or gangline; sjf, srtf and srsf know true durations
    #[arg(long, default_value = "gangline")]
    policy: PolicyName,
    /// What every random draw comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave malformed rows and gangs larger than the cluster out, and count them
    #[arg(long)]
    skip_bad: bool,
    /// What preemption costs: on (a checkpoint every 30m, save 30s, restart 60s), off, or a list like
    /// checkpoint=10m,save=20s,restart=2m
    #[arg(long, default_value = "off", value_name = "SPEC", value_parser = charges)]
    charge: Charges,
    /// What fails: none, usual, or a list like
    /// node-mttf=200d,repair=4h,app-mttf=250d,lemons=2%x10,silent=12%:30m,spot=5%:2m
    #[arg(long, default_value = "none", value_name = "SPEC")]
    faults: FaultSpec,
    /// Time limits where the trace has none: users (a seeded model of what people type) or none
    #[arg(long, default_value = "users", value_name = "MODEL", value_parser = limits)]
    limits: LimitModel,
    /// Reproduce the published figures of Muri's simulator, start-up overheads at every event included
    #[arg(long)]
    muri_quirk: bool,
    /// What a GPU-hour costs, for the bill
    #[arg(long, value_name = "PRICE")]
    price: Option<f64>,
}

pub(crate) fn run(args: &SimulateArgs, is_json: bool) -> Result<(), Failure> {
    let bad_rows = if args.skip_bad { BadRows::Skip } else { BadRows::Refuse };
    let workload = load(&args.trace, bad_rows)?;
    let nodes = cluster(&args.cluster)?;
    let options = Options {
        policy: args.policy,
        charges: args.charge,
        limits: args.limits,
        faults: args.faults,
        seed: args.seed,
        oversized: bad_rows,
        quirk: if args.muri_quirk { MuriQuirk::AsPublished } else { MuriQuirk::Without },
    };
    let begun = Instant::now();
    let summary = simulate(&workload, &nodes, &options).map_err(|error| failed(&error))?;
    let took = begun.elapsed();
    if is_json { output::json(&as_json(args, &summary)) } else { output::print(&as_table(args, &summary, took)) }
}

fn failed(error: &dyn std::error::Error) -> Failure {
    Failure::local(format!("failed to {error}"), "")
}

fn load(path: &Path, bad_rows: BadRows) -> Result<Workload, Failure> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        Failure::local(
            format!("failed to read the trace {name}: {error}"),
            "a trace is a CSV or SWF file, plain or .gz",
        )
    };
    let file = File::open(path).map_err(unreadable)?;
    let is_packed = path.extension().is_some_and(|extension| extension == "gz");
    let mut text = String::new();
    let mut source: Box<dyn Read> =
        if is_packed { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) };
    let bytes = source.by_ref().take(TRACE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > TRACE_BYTES_MAX {
        return Err(Failure::local(format!("the trace {name} has more than {TRACE_BYTES_MAX} bytes"), "split it"));
    }
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    let format = if plain.ends_with(".swf") { TraceFormat::Swf } else { TraceFormat::Csv };
    read_trace(&name, &text, format, bad_rows).map_err(|error| {
        Failure::local(
            format!("failed to read the trace: {error}"),
            "--skip-bad leaves malformed rows out and counts them",
        )
    })
}

/// Nodes of so many accelerators under one switch.
fn cluster(text: &str) -> Result<Vec<NodeSpec>, Failure> {
    let parse = |(nodes, gpus): (&str, &str)| Some((nodes.parse::<u32>().ok()?, gpus.parse::<u32>().ok()?));
    let within = |(nodes, gpus): &(u32, u32)| (1..=NODES_MAX).contains(nodes) && (1..=NODE_GPUS_MAX).contains(gpus);
    let (nodes, gpus) = text.split_once('x').and_then(parse).filter(within).ok_or_else(|| {
        let hint = format!("NODESxGPUS is like 8x8, at most {NODES_MAX} nodes of at most {NODE_GPUS_MAX}");
        Failure::local(format!("{text:?} is no cluster"), hint)
    })?;
    let node = |number: u32| {
        let name = NodeName::new(&format!("node-{number:05}")).map_err(|error| failed(&error))?;
        let accelerator = AcceleratorKind("GPU".to_owned());
        let capacity =
            NodeCapacity { pool: PoolName::default(), accelerator, accelerators: gpus, cpus: 0, memory: Bytes(0) };
        Ok(NodeSpec { name, capacity, location: Location::default() })
    };
    (0..nodes).map(node).collect()
}

fn limits(text: &str) -> Result<LimitModel, String> {
    match text {
        "users" => Ok(LimitModel::Users),
        "none" => Ok(LimitModel::Trace),
        _ => Err("there are users and none".to_owned()),
    }
}

fn charges(text: &str) -> Result<Charges, String> {
    match text {
        "off" => return Ok(Charges::FREE),
        "on" => return Ok(Charges::USUAL),
        _ => {}
    }
    let mut charges = Charges::USUAL;
    for part in text.split(',') {
        let wrong = || format!("{part:?} is none of checkpoint=30m, save=30s and restart=60s");
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let slot = match name {
            "checkpoint" => &mut charges.checkpoint_every,
            "save" => &mut charges.save,
            "restart" => &mut charges.restart,
            _ => return Err(wrong()),
        };
        *slot = gangline_orchestration::simulator::parse_span(value).ok_or_else(wrong)?;
    }
    Ok(charges)
}

fn as_json(args: &SimulateArgs, summary: &Summary) -> Value {
    let spread = |d: &Distribution| json!({ "mean": d.mean, "p50": d.p50, "p95": d.p95, "p99": d.p99 });
    let (large_jobs, large) = &summary.large_queue_seconds;
    let lost: serde_json::Map<String, Value> =
        summary.lost_gpu_hours.iter().map(|(cause, hours)| (cause.name().to_owned(), json!(hours))).collect();
    json!({
        "kind": "simulated",
        "policy": args.policy.name(),
        "clairvoyant": args.policy.is_clairvoyant(),
        "seed": args.seed,
        "jobs": summary.jobs,
        "skipped": summary.skipped,
        "gpus": summary.gpus,
        "jct_seconds": spread(&summary.jct_seconds),
        "queue_seconds": spread(&summary.queue_seconds),
        "first_start_seconds": spread(&summary.first_start_seconds),
        "large_gangs": { "jobs": large_jobs, "queue_seconds": spread(large) },
        "makespan_seconds": summary.makespan_seconds,
        "utilisation": summary.utilisation,
        "goodput": summary.goodput,
        "fragmentation": summary.fragmentation,
        "finish_time_fairness": { "worst": summary.rho_worst, "p99": summary.rho_p99 },
        "jain_index": summary.jain,
        "useful_gpu_hours": summary.useful_gpu_hours,
        "held_gpu_hours": summary.held_gpu_hours,
        "down_gpu_hours": summary.down_gpu_hours,
        "lost_gpu_hours": lost,
        "preemptions": summary.preemptions,
        "migrations": summary.migrations,
        "resizes": summary.resizes,
        "faults": summary.faults,
        "node_losses": summary.node_losses,
        "cost": args.price.map(|price| price * summary.held_gpu_hours),
    })
}

fn as_table(args: &SimulateArgs, summary: &Summary, took: Duration) -> String {
    let insight = if args.policy.is_clairvoyant() { "clairvoyant: it knows true durations" } else { "not clairvoyant" };
    let mut text = format!(
        "simulated: {} jobs on {} GPUs ({}) under {} ({insight}), seed {}, in {}\n",
        summary.jobs,
        summary.gpus,
        args.cluster,
        args.policy.name(),
        args.seed,
        output::duration(took)
    );
    if summary.skipped > 0 {
        text += &format!("{} rows left out: malformed, or larger than the cluster\n", summary.skipped);
    }
    let spread = |name: &str, d: &Distribution| {
        let mut row = vec![name.to_owned()];
        row.extend([d.mean, d.p50, d.p95, d.p99].map(output::seconds));
        row
    };
    let (large_jobs, large) = &summary.large_queue_seconds;
    let mut rows = vec![
        spread("completion time", &summary.jct_seconds),
        spread("waiting, all of it", &summary.queue_seconds),
        spread("waiting, to first start", &summary.first_start_seconds),
    ];
    if *large_jobs > 0 {
        rows.push(spread(&format!("waiting, {large_jobs} gangs on 8+ nodes"), large));
    }
    text += "\n";
    text += &output::table(&["", ">MEAN", ">P50", ">P95", ">P99"], rows);
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut facts = vec![
        ("makespan", output::seconds(summary.makespan_seconds)),
        ("utilisation", percent(summary.utilisation)),
        ("goodput", percent(summary.goodput)),
        ("free but not for the oldest waiting job", percent(summary.fragmentation)),
        ("finish-time fairness (rho), worst and p99", format!("{:.2}, {:.2}", summary.rho_worst, summary.rho_p99)),
        ("Jain index", format!("{:.3}", summary.jain)),
        (
            "preemptions, moves, resizes",
            format!("{}, {}, {}", summary.preemptions, summary.migrations, summary.resizes),
        ),
        ("faults, nodes lost", format!("{}, {}", summary.faults, summary.node_losses)),
        ("GPU-hours held", format!("{:.1}", summary.held_gpu_hours)),
    ];
    let lost: Vec<String> =
        summary.lost_gpu_hours.iter().map(|(cause, hours)| format!("{} {hours:.1}", cause.name())).collect();
    facts.push(("GPU-hours lost", lost.join(", ")));
    facts.extend(
        args.price.map(|price| ("cost of the GPU-hours held", format!("{:.2}", price * summary.held_gpu_hours))),
    );
    text += "\n";
    text += &output::table(&["", ""], facts.into_iter().map(|(name, fact)| vec![name.to_owned(), fact]).collect());
    text
}
