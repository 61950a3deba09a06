//! Jobs that are submitted over HTTP, each durable when it is answered; and the list once many wait.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};

use super::client::{Client, Door};
use super::load::{Listers, RUNNING, Running};
use super::up::Plane;
use super::{Bench, limits};
use crate::processes;
use crate::report::{Bar, median, percentile};

/// Connections that submit at once.
pub(super) const CLIENTS: usize = 8;
/// Admissions a second beside samples and listers, at least; and how long the slowest of a hundred may take.
const RATE_LEAST: f64 = 10_000.0;
const P99_MOST: Duration = Duration::from_millis(10);
/// All rounds together stay below what may wait at all (200,000), however fast the control plane is.
const ADMITTED_MOST: u64 = 180_000;
/// Jobs that wait when the list is looked at, and how long a page of it may take.
const WAITING: u64 = 100_000;
const PAGE_MOST: Duration = Duration::from_millis(10);
/// Pages that are looked at.
const LOOKS: usize = 200;

/// An odd number whose multiples are all over the place.
const SCATTER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// What is submitted, but for its number.
const JOB_FILE: &str = r#"name: llama-8b-sft-NUMBER
priority: normal
num_nodes: 1
resources: {accelerators: "cpu:1"}
workdir: .
envs:
  LR: 3e-4                      # reaches the script as written
  NCCL_DEBUG: WARN
setup: pip install -r requirements.txt
run: python train.py --config configs/llama-8b.yaml
checkpoint: {grace: 90s}
recovery: {max_faults: 10, no_progress_limit: 3}
time_limit: 1d12h
"#;

/// The same for all submissions but for its number.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Around the number.
    parts: [String; 2],
    is_keyed: bool,
}

/// What came of submitting for a while.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) times: Vec<Duration>,
    pub(super) elapsed: Duration,
    processor: Duration,
    client: Duration,
    bytes: u64,
}

/// Measures both kinds of submissions by themselves and beside others, in turn; then the list.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let (rounds, round) = (bench.options.rounds, Duration::from_millis(bench.options.round));
    bench.report.section(&format!(
        "Admissions over HTTP, {CLIENTS} connections, medians of {rounds} rounds of {round:?} in turn (measured; the client is on the same cores)"
    ));
    let plane = Plane::start(&bench.gangline, RUNNING, 1)?;
    let running = Running::start(&plane)?;
    // A user's submission with a key, as the command line sends it; and without.
    let requests = [true, false].map(|is_keyed| Request::new(&plane, is_keyed));
    let (number, mut listed) = (AtomicU64::new(0), Vec::new());
    let mut flows: [[Vec<Flow>; 2]; 2] = Default::default();
    let (mut least, mut fsyncs, mut beside) = (Vec::new(), Vec::new(), Duration::ZERO);
    let least_server = limits::least_server()?;
    // Of these two kinds, each with and without others beside it.
    let each_most = ADMITTED_MOST / (4 * u64::from(rounds));
    for _ in 0..rounds {
        for (is_beside, flows) in [false, true].into_iter().zip(flows.iter_mut()) {
            let began = Instant::now();
            running.take_samples(is_beside);
            let listers = is_beside.then(|| Listers::start(&plane)).transpose()?;
            for (request, flows) in requests.iter().zip(flows.iter_mut()) {
                flows.push(submit(&plane, request, &number, each_most, round)?);
            }
            listed.extend(listers.map(Listers::stop).transpose()?.into_iter().flatten());
            running.take_samples(false);
            beside += if is_beside { began.elapsed() } else { Duration::ZERO };
        }
        let one = |client: &mut Client, number: u64| requests[0].send(client, number);
        let flow = send(least_server.clone(), (&AtomicU64::new(0), u64::MAX), round, one)?;
        least.push(flow.rate());
        let last = flows[1][0].last().context("something was submitted")?;
        let bytes = usize::try_from(last.bytes_each() * CLIENTS as u64).unwrap_or(usize::MAX);
        fsyncs.push(limits::fsyncs_a_second(&plane.path(""), bytes, round)?);
    }
    print(bench, &flows, (median(least), median(fsyncs)));
    bench.report.time("a page of the list meanwhile, p99", percentile(&mut listed, 99), None);
    list(bench, &plane, &requests[1], &number)?;
    let (samples, beside) = (running.stop()?, beside.as_secs_f64());
    bench.report.figure("samples a second that were taken meanwhile", samples as f64 / beside, "/s", Bar::None);
    Ok(())
}

