//! `bench accounting [--attempts N]`: bills of a year of a thousand nodes: reports, the rows of a month, what booking adds to a
//! commit, and memory; and the commands that decide about money.
//!
//! An export asks for a day at a time, as the command does, and memory is that of this process, which has the store and its writer.
//!
//! The year is made by a seed and written through the store's own port, one booking for each attempt: 1,000 nodes of 8 devices, each
//! attempt on one node, drains and repairs between, so that jobs hold about two thirds of the devices.

mod commands;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gangline_accounting::bill::{Capacity, NodeState, Overheads, Period};
use gangline_accounting::{Allocation, LedgerEntry, book};
use gangline_base::{
    AcceleratorKind, AttemptNumber, Bucket, Buckets, GpuSeconds, JobId, JobSpec, Money, NodeName, Submitter, Timestamp,
};
use gangline_control::views::{By, Views};
use gangline_specs::jobfile::{Context, Submission, parse};
use gangline_store::codec::{CapacityChanged, Noted};
use gangline_store::db::{Entry, Journal, Options};
use gangline_store::model::{JobRecord, StateRecord};
use gangline_store::ports::{Batch, Changes};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::report::{Bar, Report};

const NODES: u64 = 1_000;
const DEVICES: u32 = 8;
const ATTEMPTS: u64 = 1_000_000;
/// Attempts of a job.
const ATTEMPTS_OF_JOB: u64 = 4;
const USERS: u64 = 200;
const QUEUES: u64 = 20;
/// Changes of what a node offers, in the year.
const CHANGES: u64 = 20;
/// Bookings in a commit while the year is written.
const BATCH: usize = 20_000;
/// Commits of each kind that are timed, in turn.
const ROUNDS: u64 = 300;
const DAY: Duration = Duration::from_secs(24 * 3_600);
const BEGIN: Timestamp = Timestamp::from_unix_nanos(1_735_689_600_000_000_000); // 2025-01-01
const REPORT_SECONDS_MOST: f64 = 1.0;
const EXPORT_SECONDS_MOST: f64 = 5.0;
const EXPORT_MIB_MOST: f64 = 300.0;
const BOOKING_SHARE_MOST: f64 = 0.05;
const JOB_FILE: &str = "name: llama-8b-sft\nresources: {accelerators: \"H100:8\"}\nrun: python train.py\n";

/// Measures and prints; whether the bars are met.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let attempts = match options {
        [] => ATTEMPTS,
        [name, count] if name == "--attempts" => count.parse()?,
        _ => anyhow::bail!("bench accounting takes --attempts N"),
    };
    let mut report = Report::default();
    let folder = tempfile::tempdir_in(std::env::current_dir()?.join("target"))?;
    let (mut journal, _) = Journal::open(folder.path(), Options::default())?;
    report.section(&format!(
        "A year of {NODES} nodes of {DEVICES} devices: {attempts} attempts (made by a seed, measured here)"
    ));
    let begun = Instant::now();
    let last = fill(&mut journal, attempts)?;
    report.note(&format!("written in {:.0} s", begun.elapsed().as_secs_f64()));
    let views = Views::new(journal.reader(), folder.path().to_owned());
    let year = Period { from: BEGIN, to: BEGIN + DAY * 365 };
    let month = Period { from: BEGIN + DAY * 334, to: year.to };
    // Begins to count the most memory anew; see proc(5).
    std::fs::write("/proc/self/clear_refs", "5")?;
    let (mut rows, begun) = (0, Instant::now());
    for day in 334..365 {
        let day = Period { from: BEGIN + DAY * day, to: BEGIN + DAY * (day + 1) };
        rows += views.cost_usage(day, year.to)?.rows.len();
    }
    let seconds = begun.elapsed().as_secs_f64();
    report.figure(&format!("export of that month, {rows} rows by day"), seconds, "s", Bar::AtMost(EXPORT_SECONDS_MOST));
    report.figure("memory of the export, at most", peak_mib()?, "MiB", Bar::AtMost(EXPORT_MIB_MOST));
    for by in [By::Queue, By::User, By::Job, By::Node] {
        let seconds = median(3, || views.cost_report(year, by, false, year.to).map(drop))?;
        report.figure(&format!("report of the year by {by}"), seconds, "s", Bar::AtMost(REPORT_SECONDS_MOST));
    }
    let seconds = median(5, || views.cost_report(month, By::Queue, true, year.to).map(drop))?;
    report.figure("report of its last month by queue", seconds, "s", Bar::AtMost(REPORT_SECONDS_MOST));
    check(&views, year)?;
    bookings(&mut report, &mut journal, last)?;
    commands::run(&mut report, folder.path())?;
    Ok(report.finish())
}

/// Every device-second of the year is in one line.
fn check(views: &Views, year: Period) -> Result<()> {
    let bill = views.cost_report(year, By::User, false, year.to)?;
    let capacity: f64 = bill.capacity_seconds.parse()?;
    let sum: f64 = bill.total.lines.iter().map(|line| line.gpu_seconds).sum();
    ensure!((capacity - sum).abs() < 1e-3 * capacity.max(1.0), "{sum} of {capacity} device-seconds are in the bill");
    ensure!(bill.beyond_capacity_seconds == "0.000000000", "jobs held {} too much", bill.beyond_capacity_seconds);
    Ok(())
}

