//! Limits of a supervisor's report: every text and list in it has a limit. Longer ones are cut and
//! marked, and the report is still accepted: a long message must not hurt a healthy job.
//!
//! The structures are destructured field by field, so that a new field of the protocol doesn't compile until
//! it has a limit here.

use std::collections::BTreeMap;

use gangline_base::Bucket;
use gangline_execution::protocol::{
    CacheReport, CachedDataset, Diagnosis, Fault, FaultCause, NodeFinding, NodeState, Notice, Outcome, Rendezvous,
    Report, SAMPLES_PER_REPORT_MAX, UsageReport,
};
use gangline_orchestration::CACHED_DATASETS_MAX;
use gangline_store::model::cut;

/// The longest text, such as a log line, a sentence or a notice.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// The longest host name or address; a longer one can't be valid.
const ADDRESS_BYTES_MAX: usize = 255;
/// The most findings kept of a report.
const FINDINGS_MAX: usize = 16;
/// The most last lines of a fault, and the most lines of evidence.
const LINES_MAX: usize = 10;
/// The longest address of a dataset, and the most datasets that a report counts reads of.
const DATASET_BYTES_MAX: usize = 1_024;
const READS_MAX: usize = 64;
/// The most ranks of a node; its job has fewer.
const RANKS_MAX: usize = 1_024;
/// Cuts a report to its limits. A report within its limits is unchanged.
pub(crate) fn bound(report: &mut Report) {
    let Report {
        version: _,
        job: _,
        attempt: _,
        epoch: _,
        node,
        supervisor_pid: _,
        sent_at: _,
        started_at: _,
        state,
        ranks,
        usage,
        marks: _,
        checkpoint: _,
        checkpoints: _,
        checkpoint_bytes: _,
        rendezvous,
        notice,
        findings,
        samples,
        samples_from: _,
        silence: _,
        cache,
        dataset_reads,
        archives,
    } = report;
    shorten(node);
    bound_state(state);
    ranks.truncate(RANKS_MAX);
    bound_usage(usage);
    if rendezvous.as_ref().is_some_and(|Rendezvous { address, port: _ }| address.len() > ADDRESS_BYTES_MAX) {
        *rendezvous = None;
    }
    if let Some(Notice { text, seen_at: _ }) = notice {
        shorten(text);
    }
    findings.truncate(FINDINGS_MAX);
    for NodeFinding { place, measured } in findings {
        [place, measured].into_iter().for_each(shorten);
    }
    cache.iter_mut().for_each(bound_cache);
    let reads = std::mem::take(dataset_reads).into_iter();
    *dataset_reads = reads.filter(|(address, _)| address.len() <= DATASET_BYTES_MAX).take(READS_MAX).collect();
    let stored = std::mem::take(archives).into_iter();
    *archives = stored.filter(|(address, _)| address.len() <= DATASET_BYTES_MAX).take(READS_MAX).collect();
    samples.truncate(SAMPLES_PER_REPORT_MAX);
}

/// Limits what is said of a node's cache of datasets.
pub(crate) fn bound_cache(CacheReport { folder, datasets }: &mut CacheReport) {
    shorten(folder);
    datasets.truncate(CACHED_DATASETS_MAX);
    datasets.retain(|CachedDataset { dataset, here_bytes: _, bytes: _ }| dataset.len() <= DATASET_BYTES_MAX);
}

fn shorten(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        *text = cut(text, TEXT_BYTES_MAX);
    }
}

fn shorten_all(lines: &mut Vec<String>) {
    lines.truncate(LINES_MAX);
    lines.iter_mut().for_each(shorten);
}

fn bound_state(state: &mut NodeState) {
    match state {
        NodeState::Preparing
        | NodeState::Running { since: _ }
        | NodeState::Ended {
            at: _,
            outcome: Outcome::Succeeded | Outcome::Requeue | Outcome::Stopped | Outcome::Terminated,
        } => {}
        NodeState::Ended { at: _, outcome: Outcome::Unable { message } } => shorten(message),
        NodeState::Ended { at: _, outcome: Outcome::DoNotRestart { fault } | Outcome::Fault { fault } } => {
            bound_fault(fault);
        }
    }
}

fn bound_fault(fault: &mut Fault) {
    let Fault { rank: _, cause, noticed_at: _, last_sign_of_life: _, last_lines, diagnosis } = fault;
    if let FaultCause::Start { message } = cause {
        shorten(message);
    }
    shorten_all(last_lines);
    if let Some(diagnosis) = diagnosis {
        let Diagnosis { category, subcategory, confidence: _, summary, advice, rank: _, is_consequence: _, evidence } =
            &mut **diagnosis;
        [category, subcategory, summary, advice].into_iter().for_each(shorten);
        shorten_all(evidence);
    }
}

/// Counts time in unknown buckets as idle time, as the ledger does.
fn bound_usage(usage: &mut UsageReport) {
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    for (name, nanos) in std::mem::take(&mut usage.0) {
        let bucket = Bucket::from_name(&name).unwrap_or(Bucket::Idle);
        let sum = known.entry(bucket.name().to_owned()).or_default();
        *sum = sum.saturating_add(nanos);
    }
    usage.0 = known;
}