fn print(bench: &mut Bench, flows: &[[Vec<Flow>; 2]; 2], (least, fsyncs): (f64, f64)) {
    let limit = fsyncs * CLIENTS as f64;
    for (flows, where_) in flows.iter().zip(["by themselves", "beside 500 samples/s and two listers"]) {
        for (flows, how) in flows.iter().zip(["with a key", "without"]) {
            let of = |figure: &dyn Fn(&Flow) -> f64| median(flows.iter().map(figure).collect());
            let (rate, p99) = (of(&Flow::rate), of(&|flow| flow.percentile(99).as_secs_f64()));
            let has_bar = where_ != "by themselves";
            let what = format!("admissions {how}, {where_}");
            bench.report.figure(&what, rate, "/s", if has_bar { Bar::AtLeast(RATE_LEAST) } else { Bar::None });
            bench.report.time(&format!("{what}: p99"), Duration::from_secs_f64(p99), has_bar.then_some(P99_MOST));
            let median = of(&|flow| flow.percentile(50).as_secs_f64());
            let processor = of(&|flow| flow.processor.as_secs_f64() / flow.times.len().max(1) as f64);
            let client = of(&|flow| flow.client.as_secs_f64() / flow.times.len().max(1) as f64);
            let bytes = of(&|flow| flow.bytes_each() as f64);
            bench.report.note(&format!(
                "median {:.2} ms; {:.0} us of the control plane's processor, {:.0} us of the clients' and {bytes:.0} B written each; {:.2} of the least server's rate, {:.2} of the disk's",
                median * 1e3, processor * 1e6, client * 1e6, rate / least, rate / limit,
            ));
        }
    }
    bench.report.figure("limit: a server that only answers, same client, same cores", least, "/s", Bar::None);
    let what = format!("limit: fsyncs of what {CLIENTS} admissions write, times {CLIENTS}");
    bench.report.figure(&what, limit, "/s", Bar::None);
}

fn list(bench: &mut Bench, plane: &Plane, request: &Request, number: &AtomicU64) -> Result<()> {
    let left = WAITING.saturating_sub(number.load(Ordering::Relaxed));
    submit(plane, request, number, left, Duration::MAX)?;
    let waiting = number.load(Ordering::Relaxed);
    bench.report.section(&format!("The list, with {waiting} waiting jobs (measured)"));
    let mut client = plane.client()?;
    let before = plane.processor_time()?;
    for (what, path) in [
        ("a page of 100, the newest", "/api/v1/jobs".to_owned()),
        ("a page of 100, from the middle", format!("/api/v1/jobs?before=job-{}", waiting / 2)),
        ("a page of 500", "/api/v1/jobs?limit=500".to_owned()),
    ] {
        let mut times = (0..LOOKS).map(|_| client.get(&path)).collect::<Result<Vec<_>>>()?;
        let most = (!path.contains("500")).then_some(PAGE_MOST);
        bench.report.time(&format!("{what}, median of {LOOKS}"), percentile(&mut times, 50), most);
        bench.report.time(&format!("{what}, p99"), percentile(&mut times, 99), None);
    }
    let used = plane.processor_time()?.saturating_sub(before) / u32::try_from(3 * LOOKS).unwrap_or(u32::MAX);
    bench.report.time("the control plane's processor for a page", used, None);
    Ok(())
}

