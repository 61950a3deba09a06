//! Decisions on a job that follow from its state; `pass.rs` decides which jobs start. Decisions depend only
//! on the state, not on the event that led to it: if a journal lost its last decision, the engine makes it
//! again. Every decision carries its reason; gangs are placed whole.

use std::time::Duration;

use gangline_base::Timestamp;

use crate::engine::Engine;
use crate::evolve::has_advanced;
use crate::job::{Attempt, Job, ShareState};
use crate::placement::RootFault;
use crate::{Decision, Fate, RequeueReason, ShareEnd, StopReason};

/// The pause before a job that could not be started is tried again, so that the platform can recover.
const UNABLE_PAUSE: Duration = Duration::from_secs(15);
/// The pause after something else than the control plane ended a job, in which it may become known what it was: an administrator
/// who cancelled it doesn't want it to come back.
const TERMINATED_PAUSE: Duration = Duration::from_secs(10);
/// The pause before a job that was taken back is placed again: if the launcher's own system drops whatever it is given, it isn't
/// given the job again and again without a rest.
const WITHDRAWN_PAUSE: Duration = Duration::from_secs(5);

impl Engine {
    pub(crate) fn settle(&mut self, now: Timestamp) -> Vec<Decision> {
        while let Some((at, job)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, job));
            self.attention.insert(job);
            self.seek_for(job);
            self.is_placement_due = true;
        }
        self.is_placement_due |= self.cluster.check_up(now) | self.queues.next_hours().is_some_and(|at| at <= now);
        let mut decisions = Vec::new();
        while let Some(id) = self.attention.pop_first() {
            if let Some(mut decision) = self.jobs.get(&id).and_then(|job| self.decide_for(now, job)) {
                self.stay_without_room(now, &mut decision);
                self.evolve_decision(now, &decision);
                decisions.push(decision);
            } else {
                self.grow(now, id, &mut decisions);
            }
        }
        self.stop_over_budget(now, &mut decisions);
        // A stop brings an end forward and may let other jobs start. The loop ends because each pass but the
        // last stops a job.
        while std::mem::take(&mut self.is_placement_due) {
            self.place_waiting(now, &mut decisions);
        }
        decisions
    }

    fn decide_for(&self, now: Timestamp, job: &Job) -> Option<Decision> {
        let Some(attempt) = job.attempt() else {
            let cancelled = job.is_cancelled.then_some(Fate::Cancelled);
            let broken = || job.broken.map(Fate::DependencyFailed);
            let fate = cancelled.or_else(broken).or_else(|| self.budget_fate(now, job));
            return fate.map(|fate| Decision::End { job: job.id, fate }).or_else(|| self.place_again(job));
        };
        if attempt.has_ended() {
            let decision = self.decide_close(now, job, attempt);
            return Some(self.within_budget(now, job, decision));
        }
        let reason = self.stop_reason(now, job, attempt)?;
        Some(Decision::Stop { job: job.id, attempt: attempt.number, reason })
    }

    /// Returns why a running attempt has to stop, if it has to.
    fn stop_reason(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<StopReason> {
        if attempt.stop.is_some() {
            return None;
        }
        let limit = job.spec.time_limit.filter(|limit| now >= attempt.allocated_at + *limit);
        let has_failed = |state: &ShareState| match state {
            ShareState::Ended(end) => *end != ShareEnd::Succeeded,
            ShareState::Launching | ShareState::Running => false,
        };
        if job.is_cancelled {
            Some(StopReason::Cancelled)
        } else if let Some(limit) = limit {
            Some(StopReason::TimeLimit(limit))
        } else if attempt.states.iter().any(has_failed) {
            Some(StopReason::PeerEnded)
        } else if let Some(missed) = self.missed_rung(job) {
            Some(StopReason::EarlyStop(missed))
        } else if let Some(node) = self.leaving_node(now, job, attempt) {
            Some(StopReason::NodeLeaves { node })
        } else if let Some(node) = attempt.straggler {
            Some(StopReason::Straggler { node })
        } else {
            self.budget_stop(now, job)
        }
    }

    /// Decides what happens to a job whose attempt has ended. Success takes precedence over every other
    /// outcome.
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
            Some(StopReason::Straggler { node }) => Some(RequeueReason::Straggler { node }),
            Some(StopReason::SharedBudgetSpent) => Some(RequeueReason::SharedBudgetSpent),
            _ => None,
        };
        // A failure after the attempt was told to make room is a consequence of that, for example when the
        // node goes away.
        let counts = |at: Timestamp| making_room.is_none() || attempt.stop_at.is_none_or(|stop_at| at < stop_at);
        let faults = ends().filter_map(|e| match e {
            ShareEnd::Fault { cause, category, is_consequence, at } if counts(*at) => {
                Some(((*is_consequence, *at), RootFault { cause: *cause, category: *category }))
            }
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
        } else if let Some((_, fault)) = faults.min_by_key(|(order, _)| *order) {
            self.recover(now, job, attempt, fault)
        } else if let Some(reason) = making_room {
            requeue(now, reason)
        } else if ends().any(|e| *e == ShareEnd::Unable) {
            requeue(now + UNABLE_PAUSE, RequeueReason::Unable)
        } else if ends().any(|e| *e == ShareEnd::Withdrawn) {
            requeue(now + WITHDRAWN_PAUSE, RequeueReason::Withdrawn)
        } else if job.requeues >= self.limits.requeues_max {
            end(Fate::RequeuesExhausted { requeues: job.requeues })
        } else if ends().any(|e| *e == ShareEnd::Requeue) {
            requeue(now + self.requeue_pause(job), RequeueReason::Asked)
        } else if ends().any(|e| *e == ShareEnd::Terminated) {
            requeue(now + TERMINATED_PAUSE, RequeueReason::Terminated)
        } else {
            requeue(now, RequeueReason::Orphaned)
        }
    }

    /// Returns no pause for a job that asked to be requeued and has saved a new checkpoint, else 1, 2, 4, ...
    /// seconds by its requeues so far, so that a job that always asks does not spin.
    fn requeue_pause(&self, job: &Job) -> Duration {
        if has_advanced(job) { Duration::ZERO } else { self.doubled(job.requeues) }
    }

    /// Returns one second doubled `times` times, within the limit.
    pub(crate) fn doubled(&self, times: u32) -> Duration {
        Duration::from_secs(1 << times.min(16)).min(self.limits.backoff_max)
    }
}
