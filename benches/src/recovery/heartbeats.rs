//! What it costs the control plane to hear from many supervisors that they live.
//!
//! The supervisors are simulated, all else is real: `gangline up` with as many nodes places real gangs and writes a spec for each
//! node's supervisor. What it then starts as that supervisor is a program that ends at once, for the path of its own binary
//! leads there by then. In its place, this process reports with the token of each spec, at the heartbeat of each spec, over a
//! connection that stays, as a supervisor does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::product::{PATIENCE, Product};
use super::simulated::Supervisor;
use super::{Bench, HEARTBEAT};
use crate::processes;
use crate::report::{Bar, percentile};

/// Of one core, in percent, for a thousand supervisors; for fewer, less.
const CORE_PERCENT_MOST: f64 = 10.0;
/// The part of the reports which are due that has to be made, for the figures to count.
const PACE_LEAST: f64 = 0.95;
/// Nodes of a gang, in the two shapes that are measured: many small gangs, and one of all nodes.
const GANG: u32 = 10;
/// Before the measurement, and for how long it lasts.
const WARM: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(15);
/// Threads that report; each waits for one answer at a time.
const THREADS: usize = 32;
/// A program that ends at once and well.
const NOTHING: &str = "/bin/true";

/// Reports that were made.
#[derive(Default)]
struct Reports {
    answers: Vec<Duration>,
    refused: u64,
    /// The longest time within which a supervisor was told to report again.
    within: Duration,
}

/// Threads that report until they are told to stop.
struct Crowd {
    is_over: Arc<AtomicBool>,
    /// What was answered before is forgotten.
    is_measured: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Reports>>,
    inlets: Vec<mpsc::Sender<Supervisor>>,
}

/// Measures both shapes.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let nodes = bench.options.supervisors;
    bench
        .report
        .section(&format!("{nodes} simulated supervisors that report that they live, every {HEARTBEAT:?} or as told"));
    raise_file_limit(nodes)?;
    for gang in [GANG.min(nodes), nodes] {
        measure(bench, nodes / gang, gang)?;
    }
    Ok(())
}

fn measure(bench: &mut Bench, gangs: u32, gang: u32) -> Result<()> {
    let names: Vec<String> = (0..gangs * gang).map(|node| format!("n{node}=cpu:1")).collect();
    let options: Vec<&str> = names.iter().flat_map(|name| ["--node", name]).collect();
    // Long enough for all to start; how late answers are is measured.
    let options = [&["--lease", "60000"][..], &options[..]].concat();
    let mut product = Product::down(bench.gangline.clone(), &options)?;
    start_without_supervisors(&mut product, &bench.gangline)?;
    let crowd = Crowd::start(&product)?;
    let jobs: Vec<String> = (0..gangs).map(|job| product.submit(&job_file(job, gang))).collect::<Result<_>>()?;
    crowd.admit(&product, gangs * gang)?;
    for id in &jobs {
        product.until(id, "it runs", |job| (job["state"] == "running").then_some(()))?;
    }
    std::thread::sleep(WARM);
    crowd.is_measured.store(true, Ordering::Relaxed);
    let (began, before) = (Instant::now(), processes::processor_time(product.pid()?)?);
    std::thread::sleep(MEASURED);
    let (elapsed, used) = (began.elapsed(), processes::processor_time(product.pid()?)?.saturating_sub(before));
    let mut reports = crowd.stop()?;
    let faults = jobs.iter().map(|id| Ok(product.job(id)?["state"] != "running")).collect::<Result<Vec<bool>>>()?;
    let count = reports.answers.len();
    let percent = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
    let what = format!("{gangs} gang(s) of {gang}: the control plane's processor, % of one core");
    let supervisors = f64::from(gangs * gang);
    bench.report.figure(&what, percent, "%", Bar::AtMost(CORE_PERCENT_MOST * supervisors / 1_000.0));
    let (a_second, each) = (count as f64 / elapsed.as_secs_f64(), used.as_secs_f64() * 1e6 / count.max(1) as f64);
    let due = supervisors / reports.within.max(HEARTBEAT).as_secs_f64();
    bench.report.time("told to report within", reports.within, None);
    bench.report.figure("reports a second", a_second, "/s", Bar::AtLeast(PACE_LEAST * due));
    bench.report.figure("processor time of a report", each, "us", Bar::None);
    anyhow::ensure!(count > 0, "no report was answered");
    bench.times("an answer", &mut reports.answers, None);
    bench.report.time("an answer, p99", percentile(&mut reports.answers, 99), None);
    let wrong = reports.refused as f64 + faults.iter().filter(|is_wrong| **is_wrong).count() as f64;
    bench.report.figure("reports refused, and gangs that don't run", wrong, "", Bar::AtMost(0.0));
    Ok(())
}

