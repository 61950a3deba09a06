//! `bench engine`: how fast the engine decides and the journal makes it durable, beside what the disk's fsync allows, all in
//! one run and interleaved, because the disk is noisy.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobSpec, Launch, NodeName, PoolName, Priority,
    Program, QueueName, RecoveryPolicy, Submitter, Timestamp,
};
use gangline_orchestration::{Decision, Engine, Event, Limits, NodeCapacity, NodeSpec, ShareEnd};
use gangline_store::db::{Entry, Journal, Options};
use gangline_store::ports::Batch;

use super::report::median;

/// What an event's record weighs: the mean of the demo's journal, rounded up.
const RECORD_BYTES: usize = 300;
/// Repetitions of each measurement of the disk; the median counts.
const ROUNDS: usize = 5;
/// How long each lasts.
const ROUND: Duration = Duration::from_millis(600);
/// Threads that append at once under load.
const WRITERS: usize = 8;
/// Appends waiting for the journal at most, and so in one commit.
const WAITING_MAX: usize = 1_024;
/// What group commit is to reach, in single fsyncs.
const TARGET: f64 = 20.0;

/// Measures and prints; whether group commit reached its target.
pub(super) fn run(options: &[String]) -> Result<bool> {
    anyhow::ensure!(options.is_empty(), "bench engine takes no options");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench-engine");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).context("make target/bench-engine")?;
    println!("engine, in memory (one core; measured):");
    for nodes in [10, 1_000, 10_000] {
        println!("  {nodes:>6} nodes x 8: {:>9.0} events/s applied and decided", engine_rate(nodes)?);
    }
    let mut rates: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        rates[0].push(raw_fsync_rate(&folder.join(format!("raw-{round}")))?);
        rates[1].push(single_rate(&folder.join(format!("single-{round}")))?);
        rates[2].push(loaded_rate(&folder.join(format!("loaded-{round}")))?);
    }
    let [raw, single, loaded] = rates.map(median);
    println!("durable appends of {RECORD_BYTES} B (medians of {ROUNDS} interleaved rounds; measured):");
    println!("  the disk's limit: append + fdatasync of a plain file {raw:>9.0} /s");
    println!("  journal, one writer that waits for each            {single:>9.0} /s = {:.2} x", single / raw);
    println!("  journal, {WRITERS} writers at once (group commit)          {loaded:>9.0} /s = {:.1} x", loaded / raw);
    let is_met = loaded >= TARGET * raw;
    println!("  target: at least {TARGET} x under load: {}", if is_met { "met" } else { "NOT met" });
    std::fs::remove_dir_all(&folder).context("remove target/bench-engine")?;
    Ok(is_met)
}

fn rate(count: u64, began: Instant) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / began.elapsed().as_secs_f64()
}

/// Jobs of 1 to 64 devices come, start and end, with more waiting than fit; events a second, decisions made on the way.
fn engine_rate(nodes: u32) -> Result<f64> {
    let mut engine = Engine::new(Limits::default());
    let mut now = Timestamp::EPOCH;
    for index in 0..nodes {
        let name = NodeName::new(&format!("n{index}"))?;
        let accelerator = AcceleratorKind("H100".to_owned());
        let capacity =
            NodeCapacity { pool: PoolName::default(), accelerator, accelerators: 8, cpus: 96, memory: Bytes(1 << 40) };
        engine.apply(
            now,
            &Event::NodeJoined(NodeSpec { name, capacity, location: Default::default(), layout: Default::default() }),
        )?;
    }
    let specs: Vec<Arc<JobSpec>> = [(1, 1), (1, 2), (1, 8), (2, 8), (8, 8)]
        .into_iter()
        .map(|(n, d)| job(n, d).map(Arc::new))
        .collect::<Result<_>>()?;
    let mut running = std::collections::VecDeque::new();
    let mut events = 0_u64;
    let began = Instant::now();
    for spec in specs.iter().cycle() {
        now = now + Duration::from_millis(1);
        let mut decisions = engine.apply(now, &Event::JobSubmitted(spec.clone()))?;
        events += 1;
        while engine.waiting_count() > 50 || decisions.is_empty() && !running.is_empty() {
            let Some((job, attempt, node)) = running.pop_front() else { break };
            let end = ShareEnd::Succeeded;
            decisions.extend(engine.apply(now, &Event::ShareStarted { job, attempt, node })?);
            decisions.extend(engine.apply(now, &Event::ShareEnded { job, attempt, node, end })?);
            events += 2;
        }
        for decision in decisions {
            if let Decision::Place { job, attempt, shares, .. } = decision {
                running.extend(shares.iter().map(|share| (job, attempt, share.node)));
            }
        }
        if events > 20_000 && began.elapsed() > ROUND {
            break;
        }
    }
    Ok(rate(events, began))
}

