//! What a year's jobs take on the disk: some are run, by the real engine, journal and read models and with simulated supervisors, and
//! what each of them takes is counted for all.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Bench;
use super::client::Client;
use super::sizes::{Sizes, of_journal};
use super::up::Plane;
use crate::recovery::simulated::Supervisor;
use crate::report::Bar;

/// A year of a thousand jobs a day, and the most that their journal and read models may take.
const JOBS: u64 = 365_000;
const BYTES_MOST: f64 = 2e9;
/// Ranks of a job, all on one node, and nodes.
const RANKS: u32 = 8;
const NODES: u32 = 4;
/// What a job does: so many checkpoints, and samples in each report between.
const CHECKPOINTS: u64 = 10;
const SAMPLES_EACH: u64 = 20;
/// After so many jobs its size is taken for the first time, so that what is there once doesn't count as a job's.
const FIRST: u64 = 100;

/// Pages that the control plane keeps for what comes next, at most.
const FREE_MOST: u64 = 8 << 20;
/// What was freed is given back in this time,
const PATIENCE: Duration = Duration::from_secs(300);
/// and it is seen as soon as this.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const JOB_FILE: &str = r#"name: llama-8b-sft-NUMBER
resources: {accelerators: "cpu:8"}
workdir: .
envs: {LR: 3e-4, NCCL_DEBUG: WARN}
setup: pip install -r requirements.txt
run: python train.py --config configs/llama-8b.yaml
checkpoint: {grace: 90s}
time_limit: 1d12h
"#;

/// Runs jobs to their end and counts.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let jobs = bench.options.jobs;
    bench.report.section(&format!(
        "A year of 1,000 jobs a day with {RANKS} ranks each, {CHECKPOINTS} checkpoints and {} samples (estimated from {jobs} jobs measured)",
        CHECKPOINTS * SAMPLES_EACH
    ));
    let mut plane = Plane::start(&bench.gangline, NODES, RANKS)?;
    run_jobs(&plane, 0, FIRST)?;
    let before = settled(&mut plane)?;
    run_jobs(&plane, FIRST, jobs)?;
    let after = settled(&mut plane)?;
    let each = |of: fn(&Sizes) -> u64| (of(&after) as f64 - of(&before) as f64) / jobs as f64;
    let (records, models) = (each(|s| s.records), each(|s| s.models));
    bench.report.figure("journal, a job (measured)", records, "B", Bar::None);
    bench.report.figure("read models, a job (measured)", models, "B", Bar::None);
    bench.report.figure("all files, a job (measured)", each(|s| s.files), "B", Bar::None);
    let free = after.free as f64;
    bench.report.figure("free pages, once for all jobs (measured)", free / 1e6, "MB", Bar::None);
    bench.report.note(&format!("snapshots, which don't grow with the past: {} B", after.snapshots));
    let year = (records + models) * JOBS as f64 + free;
    let whole = "journal, read models and free pages of a year (estimated)";
    bench.report.figure(whole, year / 1e9, "GB", Bar::AtMost(BYTES_MOST / 1e9));
    Ok(())
}

/// Waits until free pages are given back, and stops it in order, so that the write-ahead log is in the database, and starts it again.
fn settled(plane: &mut Plane) -> Result<Sizes> {
    let began = Instant::now();
    // What nothing uses is given back only where it is much.
    let is_settled = |sizes: Sizes| sizes.free < FREE_MOST || sizes.free * 4 < sizes.files;
    while !is_settled(of_journal(plane)?) {
        anyhow::ensure!(began.elapsed() < PATIENCE, "free pages aren't given back");
        std::thread::sleep(LOOK_EVERY);
    }
    plane.stop()?;
    plane.forget_jobs();
    let sizes = of_journal(plane)?;
    plane.restart()?;
    Ok(sizes)
}

/// Submits so many jobs and has each run to its end.
fn run_jobs(plane: &Plane, from: u64, count: u64) -> Result<()> {
    let mut client = plane.client()?;
    let address = plane.door()?.address;
    let mut open = VecDeque::new();
    for number in from..from + count {
        open.push_back(submit(plane, &mut client, number)?);
        // Each node is taken by one.
        if open.len() == NODES as usize {
            finish(plane, open.pop_front().as_deref(), &address)?;
        }
    }
    open.iter().try_for_each(|job| finish(plane, Some(job), &address))
}

fn submit(plane: &Plane, client: &mut Client, number: u64) -> Result<String> {
    let file = JOB_FILE.replace("NUMBER", &number.to_string());
    let body = serde_json::json!({"job_file": file, "directory": plane.path("")}).to_string();
    client.post("/api/v1/jobs", Some(&format!("year-{number}")), &body)?;
    let answer = client.answered()?;
    Ok(answer["submitted"]["job"].as_str().context("a submitted job has an id")?.to_owned())
}

fn finish(plane: &Plane, job: Option<&str>, address: &str) -> Result<()> {
    let job = job.context("a job is open")?;
    let mut supervisor: Supervisor = plane.supervisor(job)?;
    for checkpoint in 1..=CHECKPOINTS {
        supervisor.take_samples(SAMPLES_EACH);
        supervisor.report(address)?;
        supervisor.save(checkpoint * 100);
    }
    supervisor.take_samples(0);
    supervisor.report(address)?;
    supervisor.end();
    // What was sent last is taken with the end.
    supervisor.report(address).map(drop)
}
