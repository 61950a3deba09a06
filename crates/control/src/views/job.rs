//! Converts a record and its ledger rows into the API's types.

use std::path::Path;

use gangline_accounting::{Allocation, LedgerEntry, goodput};
use gangline_api::{Attempt, BucketLine, Code, Diagnosis, Fault, HistoryLine, Job, Price, Rank, Share, Time, Usage};
use gangline_base::{AttemptNumber, CodeCopy, NodeName};
use gangline_base::{Bucket, Buckets, GpuSeconds, Money, Timestamp};

use super::parts;
use super::recovery::recoveries;
use super::sweep::{LISTED_VALUE_BYTES_MAX, budget, sweep_point};
use crate::code::folder_of;
use crate::folders::checkpoint_folder;
use gangline_store::model::{
    AttemptRecord, Booked, DiagnosisRecord, FaultCauseRecord, JobRecord, ShareRecord, StragglerRecord, accrued, cut,
};

/// The length of a job's texts in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texts {
    /// Whole texts, for one job.
    Whole,
    /// Cut texts, for many jobs, which may share a long one.
    Cut,
}

/// The longest command in a listing, in bytes.
const LISTED_RUN_BYTES_MAX: usize = 1 << 10;

impl Texts {
    /// Returns the longest command, and the longest value of a sweep's parameter.
    fn bytes_max(self) -> (usize, usize) {
        match self {
            Texts::Whole => (usize::MAX, usize::MAX),
            Texts::Cut => (LISTED_RUN_BYTES_MAX, LISTED_VALUE_BYTES_MAX),
        }
    }
}

/// Returns a job as the API shows it.
pub(crate) fn to_api(data: &Path, record: &JobRecord, booked: &[Booked], texts: Texts) -> Job {
    let program = record.program();
    let (run_bytes_max, value_bytes_max) = texts.bytes_max();
    let checkpoint_folder = checkpoint_folder(data, record.id, program.checkpoint_path);
    Job {
        id: record.id.to_string(),
        name: record.name.clone(),
        queue: record.queue.clone(),
        priority: record.priority,
        submitter: record.submitter.clone(),
        submitted_at: Time(record.submitted_at),
        state: parts::state(record.state),
        because: record.because.clone(),
        notes: Vec::new(),
        ended_at: record.ended_at.map(Time),
        origin: record.spec.as_ref().and_then(|spec| spec.origin()).map(|origin| origin.to_string()),
        gang: parts::gang(&record.gang),
        run: cut(program.run, run_bytes_max),
        workdir: program.workdir.to_owned(),
        code: record.code().map(|code| code_to_api(data, record, code)),
        image: record.image(),
        checkpoint_path: Some(checkpoint_folder.display().to_string()),
        faults: record.faults,
        max_faults: record.max_faults,
        progress: parts::progress(record),
        plan: parts::plan(record),
        checkpoints: parts::checkpoints(record.checkpoints),
        dataset_reads: parts::dataset_reads(record, std::iter::empty()),
        budget: record.budget.as_ref().map(budget),
        sweep: sweep_point(record, value_bytes_max),
        notifies: notifies(record),
        attempts: record.attempts.iter().map(attempt_to_api).collect(),
        recoveries: recoveries(record),
        usage: usage(&booked.iter().filter_map(|row| entry(row, record)).collect::<Vec<_>>()),
        accrued: record
            .last_attempt()
            .map(|attempt| accrued(record.id, attempt))
            .filter(|e| !e.is_empty())
            .as_deref()
            .map(usage),
        metrics: Vec::new(),
        alerts: Vec::new(),
        history: history_to_api(record),
    }
}

fn code_to_api(data: &Path, record: &JobRecord, code: CodeCopy) -> Code {
    let folder = folder_of(data, record.id, &code).display().to_string();
    Code { tree: code.tree, commit: code.commit, changed_files: code.changed_files, folder }
}

fn notifies(record: &JobRecord) -> Vec<String> {
    let notify = record.notify();
    let on: Vec<&str> = notify.on.iter().map(|occasion| occasion.name()).collect();
    let to = notify.webhook.map(|url| url.to_string()).into_iter();
    to.chain(notify.email.map(|address| address.to_string())).map(|to| format!("{to} on {}", on.join(", "))).collect()
}

pub(crate) fn history_to_api(record: &JobRecord) -> Vec<HistoryLine> {
    record.history.iter().map(|(at, text)| HistoryLine { at: Time(*at), text: text.clone() }).collect()
}

fn attempt_to_api(attempt: &AttemptRecord) -> Attempt {
    let fault = attempt.fault.as_ref().map(|(node, fault)| Fault {
        node: node.clone(),
        rank: fault.rank,
        cause: describe(&fault.cause),
        exit_code: match fault.cause {
            FaultCauseRecord::Exit { code } | FaultCauseRecord::Setup { code } => Some(code),
            _ => None,
        },
        noticed_at: Time(Timestamp::from_unix_nanos(fault.noticed_at)),
        last_lines: fault.last_lines.clone(),
        diagnosis: fault.diagnosis.as_deref().map(diagnosis_to_api),
    });
    Attempt {
        number: attempt.number,
        placed_at: Time(attempt.placed_at),
        ended_at: attempt.ended_at.map(Time),
        allocation: attempt.allocation.map(|_| gangline_api::Allocation {
            from: attempt.held_from().map(Time),
            to: attempt.allocation.and_then(|allocation| allocation.to).map(Time),
        }),
        placed_because: attempt.placed_because.clone(),
        ended_because: attempt.ended_because.clone(),
        fault,
        shares: attempt.shares.iter().map(share_to_api).collect(),
        silence: attempt.silence(),
        stragglers: attempt.stragglers.iter().map(StragglerRecord::describe).collect(),
    }
}

