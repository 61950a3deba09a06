//! GOOD: what the policies come to on production traces at 0.9, 1.0 and 1.1 times what the cluster can do, with
//! checkpoints, saving and restarting charged and faults injected. All of it is simulated, with seeded random draws.

use std::time::Instant;

use anyhow::Result;
use gangline_orchestration::NodeSpec;
use gangline_simulator::{Options, PolicyName, Summary, Waste, Workload, simulate};

use super::Effort;
use super::report::{Bar, Report};
use super::traces;

/// A trace, the nodes of eight it runs on, and what it is.
const TRACES: [(&str, u32, &str, &str); 3] = [
    ("itp2021-all.csv.gz", 160, "ITP", "69,351 jobs, its 10 clusters as tenants of one"),
    ("helios-venus2020.csv.gz", 133, "Venus", "125,303 jobs, on as many nodes as it had"),
    ("philly2017.csv.gz", 64, "Philly", "82,247 jobs, its virtual clusters as tenants of one"),
];

const LOADS: [f64; 3] = [0.9, 1.0, 1.1];

/// Utilisations this close are equal: other draws of the same faults change EASY's by up to 0.7 % on Philly (seeds 1 to 4).
const UTILISATION_EQUAL: f64 = 0.995;

/// Of each trace, where there is little time.
const QUICK_JOBS: usize = 15_000;

/// Policies that plan without true durations.
const POLICIES: [PolicyName; 4] = [PolicyName::Fifo, PolicyName::EasyBackfill, PolicyName::Las, PolicyName::Gangline];

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let Some(folder) = traces::folder() else {
        report.skip("GOOD", "../shared/data/traces is not there");
        return Ok(());
    };
    for (file, nodes, name, what) in TRACES {
        let workload = traces::load(&folder, file)?;
        let workload = effort.of(workload.clone(), traces::first(workload, QUICK_JOBS));
        for load in LOADS {
            let jobs = workload.jobs.len();
            let heading =
                format!("GOOD: {name}: {what}: {jobs} of them at load {load:.1} on {nodes} nodes x 8 (simulated)");
            report.section(&heading);
            compare(
                report,
                &format!("{name} {load:.1}"),
                &traces::at_load(&workload, f64::from(nodes * 8), load),
                nodes,
            )?;
        }
    }
    Ok(())
}

fn compare(report: &mut Report, case: &str, workload: &Workload, nodes: u32) -> Result<()> {
    let nodes = traces::nodes(nodes, 8)?;
    report.note(HEADING);
    report.note("(util: while jobs arrive; what runs on after the last arrival would hide the differences)");
    let mut found: Vec<(PolicyName, Summary)> = Vec::new();
    for policy in POLICIES {
        let began = Instant::now();
        let summary = simulate(workload, &nodes, &traces::usual(policy))?;
        report.note(&row(policy, &summary, began.elapsed().as_secs_f64()));
        found.push((policy, summary));
    }
    judge(report, case, &found);
    with_priorities(report, case, workload, &nodes)
}

/// One job in ten is urgent: killing whatever is in its way, without regard to checkpoints, beside what we do. Equals make no
/// room for each other here, as they don't under `priority`: what that costs is in the rows above.
fn with_priorities(report: &mut Report, case: &str, workload: &Workload, nodes: &[NodeSpec]) -> Result<()> {
    let mut losses = Vec::new();
    report.note("and with one job in ten of high priority, stopped for priority (and quota) alone:");
    for policy in [PolicyName::Priority, PolicyName::Gangline] {
        let began = Instant::now();
        let sharing = traces::plain(policy).sharing;
        let summary = simulate(workload, nodes, &Options { high_share: 0.1, sharing, ..traces::usual(policy) })?;
        report.note(&row(policy, &summary, began.elapsed().as_secs_f64()));
        losses.push(preemption_losses(&summary));
    }
    let what = "GPU-hours lost to preemption / priority's, which ignores checkpoints";
    share(report, &format!("{case}: gangline's {what}"), (losses[1], losses[0]), Bar::AtMost(0.5));
    Ok(())
}

/// Prints ours as a share of theirs, if they have any.
fn share(report: &mut Report, what: &str, (ours, theirs): (f64, f64), bar: Bar) {
    if theirs > 0.0 {
        report.figure(what, ours / theirs, "", bar);
    } else {
        report.skip(what, "theirs is nothing");
    }
}

const HEADING: &str = "policy          wait h: mean     p99   8+ nodes     util  goodput   Jain  rho p99  preempted   lost GPU-hours by cause";

fn row(policy: PolicyName, summary: &Summary, took: f64) -> String {
    let hours = |seconds: f64| seconds / 3_600.0;
    let lost: Vec<String> =
        summary.lost_gpu_hours.iter().map(|(cause, hours)| format!("{} {hours:.0}", cause.name())).collect();
    format!(
        "{:<14} {:>13.2} {:>7.1} {:>10.2} {:>8.3} {:>8.3} {:>6.3} {:>8.1} {:>10}   {} ({took:.1} s to simulate)",
        policy.name(),
        hours(summary.queue_seconds.mean),
        hours(summary.queue_seconds.p99),
        hours(summary.large_queue_seconds.1.mean),
        summary.utilisation_of_arrivals,
        summary.goodput,
        summary.jain,
        summary.rho_p99,
        summary.preemptions,
        lost.join(", "),
    )
}

/// Lost work and saving. (Restarts follow faults too, which are the same under every policy.)
fn preemption_losses(summary: &Summary) -> f64 {
    let is_preemption = |cause: Waste| matches!(cause, Waste::Preemption | Waste::Saving);
    summary.lost_gpu_hours.iter().filter(|(cause, _)| is_preemption(*cause)).map(|(_, hours)| hours).sum()
}

/// The bars of the issue: ours against each of the others, as a share of theirs.
fn judge(report: &mut Report, case: &str, found: &[(PolicyName, Summary)]) {
    let of = |policy| found.iter().find(|(name, _)| *name == policy).map(|(_, summary)| summary);
    let Some(ours) = of(PolicyName::Gangline) else { return };
    for policy in [PolicyName::EasyBackfill, PolicyName::Las] {
        let Some(theirs) = of(policy) else { continue };
        let figures = [
            ("mean wait", ours.queue_seconds.mean, theirs.queue_seconds.mean, Bar::AtMost(1.0)),
            ("p99 wait", ours.queue_seconds.p99, theirs.queue_seconds.p99, Bar::AtMost(1.0)),
            (
                "utilisation",
                ours.utilisation_of_arrivals,
                theirs.utilisation_of_arrivals,
                Bar::AtLeast(UTILISATION_EQUAL),
            ),
            ("Jain index", ours.jain, theirs.jain, Bar::AtLeast(1.0)),
        ];
        for (what, ours, theirs, bar) in figures {
            share(report, &format!("{case}: gangline's {what} / {}'s", policy.name()), (ours, theirs), bar);
        }
    }
    if let Some(easy) = of(PolicyName::EasyBackfill) {
        let waits = (ours.large_queue_seconds.1.mean, easy.large_queue_seconds.1.mean);
        let what = format!("{case}: gangs on 8+ nodes: gangline's mean wait / easy-backfill's");
        share(report, &what, waits, Bar::AtMost(0.5));
    }
}
