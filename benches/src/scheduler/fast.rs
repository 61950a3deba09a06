//! FAST, one decision at a time: a large gang placed, victims found, the verdict "cannot fit, because", a whole
//! scheduling pass, an explanation. The engine in memory, on one core, in a cluster of 10,000 nodes of 8.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gangline_base::{
    AcceleratorKind, Bytes, GpuSeconds, JobId, Level, NodeId, QueueName, Segment, Timestamp, TopologyRequest,
};
use gangline_orchestration::victim_search::{NodeResources, Problem, QueueBound, Resources, Wanted, find_victims};
use gangline_orchestration::{Configuration, Decision, Engine, Event, QueueSpec, ShareEnd};

use super::Effort;
use super::fixture::{BLOCK, Draws, GPUS, Gang, RACK, Running, cluster, placed};
use super::report::{Bar, Report, percentile};

/// Nodes of the large cluster.
const NODES: u32 = 10_000;
/// Jobs waiting in it.
const PENDING: u32 = 10_000;

/// What a scheduling step of a repetition took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    report.section(
        "FAST: one decision (10,000 nodes x 8, in racks of 32 and blocks of 1,024; in memory, one core; measured)",
    );
    large_gang(report)?;
    reclaim(report)?;
    let mut full = Full::new()?;
    verdict(report, &full)?;
    passes(report, &mut full, effort)?;
    explain(report, &full)
}

/// A 512-node gang in a cluster where one node in four is busy.
fn large_gang(report: &mut Report) -> Result<()> {
    let mut engine = cluster(NODES)?;
    let mut draws = Draws(1);
    for _ in 0..NODES / 4 {
        engine.apply(Timestamp::EPOCH, &Event::JobSubmitted(Gang::of(1, GPUS).spec()?))?;
    }
    for _ in 0..NODES / 10 {
        engine.apply(Timestamp::EPOCH, &Event::JobSubmitted(Gang::of(1, 1 + draws.below(7)).spec()?))?;
    }
    let segment = |nodes: u32| NonZeroU32::new(nodes).map(|nodes| Segment { nodes, level: Level::Rack });
    let requests = [
        ("no topology asked for", TopologyRequest::default()),
        ("one block required", TopologyRequest { require: Some(Level::Block), ..TopologyRequest::default() }),
        ("one rack preferred", TopologyRequest { prefer: Some(Level::Rack), ..TopologyRequest::default() }),
        ("segments of 16, each in a rack", TopologyRequest { segment: segment(16), ..TopologyRequest::default() }),
    ];
    for (words, topology) in requests {
        let gang = Gang { topology, ..Gang::of(512, GPUS) }.spec()?;
        let mut times = Vec::new();
        for _ in 0..10 {
            let mut engine = engine.clone();
            let event = Event::JobSubmitted(gang.clone());
            let (decisions, time) = timed(|| engine.apply(Timestamp::EPOCH, &event));
            ensure!(placed(&decisions?).count() == 1, "a 512-node gang with {words} wasn't placed");
            times.push(time);
        }
        report.time(&format!("a 512-node gang submitted and placed, {words}"), percentile(&mut times, 100), ms(20));
    }
    report.peer(
        "KAI 48.7 s for a 512-pod gang (docs/scale-tests, 2026-07-03), nightly on a real Kubernetes API server with",
    );
    report.note("KWOK nodes, until its pods are bound; ours is the decision alone, the slowest of 10.");
    Ok(())
}

/// Milliseconds, as the most there may be.
fn ms(milliseconds: u64) -> Option<Duration> {
    Some(Duration::from_millis(milliseconds))
}

/// One accelerator reclaimed from 4,000 running jobs on 500 nodes of 8: the search itself, its problem built anew.
fn reclaim(report: &mut Report) -> Result<()> {
    let one = Resources { devices: 1, cpus: 0, memory: Bytes(0) };
    let search = || {
        let bound = QueueBound { parent: None, devices_max: 2_000 };
        let mut problem = Problem::new(Wanted { nodes: 1, per_node: one }, vec![bound]);
        let none = Resources::default();
        problem.add_domain((0..500).map(|node| NodeResources { node: NodeId(node), resources: none }));
        for job in 0..4_000_u32 {
            let freed = NodeResources { node: NodeId(job / GPUS), resources: one };
            let cost = GpuSeconds::of(1, Duration::from_secs(u64::from(job.wrapping_mul(7_919) % 3_607)));
            problem.add_offer(JobId(u64::from(job)), 0, cost, [freed]);
        }
        find_victims(&problem)
    };
    let mut times = Vec::new();
    for _ in 0..50 {
        let (found, time) = timed(search);
        let chosen = found.context("find a victim among 4,000")?.chosen;
        ensure!(chosen.jobs.len() == 1 && chosen.cost == GpuSeconds::ZERO, "one job, the cheapest, makes room");
        times.push(time);
    }
    let what = "victims for one GPU among 4,000 running jobs: the search, median of 50";
    report.time(what, percentile(&mut times, 50), ms(5));
    report.time("    the slowest", percentile(&mut times, 100), None);
    reclaim_through_engine(report)?;
    report.peer("KAI 13.9 s on average (same source and conditions), until the new pod is bound; ours is the choice of victims,");
    report.note("which must still save and stop.");
    Ok(())
}

