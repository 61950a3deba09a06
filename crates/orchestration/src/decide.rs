//! What the state of a job calls for; who starts is `pass.rs`. Decisions follow from the state alone, not from the event that led to it: a journal that
//! lost its last decision decides it again. Every decision carries its reason; gangs are placed whole.

use std::time::Duration;

use gangline_base::Timestamp;

use crate::engine::Engine;
use crate::evolve::{faults_without_progress, has_advanced};
use crate::job::{Attempt, Job, ShareState};
use crate::{Decision, Fate, FaultCause, RequeueReason, ShareEnd, StopReason};

impl Engine {
    pub(crate) fn settle(&mut self, now: Timestamp) -> Vec<Decision> {
        while let Some((at, job)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, job));
            self.attention.insert(job);
            self.seek_for(job);
            self.is_placement_due = true;
        }
        self.is_placement_due |= self.cluster.check_up(now);
        let mut decisions = Vec::new();
        for id in std::mem::take(&mut self.attention) {
            if let Some(decision) = self.jobs.get(&id).and_then(|job| self.decide_for(now, job)) {
                self.evolve_decision(now, &decision);
                decisions.push(decision);
            } else {
                self.grow(now, id, &mut decisions);
            }
        }
        // A stop brings an end forward, which may let others start: each of these passes stops somebody, or is the last.
        while std::mem::take(&mut self.is_placement_due) {
            self.place_waiting(now, &mut decisions);
        }
        decisions
    }

    fn decide_for(&self, now: Timestamp, job: &Job) -> Option<Decision> {
        let Some(attempt) = job.attempt() else {
            let cancelled = job.is_cancelled.then_some(Fate::Cancelled);
            let fate = cancelled.or_else(|| self.budget_fate(now, job))?;
            return Some(Decision::End { job: job.id, fate });
        };
        if attempt.has_ended() {
            let decision = self.decide_close(now, job, attempt);
            return Some(self.within_budget(now, job, decision));
        }
        if attempt.stop.is_some() {
            return None;
        }
        let limit = job.spec.time_limit.filter(|limit| now >= attempt.placed_at + *limit);
        let has_failed = |state: &ShareState| match state {
            ShareState::Ended(end) => *end != ShareEnd::Succeeded,
            ShareState::Launching | ShareState::Running => false,
        };
        let reason = if job.is_cancelled {
            StopReason::Cancelled
        } else if let Some(limit) = limit {
            StopReason::TimeLimit(limit)
        } else if attempt.states.iter().any(has_failed) {
            StopReason::PeerEnded
        } else if let Some(missed) = self.missed_rung(job) {
            StopReason::EarlyStop(missed)
        } else if let Some(node) = self.leaving_node(now, job, attempt) {
            StopReason::NodeLeaves { node }
        } else {
            self.budget_stop(now, job)?
        };
        Some(Decision::Stop { job: job.id, attempt: attempt.number, reason })
    }

    /// What becomes of a job whose attempt is over. The work being done beats every other reason to end.
    fn decide_close(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Decision {
        let ends =
            || attempt.states.iter().filter_map(|s| if let ShareState::Ended(end) = s { Some(end) } else { None });
        let end = |fate| Decision::End { job: job.id, fate };
        let requeue =
            |not_before, reason| Decision::Requeue { job: job.id, attempt: attempt.number, not_before, reason };
        let making_room = match attempt.stop {
            Some(StopReason::Preempted { by }) => Some(RequeueReason::Preempted { by }),
            Some(StopReason::Resized { to }) => Some(RequeueReason::Resized { to }),
            Some(StopReason::NodeLeaves { node }) => Some(RequeueReason::NodeLeft { node }),
            _ => None,
        };
        // What fails after it was told to make room does so because of that: a node that goes, say.
        let counts = |at: Timestamp| making_room.is_none() || attempt.stop_at.is_none_or(|stop_at| at < stop_at);
        let faults = ends().filter_map(|e| match e {
            ShareEnd::Fault { cause, at } if counts(*at) => Some((*at, *cause)),
            _ => None,
        });
        if ends().all(|e| *e == ShareEnd::Succeeded) {
            end(Fate::Succeeded)
        } else if job.is_cancelled {
            end(Fate::Cancelled)
        } else if matches!(attempt.stop, Some(StopReason::TimeLimit(_))) {
            end(Fate::TimedOut)
        } else if let Some(missed) = self.missed_rung(job) {
            end(Fate::EarlyStop(missed))
        } else if let Some(fate) = self.stopped_for_budget(now, job, attempt) {
            end(fate)
        } else if ends().any(|e| *e == ShareEnd::DoNotRestart) {
            end(Fate::DoNotRestart)
        } else if let Some((_, cause)) = faults.min_by_key(|(at, _)| *at) {
            match self.fate_of_fault(job, cause) {
                Some(fate) => end(fate),
                None => {
                    let (faults, max_faults) = (job.faults + 1, job.spec.recovery.max_faults);
                    requeue(now + self.backoff(job), RequeueReason::Fault { cause, faults, max_faults })
                }
            }
        } else if let Some(reason) = making_room {
            requeue(now, reason)
        } else if job.requeues >= self.limits.requeues_max {
            end(Fate::RequeuesExhausted { requeues: job.requeues })
        } else if ends().any(|e| *e == ShareEnd::Requeue) {
            requeue(now + self.requeue_pause(job), RequeueReason::Asked)
        } else {
            requeue(now, RequeueReason::Orphaned)
        }
    }

    /// The end of a job by this fault, unless its budget covers it.
    fn fate_of_fault(&self, job: &Job, cause: FaultCause) -> Option<Fate> {
        let faults = job.faults + 1;
        let in_a_row = faults_without_progress(job);
        if faults > job.spec.recovery.max_faults {
            Some(Fate::FaultsExhausted { cause, faults })
        } else if in_a_row >= job.spec.recovery.no_progress_limit.max(1) {
            Some(Fate::NoProgress { cause, faults: in_a_row })
        } else {
            None
        }
    }

    /// At once after the first fault without progress, then 1, 2, 4, ... seconds.
    fn backoff(&self, job: &Job) -> Duration {
        match faults_without_progress(job) {
            0 | 1 => Duration::ZERO,
            n => self.doubled(n - 2),
        }
    }

    /// None for a job that asked to be queued again and has saved something new, else 1, 2, 4, ... seconds by its
    /// requeues so far: one that only ever asks must not spin.
    fn requeue_pause(&self, job: &Job) -> Duration {
        if has_advanced(job) { Duration::ZERO } else { self.doubled(job.requeues) }
    }

    /// A second, doubled so many times, within the limit.
    fn doubled(&self, times: u32) -> Duration {
        Duration::from_secs(1 << times.min(16)).min(self.limits.backoff_max)
    }
}
