//! The traces to simulate, from a folder beside the checkout that may be absent, and a made-up one that is always there.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use gangline_base::{AcceleratorKind, Bytes, NodeName, PoolName, Timestamp};
use gangline_orchestration::{Configuration, Location, NodeCapacity, NodeSpec, QueueOrder};
use gangline_simulator::{
    BadRows, Charges, FaultSpec, Label, LimitModel, MuriQuirk, Options, PolicyName, TraceFormat, TraceJob, Workload,
    read_trace,
};

use super::fixture::Draws;

/// Where the traces are, if they are there.
pub(super) fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/traces");
    folder.is_dir().then_some(folder)
}

/// A packed trace of the folder.
pub(super) fn load(folder: &Path, name: &str) -> Result<Workload> {
    let path = folder.join(name);
    let file = std::fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .with_context(|| format!("read {}", path.display()))?;
    Ok(read_trace(name, &text, TraceFormat::Csv, BadRows::Skip)?)
}

/// Nodes under one switch.
pub(super) fn nodes(count: u32, gpus: u32) -> Result<Vec<NodeSpec>> {
    let node = |number: u32| {
        let name = NodeName::new(&format!("n{number:05}"))?;
        let accelerator = AcceleratorKind("GPU".to_owned());
        let capacity =
            NodeCapacity { pool: PoolName::default(), accelerator, accelerators: gpus, cpus: 0, memory: Bytes(0) };
        Ok(NodeSpec { name, capacity, location: Location::default(), layout: Default::default() })
    };
    (0..count).map(node).collect()
}

/// Production semantics: stops and starts cost what they usually do, nodes and jobs fail as they usually do, and Gangline goes
/// by every rule that keeps waits short.
pub(super) fn usual(policy: PolicyName) -> Options {
    let sharing = Configuration::shortest_waits();
    Options { charges: Charges::USUAL, faults: FaultSpec::USUAL, sharing, ..plain(policy) }
}

/// Plain textbook semantics: nothing costs, nothing fails.
pub(super) fn plain(policy: PolicyName) -> Options {
    Options {
        policy,
        charges: Charges::FREE,
        limits: LimitModel::Users,
        high_share: 0.0,
        faults: FaultSpec::NONE,
        seed: 1,
        oversized: BadRows::Skip,
        quirk: MuriQuirk::Without,
        sharing: Configuration { order: QueueOrder::ShortestExpected, ..Configuration::default() },
    }
}

/// What the jobs ask for over their time of arrival, as a share of the cluster.
fn load_of(workload: &Workload, gpus: f64) -> f64 {
    let asked: f64 = workload.jobs.iter().map(|job| job.duration.as_secs_f64() * f64::from(job.gpus)).sum();
    let (Some(first), Some(last)) = (workload.jobs.first(), workload.jobs.last()) else { return 0.0 };
    asked / (last.submitted.since(first.submitted).as_secs_f64() * gpus)
}

/// The same jobs, arriving faster or slower, so that they ask for `load` of so many accelerators.
pub(super) fn at_load(workload: &Workload, gpus: f64, load: f64) -> Workload {
    let factor = load_of(workload, gpus) / load;
    let first = workload.jobs.first().map_or(Timestamp::EPOCH, |job| job.submitted);
    let scaled = |job: &TraceJob| {
        let submitted = Timestamp::EPOCH + job.submitted.since(first).mul_f64(factor);
        TraceJob { submitted, ..*job }
    };
    Workload { jobs: workload.jobs.iter().map(scaled).collect(), ..workload.clone() }
}

/// The first so many jobs.
pub(super) fn first(workload: Workload, count: usize) -> Workload {
    Workload { jobs: workload.jobs.iter().copied().take(count).collect(), ..workload }
}

/// Jobs made up: half of one accelerator, gangs of up to 128, half a minute to a day and a half (the logarithm evenly
/// spread), arriving evenly at random so that they ask for `load` of so many accelerators.
pub(super) fn made_up(count: u32, gpus: u32, load: f64) -> Workload {
    const SIZES: [u32; 16] = [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 128];
    let mut draws = Draws(11);
    let mut at = Duration::ZERO;
    let mut jobs = Vec::new();
    let work_mean = 28.0 * 17_000.0;
    let pause = work_mean / (f64::from(gpus) * load);
    for line in 1..=count {
        at += Duration::from_secs_f64(2.0 * pause * f64::from(draws.below(1 << 20)) / f64::from(1 << 20));
        let exponent = f64::from(draws.below(1 << 20)) / f64::from(1 << 20);
        let label = Label(1 + draws.below(20));
        jobs.push(TraceJob {
            line,
            submitted: Timestamp::EPOCH + at,
            duration: Duration::from_secs_f64(30.0 * 4_096.0_f64.powf(exponent)),
            gpus: SIZES[draws.below(16) as usize],
            user: label,
            queue: label,
            model: Label::default(),
            limit: None,
        });
    }
    let labels = (0..=20).map(|number| if number == 0 { String::new() } else { format!("team-{number}") }).collect();
    let workload = Workload { jobs, labels, skipped: 0, never_ran: Vec::new() };
    // The means above are near enough to begin with, and then corrected.
    at_load(&workload, f64::from(gpus), load)
}
