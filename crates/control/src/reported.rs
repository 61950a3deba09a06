//! Converts what supervisors report, in the wire's types, into the stored records and into the engine's types.
//!
//! The structures are destructured field by field, so that a new field of the protocol doesn't compile until it is
//! decided here whether it is stored.

use gangline_base::{FaultCategory, Step, Timestamp};
use gangline_execution::protocol::{
    CheckpointReport, DatasetReads, Diagnosis, Fault, FaultCause, Marks, NodeFinding, NodeState, Outcome, RankReport,
    Rendezvous, Report, Sample, Silence, Work,
};
use gangline_orchestration::{self as orchestration, BadSteps, ShareEnd};
use gangline_store::model::{
    DatasetReadsRecord, DiagnosisRecord, FaultCauseRecord, FaultRecord, FindingRecord, MarksRecord, OutcomeRecord,
    RankRecord, RendezvousRecord, ReportRecord, Reported, SampleRecord, SavedRecord, ShareStateRecord, SilenceRecord,
    UsageRecord, WorkRecord,
};

/// A diagnosis with at least this confidence is acted on (docs/reference/diagnosis.md: "high").
const SURE: f64 = 0.8;

/// Converts a report. Its notice and what it says of the node's cache are acted on at once and aren't stored.
pub(crate) fn reported(report: Report) -> Reported {
    let Report {
        version: _,
        job: _,
        attempt,
        epoch: _,
        node,
        supervisor_pid,
        sent_at,
        started_at,
        state,
        ranks,
        usage,
        marks,
        checkpoint,
        checkpoints,
        checkpoint_bytes,
        rendezvous,
        notice: _,
        findings,
        samples,
        samples_from,
        silence,
        cache: _,
        dataset_reads,
        archives: _,
    } = report;
    let report = ReportRecord {
        supervisor_pid,
        sent_at,
        started_at,
        state: state_record(state),
        ranks: ranks.into_iter().map(rank_record).collect(),
        usage: UsageRecord(usage.0),
        marks: marks_record(marks),
        checkpoint: checkpoint.map(|CheckpointReport { step, bytes, at }| SavedRecord { step, bytes, at }),
        checkpoints,
        checkpoint_bytes,
        rendezvous: rendezvous.map(|Rendezvous { address, port }| RendezvousRecord { address, port }),
        findings: findings
            .into_iter()
            .map(|NodeFinding { place, measured }| FindingRecord { place, measured })
            .collect(),
        silence: silence.map(|Silence { rank, silent_ms, limit_ms }| SilenceRecord { rank, silent_ms, limit_ms }),
        dataset_reads: dataset_reads.into_iter().map(|(address, reads)| (address, reads_record(reads))).collect(),
    };
    Reported { attempt, node, report, samples_from, samples: samples.into_iter().map(sample_record).collect() }
}

/// Converts the counts of a report. A rank does not know the regions, so both counts of them stay 0 here.
pub(crate) fn reads_record(DatasetReads { get, head, list, put, failed, bytes }: DatasetReads) -> DatasetReadsRecord {
    DatasetReadsRecord { get, head, list, put, failed, bytes, ..DatasetReadsRecord::default() }
}

fn state_record(state: NodeState) -> ShareStateRecord {
    match state {
        NodeState::Preparing => ShareStateRecord::Preparing,
        NodeState::Running { since } => ShareStateRecord::Running { since },
        NodeState::Ended { at, outcome } => ShareStateRecord::Ended { at, outcome: outcome_record(outcome) },
    }
}

fn outcome_record(outcome: Outcome) -> OutcomeRecord {
    match outcome {
        Outcome::Succeeded => OutcomeRecord::Succeeded,
        Outcome::DoNotRestart { fault } => OutcomeRecord::DoNotRestart { fault: fault_record(fault) },
        Outcome::Requeue => OutcomeRecord::Requeue,
        Outcome::Fault { fault } => OutcomeRecord::Fault { fault: fault_record(fault) },
        Outcome::Stopped => OutcomeRecord::Stopped,
        Outcome::Terminated => OutcomeRecord::Terminated,
        Outcome::Unable { message } => OutcomeRecord::Unable { message },
    }
}

fn fault_record(fault: Fault) -> FaultRecord {
    let Fault { rank, cause, noticed_at, last_sign_of_life, last_lines, diagnosis } = fault;
    let diagnosis = diagnosis.map(|diagnosis| Box::new(diagnosis_record(*diagnosis)));
    FaultRecord { rank, cause: cause_record(cause), noticed_at, last_sign_of_life, last_lines, diagnosis }
}

fn diagnosis_record(diagnosis: Diagnosis) -> DiagnosisRecord {
    let Diagnosis { category, subcategory, confidence, summary, advice, rank, is_consequence, evidence } = diagnosis;
    DiagnosisRecord { category, subcategory, confidence, summary, advice, rank, is_consequence, evidence }
}

