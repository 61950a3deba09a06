//! Faults of a trainer that speaks the rank protocol and starts at once (tinygpt): how soon they are found, and the recovery in
//! the phases that the product reports. A job is hit again and again, each time after it has saved a newer checkpoint.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::product::{Product, kill, rank_pid, supervisor_pid};
use super::{Bench, HEARTBEAT, product};
use crate::moment;
use crate::processes::{self, Signal};

const RANKS: u32 = 4;
/// Faults of one job: `show` has its last fifty attempts.
const FAULTS_OF_A_JOB: u32 = 20;
/// From the death of a rank until its supervisor knows.
const RANK_MOST: Duration = Duration::from_millis(200);
/// Heartbeats from the death of a supervisor until the control plane knows.
const HEARTBEATS_MOST: u32 = 3;
/// From the last step until a hang is known, with steps as short as here.
const HANG_MOST: Duration = Duration::from_secs(30);
const HANGS: u32 = 3;
/// The phases of a recovery, in order.
const PHASES: [&str; 6] = ["detect", "cleanup", "rendezvous", "init", "restore", "first_step"];

/// What came of faults.
#[derive(Default)]
struct Found {
    /// From the fault until it was known.
    detected: Vec<Duration>,
    /// Each phase of each recovery, and the phases together as `total`.
    phases: BTreeMap<String, Vec<Duration>>,
}

/// Kills ranks.
pub(super) fn killed_ranks(bench: &mut Bench) -> Result<()> {
    bench.report.section(&format!("A killed rank of {RANKS}, tinygpt, which speaks the rank protocol"));
    let rank = |bench: &mut Bench, job: &Value| rank_pid(job, bench.below(u64::from(RANKS)));
    let mut found = inject(bench, &rank)?;
    bench.times("a dead rank is noticed by its supervisor", &mut found.detected, Some(RANK_MOST));
    print_phases(bench, &mut found);
    Ok(())
}

/// Kills supervisors.
pub(super) fn killed_supervisors(bench: &mut Bench) -> Result<()> {
    bench.report.section(&format!("A killed supervisor, {RANKS} ranks of tinygpt, heartbeats of {HEARTBEAT:?}"));
    let mut found = inject(bench, &|_, job| supervisor_pid(job))?;
    let most = HEARTBEAT * HEARTBEATS_MOST;
    bench.times("a dead supervisor is noticed by the control plane", &mut found.detected, Some(most));
    print_phases(bench, &mut found);
    Ok(())
}

fn print_phases(bench: &mut Bench, found: &mut Found) {
    bench.report.note("phases as gangline show reports them; detect is from the last sign of life, so an upper bound");
    for phase in PHASES.into_iter().chain(["total"]) {
        match found.phases.get_mut(phase) {
            Some(times) => bench.times(&format!("phase {phase}"), times, None),
            None => bench.report.skip(&format!("phase {phase}"), "no recovery reported it"),
        }
    }
}

/// Kills what `victim` picks, as often as was asked for.
fn inject(bench: &mut Bench, victim: &dyn Fn(&mut Bench, &Value) -> Option<u32>) -> Result<Found> {
    let product = Product::up(bench.gangline.clone(), &format!("a=cpu:{RANKS}"), &[])?;
    let mut found = Found::default();
    let mut left = bench.options.injections;
    while left > 0 {
        let faults = left.min(FAULTS_OF_A_JOB);
        left -= faults;
        let name = format!("training-{left}");
        let id = product.submit(&product.training(&name, RANKS, "--steps 1000000 --step-time-min 20"))?;
        let mut saved = None;
        for fault in 0..faults {
            let is_due = |job: &Value| is_due(job, fault, saved).then(|| job["checkpoints"]["last_step"].as_u64());
            saved = product.until(&id, "a newer checkpoint", is_due)?;
            std::thread::sleep(bench.moment_below(Duration::from_millis(300)));
            let pid = victim(bench, &product.job(&id)?).context("find whom to kill")?;
            let killed = kill(pid)?;
            found.detected.push(detected(&product, &id, fault, killed)?);
        }
        let all = |job: &Value| (complete(job) == u64::from(faults)).then(|| job.clone());
        found.read(&product.until(&id, "every recovery is complete", all)?)?;
        product.cancel(&id)?;
    }
    Ok(found)
}

/// Whether the job runs again after so many faults, and has saved since.
fn is_due(job: &Value, faults: u32, saved: Option<u64>) -> bool {
    let now = job["checkpoints"]["last_step"].as_u64();
    job["state"] == "running" && complete(job) == u64::from(faults) && now > saved
}

/// How many recoveries have come to a step.
fn complete(job: &Value) -> u64 {
    let recoveries = job["recoveries"].as_array().map_or(&[][..], Vec::as_slice);
    recoveries.iter().filter(|recovery| recovery["is_complete"] == true).count() as u64
}

/// The time from `since` until the product noticed the fault of the attempt with this index.
fn detected(product: &Product, id: &str, attempt: u32, since: SystemTime) -> Result<Duration> {
    let index = usize::try_from(attempt).context("count attempts")?;
    let noticed = |job: &Value| job["attempts"][index]["fault"]["noticed_at"].as_str().map(str::to_owned);
    let noticed = product.until(id, "the fault is noticed", noticed)?;
    Ok(moment::between(since, moment::parse(&noticed)?))
}

impl Found {
    fn read(&mut self, job: &Value) -> Result<()> {
        let time = |value: &Value| value.as_f64().map(Duration::from_secs_f64).context("read seconds");
        for recovery in job["recoveries"].as_array().context("read the recoveries")? {
            for line in recovery["phases"].as_array().context("read a recovery's phases")? {
                let phase = line["phase"].as_str().context("read a phase")?;
                self.phases.entry(phase.to_owned()).or_default().push(time(&line["seconds"])?);
            }
            self.phases.entry("total".to_owned()).or_default().push(time(&recovery["total_seconds"])?);
        }
        Ok(())
    }
}

/// Stops a rank of each of several jobs at once: a hang takes half a minute to be sure of.
pub(super) fn stopped_ranks(bench: &mut Bench) -> Result<()> {
    bench.report.section("A stopped rank (SIGSTOP) of 2, tinygpt with steps of 20 ms");
    let slots = 2;
    let product = Product::up(bench.gangline.clone(), &format!("a=cpu:{}", slots * HANGS), &[])?;
    let mut stopped = Vec::new();
    for job in 0..HANGS {
        let options = "--steps 1000000 --step-time-min 20 --peer-timeout 600";
        stopped.push(product.submit(&product.training(&format!("hang-{job}"), slots, options))?);
    }
    let mut since = Vec::new();
    for id in &stopped {
        product.until(id, "it has a rhythm", |job| (job["progress"]["step"].as_u64() >= Some(40)).then_some(()))?;
        std::thread::sleep(bench.moment_below(Duration::from_millis(100)));
        let pid = rank_pid(&product.job(id)?, bench.below(u64::from(slots))).context("find whom to stop")?;
        since.push(SystemTime::now());
        processes::signal(pid, Signal::STOP)?;
    }
    let mut times = Vec::new();
    for (id, since) in stopped.iter().zip(since) {
        times.push(detected(&product, id, 0, since)?);
        let cause = product.job(id)?["attempts"][0]["fault"]["cause"].clone();
        bench.report.note(&format!("{id}: {}", cause.as_str().unwrap_or("?")));
    }
    bench.times("a hang is noticed", &mut times, Some(HANG_MOST));
    stopped.iter().try_for_each(|id| if product::is_over(&product.job(id)?) { Ok(()) } else { product.cancel(id) })
}
