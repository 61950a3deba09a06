//! Prints a simulation's results, for people and for programs.

use std::time::Duration;

use gangline_base::JobId;
use gangline_simulator::{Distribution, Summary};
use serde_json::{Value, json};

use super::SimulateArgs;
use crate::output;

/// The most jobs that are named.
const NAMED_MAX: usize = 20;

pub(super) fn as_json(args: &SimulateArgs, summary: &Summary) -> Value {
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
        "never_ran": summary.never_ran.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "gpus": summary.gpus,
        "jct_seconds": spread(&summary.jct_seconds),
        "queue_seconds": spread(&summary.queue_seconds),
        "first_start_seconds": spread(&summary.first_start_seconds),
        "large_gangs": { "jobs": large_jobs, "queue_seconds": spread(large) },
        "makespan_seconds": summary.makespan_seconds,
        "utilisation": summary.utilisation,
        "utilisation_of_arrivals": summary.utilisation_of_arrivals,
        "goodput": summary.goodput,
        "fragmentation": summary.fragmentation,
        "finish_time_fairness": { "worst": summary.rho_worst, "p99": summary.rho_p99 },
        "jain_index": summary.jain,
        "useful_gpu_hours": summary.useful_gpu_hours,
        "held_gpu_hours": summary.held_gpu_hours,
        "down_gpu_hours": summary.down_gpu_hours,
        "lost_gpu_hours": lost,
        "gang_starts": { "on_several_nodes": summary.gang_starts.0, "in_one_rack": summary.gang_starts.1 },
        "preemptions": summary.preemptions,
        "migrations": summary.migrations,
        "resizes": summary.resizes,
        "faults": summary.faults,
        "node_losses": summary.node_losses,
        "cost": args.price.map(|price| price * summary.held_gpu_hours),
    })
}

/// Names the jobs that never ran; none if all did.
fn never_ran(jobs: &[JobId]) -> Option<String> {
    let shown: Vec<String> = jobs.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if jobs.len() > NAMED_MAX { ", ..." } else { "" };
    let why = "nobody knows how long they would have run";
    (!jobs.is_empty())
        .then(|| format!("{} jobs left out: never started, so {why}: {}{more}\n", jobs.len(), shown.join(", ")))
}

pub(super) fn as_table(args: &SimulateArgs, cluster: &str, summary: &Summary, took: Duration) -> String {
    let insight = if args.policy.is_clairvoyant() { "clairvoyant: it knows true durations" } else { "not clairvoyant" };
    let mut text = format!(
        "simulated: {} jobs on {} GPUs ({}) under {} ({insight}), seed {}, in {}\n",
        summary.jobs,
        summary.gpus,
        cluster,
        args.policy.name(),
        args.seed,
        output::duration(took)
    );
    if summary.skipped > 0 {
        let what = if args.replay.is_some() { "jobs left out:" } else { "rows left out: malformed, or" };
        text += &format!("{} {what} larger than the cluster\n", summary.skipped);
    }
    if let Some(never_ran) = never_ran(&summary.never_ran) {
        text += &never_ran;
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
        ("utilisation while jobs arrive", percent(summary.utilisation_of_arrivals)),
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
    if summary.gang_starts.0 > 0 {
        let (starts, within) = summary.gang_starts;
        facts.push(("starts on several nodes, in one rack", format!("{starts}, {within}")));
    }
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