/// Converts the cause of a failure into its stored form.
pub(crate) fn cause_record(cause: FaultCause) -> FaultCauseRecord {
    match cause {
        FaultCause::Exit { code } => FaultCauseRecord::Exit { code },
        FaultCause::Signal { signal } => FaultCauseRecord::Signal { signal },
        FaultCause::Setup { code } => FaultCauseRecord::Setup { code },
        FaultCause::Start { message } => FaultCauseRecord::Start { message },
        FaultCause::Rendezvous => FaultCauseRecord::Rendezvous,
        FaultCause::Hang { silent_ms, limit_ms } => FaultCauseRecord::Hang { silent_ms, limit_ms },
        FaultCause::NotFinite { step, steps, .. } => FaultCauseRecord::NotFinite { step, steps },
        FaultCause::SupervisorLost => FaultCauseRecord::SupervisorLost,
    }
}

/// The last sign of life and the number of dropped lines matter only to the supervisor.
fn rank_record(rank: RankReport) -> RankRecord {
    let RankReport { rank, pid, phase, step, total_steps, tokens, last_sign_of_life: _, dropped: _, work } = rank;
    let Work { steps, compute_nanos, data_nanos } = work;
    RankRecord { rank, pid, phase, step, total_steps, tokens, work: WorkRecord { steps, compute_nanos, data_nanos } }
}

/// Converts where the ranks meet back into the wire's form, for the gang's other nodes.
pub(crate) fn rendezvous(stored: &RendezvousRecord) -> Rendezvous {
    let RendezvousRecord { address, port } = stored.clone();
    Rendezvous { address, port }
}

fn marks_record(marks: Marks) -> MarksRecord {
    let Marks { ranks_started, restore_began, restore_ended, first_step } = marks;
    MarksRecord { ranks_started, restore_began, restore_ended, first_step }
}

/// Its time is in the metrics that the supervisor sends.
fn sample_record(sample: Sample) -> SampleRecord {
    let Sample { at: _, step, loss, tokens, metric, is_diverged } = sample;
    SampleRecord { step, loss, tokens, metric: metric.map(Into::into), is_diverged }
}

/// Converts a share's outcome into the engine's type.
pub(crate) fn outcome_as_end(outcome: &Outcome) -> ShareEnd {
    match outcome {
        Outcome::Succeeded => ShareEnd::Succeeded,
        Outcome::DoNotRestart { .. } => ShareEnd::DoNotRestart,
        Outcome::Requeue => ShareEnd::Requeue,
        Outcome::Stopped => ShareEnd::Stopped,
        Outcome::Terminated => ShareEnd::Terminated,
        Outcome::Unable { .. } => ShareEnd::Unable,
        Outcome::Fault { fault } => {
            let at = Timestamp::from_unix_nanos(fault.noticed_at);
            let (category, is_consequence) = (category_of(fault), is_consequence(fault));
            ShareEnd::Fault { cause: cause_as_fault(&fault.cause), category, is_consequence, at }
        }
    }
}

/// Reports whether a fault looks like the consequence of another.
fn is_consequence(fault: &Fault) -> bool {
    fault.diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.is_consequence)
}

/// Returns the category of a fault, if its diagnosis is certain enough to act on.
fn category_of(fault: &Fault) -> FaultCategory {
    if matches!(fault.cause, FaultCause::NotFinite { .. }) {
        return FaultCategory::Numerical;
    }
    let sure = fault.diagnosis.as_ref().filter(|diagnosis| diagnosis.confidence >= SURE);
    sure.and_then(|diagnosis| FaultCategory::from_name(&diagnosis.category)).unwrap_or_default()
}

/// Converts a failure's cause into the engine's type.
pub(crate) fn cause_as_fault(cause: &FaultCause) -> orchestration::FaultCause {
    match cause {
        FaultCause::Exit { code } => orchestration::FaultCause::Exit(*code),
        FaultCause::Signal { signal } => orchestration::FaultCause::Signal(*signal),
        FaultCause::Setup { code } => orchestration::FaultCause::Setup(*code),
        FaultCause::Start { .. } => orchestration::FaultCause::Start,
        FaultCause::Rendezvous => orchestration::FaultCause::Rendezvous,
        FaultCause::Hang { .. } => orchestration::FaultCause::Hang,
        FaultCause::NotFinite { step, since, .. } => {
            let steps = since.map(|first| BadSteps { first: Step(first), last: Step(*step) });
            orchestration::FaultCause::NotFinite { steps }
        }
        FaultCause::SupervisorLost => orchestration::FaultCause::SupervisorLost,
    }
}
