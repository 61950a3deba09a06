//! Applies supervisors' reports to a job's record.

use gangline_base::MetricValue;

use super::parts::{ProgressRecord, StateRecord};
use super::record::{JobRecord, ShareRecord};
use crate::reported::{FaultRecord, OutcomeRecord, ReportRecord, ShareStateRecord};

/// Limit of sample numbers: far beyond any attempt's, so that sums of them fit.
const SAMPLE_NUMBER_MAX: u64 = i64::MAX.unsigned_abs();

/// Samples of a share that weren't known yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewSamples {
    /// The number of the first within the attempt, from 0.
    pub first: u64,
    /// The samples, in order.
    pub samples: Vec<SampleRecord>,
}

/// What a share's ranks reported with a step, as far as it changes the record or decides something. The series store has the
/// curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRecord {
    /// The step.
    pub step: u64,
    /// The loss, if reported and finite.
    pub loss: Option<f64>,
    /// Tokens of the node's ranks since the attempt began.
    pub tokens: u64,
    /// The value of the sweep's metric, if it was reported with this step.
    pub metric: Option<MetricValue>,
    /// Whether the loss was reported and is NaN or infinite.
    pub is_diverged: bool,
}

/// A report on an attempt, with the samples that came with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// The number of the attempt within its job.
    pub attempt: u32,
    /// The node's name.
    pub node: String,
    /// What is stored of the report.
    pub report: ReportRecord,
    /// The number of the first of `samples` within the attempt.
    pub samples_from: u64,
    /// The samples, in order.
    pub samples: Vec<SampleRecord>,
}

impl JobRecord {
    /// Applies a report on the current attempt and returns the new samples of the gang's first node. Repeating a report changes
    /// nothing. Returns `None` if the node has no such share of the attempt. The caller then calls [`JobRecord::summarise`].
    pub fn take_report(&mut self, node_rank: usize, reported: Reported) -> Option<NewSamples> {
        let Reported { attempt: number, node, mut report, samples_from, samples } = reported;
        let attempt = self.attempts.last_mut().filter(|attempt| attempt.number == number)?;
        let share = attempt.shares.get_mut(node_rank).filter(|share| share.node == node)?;
        let is_ended = |report: &ReportRecord| matches!(report.state, ShareStateRecord::Ended { .. });
        if share.report.as_ref().is_some_and(is_ended) && !is_ended(&report) {
            // A late report, overtaken by the final one.
            return Some(NewSamples::default());
        }
        report.ranks.truncate(usize::try_from(self.gang.ranks_per_node).unwrap_or(usize::MAX));
        let new = share.take_samples(samples_from, samples);
        if let ShareStateRecord::Ended {
            outcome: OutcomeRecord::Fault { fault } | OutcomeRecord::DoNotRestart { fault },
            ..
        } = &report.state
        {
            let order = |fault: &FaultRecord| (fault.is_consequence(), fault.noticed_at);
            let is_first = attempt.fault.as_ref().is_none_or(|(_, first)| order(fault) < order(first));
            if is_first {
                attempt.fault = Some((node, fault.clone()));
            }
        }
        share.report = Some(report);
        if node_rank > 0 {
            // Those of other nodes are redundant.
            return Some(NewSamples::default());
        }
        self.progress.take_samples(&new.samples);
        Some(new)
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
        let first = attempt.shares.first().and_then(|share| share.report.as_ref());
        self.progress.tokens_per_step =
            first.and_then(|report| self.progress.pace_of(report)).or(self.progress.tokens_per_step);
        let reached = ranks().filter_map(|rank| rank.step).max().unwrap_or(0);
        self.high_water_step = self.high_water_step.max(reached);
        let saved = reports().filter_map(|report| report.checkpoint).map(|checkpoint| checkpoint.step).max();
        let before = self.checkpoints_before;
        self.checkpoints.count = reports().fold(before.count, |sum, report| sum.saturating_add(report.checkpoints));
        self.checkpoints.bytes =
            reports().fold(before.bytes, |sum, report| sum.saturating_add(report.checkpoint_bytes));
        self.checkpoints.last_step = saved.max(before.last_step);
        let is_running = |report: &ReportRecord| matches!(report.state, ShareStateRecord::Running { .. });
        if self.state == StateRecord::Starting && reports().count() == attempt.shares.len() && reports().all(is_running)
        {
            self.state = StateRecord::Running;
        }
    }
}

impl ShareRecord {
    /// Returns the samples that weren't known yet, and counts them as known.
    fn take_samples(&mut self, from: u64, samples: Vec<SampleRecord>) -> NewSamples {
        let known = usize::try_from(self.samples_stored.saturating_sub(from)).unwrap_or(usize::MAX);
        let room = usize::try_from(SAMPLE_NUMBER_MAX.saturating_sub(from)).unwrap_or(usize::MAX);
        let samples: Vec<SampleRecord> = samples.into_iter().take(room).skip(known).collect();
        let first = self.samples_stored.max(from);
        if !samples.is_empty() {
            self.samples_stored = first + u64::try_from(samples.len()).unwrap_or(u64::MAX);
        }
        NewSamples { first, samples }
    }
}

impl ProgressRecord {
    fn take_samples(&mut self, samples: &[SampleRecord]) {
        for sample in samples {
            self.first_step = self.first_step.or(Some(sample.step));
            self.attempt_from = self.attempt_from.or(Some((sample.step, sample.tokens)));
            self.not_finite_since = match (sample.is_diverged, sample.loss) {
                (true, _) => Some(self.not_finite_since.unwrap_or(sample.step)),
                (false, Some(_)) => None,
                (false, None) => self.not_finite_since,
            };
            self.first_loss = self.first_loss.or(sample.loss);
            self.loss = sample.loss.or(self.loss);
        }
    }
}

impl ProgressRecord {
    /// Returns the tokens of a step over all ranks, once the first node has made a step since its first reported one: that
    /// node's pace, times its part of all tokens.
    fn pace_of(&self, first: &ReportRecord) -> Option<f64> {
        let (step_before, tokens_before) = self.attempt_from?;
        let step = first.ranks.iter().filter_map(|rank| rank.step).min()?;
        let tokens = first.ranks.iter().fold(0_u64, |sum, rank| rank.tokens.saturating_add(sum));
        let steps = step.checked_sub(step_before).filter(|steps| *steps > 0)?;
        let grown = tokens.checked_sub(tokens_before).filter(|grown| *grown > 0)?;
        Some(as_float(grown) / as_float(steps) * (as_float(self.tokens) / as_float(tokens)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_float(count: u64) -> f64 {
    count as f64
}

impl FaultRecord {
    /// Reports whether it looks like the consequence of another.
    pub fn is_consequence(&self) -> bool {
        self.diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.is_consequence)
    }
}