impl Request {
    /// A real job file's, as the command line sends it.
    pub(super) fn new(plane: &Plane, is_keyed: bool) -> Request {
        Request::of(JOB_FILE, &plane.path(""), is_keyed)
    }

    fn of(file: &str, folder: &Path, is_keyed: bool) -> Request {
        let set: [&str; 0] = [];
        let body = serde_json::json!({
            "job_file": file, "file_name": "job.yaml", "directory": folder, "set": set, "dry_run": false
        });
        let body = body.to_string();
        let (before, after) = body.split_once("NUMBER").unwrap_or((&body, ""));
        Request { parts: [before.to_owned(), after.to_owned()], is_keyed }
    }

    /// Sends it with this number.
    ///
    /// # Errors
    /// When it is refused.
    pub(super) fn send(&self, client: &mut Client, number: u64) -> Result<Duration> {
        let [before, after] = &self.parts;
        // As a key of the command line's: the time in milliseconds, then 80 bits in no order.
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let scattered = u128::from(number).wrapping_mul(SCATTER) >> 48;
        let key = format!("{:012x}{scattered:020x}", since_epoch.as_millis());
        client.post("/api/v1/jobs", self.is_keyed.then_some(&key), &format!("{before}{number}{after}"))
    }
}

/// Submits over several connections until so many are in or the time is over; what the control plane needed for it.
///
/// # Errors
/// When one is refused.
pub(super) fn submit(plane: &Plane, request: &Request, number: &AtomicU64, count: u64, time: Duration) -> Result<Flow> {
    let (processor, bytes) = (plane.processor_time()?, plane.bytes_written()?);
    let client = processes::processor_time(std::process::id())?;
    let last = number.load(Ordering::Relaxed).saturating_add(count);
    let flow = send(plane.door()?, (number, last), time, |client, number| request.send(client, number))?;
    let (processor, bytes) = (plane.processor_time()? - processor, plane.bytes_written()? - bytes);
    let client = processes::processor_time(std::process::id())? - client;
    Ok(Flow { processor, client, bytes, ..flow })
}

/// Cancels these jobs over several connections.
///
/// # Errors
/// When one can't be cancelled.
pub(super) fn cancel(plane: &Plane, jobs: Range<u64>) -> Result<()> {
    let number = AtomicU64::new(jobs.start);
    let one = |client: &mut Client, job: u64| client.post(&format!("/api/v1/jobs/job-{job}/cancel"), None, "{}");
    send(plane.door()?, (&number, jobs.end), Duration::MAX, one).map(drop)
}

/// Sends one request after the other over several connections, until the number has come to its end or the time is over.
fn send(
    door: Door,
    (number, last): (&AtomicU64, u64),
    time: Duration,
    request: impl Fn(&mut Client, u64) -> Result<Duration> + Sync,
) -> Result<Flow> {
    let clients = (0..CLIENTS).map(|_| door.connect()).collect::<Result<Vec<_>>>()?;
    let (began, request) = (Instant::now(), &request);
    let one = |mut client: Client| {
        let mut times = Vec::new();
        while began.elapsed() < time {
            let own = number.fetch_add(1, Ordering::Relaxed);
            if own >= last {
                number.fetch_sub(1, Ordering::Relaxed);
                break;
            }
            times.push(request(&mut client, own)?);
        }
        Ok::<Vec<Duration>, anyhow::Error>(times)
    };
    let mut flow = Flow::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || one(client))).collect();
        for thread in threads {
            flow.times.extend(thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        Ok::<(), anyhow::Error>(())
    })?;
    flow.elapsed = began.elapsed();
    Ok(flow)
}

impl Flow {
    /// How many a second.
    pub(super) fn rate(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64()
    }

    fn percentile(&self, percent: usize) -> Duration {
        percentile(&mut self.times.clone(), percent)
    }

    fn bytes_each(&self) -> u64 {
        self.bytes / (self.times.len() as u64).max(1)
    }
}