fn job(nodes: u32, devices: u32) -> Result<JobSpec> {
    let positive = |number| NonZeroU32::new(number).context("positive");
    Ok(JobSpec {
        name: "bench".to_owned(),
        queue: QueueName::new("bench")?,
        priority: Priority::NORMAL,
        gang: GangShape {
            nodes: positive(nodes)?,
            pool: PoolName::default(),
            accelerator: AcceleratorKind("H100".to_owned()),
            accelerators_per_node: positive(devices)?,
            cpus_per_node: 0,
            memory_per_node: Bytes(0),
            launch: Launch::PerAccelerator,
            topology: Default::default(),
        },
        elastic: None,
        program: Program {
            workdir: "/".to_owned(),
            code: None,
            container: None,
            envs: Default::default(),
            setup: None,
            run: "true".to_owned(),
        },
        checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(30) },
        recovery: RecoveryPolicy {
            max_faults: 10,
            no_progress_limit: 3,
            hang_timeout: HangTimeout::Learned,
            evicts_stragglers: false,
        },
        time_limit: None,
        budget: None,
        spares: 0,
        datasets: Default::default(),
        planned: None,
        pins: Default::default(),
        after: Default::default(),
        notify: Default::default(),
        origin: None,
        submitter: Submitter("bench".to_owned()),
    })
}

/// What the disk can do: append a record's bytes and sync, over and over.
fn raw_fsync_rate(path: &Path) -> Result<f64> {
    let mut file: File = OpenOptions::new().create(true).append(true).open(path)?;
    let record = [7_u8; RECORD_BYTES];
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        file.write_all(&record)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(rate(count, began))
}

fn record() -> Entry {
    Entry { at: Timestamp::EPOCH, body: vec![b'x'; RECORD_BYTES] }
}

fn commit(journal: &mut Journal, records: &[Entry]) -> Result<()> {
    journal
        .commit(Batch { records, given_out: gangline_base::JobId(0), changes: gangline_store::ports::Changes::none() })
        .context("commit")?;
    Ok(())
}

fn single_rate(folder: &Path) -> Result<f64> {
    let (mut journal, _) = Journal::open(folder, Options::default())?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        commit(&mut journal, &[record()])?;
        count += 1;
    }
    Ok(rate(count, began))
}

/// Writers append as fast as they are taken; the journal's thread commits whatever has piled up, as the service does.
fn loaded_rate(folder: &Path) -> Result<f64> {
    let (mut journal, _) = Journal::open(folder, Options::default())?;
    let (sender, receiver): (_, Receiver<Entry>) = sync_channel(WAITING_MAX);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            let sender = sender.clone();
            // Ends when the round is over, or when the journal's side has given up.
            scope.spawn(move || while began.elapsed() < ROUND && sender.send(record()).is_ok() {});
        }
        drop(sender);
        let mut count = 0;
        while let Ok(first) = receiver.recv() {
            let batch: Vec<Entry> = std::iter::once(first).chain(receiver.try_iter().take(WAITING_MAX - 1)).collect();
            commit(&mut journal, &batch)?;
            count += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        }
        Ok(rate(count, began))
    })
}