/// The same, decided by the engine: one queue has borrowed all, the other takes one accelerator back.
fn reclaim_through_engine(report: &mut Report) -> Result<()> {
    let queue = |name: &str| -> Result<QueueSpec> {
        let quota = BTreeMap::from([(AcceleratorKind("H100".to_owned()), 2_000)]);
        let (weight, borrowing_limit) = (NonZeroU32::MIN, BTreeMap::new());
        Ok(QueueSpec { name: QueueName::new(name)?, parent: None, weight, quota, borrowing_limit })
    };
    let configuration = Configuration { queues: vec![queue("lends")?, queue("borrows")?], ..Configuration::default() };
    let mut engine = cluster(500)?;
    engine.apply(Timestamp::EPOCH, &Event::Configured(Arc::new(configuration)))?;
    let borrower = Gang { queue: "borrows".to_owned(), ..Gang::of(1, 1) }.spec()?;
    for second in 0..4_000 {
        let at = Timestamp::EPOCH + Duration::from_secs(second);
        ensure!(placed(&engine.apply(at, &Event::JobSubmitted(borrower.clone()))?).count() == 1, "there is room");
    }
    let lender = Event::JobSubmitted(Gang { queue: "lends".to_owned(), ..Gang::of(1, 1) }.spec()?);
    let now = Timestamp::EPOCH + Duration::from_hours(2);
    let mut times = Vec::new();
    for _ in 0..50 {
        let mut engine = engine.clone();
        let (decisions, time) = timed(|| engine.apply(now, &lender));
        let stops = decisions?.iter().filter(|decision| matches!(decision, Decision::Stop { .. })).count();
        ensure!(stops == 1, "{stops} jobs are stopped for one GPU");
        times.push(time);
    }
    report.time(
        "one GPU reclaimed from 4,000 running jobs by the engine, median of 50",
        percentile(&mut times, 50),
        ms(5),
    );
    report.time("    the slowest", percentile(&mut times, 100), None);
    Ok(())
}

/// A full cluster with as many jobs waiting, all different.
struct Full {
    engine: Engine,
    running: Vec<Running>,
    now: Timestamp,
    draws: Draws,
}

impl Full {
    fn new() -> Result<Self> {
        let mut full = Full { engine: cluster(NODES)?, running: Vec::new(), now: Timestamp::EPOCH, draws: Draws(3) };
        while full.engine.waiting_count() == 0 {
            full.submit()?;
        }
        while full.engine.waiting_count() < PENDING as usize {
            full.submit()?;
        }
        Ok(full)
    }

    /// A gang of a share of a node, or of up to 64 nodes, in one of 50 queues, with one of very many time limits.
    fn submit(&mut self) -> Result<Duration> {
        let nodes = [1, 1, 1, 1, 1, 2, 4, 8, 16, 64][self.draws.below(10) as usize];
        let gpus = if nodes == 1 { 1 + self.draws.below(GPUS) } else { GPUS };
        let limit = Some(Duration::from_secs(u64::from(600 + self.draws.below(1_000_000))));
        let gang = Gang { queue: format!("q{}", self.draws.below(50)), limit, ..Gang::of(nodes, gpus) };
        self.apply(&Event::JobSubmitted(gang.spec()?))
    }

    fn apply(&mut self, event: &Event) -> Result<Duration> {
        self.now = self.now + Duration::from_millis(100);
        let (decisions, time) = timed(|| self.engine.apply(self.now, event));
        self.running.extend(placed(&decisions?));
        Ok(time)
    }

    /// One running job, at random, ends; its last share frees devices and brings a scheduling pass.
    fn end_one(&mut self) -> Result<Duration> {
        let count = u32::try_from(self.running.len())?;
        let ending = self.running.swap_remove(self.draws.below(count) as usize);
        let mut time = Duration::ZERO;
        for event in ending.ended(&ShareEnd::Succeeded) {
            time = self.apply(&event)?;
        }
        Ok(time)
    }
}