fn diagnosis_to_api(diagnosis: &DiagnosisRecord) -> Diagnosis {
    Diagnosis {
        category: diagnosis.category.clone(),
        subcategory: diagnosis.subcategory.clone(),
        confidence: diagnosis.confidence,
        summary: diagnosis.summary.clone(),
        advice: diagnosis.advice.clone(),
        rank: diagnosis.rank,
        evidence: diagnosis.evidence.clone(),
    }
}

pub(super) fn describe(cause: &FaultCauseRecord) -> String {
    match cause {
        FaultCauseRecord::Exit { code } => format!("exited with code {code}"),
        FaultCauseRecord::Signal { signal } => format!("killed by signal {signal}"),
        FaultCauseRecord::Setup { code } => format!("the setup command failed with code {code}"),
        FaultCauseRecord::Start { message } => format!("could not be started: {message}"),
        FaultCauseRecord::Rendezvous => "the gang's nodes did not meet in time".to_owned(),
        FaultCauseRecord::Hang { silent_ms, limit_ms } => {
            let seconds = |millis: u64| std::time::Duration::from_millis(millis).as_secs();
            format!("hung: no progress for {} s, {} s were allowed", seconds(*silent_ms), seconds(*limit_ms))
        }
        FaultCauseRecord::NotFinite { step, steps } => {
            format!("the loss was NaN or infinite for {steps} steps in a row, up to step {step}")
        }
        FaultCauseRecord::SupervisorLost => "the supervisor was lost".to_owned(),
    }
}

fn share_to_api(share: &ShareRecord) -> Share {
    let phase_name = |phase| serde_json::to_value(phase).ok().and_then(|value| value.as_str().map(str::to_owned));
    Share {
        node: share.node.clone(),
        devices: share.devices.clone(),
        state: share.state().to_owned(),
        supervisor_pid: share.supervisor_pid(),
        ranks: share
            .ranks()
            .into_iter()
            .map(|(rank, pid, phase, step)| Rank { rank, pid, phase: phase.and_then(phase_name), step })
            .collect(),
    }
}

fn entry(row: &Booked, record: &JobRecord) -> Option<LedgerEntry> {
    let mut buckets = Buckets::default();
    for (bucket, nanos) in Bucket::ALL.into_iter().zip(row.nanos) {
        buckets[bucket] = GpuSeconds::from_nanos(u128::from(nanos));
    }
    let allocation = Allocation {
        job: record.id,
        attempt: AttemptNumber(row.attempt),
        node: NodeName::new(&row.node).ok()?,
        devices: row.devices,
        from: row.from,
        to: row.to,
        price: row.price,
    };
    let cost = row.price.per_hour_times(buckets.total());
    Some(LedgerEntry { allocation, buckets, cost })
}

fn usage(entries: &[LedgerEntry]) -> Usage {
    let buckets = entries.iter().fold(Buckets::default(), |sum, entry| sum + entry.buckets);
    let total = buckets.total();
    let cost_of = |wanted: Bucket| -> Money {
        let costs = entries.iter().flat_map(LedgerEntry::costs);
        costs.filter(|(bucket, _)| *bucket == wanted).map(|(_, cost)| cost).sum()
    };
    let cost: Money = entries.iter().map(|entry| entry.cost).sum();
    let price_of = |Allocation { node, price, .. }: &Allocation| Price {
        node: node.to_string(),
        nano_dollars_per_hour: price.nano_dollars(),
    };
    let mut prices: Vec<Price> = entries.iter().map(|entry| price_of(&entry.allocation)).collect();
    prices.sort_by(|a, b| (&a.node, a.nano_dollars_per_hour).cmp(&(&b.node, b.nano_dollars_per_hour)));
    prices.dedup();
    let lines = buckets.iter().map(|(bucket, time)| BucketLine {
        bucket: bucket.name().to_owned(),
        gpu_seconds: seconds(time),
        gpu_nanoseconds: nanos(time),
        cost_nano_dollars: cost_of(bucket).nano_dollars(),
    });
    Usage {
        gpu_seconds: seconds(total),
        gpu_nanoseconds: nanos(total),
        cost_nano_dollars: cost.nano_dollars(),
        cost: cost.to_string(),
        prices,
        buckets: lines.collect(),
        goodput: goodput::runtime(&buckets),
    }
}

fn nanos(time: GpuSeconds) -> u64 {
    u64::try_from(time.nanos()).unwrap_or(u64::MAX)
}

fn seconds(time: GpuSeconds) -> f64 {
    let whole = std::time::Duration::from_nanos(nanos(time));
    whole.as_secs_f64()
}
