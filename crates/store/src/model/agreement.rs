//! Compares a stored record of a job with the one made from the journal.

use gangline_base::Buckets;

use super::parts::StateRecord;
use super::record::{AttemptRecord, JobRecord, ShareRecord};
use super::remake::Remade;
use crate::reported::ShareStateRecord;

impl Remade {
    /// Returns the first difference of a stored record. Transient notes, ranks' figures and reports of a
    /// running attempt are only in the stored record, so they aren't compared.
    pub(crate) fn difference(&self, stored: &JobRecord) -> Option<&'static str> {
        let made = &self.record;
        let is_same = |is_same: bool, what| (!is_same).then_some(what);
        is_same(made.name == stored.name && made.submitter == stored.submitter, "its name")
            .or(is_same(made.queue == stored.queue && made.priority == stored.priority, "its queue"))
            .or(is_same(made.submitted_at == stored.submitted_at, "when it was submitted"))
            .or(is_same(made.run == stored.run && made.workdir == stored.workdir, "what it runs"))
            .or(is_same(
                made.gang == stored.gang && made.checkpoint_path == stored.checkpoint_path && made.pins == stored.pins,
                "what it asked for",
            ))
            .or(is_same(standing(made.state) == standing(stored.state), "its state"))
            .or(is_same(made.ended_at == stored.ended_at, "when it ended"))
            .or(is_same(made.faults == stored.faults && made.max_faults == stored.max_faults, "its faults"))
            .or(is_same(self.has_same_attempts(stored), "its attempts"))
            .or(is_same(self.has_same_figures(stored), "how far it came"))
    }

    fn has_same_attempts(&self, stored: &JobRecord) -> bool {
        // An earlier release stored more attempts of large gangs.
        let Some(more) = stored.attempts.len().checked_sub(self.record.attempts.len()) else { return false };
        let pairs = self.record.attempts.iter().zip(&stored.attempts[more..]);
        (more == 0 || self.record.attempts.first().is_some_and(|first| first.number > 1))
            && pairs.into_iter().all(|(made, stored)| {
                let is_known = made.ended_at.is_some() && !self.unknown.contains(&made.number);
                is_same_attempt(made, stored, is_known)
            })
    }

    /// Compares the reported figures, which the journal has only once an attempt has ended.
    fn has_same_figures(&self, stored: &JobRecord) -> bool {
        let made = &self.record;
        let last = made.attempts.last();
        let is_settled = last.is_none_or(|last| last.ended_at.is_some() && !self.unknown.contains(&last.number));
        let sweep = |record: &JobRecord| record.sweep.as_ref().map(|point| (point.id, point.metric));
        let spent = |record: &JobRecord| record.budget.as_ref().map(|budget| (budget.limit, budget.spent));
        let is_same_spent = !made.state.is_final() || spent(made) == spent(stored);
        sweep(made) == sweep(stored)
            && (!is_settled
                || is_same_spent
                    && made.progress == stored.progress
                    && made.high_water_step == stored.high_water_step
                    && made.checkpoints == stored.checkpoints)
    }
}

/// Treats starting and running as the same: supervisors report the change, and the record may have it
/// slightly before or after the journal.
fn standing(state: StateRecord) -> StateRecord {
    if state == StateRecord::Running { StateRecord::Starting } else { state }
}

/// The reasons of placement and end aren't compared: their texts have durations that the journal stores in
/// whole milliseconds, so that the rounding may differ.
fn is_same_attempt(made: &AttemptRecord, stored: &AttemptRecord, is_known: bool) -> bool {
    let mut shares = made.shares.iter().zip(&stored.shares);
    (made.number, made.placed_at, made.ended_at) == (stored.number, stored.placed_at, stored.ended_at)
        && made.shares.len() == stored.shares.len()
        && (!is_known || (&made.fault, made.allocation) == (&stored.fault, stored.allocation))
        && shares.all(|(made, stored)| is_same_share(made, stored, is_known))
}

fn is_same_share(made: &ShareRecord, stored: &ShareRecord, is_known: bool) -> bool {
    let said = |share: &ShareRecord| {
        share.report.as_ref().map(|report| {
            let ended = matches!(report.state, ShareStateRecord::Ended { .. });
            (report.started_at, Buckets::from(&report.usage), report.marks, report.checkpoint, ended)
        })
    };
    (&made.node, &made.devices) == (&stored.node, &stored.devices)
        && (!is_known || made.price == stored.price && said(made) == said(stored))
}