fn verdict(report: &mut Report, full: &Full) -> Result<()> {
    let wanted = Gang::of(10, GPUS).spec()?;
    let impossible = Gang::of(NODES + 1, GPUS).spec()?;
    let rack = TopologyRequest { require: Some(Level::Rack), ..TopologyRequest::default() };
    let impossible_rack = Gang { topology: rack, ..Gang::of(RACK + 1, GPUS) }.spec()?;
    let mut times = Vec::new();
    for _ in 0..20 {
        let mut engine = full.engine.clone();
        let event = Event::JobSubmitted(wanted.clone());
        let (found, time) = timed(|| {
            let id = engine.next_job_id();
            engine.apply(full.now, &event).map(|_| engine.explain(full.now, id))
        });
        ensure!(found?.is_some(), "a full cluster keeps a new gang waiting");
        times.push(time);
    }
    report.time(
        "\"waits, because\": 80 GPUs submitted to a full cluster, explained",
        percentile(&mut times, 100),
        ms(10),
    );
    let mut times = Vec::new();
    for spec in [impossible, impossible_rack] {
        for _ in 0..20 {
            let (found, time) = timed(|| full.engine.dry_run(full.now, &spec));
            ensure!(found.is_err(), "a gang larger than the cluster or the rack is refused");
            times.push(time);
        }
    }
    report.time(
        "\"never fits, because\": more nodes than there are, or than a rack has",
        percentile(&mut times, 100),
        ms(10),
    );
    report.peer(
        "KAI 249.5 s on average until a 10-pod, 80-GPU job is declared unschedulable (same source and conditions).",
    );
    report.note(&format!("Ours with {PENDING} others waiting, the slowest of 20 and 40."));
    Ok(())
}

/// Every pass: after a job's end and after a submission, with 10,000 waiting all the time.
fn passes(report: &mut Report, full: &mut Full, effort: Effort) -> Result<()> {
    let (mut ends, mut submissions) = (Vec::new(), Vec::new());
    for _ in 0..effort.of(1_000, 100) {
        ends.push(full.end_one()?);
        while full.engine.waiting_count() < PENDING as usize {
            submissions.push(full.submit()?);
        }
    }
    let count = ends.len();
    report.time(
        &format!("a pass over 10,000 pending after a job's end, p99 of {count}"),
        percentile(&mut ends, 99),
        ms(50),
    );
    report.time("    its median", percentile(&mut ends, 50), None);
    if !submissions.is_empty() {
        let what = format!("a pass over 10,000 pending after a submission, p99 of {}", submissions.len());
        report.time(&what, percentile(&mut submissions, 99), ms(50));
    }
    report.note(
        "10,000 different gangs of 1 to 512 GPUs in 50 queues, each with a time limit of its own, a full cluster.",
    );
    Ok(())
}

fn explain(report: &mut Report, full: &Full) -> Result<()> {
    let waiting = full.engine.waiting();
    ensure!(waiting.len() >= PENDING as usize, "as many wait as before");
    let mut times = Vec::new();
    for job in waiting.iter().step_by(waiting.len() / 50) {
        let (found, time) = timed(|| full.engine.explain(full.now, *job));
        ensure!(found.is_some(), "a waiting job has an explanation");
        times.push(time);
    }
    report.time(
        "explain at 10,000 nodes with 10,000 waiting: the slowest of 50 jobs",
        percentile(&mut times, 100),
        ms(10),
    );
    let mut times = Vec::new();
    for page in waiting.chunks(100).step_by(10) {
        let (found, time) = timed(|| full.engine.blockers(full.now, page));
        ensure!(found.len() == page.len(), "every waiting job has its reason");
        times.push(time);
    }
    report.time(
        "the reasons of a page of 100 different jobs: the slowest of 10 pages",
        percentile(&mut times, 100),
        ms(10),
    );
    Ok(())
}