fn job_file(job: u32, gang: u32) -> String {
    format!("name: gang-{job}\nnum_nodes: {gang}\nresources: {{accelerators: \"cpu:1\"}}\nrun: train\n")
}

/// Starts the control plane under a name that is another program's as soon as it runs.
fn start_without_supervisors(product: &mut Product, gangline: &Path) -> Result<()> {
    let server = product.folder.path("gangline");
    // Another file system can't have a link to it.
    if std::fs::hard_link(gangline, &server).is_err() {
        std::fs::copy(gangline, &server).context("copy the binary")?;
    }
    product.serve_from(server.clone());
    product.start()?;
    std::fs::remove_file(&server).context("take the binary's name away")?;
    std::os::unix::fs::symlink(NOTHING, &server).context("put nothing in the supervisors' place")
}

/// Each supervisor has a connection, which has two ends in two processes.
fn raise_file_limit(supervisors: u32) -> Result<()> {
    let needed = u64::from(supervisors) + 512;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let is_enough = limit.maximum.is_none_or(|maximum| maximum >= needed);
        anyhow::ensure!(is_enough, "{supervisors} supervisors need {needed} open files: raise ulimit -Hn");
        limit.current = Some(needed);
        setrlimit(Resource::Nofile, limit).context("raise the limit of open files")?;
    }
    Ok(())
}

impl Crowd {
    fn start(product: &Product) -> Result<Crowd> {
        let endpoint = product.folder.text("data/endpoint");
        let address = endpoint.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        anyhow::ensure!(!address.is_empty(), "the control plane has an endpoint");
        let (is_over, is_measured) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (mut threads, mut inlets) = (Vec::new(), Vec::new());
        for _ in 0..THREADS {
            let (inlet, admitted) = mpsc::channel();
            let (address, is_over, is_measured) = (address.clone(), Arc::clone(&is_over), Arc::clone(&is_measured));
            threads.push(std::thread::spawn(move || report_all(&address, &admitted, &is_over, &is_measured)));
            inlets.push(inlet);
        }
        Ok(Crowd { is_over, is_measured, threads, inlets })
    }

    /// Has each supervisor report from the moment that its spec is there.
    fn admit(&self, product: &Product, count: u32) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut admitted: BTreeSet<PathBuf> = BTreeSet::new();
        while admitted.len() as u64 != u64::from(count) {
            anyhow::ensure!(Instant::now() < deadline, "only {} of {count} supervisors were started", admitted.len());
            for spec in specs(&product.folder.path("data/jobs")) {
                if !admitted.contains(&spec) {
                    let supervisor = Supervisor::read(&spec)?;
                    self.inlets[admitted.len() % THREADS].send(supervisor).context("a thread reports")?;
                    admitted.insert(spec);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn stop(self) -> Result<Reports> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Reports::default();
        for thread in self.threads {
            let mut reports = thread.join().map_err(|_| anyhow::anyhow!("a thread that reports panicked"))?;
            all.answers.append(&mut reports.answers);
            all.refused += reports.refused;
            all.within = all.within.max(reports.within);
        }
        Ok(all)
    }
}

/// jobs/JOB/attempt-N/NODE/spec.json, of all that are there.
fn specs(jobs: &Path) -> Vec<PathBuf> {
    let inner = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let nodes = inner(jobs.to_owned()).into_iter().flat_map(inner).flat_map(inner);
    nodes.map(|node| node.join("spec.json")).filter(|spec| spec.is_file()).collect()
}

/// Reports for each supervisor in turn, whenever it is due.
fn report_all(
    address: &str,
    admitted: &mpsc::Receiver<Supervisor>,
    is_over: &AtomicBool,
    is_measured: &AtomicBool,
) -> Reports {
    let (mut reports, mut supervisors) = (Reports::default(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        supervisors.extend(admitted.try_iter());
        let now = Instant::now();
        let due = supervisors.iter_mut().filter(|supervisor: &&mut Supervisor| supervisor.due <= now);
        for supervisor in due {
            let answer = supervisor.report(address);
            match answer {
                Ok(took) if is_measured.load(Ordering::Relaxed) => {
                    reports.answers.push(took);
                    reports.within = reports.within.max(supervisor.heartbeat);
                }
                Ok(_) => {}
                Err(_) => reports.refused += 1,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    reports
}
