//! What the state calls for. Decisions follow from the state alone, not from the event that led to it: a journal that
//! lost its last decision decides it again. Every decision carries its reason; gangs are placed whole.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use gangline_base::{AttemptNumber, Timestamp};

use crate::cluster::NodeStatus;
use crate::engine::{Engine, QueueKey};
use crate::evolve::{faults_without_progress, has_advanced};
use crate::job::{Attempt, Job, JobState, ShareState};
use crate::{Decision, Fate, FaultCause, Node, PlaceReason, RequeueReason, ShareEnd, StopReason, placement};

impl Engine {
    pub(crate) fn settle(&mut self, now: Timestamp) -> Vec<Decision> {
        while let Some((at, job)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, job));
            self.attention.insert(job);
            self.is_placement_due = true;
        }
        let mut decisions = Vec::new();
        for id in std::mem::take(&mut self.attention) {
            if let Some(decision) = self.jobs.get(&id).and_then(|job| self.decide_for(now, job)) {
                self.evolve_decision(now, &decision);
                decisions.push(decision);
            }
        }
        if std::mem::take(&mut self.is_placement_due) {
            self.place_waiting(now, &mut decisions);
        }
        decisions
    }

    fn decide_for(&self, now: Timestamp, job: &Job) -> Option<Decision> {
        let Some(attempt) = job.attempt() else {
            return job.is_cancelled.then_some(Decision::End { job: job.id, fate: Fate::Cancelled });
        };
        if attempt.has_ended() {
            return Some(self.decide_close(now, job, attempt));
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
        } else {
            return None;
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
        let faults =
            ends().filter_map(|e| if let ShareEnd::Fault { cause, at } = e { Some((*at, *cause)) } else { None });
        if ends().all(|e| *e == ShareEnd::Succeeded) {
            end(Fate::Succeeded)
        } else if job.is_cancelled {
            end(Fate::Cancelled)
        } else if matches!(attempt.stop, Some(StopReason::TimeLimit(_))) {
            end(Fate::TimedOut)
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

    /// Strict order among jobs that compete for the same kind of accelerator: the first that must wait for devices
    /// holds them against all behind it, so a large gang is not starved by small ones. A job that could not run now
    /// even on empty nodes (too few are ready, or it is backing off) holds nothing.
    fn place_waiting(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let mut held_kinds = BTreeSet::new();
        let mut passed = 0;
        let mut last: Option<QueueKey> = None;
        loop {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let Some(key) = self.pending.range((from, Bound::Unbounded)).next().copied() else { break };
            last = Some(key);
            let job = &self.jobs[&key.1];
            if held_kinds.contains(&job.spec.gang.accelerator) {
                passed += 1;
                continue;
            }
            match self.decide_place(now, job, passed) {
                Ok(decision) => {
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
                Err(Waiting::HoldsItsPlace) => {
                    held_kinds.insert(job.spec.gang.accelerator.clone());
                    passed += 1;
                    if held_kinds.len() >= self.cluster.kinds().len() {
                        break;
                    }
                }
                Err(Waiting::StepsAside) => passed += 1,
            }
        }
    }

    fn decide_place(&self, now: Timestamp, job: &Job, passed: u32) -> Result<Decision, Waiting> {
        let JobState::Queued { since, not_before } = job.state else { return Err(Waiting::StepsAside) };
        if not_before > now {
            return Err(Waiting::StepsAside);
        }
        if let Some(room) = placement::find_room(&self.cluster, &job.spec.gang, &Node::free_count) {
            let reason = PlaceReason { waited: now.since(since), passed, candidates: room.candidates };
            let attempt = AttemptNumber(job.attempts + 1);
            return Ok(Decision::Place { job: job.id, attempt, shares: room.shares, reason });
        }
        let could_run = self.cluster.could_hold(&job.spec.gang, &[NodeStatus::Ready]) >= job.spec.gang.nodes.get();
        Err(if could_run { Waiting::HoldsItsPlace } else { Waiting::StepsAside })
    }
}

/// What a job that can't be placed means for those behind it.
enum Waiting {
    /// It waits for devices that will be free; nobody passes it for the same kind.
    HoldsItsPlace,
    /// It can't run now whatever becomes free.
    StepsAside,
}