/// The cost of an event in clusters of growing size, always full, with 50 jobs waiting.
pub(super) fn growth(report: &mut Report, effort: Effort) -> Result<()> {
    report.section("FAST: cost of an event against the size of the cluster (always full, 50 waiting; measured)");
    let sizes: &[u32] = &[100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];
    let sizes = &sizes[..sizes.len() - effort.of(0, 2)];
    let mut points = Vec::new();
    for nodes in sizes.iter().copied() {
        let micros = event_cost(nodes, effort)?.as_secs_f64() * 1e6;
        points.push((f64::from(nodes), micros));
    }
    let most = points.iter().map(|(_, cost)| *cost).fold(0.0, f64::max);
    for (nodes, cost) in &points {
        // At most 50 characters: the largest is the whole width.
        let width = (cost / most * 50.0).round();
        let bar: String = (0..50).filter(|place| f64::from(*place) < width).map(|_| '#').collect();
        report.note(&format!("{nodes:>8.0} nodes {cost:>8.1} us {bar}"));
    }
    let ours = exponent(&points);
    let logarithm: Vec<(f64, f64)> = points.iter().map(|(nodes, _)| (*nodes, nodes.ln())).collect();
    let most = exponent(&logarithm);
    report.figure("cost ~ nodes^e: e, beside that of a logarithm over these sizes", ours, "", Bar::AtMost(most));
    Ok(())
}

/// The slope of the least-squares line through the logarithms.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (x, y) = logs.iter().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / count, y + b / count));
    let (covariance, variance) =
        logs.iter().fold((0.0, 0.0), |(c, v), (a, b)| (c + (a - x) * (b - y), v + (a - x) * (a - x)));
    covariance / variance
}

/// The mean time of an event in a full cluster: jobs end and come, so that 50 wait at all times.
fn event_cost(nodes: u32, effort: Effort) -> Result<Duration> {
    const WAITING: usize = 50;
    let mut engine = cluster(nodes)?;
    let mut draws = Draws(5);
    let mut running: Vec<Running> = Vec::new();
    let now = Timestamp::EPOCH;
    let specs = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (8, 8)].map(|(nodes, gpus)| Gang::of(nodes, gpus).spec());
    let specs = specs.into_iter().collect::<Result<Vec<_>>>()?;
    let mut next = specs.iter().cycle();
    let mut submit = |engine: &mut Engine, running: &mut Vec<Running>| -> Result<()> {
        let spec = next.next().context("a cycle has no end")?;
        running.extend(placed(&engine.apply(now, &Event::JobSubmitted(spec.clone()))?));
        Ok(())
    };
    while engine.waiting_count() < WAITING {
        submit(&mut engine, &mut running)?;
    }
    let (mut events, began) = (0_u32, Instant::now());
    while events < u32::try_from(effort.of(100_000, 20_000))? {
        let count = u32::try_from(running.len())?;
        let ending = running.swap_remove(draws.below(count) as usize);
        for event in ending.ended(&ShareEnd::Succeeded) {
            running.extend(placed(&engine.apply(now, &event)?));
            events += 1;
        }
        while engine.waiting_count() < WAITING {
            submit(&mut engine, &mut running)?;
            events += 1;
        }
    }
    Ok(began.elapsed() / events)
}

/// The most of Linux' resident set of this process, in bytes.
fn resident_max() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("find VmHWM in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("read VmHWM")?;
    Ok(kib * 1_024)
}

/// Holds 80,000 GPUs and 100,000 jobs and prints what that took; run in a process of its own.
pub(super) fn hold_much() -> Result<bool> {
    let mut engine = cluster(NODES)?;
    let mut draws = Draws(7);
    while engine.jobs().len() < 100_000 {
        let limit = Some(Duration::from_hours(u64::from(1 + draws.below(48))));
        let gang = Gang { queue: format!("q{}", draws.below(50)), limit, ..Gang::of(1, 1 + draws.below(4)) };
        engine.apply(Timestamp::EPOCH, &Event::JobSubmitted(gang.spec()?))?;
    }
    println!("{} {}", resident_max()?, engine.waiting_count());
    Ok(true)
}

/// What a process of its own needs for 80,000 GPUs and 100,000 jobs.
pub(super) fn memory(report: &mut Report) -> Result<()> {
    let child = std::process::Command::new(std::env::current_exe()?)
        .args(["bench", "scheduler", super::HOLD_MUCH])
        .output()
        .context("start the process whose memory is measured")?;
    let text = String::from_utf8_lossy(&child.stdout);
    let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [bytes, waiting] = words[..] else {
        anyhow::bail!("the process whose memory is measured said {text:?}: {}", String::from_utf8_lossy(&child.stderr));
    };
    let megabytes = f64::from(u32::try_from(bytes / 1_000)?) / 1_000.0;
    report.figure("memory for 80,000 GPUs and 100,000 jobs (VmHWM of a process)", megabytes, "MB", Bar::AtMost(500.0));
    report.note(&format!("{waiting} of the jobs wait, the others run; blocks of {BLOCK} nodes, racks of {RACK}."));
    Ok(())
}
