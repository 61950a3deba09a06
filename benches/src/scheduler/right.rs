//! RIGHT: published and reproduced results of textbook policies, against ours on the same inputs.
//!
//! Expected values are Muri's published results (Zhao et al., SIGCOMM'22, with
//! the quirk of its simulator), its simulator without the quirk, and Helios' simulator (Hu et al., SC'21) on two cases.

use std::path::Path;

use anyhow::Result;
use gangline_simulator::{MuriQuirk, Options, PolicyName, Summary, Workload, simulate};

use super::report::{Bar, Report};
use super::traces;

use PolicyName::{Fifo, Las, Sjf, Srsf, Srtf};

/// Mean completion time, makespan and 99th percentile of a trace under a policy, without the quirk.
const CLEAN: [(u32, PolicyName, [f64; 3]); 6] = [
    (1, Srtf, [1_333_933.079, 25_776_868.39, 16_335_720.421]),
    (1, Srsf, [952_242.121, 25_662_719.321, 15_121_056.371]),
    (1, Las, [3_172_775.590, 23_196_574.997, 14_386_169.064]),
    (3, Srtf, [180_112.953, 8_171_960.802, 4_280_223.501]),
    (3, Srsf, [172_680.191, 8_171_960.802, 3_580_525.675]),
    (3, Las, [327_256.619, 8_171_960.802, 4_939_311.374]),
];

/// Mean completion time as published, with the quirk.
const PUBLISHED: [(u32, PolicyName, f64); 6] = [
    (1, Srtf, 1_370_603.198),
    (1, Srsf, 980_140.570),
    (1, Las, 3_330_371.307),
    (3, Srtf, 193_081.796),
    (3, Srsf, 185_021.880),
    (3, Las, 347_213.248),
];

/// Mean completion time and mean wait of a case on nodes of eight, where known.
const HELIOS: [(&str, u32, PolicyName, f64, Option<f64>); 6] = [
    ("itp04-2w", 64, Fifo, 87_512.08, Some(72_932.17)),
    ("itp04-2w", 64, Sjf, 22_696.17, Some(8_116.27)),
    ("itp04-2w", 64, Srtf, 15_882.87, None),
    ("itp04-2w", 64, Srsf, 15_561.79, None),
    ("venus-sept", 135, Fifo, 8_493.40, Some(1.53)),
    ("venus-sept", 96, Fifo, 19_702.87, Some(11_211.00)),
];

pub(super) fn run(report: &mut Report) -> Result<()> {
    let Some(folder) = traces::folder() else {
        report.skip("RIGHT", "../shared/data/traces is not there");
        return Ok(());
    };
    muri(report, &folder)?;
    helios(report, &folder)
}

fn error(found: f64, expected: f64) -> f64 {
    (found / expected - 1.0).abs()
}

fn muri(report: &mut Report, folder: &Path) -> Result<()> {
    report.section(
        "RIGHT: Muri's traces on 8 nodes x 8, relative error (expected: its own simulator, printed to 3 decimals)",
    );
    let run = |trace: u32, options: Options| -> Result<Summary> {
        let workload = traces::load(folder, &format!("muri/trace{trace}.csv.gz"))?;
        Ok(simulate(&workload, &traces::nodes(8, 8)?, &options)?)
    };
    for (trace, policy, expected) in CLEAN {
        let summary = run(trace, traces::plain(policy))?;
        let found = [summary.jct_seconds.mean, summary.makespan_seconds, summary.jct_seconds.p99];
        let worst = found.into_iter().zip(expected).map(|(found, expected)| error(found, expected)).fold(0.0, f64::max);
        let what = format!("trace {trace} {}: mean, makespan, p99; the worst", policy.name());
        report.figure(&what, worst, "", Bar::AtMost(1e-6));
    }
    for (trace, policy, expected) in PUBLISHED {
        let options = Options { quirk: MuriQuirk::AsPublished, ..traces::plain(policy) };
        let found = run(trace, options)?.jct_seconds.mean;
        let what = format!("trace {trace} {} as published, with the quirk: mean", policy.name());
        report.figure(&what, error(found, expected), "", Bar::AtMost(1e-6));
    }
    Ok(())
}

fn helios(report: &mut Report, folder: &Path) -> Result<()> {
    report.section("RIGHT: Helios' rules (FIFO, SJF) and Muri's (SRTF, SRSF) on two cases, relative error");
    let mut loaded: Option<(&str, Workload)> = None;
    for (case, nodes, policy, jct, wait) in HELIOS {
        if loaded.as_ref().is_none_or(|(name, _)| *name != case) {
            loaded = Some((case, traces::load(folder, &format!("cases/{case}.csv.gz"))?));
        }
        let Some((_, workload)) = &loaded else { continue };
        let summary = simulate(workload, &traces::nodes(nodes, 8)?, &traces::plain(policy))?;
        let what = format!("{case} on {nodes}x8 {}: mean completion time", policy.name());
        report.figure(&what, error(summary.jct_seconds.mean, jct), "", Bar::AtMost(0.005));
        let peer = wait.map_or(String::new(), |wait| format!(", wait {wait}"));
        report.note(&format!(
            "ours {:.2} s, wait {:.2}; expected {jct}{peer}",
            summary.jct_seconds.mean, summary.queue_seconds.mean
        ));
    }
    report.note(
        "FIFO takes jobs of one second in the order of Helios' unstable sort (crates/simulator/src/textbook/ties.rs).",
    );
    Ok(())
}
