//! What a supervisor's report changes in a job's record.

use gangline_base::Timestamp;
use gangline_execution::protocol::{FaultCause as WireCause, NodeState, Outcome, Report, Sample};
use gangline_orchestration::{FaultCause, ShareEnd};

use super::record::JobRecord;
use crate::wire::JobState;

/// A sample to store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleRow {
    pub(crate) job: u64,
    pub(crate) attempt: u32,
    pub(crate) node_rank: usize,
    pub(crate) number: u64,
    pub(crate) sample: Sample,
}

impl JobRecord {
    /// Takes in a report on the current attempt and returns the samples in it that are new. Repeating a report changes
    /// nothing. `None` if the node has no share in the attempt.
    pub(crate) fn take_report(&mut self, mut report: Report) -> Option<Vec<SampleRow>> {
        let (job, number) = (self.id.0, report.attempt);
        let attempt = self.attempts.last_mut().filter(|attempt| attempt.number == number)?;
        let node_rank = attempt.shares.iter().position(|share| share.node == report.node)?;
        let share = &mut attempt.shares[node_rank];
        let numbered = (report.samples_from..).zip(std::mem::take(&mut report.samples));
        let new: Vec<SampleRow> = numbered
            .filter(|(number, _)| *number >= share.samples_stored)
            .map(|(number, sample)| SampleRow { job, attempt: report.attempt, node_rank, number, sample })
            .collect();
        if let Some(last) = new.last() {
            share.samples_stored = last.number + 1;
        }
        if let NodeState::Ended { outcome: Outcome::Fault { fault } | Outcome::DoNotRestart { fault }, .. } =
            &report.state
        {
            let is_first = attempt.fault.as_ref().is_none_or(|(_, first)| fault.noticed_at < first.noticed_at);
            if is_first {
                attempt.fault = Some((report.node.clone(), fault.clone()));
            }
        }
        attempt.shares[node_rank].report = Some(report);
        if node_rank == 0 {
            let first = new.iter().find_map(|row| row.sample.loss);
            self.progress.first_loss = self.progress.first_loss.or(first);
        }
        if node_rank == 0
            && let Some(loss) = new.iter().rev().find_map(|row| row.sample.loss)
        {
            self.progress.loss = Some(loss);
        }
        self.summarise();
        Some(new)
    }

    /// The job's own figures from those of its ranks.
    fn summarise(&mut self) {
        let Some(attempt) = self.attempts.last() else { return };
        let reports = || attempt.shares.iter().filter_map(|share| share.report.as_ref());
        let ranks = || reports().flat_map(|report| &report.ranks);
        self.progress.step = ranks().filter_map(|rank| rank.step).min().or(self.progress.step);
        self.progress.total_steps = ranks().filter_map(|rank| rank.total_steps).max().or(self.progress.total_steps);
        self.progress.tokens = ranks().map(|rank| rank.tokens).sum();
        let reached = ranks().filter_map(|rank| rank.step).max().unwrap_or(0);
        self.high_water_step = self.high_water_step.max(reached);
        let saved = reports().filter_map(|report| report.checkpoint).map(|checkpoint| checkpoint.step).max();
        let before = self.checkpoints_before;
        self.checkpoints.count = before.count + reports().map(|report| report.checkpoints).sum::<u32>();
        self.checkpoints.bytes = before.bytes + reports().map(|report| report.checkpoint_bytes).sum::<u64>();
        self.checkpoints.last_step = saved.max(before.last_step);
        let is_running = |report: &Report| matches!(report.state, NodeState::Running { .. });
        if self.state == JobState::Starting && reports().count() == attempt.shares.len() && reports().all(is_running) {
            self.state = JobState::Running;
        }
    }
}

/// A share's end in the engine's words.
pub(crate) fn outcome_as_end(outcome: &Outcome) -> ShareEnd {
    match outcome {
        Outcome::Succeeded => ShareEnd::Succeeded,
        Outcome::DoNotRestart { .. } => ShareEnd::DoNotRestart,
        Outcome::Requeue => ShareEnd::Requeue,
        Outcome::Stopped => ShareEnd::Stopped,
        Outcome::Fault { fault } => {
            let cause = match fault.cause {
                WireCause::Exit { code } => FaultCause::Exit(code),
                WireCause::Signal { signal } => FaultCause::Signal(signal),
                WireCause::Setup { code } => FaultCause::Setup(code),
                WireCause::Start { .. } => FaultCause::Start,
                WireCause::Rendezvous => FaultCause::Rendezvous,
                WireCause::SupervisorLost => FaultCause::SupervisorLost,
            };
            ShareEnd::Fault { cause, at: Timestamp::from_unix_nanos(fault.noticed_at) }
        }
    }
}
