//! Applies supervisors' reports to a job's record.

use gangline_base::MetricValue;

use super::parts::StateRecord;
use super::record::JobRecord;
use crate::reported::{FaultRecord, OutcomeRecord, ReportRecord, ShareStateRecord, UnixNanos};

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
    pub point: CurvePoint,
}

/// A point of the training curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// When the supervisor received it.
    pub at: UnixNanos,
    /// The step.
    pub step: u64,
    /// The loss, if reported and finite.
    pub loss: Option<f64>,
    /// Tokens processed by this node's ranks since the attempt started.
    pub tokens: u64,
    /// The value of the sweep's metric, if it was reported with this step.
    pub metric: Option<MetricValue>,
    /// Whether the loss was reported and is NaN or infinite.
    pub is_diverged: bool,
}

/// A report on an attempt, with the points of the curves that came with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// The number of the attempt within its job.
    pub attempt: u32,
    /// The node's name.
    pub node: String,
    /// What is stored of the report.
    pub report: ReportRecord,
    /// The number of the first of `points` within the attempt.
    pub points_from: u64,
    /// New points of the curves.
    pub points: Vec<CurvePoint>,
}

impl JobRecord {
    /// Applies a report on the current attempt and returns its new samples that are to be stored. Repeating a
    /// report changes nothing. Returns `None` if the node has no such share of the attempt. The caller then
    /// calls [`JobRecord::summarise`].
    pub fn take_report(&mut self, node_rank: usize, reported: Reported) -> Option<Vec<SampleRow>> {
        let Reported { attempt: number, node, mut report, points_from, points } = reported;
        let job = self.id.0;
        let attempt = self.attempts.last_mut().filter(|attempt| attempt.number == number)?;
        let share = attempt.shares.get_mut(node_rank).filter(|share| share.node == node)?;
        let is_ended = |report: &ReportRecord| matches!(report.state, ShareStateRecord::Ended { .. });
        if share.report.as_ref().is_some_and(is_ended) && !is_ended(&report) {
            // A late report, overtaken by the final one.
            return Some(Vec::new());
        }
        report.ranks.truncate(usize::try_from(self.gang.ranks_per_node).unwrap_or(usize::MAX));
        let new: Vec<SampleRow> = (points_from..SAMPLE_NUMBER_MAX)
            .zip(points)
            .filter(|(at, _)| *at >= share.samples_stored)
            .map(|(at, point)| SampleRow { job, attempt: number, node_rank, number: at, point })
            .collect();
        if let Some(last) = new.last() {
            share.samples_stored = last.number + 1;
        }
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
        if node_rank == 0 {
            let first = new.iter().find_map(|row| row.point.loss);
            self.progress.first_loss = self.progress.first_loss.or(first);
        }
        for row in new.iter().filter(|_| node_rank == 0) {
            let since = &mut self.progress.not_finite_since;
            *since = match (row.point.is_diverged, row.point.loss) {
                (true, _) => Some(since.unwrap_or(row.point.step)),
                (false, Some(_)) => None,
                (false, None) => *since,
            };
        }
        if node_rank == 0
            && let Some(loss) = new.iter().rev().find_map(|row| row.point.loss)
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
        let is_running = |report: &ReportRecord| matches!(report.state, ShareStateRecord::Running { .. });
        if self.state == StateRecord::Starting && reports().count() == attempt.shares.len() && reports().all(is_running)
        {
            self.state = StateRecord::Running;
        }
    }
}

impl FaultRecord {
    /// Reports whether it looks like the consequence of another.
    pub fn is_consequence(&self) -> bool {
        self.diagnosis.as_ref().is_some_and(|diagnosis| diagnosis.is_consequence)
    }
}
