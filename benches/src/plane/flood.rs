//! Commits beside a flood of metrics: how long a submission takes, which is durable when it is answered, while many ranks' metrics
//! are stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Bench;
use super::admissions::Request;
use super::load::{RUNNING, Running};
use super::up::Plane;
use crate::recovery::simulated::Supervisor;
use crate::report::{Bar, median, percentile};

/// Ranks of a node, rows of a rank and metrics of a row in one request.
const RANKS: u64 = 200;
const ROWS: u64 = 2;
const METRICS: u64 = 10;
const POINTS: u64 = RANKS * ROWS * METRICS;
/// Points a second of all nodes together; none: as many as are taken.
const RATES: [Option<f64>; 2] = [Some(20_000.0), None];
/// How many times as long a submission may take beside the flood.
const RATIO_MOST: f64 = 1.1;
/// Points a second of the largest flood, at least.
const POINTS_LEAST: f64 = 200_000.0;
/// From one submission to the next.
const PAUSE: Duration = Duration::from_millis(4);
/// A round of submissions lasts so many rounds of the other parts, so that its hundredth is more than one of them.
const ROUND: u32 = 2;

/// Nodes that send metrics, each on a thread of its own.
struct Flood {
    is_over: Arc<AtomicBool>,
    nodes: Vec<JoinHandle<Result<u64>>>,
}

/// Measures submissions without and with each flood, in turn.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let (rounds, round) = (bench.options.rounds, ROUND * Duration::from_millis(bench.options.round));
    bench.report.section(&format!(
        "Submissions beside metrics of {} ranks, {METRICS} each, over HTTP; {rounds} rounds of {round:?} in turn (measured; the clients are on the same cores, the nodes' with the lowest priority)",
        RANKS * u64::from(RUNNING)
    ));
    let plane = Plane::start(&bench.gangline, RUNNING, 1)?;
    let running = Running::start(&plane)?;
    let mut number = 0;
    // The first requests find nothing prepared.
    submit(&plane, &mut number, round)?;
    let mut sent = 0;
    for rate in RATES {
        let (mut alone, mut beside, mut points) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            alone.push(submit(&plane, &mut number, round)?);
            let (began, flood) = (Instant::now(), Flood::start(&plane, rate, sent)?);
            beside.push(submit(&plane, &mut number, round)?);
            let stored = flood.stop()?;
            sent += stored;
            points.push(stored as f64 / began.elapsed().as_secs_f64());
        }
        print(bench, rate, (&alone, &beside), median(points));
    }
    running.stop()?;
    Ok(())
}

fn print(bench: &mut Bench, rate: Option<f64>, (alone, beside): (&[Vec<Duration>], &[Vec<Duration>]), points: f64) {
    let flood = rate.map_or("as many as are taken".to_owned(), |rate| format!("{rate} points/s"));
    let percent = |rounds: &[Vec<Duration>], percent| {
        median(rounds.iter().map(|times| percentile(&mut times.clone(), percent).as_secs_f64()).collect())
    };
    let bar = if rate.is_none() { Bar::AtLeast(POINTS_LEAST) } else { Bar::None };
    bench.report.figure(&format!("points stored a second, durable when answered ({flood})"), points, "/s", bar);
    for of in [50, 99] {
        let (alone, beside) = (percent(alone, of), percent(beside, of));
        let time = Duration::from_secs_f64;
        bench.report.time(&format!("a submission without the flood, p{of}, median of the rounds"), time(alone), None);
        bench.report.time(&format!("a submission beside it, p{of}"), time(beside), None);
        let bar = if of == 99 { Bar::AtMost(RATIO_MOST) } else { Bar::None };
        bench.report.figure(&format!("p{of} beside it, in p{of}s without"), beside / alone, "x", bar);
    }
}

/// Submits for a while, one job after the other; how long each answer took.
fn submit(plane: &Plane, number: &mut u64, time: Duration) -> Result<Vec<Duration>> {
    let (mut client, request) = (plane.client()?, Request::new(plane, true));
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        times.push(request.send(&mut client, *number)?);
        *number += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

impl Flood {
    /// Each running job's node sends its ranks' rows, from this point on.
    fn start(plane: &Plane, rate: Option<f64>, sent: u64) -> Result<Flood> {
        let (is_over, address) = (Arc::new(AtomicBool::new(false)), plane.door()?.address);
        let pause = rate.map(|rate| Duration::from_secs_f64(POINTS as f64 * f64::from(RUNNING) / rate));
        let first = sent / (RANKS * METRICS);
        let node = |job: u32| {
            let (mut supervisor, over, address) =
                (plane.supervisor(&format!("job-{job}"))?, Arc::clone(&is_over), address.clone());
            Ok(std::thread::spawn(move || {
                stand_back();
                send(&mut supervisor, &address, (first, pause), &over)
            }))
        };
        let nodes = (1..=RUNNING).map(node).collect::<Result<_>>()?;
        Ok(Flood { is_over, nodes })
    }

    /// Ends it; how many points were stored.
    fn stop(self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let stored = self
            .nodes
            .into_iter()
            .map(|node| node.join().map_err(|_| anyhow::anyhow!("a node panicked"))?.context("send metrics"));
        stored.sum()
    }
}

/// The nodes are other machines in life, so their threads leave the processors to those that are measured.
fn stand_back() {
    // Whoever may not do so measures with them.
    let _ = rustix::process::nice(19);
}

/// Sends rows of a node's ranks until it is over; how many points were stored.
fn send(
    supervisor: &mut Supervisor,
    address: &str,
    (mut first, pause): (u64, Option<Duration>),
    is_over: &AtomicBool,
) -> Result<u64> {
    let mut stored = 0;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        supervisor.post_metrics(address, (0..RANKS).map(|rank| batch(rank, first)).collect())?;
        (first, stored) = (first + ROWS, stored + POINTS);
        std::thread::sleep(pause.unwrap_or_default().saturating_sub(began.elapsed()));
    }
    Ok(stored)
}

/// What a rank measured in its next steps.
fn batch(rank: u64, first: u64) -> Value {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let names: Vec<String> = (0..METRICS).map(|metric| format!("metric-{metric}")).collect();
    let value = |metric: u64, row: u64| json!([metric, (rank * 31 + metric * 7 + row * 3) % 1_000]);
    let row = |row: u64| {
        let values: Vec<Value> = (0..METRICS).map(|metric| value(metric, row)).collect();
        json!({"at": now + row - first, "step": row, "values": values})
    };
    json!({"rank": rank, "first": first, "names": names, "rows": (first..first + ROWS).map(row).collect::<Vec<_>>()})
}
