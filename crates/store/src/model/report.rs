//! Applies supervisors' reports to a job's record.

use gangline_base::{FaultCategory, Timestamp};
use gangline_execution::protocol::{Fault, FaultCause as WireCause, NodeState, Outcome, Report, Sample};
use gangline_orchestration::{FaultCause, ShareEnd};

use super::parts::StateRecord;
use super::record::JobRecord;

/// A diagnosis with at least this confidence is acted on (docs/reference/diagnosis.md: "high").
const SURE: f64 = 0.8;
/// Limit of sample numbers: the range of a database column.
const SAMPLE_NUMBER_MAX: u64 = i64::MAX.unsigned_abs();

/// A sample to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    /// The job.
    pub job: u64,
    /// The number of the attempt within its job.
    pub attempt: u32,
    /// The node within the gang, from 0.
    pub node_rank: usize,
    /// The number of the sample within the attempt, from 0.
    pub number: u64,
    /// What a rank measured.
    pub sample: Sample,
}

impl JobRecord {
    /// Applies a report on the current attempt and returns its new samples that are to be stored. Repeating a
    /// report changes nothing. Returns `None` if the node has no such share of the attempt. The caller then
    /// calls [`JobRecord::summarise`].
    pub fn take_report(&mut self, node_rank: usize, mut report: Report) -> Option<Vec<SampleRow>> {
        let (job, number) = (self.id.0, report.attempt);
        let attempt = self.attempts.last_mut().filter(|attempt| attempt.number == number)?;
        let share = attempt.shares.get_mut(node_rank).filter(|share| share.node == report.node)?;
        let is_ended = |report: &Report| matches!(report.state, NodeState::Ended { .. });
        if share.report.as_ref().is_some_and(is_ended) && !is_ended(&report) {
            // A late report, overtaken by the final one.
            return Some(Vec::new());
        }
        report.ranks.truncate(usize::try_from(self.gang.ranks_per_node).unwrap_or(usize::MAX));
        let samples = std::mem::take(&mut report.samples);
        let new: Vec<SampleRow> = (report.samples_from..SAMPLE_NUMBER_MAX)
            .zip(samples)
            .filter(|(number, _)| *number >= share.samples_stored)
            .map(|(number, sample)| SampleRow { job, attempt: report.attempt, node_rank, number, sample })
            .collect();
        if let Some(last) = new.last() {
            share.samples_stored = last.number + 1;
        }
        if let NodeState::Ended { outcome: Outcome::Fault { fault } | Outcome::DoNotRestart { fault }, .. } =
            &report.state
        {
            let order = |fault: &Fault| (is_consequence(fault), fault.noticed_at);
            let is_first = attempt.fault.as_ref().is_none_or(|(_, first)| order(fault) < order(first));
            if is_first {
                attempt.fault = Some((report.node.clone(), fault.clone()));
            }
        }
        share.report = Some(report);
        if node_rank == 0 {
            let first = new.iter().find_map(|row| row.sample.loss);
            self.progress.first_loss = self.progress.first_loss.or(first);
        }
        for row in new.iter().filter(|_| node_rank == 0) {
            let since = &mut self.progress.not_finite_since;
            *since = match (row.sample.is_diverged, row.sample.loss) {
                (true, _) => Some(since.unwrap_or(row.sample.step)),
                (false, Some(_)) => None,
                (false, None) => *since,
            };
        }
        if node_rank == 0
            && let Some(loss) = new.iter().rev().find_map(|row| row.sample.loss)
        {
            self.progress.loss = Some(loss);
        }
        // Only the first node's samples make the curve; the others' are redundant.
        Some(if node_rank == 0 { new } else { Vec::new() })
    }

    /// Reports whether any node of the current attempt has reported.
    pub fn is_heard(&self) -> bool {
        let current = self.attempts.last().filter(|attempt| attempt.ended_at.is_none());
        current.is_some_and(|attempt| attempt.shares.iter().any(|share| share.report.is_some()))
    }

    /// Computes the job's figures from its ranks'. This isn't part of every report, because a gang may have
    /// thousands of nodes.
    pub fn summarise(&mut self) {
        let Some(attempt) = self.attempts.last().filter(|_| self.is_heard()) else { return };
        let reports = || attempt.shares.iter().filter_map(|share| share.report.as_ref());
        let ranks = || reports().flat_map(|report| &report.ranks);
        self.progress.step = ranks().filter_map(|rank| rank.step).min().or(self.progress.step);
        self.progress.total_steps = ranks().filter_map(|rank| rank.total_steps).max().or(self.progress.total_steps);
        self.progress.tokens = ranks().fold(0, |sum, rank| rank.tokens.saturating_add(sum));
        let reached = ranks().filter_map(|rank| rank.step).max().unwrap_or(0);
        self.high_water_step = self.high_water_step.max(reached);
        let saved = reports().filter_map(|report| report.checkpoint).map(|checkpoint| checkpoint.step).max();
        let before = self.checkpoints_before;
        self.checkpoints.count = reports().fold(before.count, |sum, report| sum.saturating_add(report.checkpoints));
        self.checkpoints.bytes =
            reports().fold(before.bytes, |sum, report| sum.saturating_add(report.checkpoint_bytes));
        self.checkpoints.last_step = saved.max(before.last_step);
        let is_running = |report: &Report| matches!(report.state, NodeState::Running { .. });
        if self.state == StateRecord::Starting && reports().count() == attempt.shares.len() && reports().all(is_running)
        {
            self.state = StateRecord::Running;
        }
    }
}

/// Converts a share's outcome into the engine's type.
pub fn outcome_as_end(outcome: &Outcome) -> ShareEnd {
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
    if matches!(fault.cause, WireCause::NotFinite { .. }) {
        return FaultCategory::Numerical;
    }
    let sure = fault.diagnosis.as_ref().filter(|diagnosis| diagnosis.confidence >= SURE);
    sure.and_then(|diagnosis| FaultCategory::from_name(&diagnosis.category)).unwrap_or_default()
}

/// Converts a failure's cause into the engine's type.
pub fn cause_as_fault(cause: &WireCause) -> FaultCause {
    match cause {
        WireCause::Exit { code } => FaultCause::Exit(*code),
        WireCause::Signal { signal } => FaultCause::Signal(*signal),
        WireCause::Setup { code } => FaultCause::Setup(*code),
        WireCause::Start { .. } => FaultCause::Start,
        WireCause::Rendezvous => FaultCause::Rendezvous,
        WireCause::Hang { .. } => FaultCause::Hang,
        WireCause::NotFinite { .. } => FaultCause::NotFinite,
        WireCause::SupervisorLost => FaultCause::SupervisorLost,
    }
}