/// Writes the year, and returns the last job.
fn fill(journal: &mut Journal, attempts: u64) -> Result<JobId> {
    let random = &mut ChaCha8Rng::seed_from_u64(1);
    let spec = spec()?;
    let mut noted = Vec::new();
    let price = Some(Money::from_nano_dollars(2_490_000_000));
    for node in 0..NODES {
        for change in 0..CHANGES {
            let state = if change % 2 == 0 { NodeState::Ready } else { NodeState::Draining };
            let (accelerator, overheads) = (AcceleratorKind("H100".to_owned()), Overheads::default());
            let capacity = Capacity { state, accelerator, devices: DEVICES, others: 0, price, overheads };
            let at = BEGIN + DAY * u32::try_from(change * 365 / CHANGES)?;
            noted.push((at, Noted::Capacity(CapacityChanged::of(&name(node), &capacity))));
        }
    }
    commit(journal, &Changes { noted: &noted, ..Changes::none() }, 0)?;
    let (each, mut ledger, mut jobs) = (365 * 24 * 3_600 / (attempts / NODES).max(1), Vec::new(), Vec::new());
    for number in 0..attempts {
        let job = JobId(1 + number / ATTEMPTS_OF_JOB);
        let attempt = u32::try_from(number % ATTEMPTS_OF_JOB)? + 1;
        ledger.push((format!("queue-{}", job.0 % QUEUES), entry(random, (number, attempt), job, each)?));
        if u64::from(attempt) == ATTEMPTS_OF_JOB {
            let mut record = JobRecord::new(job, &spec, BEGIN);
            record.state = if job.0.is_multiple_of(4) { StateRecord::Failed } else { StateRecord::Succeeded };
            record.submitter = format!("user-{}", job.0 % USERS);
            jobs.push(record);
        }
        if ledger.len() == BATCH || number + 1 == attempts {
            let jobs: Vec<&JobRecord> = jobs.iter().collect();
            commit(journal, &Changes { ledger: &ledger, jobs: &jobs, ..Changes::none() }, job.0)?;
            ledger.clear();
        }
        if ledger.is_empty() {
            jobs.clear();
        }
    }
    Ok(JobId(attempts.div_ceil(ATTEMPTS_OF_JOB)))
}

/// An attempt on the node whose turn it is, within its part of the year.
fn entry(random: &mut ChaCha8Rng, (number, attempt): (u64, u32), job: JobId, each: u64) -> Result<LedgerEntry> {
    let from = BEGIN + Duration::from_secs(number / NODES * each);
    let length = Duration::from_nanos(1 + random.next_u64() % (each * 1_000_000_000).max(2));
    let allocation = Allocation {
        job,
        attempt: AttemptNumber(attempt),
        node: NodeName::new(&name(number % NODES))?,
        devices: DEVICES,
        from,
        to: from + length,
        price: Money::from_nano_dollars(2_490_000_000),
    };
    let total = GpuSeconds::of(DEVICES, length).nanos();
    let mut buckets = Buckets::default();
    for (part, bucket) in
        [(60, Bucket::Compute), (20, Bucket::Communication), (8, Bucket::LostWork), (5, Bucket::DataStall)]
    {
        buckets[bucket] = GpuSeconds::from_nanos(total * part / 100);
    }
    Ok(book(allocation, Some((from + Duration::from_millis(20), buckets))))
}

fn name(node: u64) -> String {
    format!("node-{node:04}")
}

fn spec() -> Result<JobSpec> {
    let context = Context {
        file_name: "job.yaml",
        base: Path::new("/"),
        submitter: Submitter("user".to_owned()),
        overrides: &[],
        is_folder: &|_| true,
        template: &|_| Err(String::new()),
        copy_code: &|_, _| unreachable!("the file has no code to copy"),
    };
    match parse(JOB_FILE, &context) {
        Ok(Submission::Job(spec)) => Ok(*spec),
        other => anyhow::bail!("not a job: {other:?}"),
    }
}

fn commit(journal: &mut Journal, changes: &Changes<'_>, given_out: u64) -> Result<()> {
    let records = [Entry { at: BEGIN, body: b"{}".to_vec() }];
    let batch = Batch { records: &records, given_out: JobId(given_out), changes: *changes };
    journal.commit(batch).map(drop).context("the journal takes no batch")
}

/// Times commits of a record with and without a booking, in turn: the medians of both.
fn bookings(report: &mut Report, journal: &mut Journal, last: JobId) -> Result<()> {
    let random = &mut ChaCha8Rng::seed_from_u64(2);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let job = JobId(last.0 + 1 + round);
        // After the year, as bookings come: at the end of the table and of its indices.
        let number = last.0 * ATTEMPTS_OF_JOB + round;
        let ledger = [("queue-1".to_owned(), entry(random, (number, 1), job, 60_000)?)];
        let begun = Instant::now();
        commit(journal, &Changes { ledger: &ledger, ..Changes::none() }, job.0)?;
        with.push(begun.elapsed());
        let begun = Instant::now();
        commit(journal, &Changes::none(), job.0)?;
        without.push(begun.elapsed());
    }
    let middle = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let (with, without) = (middle(with), middle(without));
    report.note(&format!("a commit of one record: {:.3} ms, with a booking {:.3} ms", without * 1e3, with * 1e3));
    report.figure(
        "what a booking adds to a commit",
        (with - without) / without,
        "of it",
        Bar::AtMost(BOOKING_SHARE_MOST),
    );
    Ok(())
}

fn median(rounds: usize, mut run: impl FnMut() -> Result<(), gangline_store::db::Error>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        run()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns the most memory that this process has had, in MiB; see proc(5).
fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("there is no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).context("VmHWM has no number")?.parse()?;
    Ok(kib / 1_024.0)
}
