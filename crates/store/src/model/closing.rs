//! The end of an attempt: the final reports go into the journal, so that the ledger and the job's record can
//! be made again from it, and the attempt's shares are booked.

use gangline_accounting::LedgerEntry;
use gangline_base::{AttemptNumber, Timestamp};
use gangline_orchestration::{Decision, Engine};

use super::parts::{CheckpointsRecord, ProgressRecord};
use super::record::{AttemptRecord, JobRecord, ShareRecord};
use super::sweep::BudgetRecord;
use super::{book_attempt, cut};
use crate::codec::{ClosedAttempt, ClosedProgress, ClosedReport, ClosedShare};
use crate::reported::{FaultCauseRecord, MarksRecord, OutcomeRecord, ReportRecord, ShareStateRecord, UsageRecord};

/// The longest message kept of a share other than the one with the first fault.
const MESSAGE_BYTES_MAX: usize = 256;

impl JobRecord {
    /// Applies a decision and books the attempt that it ends, if any. `engine` has applied the decision
    /// already. Both the service and the rebuild from the journal call this function.
    pub fn follow_and_book(&mut self, now: Timestamp, decision: &Decision, engine: &Engine) -> Vec<LedgerEntry> {
        let ending = self.ending(decision);
        let booked = ending.map(|attempt| book_attempt(self.id, attempt, now)).unwrap_or_default();
        self.follow(now, decision, engine);
        booked
    }

    /// Returns the attempt that a decision ends.
    pub fn ending(&self, decision: &Decision) -> Option<&AttemptRecord> {
        let ends = matches!(decision, Decision::Requeue { .. } | Decision::End { .. });
        self.last_attempt().filter(|attempt| ends && attempt.ended_at.is_none())
    }

    /// Returns the result of the attempt that a decision is about to end.
    pub fn closing(&self, decision: &Decision) -> Option<ClosedAttempt> {
        let attempt = self.ending(decision)?;
        let ProgressRecord { step, total_steps, first_loss, loss, tokens, first_step, tokens_per_step, .. } =
            self.progress;
        let CheckpointsRecord { count, bytes, last_step } = self.checkpoints;
        Some(ClosedAttempt {
            job: self.id,
            attempt: AttemptNumber(attempt.number),
            first: 0,
            allocation: attempt.allocation,
            shares: attempt.shares.iter().map(closed_share).collect(),
            fault: attempt.fault.clone(),
            progress: ClosedProgress {
                steps: (step, total_steps),
                high_water_step: self.high_water_step,
                losses: (first_loss, loss),
                tokens,
                first_step,
                tokens_per_step,
                checkpoints: (count, bytes, last_step),
                spent: self.budget.as_ref().and_then(BudgetRecord::counted),
            },
        })
    }

    /// Restores the result of the last attempt, before the decision that ends it. A result of another attempt
    /// is ignored.
    pub fn take_closed(&mut self, closed: ClosedAttempt) {
        let ClosedAttempt { job: _, attempt: number, first, allocation, shares, fault, progress } = closed;
        let Some(attempt) = self.attempts.last_mut().filter(|last| last.number == number.0) else { return };
        for (share, closed) in attempt.shares.iter_mut().skip(first).zip(shares) {
            share.price = closed.price;
            share.samples_stored = closed.samples;
            share.report = closed.report.map(opened_report);
        }
        attempt.allocation = allocation;
        attempt.fault = fault.or(attempt.fault.take());
        let ClosedProgress {
            steps: (step, total_steps),
            high_water_step,
            losses: (first_loss, loss),
            tokens,
            first_step,
            tokens_per_step,
            checkpoints,
            spent,
        } = progress;
        self.progress = ProgressRecord {
            step,
            total_steps,
            first_loss,
            loss,
            tokens,
            first_step,
            tokens_per_step,
            ..ProgressRecord::default()
        };
        self.high_water_step = high_water_step;
        let (count, bytes, last_step) = checkpoints;
        self.checkpoints = CheckpointsRecord { count, bytes, last_step };
        self.budget.iter_mut().zip(spent).for_each(|(budget, counted)| budget.recount(counted));
    }
}

fn closed_share(share: &ShareRecord) -> ClosedShare {
    let report = share.report.as_ref().map(|report| {
        let MarksRecord { ranks_started, restore_began, restore_ended, first_step } = report.marks;
        let used = report.usage.0.iter().filter(|(_, nanos)| **nanos > 0);
        ClosedReport {
            pid: report.supervisor_pid,
            started_at: report.started_at,
            sent_at: report.sent_at,
            state: in_short(&report.state),
            usage: UsageRecord(used.map(|(name, nanos)| (name.clone(), *nanos)).collect()),
            marks: [ranks_started, restore_began, restore_ended, first_step],
            checkpoint: report.checkpoint,
            checkpoints: (report.checkpoints, report.checkpoint_bytes),
            dataset_reads: report.dataset_reads.clone(),
        }
    });
    ClosedShare { price: share.price, samples: share.samples_stored, report }
}

/// Returns a share's state without the texts of its fault: the gang's first fault is stored whole, beside the
/// shares.
fn in_short(state: &ShareStateRecord) -> ShareStateRecord {
    let mut state = state.clone();
    let ShareStateRecord::Ended { outcome, .. } = &mut state else { return state };
    match outcome {
        OutcomeRecord::Fault { fault } | OutcomeRecord::DoNotRestart { fault } => {
            (fault.last_lines, fault.diagnosis) = (Vec::new(), None);
            if let FaultCauseRecord::Start { message } = &mut fault.cause {
                *message = cut(message, MESSAGE_BYTES_MAX);
            }
        }
        OutcomeRecord::Unable { message } => *message = cut(message, MESSAGE_BYTES_MAX),
        OutcomeRecord::Succeeded | OutcomeRecord::Requeue | OutcomeRecord::Stopped | OutcomeRecord::Terminated => {}
    }
    state
}

/// Rebuilds a report from its stored part.
fn opened_report(closed: ClosedReport) -> ReportRecord {
    let [ranks_started, restore_began, restore_ended, first_step] = closed.marks;
    ReportRecord {
        supervisor_pid: closed.pid,
        sent_at: closed.sent_at,
        started_at: closed.started_at,
        state: closed.state,
        ranks: Vec::new(),
        usage: closed.usage,
        marks: MarksRecord { ranks_started, restore_began, restore_ended, first_step },
        checkpoint: closed.checkpoint,
        checkpoints: closed.checkpoints.0,
        checkpoint_bytes: closed.checkpoints.1,
        rendezvous: None,
        findings: Vec::new(),
        silence: None,
        dataset_reads: closed.dataset_reads,
    }
}
