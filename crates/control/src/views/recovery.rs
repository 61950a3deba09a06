//! A recovery in its six phases, computed from the last reports of the failed attempt and the first ones of
//! the next. An attempt that was stopped (drained, preempted, out of time) has no fault, and so neither detection nor cleanup.

use gangline_api::{Recovery, RecoveryLine};
use gangline_base::{RecoveryPhase, Timestamp};

use gangline_store::model::{AttemptRecord, JobRecord, MarksRecord, ShareRecord};

/// Returns every recovery of the job, oldest first.
pub(super) fn recoveries(job: &JobRecord) -> Vec<Recovery> {
    job.attempts.windows(2).filter_map(|pair| recovery(&pair[0], &pair[1])).collect()
}

fn recovery(failed: &AttemptRecord, next: &AttemptRecord) -> Option<Recovery> {
    let fault = failed.fault.as_ref().map(|(_, fault)| fault);
    let released = failed.ended_at?;
    let at = Timestamp::from_unix_nanos;
    let gone = last_end(failed).unwrap_or(released);
    let queued = next.held_from().unwrap_or(next.placed_at).since(released);
    let marks = marks_of(next);
    let noticed = fault.map(|fault| at(fault.noticed_at));
    // A job without a checkpoint to read has no restore phase.
    let restored = marks.restore_ended.or(marks.first_step);
    let points = [
        (RecoveryPhase::Detect, fault.map(|fault| at(fault.last_sign_of_life)), noticed),
        (RecoveryPhase::Cleanup, noticed, Some(gone)),
        (RecoveryPhase::Rendezvous, Some(gone + queued), marks.ranks_started.map(at)),
        (RecoveryPhase::Init, marks.ranks_started.map(at), marks.restore_began.or(marks.first_step).map(at)),
        (RecoveryPhase::Restore, marks.restore_began.map(at), marks.restore_began.and(restored).map(at)),
        (RecoveryPhase::FirstStep, marks.restore_began.and(restored).map(at), marks.first_step.map(at)),
    ];
    let phases: Vec<RecoveryLine> = points
        .into_iter()
        .filter_map(|(phase, from, to)| {
            let seconds = to?.since(from?).as_secs_f64();
            Some(RecoveryLine { phase: phase.name().to_owned(), seconds })
        })
        .collect();
    Some(Recovery {
        from_attempt: failed.number,
        to_attempt: next.number,
        cause: failed.ended_because.clone().unwrap_or_default(),
        queued_seconds: queued.as_secs_f64(),
        total_seconds: phases.iter().map(|line| line.seconds).sum(),
        is_complete: marks.first_step.is_some(),
        phases,
    })
}

pub(super) fn last_end(attempt: &AttemptRecord) -> Option<Timestamp> {
    attempt.shares.iter().filter_map(|share| share.ended_at().map(Timestamp::from_unix_nanos)).max()
}

/// Returns the gang's marks: the gang has started, restored and stepped when its last node has.
pub(super) fn marks_of(attempt: &AttemptRecord) -> MarksRecord {
    let marks = || attempt.shares.iter().filter_map(ShareRecord::marks);
    MarksRecord {
        ranks_started: marks().filter_map(|m| m.ranks_started).max(),
        restore_began: marks().filter_map(|m| m.restore_began).min(),
        restore_ended: marks().filter_map(|m| m.restore_ended).max(),
        first_step: marks().filter_map(|m| m.first_step).max(),
    }
}
