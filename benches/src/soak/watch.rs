//! Who looks on meanwhile: at what the product shows, at the processes there are, at the control plane's memory.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::Soak;
use super::scan::{self, Found, Role};
use super::verdict::Check;
use super::world::Answer;

/// Between two looks at what the product shows, and at processes.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
const PROCESSES_EVERY: Duration = Duration::from_millis(400);
/// Between two samples of memory.
const MEMORY_EVERY: Duration = Duration::from_secs(10);
/// Jobs of one listing.
const LISTED: &str = "200";
/// What ends may take so long to go once its job is told to have ended.
const GOING_MAX: Duration = Duration::from_secs(2);

/// Looks at what the product shows until the soak is over.
///
/// # Errors
/// When the record can't be written.
pub(super) fn shown(soak: &Soak) -> Result<()> {
    while !soak.is_over.load(Ordering::Relaxed) {
        {
            let _pass = soak.pass();
            look(soak)?;
        }
        std::thread::sleep(SHOWN_EVERY);
    }
    Ok(())
}

/// One look at the newest jobs, and at those that should come to an end and aren't among them; whether there was an answer.
///
/// # Errors
/// When the record can't be written.
pub(super) fn look(soak: &Soak) -> Result<bool> {
    let Answer::Done(list) = soak.world.ask(&["ps", "--all", "--limit", LISTED]) else { return Ok(false) };
    let jobs = list["jobs"].as_array().cloned().unwrap_or_default();
    for job in &jobs {
        soak.oracle().sees(job)?;
    }
    let listed = |id: &str| jobs.iter().any(|job| job["id"] == id);
    let outstanding = soak.oracle().outstanding();
    for (name, id) in outstanding.iter().filter(|(_, id)| !listed(id)) {
        show(soak, name, id, None)?;
    }
    Ok(true)
}

/// Looks at one job; that it isn't there is a breach unless a loss was told. Whether there was an answer.
///
/// # Errors
/// When the record can't be written.
pub(super) fn show(soak: &Soak, name: &str, id: &str, lost: Option<&super::oracle::Lost>) -> Result<bool> {
    match soak.world.ask(&["show", id]) {
        Answer::Done(job) => soak.oracle().sees(&job).map(|()| true),
        Answer::NotFound => soak.oracle().misses(name, lost).map(|()| true),
        Answer::Refused(_) | Answer::Unknown(_) => Ok(false),
    }
}

/// Looks at all processes until the soak is over: none of an attempt may be there beside a later one's, or after its job's end.
pub(super) fn processes(soak: &Soak) {
    let mut known: BTreeMap<(u32, u64), Found> = BTreeMap::new();
    let mut sampled = Instant::now();
    while !soak.is_over.load(Ordering::Relaxed) {
        for process in scan::attempts(&soak.world.data()) {
            known.insert((process.pid, process.started), process);
        }
        // One that is going has no environment any more, so it is remembered until it is gone.
        known.retain(|_, process| process.is_alive());
        beside(soak, &known);
        after_the_end(soak, &known);
        if sampled.elapsed() >= MEMORY_EVERY {
            sampled = Instant::now();
            sample(soak);
        }
        std::thread::sleep(PROCESSES_EVERY);
    }
}

/// Ranks of an attempt while those of a later one run.
fn beside(soak: &Soak, known: &BTreeMap<(u32, u64), Found>) {
    let mut newest: BTreeMap<&str, &Found> = BTreeMap::new();
    let ranks = || known.values().filter(|process| matches!(process.role, Role::Rank | Role::Other));
    for process in ranks() {
        let entry = newest.entry(&process.job).or_insert(process);
        if process.attempt > entry.attempt {
            *entry = process;
        }
    }
    for process in ranks() {
        let newer = newest[process.job.as_str()];
        // Both are looked at once more, the older one last: a list isn't of one moment.
        if newer.attempt > process.attempt && newer.is_alive() && process.is_alive() {
            let (job, pid, attempt, other) = (&process.job, process.pid, process.attempt, newer.attempt);
            let text =
                format!("{job}: process {pid} of attempt {attempt} is there beside {} of attempt {other}", newer.pid);
            soak.oracle().breach_once(Check::Beside, format!("{job} {pid}"), text);
        }
    }
}

fn after_the_end(soak: &Soak, known: &BTreeMap<(u32, u64), Found>) {
    let mut oracle = soak.oracle();
    for process in known.values().filter(|process| process.role != Role::Supervisor) {
        let Some(since) = oracle.ended_for(&process.job).filter(|since| *since > GOING_MAX) else { continue };
        if process.is_alive() {
            let (job, pid, attempt, role) = (&process.job, process.pid, process.attempt, process.role);
            let since = since.as_secs_f64();
            let text = format!(
                "{job} ended (or was lost) {since:.1} s ago and process {pid} of attempt {attempt} ({role:?}) is there"
            );
            oracle.breach_once(Check::Orphan, format!("{job} {pid}"), text);
        }
    }
}

fn sample(soak: &Soak) {
    let resident = soak.world.pid().and_then(scan::resident);
    if let Some(kib) = resident {
        let at = soak.began.elapsed();
        soak.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, kib));
    }
}

/// The id that an answer to a submission gives, or those of a sweep.
pub(super) fn ids(answer: &Value) -> Vec<String> {
    let texts = |values: &[Value]| values.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    match (&answer["job"], &answer["jobs"]) {
        (Value::String(id), _) => vec![id.clone()],
        (_, Value::Array(ids)) => texts(ids),
        _ => Vec::new(),
    }
}
