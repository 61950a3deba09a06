//! FAST: whole simulations. A million jobs under each policy, and the case that peers' simulators were timed on.

use std::time::Instant;

use anyhow::Result;
use gangline_simulator::{PolicyName, simulate};

use super::Effort;
use super::report::{Bar, Report};
use super::traces;

/// Nodes of eight in the cluster of the million jobs.
const NODES: u32 = 1_250;

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    case(report)?;
    let jobs = effort.of(1_000_000, 50_000);
    report.section(&format!("FAST: {jobs} made-up jobs on {NODES} nodes x 8 at load 0.95 (one core; measured)"));
    let workload = traces::made_up(jobs, NODES * 8, 0.95);
    let nodes = traces::nodes(NODES, 8)?;
    let bar = if effort == Effort::Full { Bar::AtMost(60.0) } else { Bar::None };
    for policy in PolicyName::ALL {
        let began = Instant::now();
        let summary = simulate(&workload, &nodes, &traces::plain(policy))?;
        let seconds = began.elapsed().as_secs_f64();
        let what = format!("{} jobs simulated under {}", summary.jobs, policy.name());
        report.figure(&what, seconds, "s", bar);
        report.note(&format!("utilisation {:.3}, mean wait {:.0} s", summary.utilisation, summary.queue_seconds.mean));
    }
    Ok(())
}

/// ITP's cluster 04, two weeks.
fn case(report: &mut Report) -> Result<()> {
    let what = "itp04-2w, 6,568 jobs on 64 nodes x 8, simulated";
    let Some(folder) = traces::folder() else {
        report.skip(what, "../shared/data/traces is not there");
        return Ok(());
    };
    report.section("FAST: a case that peers' simulators were timed on (one core; measured)");
    let workload = traces::load(&folder, "cases/itp04-2w.csv.gz")?;
    for policy in PolicyName::ALL {
        let began = Instant::now();
        simulate(&workload, &traces::nodes(64, 8)?, &traces::plain(policy))?;
        report.figure(&format!("{what} under {}", policy.name()), began.elapsed().as_secs_f64(), "s", Bar::AtMost(0.5));
    }
    report.peer(
        "Muri's event-driven simulator 33-37 s for this case, Helios' 1-s ticks 21-56 s for 23,859 jobs (user CPU,",
    );
    report.note("Python, on another machine).");
    Ok(())
}
