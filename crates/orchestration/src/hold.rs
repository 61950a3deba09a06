//! Changes that users make to waiting jobs, and jobs that are held back: by a user, because they come
//! after jobs that haven't ended, or because a budget is spent.
//!
//! A job that is held back waits outside of its queue, so no scheduling rule sees it. When it may start, it
//! joins its queue with the turn of a job submitted then: holding a job wins it no place. Cycles can't arise,
//! since a job comes only after jobs submitted before it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, DEPENDENCIES_MAX, Dependency, JobId, JobSpec, Timestamp};

use crate::engine::Engine;
use crate::job::{Attempt, Job, JobState};
use crate::spent_budget::{OverBudget, SpentBudget};
use crate::{Blocker, Decision, JobChange, Refusal, StopReason};

impl JobChange {
    /// Reports whether the change would change this job.
    #[must_use]
    pub fn changes(&self, job: &Job) -> bool {
        match self {
            JobChange::Hold => !job.is_held,
            JobChange::Release => job.is_held || job.over_budget.is_some(),
            JobChange::Queue(queue) => *queue != job.spec.queue,
            JobChange::Priority(priority) => *priority != job.spec.priority,
            JobChange::TimeLimit(limit) => *limit != job.spec.time_limit,
        }
    }

    fn apply(&self, job: &mut Job) {
        match self {
            JobChange::Hold => job.is_held = true,
            JobChange::Release => {
                job.is_held = false;
                job.is_exempt |= job.over_budget.take().is_some();
            }
            _ => self.apply_to(Arc::make_mut(&mut job.spec)),
        }
    }
}

impl Job {
    /// Reports whether it waits outside of its queue and may not start.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.is_held || !self.after.is_empty() || self.broken.is_some() || self.over_budget.is_some()
    }

    /// Returns what holds it back, if anything does.
    pub(crate) fn held_back_by(&self) -> Option<Blocker> {
        let over_budget = || Some(Blocker::OverBudget(self.over_budget.clone()?));
        if self.is_held { Some(Blocker::Held) } else { Blocker::after(&self.after).or_else(over_budget) }
    }
}

impl Engine {
    /// Returns the live jobs that wait for this job's end.
    pub fn dependents(&self, id: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.held_back.dependents(id)
    }

    /// Returns the number of jobs that are held back.
    #[must_use]
    pub fn held_back_count(&self) -> usize {
        self.held_back.len()
    }

    pub(crate) fn is_known_as_held_back(&self, id: JobId) -> bool {
        self.held_back.contains(id)
    }

    /// Adds a waiting job to its queue, or to the jobs that are held back.
    pub(crate) fn line_up(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if !job.is_held_back() {
            self.queues.insert(&job.spec, job.key());
            self.age(id);
            return;
        }
        self.held_back.insert(id, &job.after);
    }

    /// Undoes [`Engine::line_up`] for a job that leaves.
    pub(crate) fn leave_line(&mut self, job: &Job) {
        self.queues.remove(&job.spec, &job.key());
        if let JobState::Queued { since, .. } = job.state {
            self.ageing.remove(&job.spec, job.sweep, (since, job.id));
        }
        self.held_back.remove(job.id, &job.after);
    }

    pub(crate) fn admit_dependencies(spec: &JobSpec) -> Result<(), Refusal> {
        let count = spec.after.len();
        if count > DEPENDENCIES_MAX { Err(Refusal::TooManyDependencies { count }) } else { Ok(()) }
    }

    pub(crate) fn admit_changes(&self, id: JobId, changes: &[JobChange]) -> Result<(), Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::UnknownJob(id))?;
        if job.attempt().is_some() {
            return Err(Refusal::NotWaiting(id));
        }
        let mut changed = job.clone();
        changes.iter().for_each(|change| change.apply(&mut changed));
        if changed.spec.queue != job.spec.queue {
            self.admit_queue(&changed.spec)?;
        }
        let stored = |job: &Job| if self.sweeps.has_own_spec(job) { job.spec.stored_bytes().0 } else { 0 };
        let more = stored(&changed).saturating_sub(stored(job));
        if more > 0 { self.admit_load(&job.spec.submitter, 0, Bytes(more)) } else { Ok(()) }
    }

    /// Changes a waiting job; does nothing to a job that holds devices.
    pub(crate) fn evolve_changes(&mut self, now: Timestamp, id: JobId, changes: &[JobChange]) {
        self.reconsider(now, id, |engine, job| {
            changes.iter().for_each(|change| change.apply(job));
            job.over_budget = engine.over_budget(job);
        });
    }

    /// Changes a waiting job, which leaves its queue or joins it if the change holds it back or lets it go; does nothing to a
    /// job that holds devices.
    pub(crate) fn reconsider(&mut self, now: Timestamp, id: JobId, change: impl FnOnce(&Engine, &mut Job)) {
        let Some(mut job) = self.jobs.get(&id).filter(|job| job.attempt().is_none()).cloned() else { return };
        self.leave_line(&job);
        self.loads.job_went(&job, self.sweeps.has_own_spec(&job));
        let was_held_back = job.is_held_back();
        change(self, &mut job);
        if job.is_held_back() {
            (job.claim, job.kept) = (None, None);
            self.claimants.remove(&id);
        } else if was_held_back {
            self.wait_anew(now, &mut job);
        }
        self.loads.job_came(&job, self.sweeps.has_own_spec(&job));
        self.jobs.insert(id, job);
        self.line_up(id);
        self.attention.insert(id);
        self.is_placement_due = true;
    }

    /// Tells the jobs that wait for a job's end how it has ended.
    pub(crate) fn note_end(&mut self, now: Timestamp, ended: JobId, has_succeeded: bool) {
        for id in self.held_back.dependents(ended).collect::<Vec<_>>() {
            let Some(mut job) = self.jobs.get(&id).cloned() else { continue };
            self.leave_line(&job);
            let (of_ended, after) = job.after.iter().copied().partition(|dependency| dependency.job == ended);
            job.after = after;
            let of_ended: BTreeSet<Dependency> = of_ended;
            job.broken = job.broken.or(of_ended.into_iter().find(|it| !it.condition.is_met(has_succeeded)));
            if !job.is_held_back() {
                self.wait_anew(now, &mut job);
            }
            self.jobs.insert(id, job);
            self.line_up(id);
            self.attention.insert(id);
            self.is_placement_due = true;
        }
    }

    /// Makes a job that was held back wait as one that is submitted now.
    fn wait_anew(&self, now: Timestamp, job: &mut Job) {
        job.turn = self.turn_from(now, &job.spec);
        if let JobState::Queued { since, .. } = &mut job.state {
            *since = now;
        }
    }

    /// Returns the turn of a job that joins its queue now.
    pub(crate) fn turn_from(&self, now: Timestamp, spec: &JobSpec) -> Timestamp {
        self.configuration.order.turn(now, spec, self.estimates.expect(spec))
    }
}

impl Engine {
    /// Returns the budgets that are spent, as the control plane last said.
    #[must_use]
    pub fn spent_budgets(&self) -> &[SpentBudget] {
        &self.spent_budgets
    }

    /// Returns the budget that keeps a job from starting, or from going on if it has begun; of several, the one whose period
    /// ends last.
    pub(crate) fn over_budget(&self, job: &Job) -> Option<OverBudget> {
        let keeps =
            |budget: &&SpentBudget| (job.attempts == 0 || budget.stops) && !job.is_exempt && budget.counts(&job.spec);
        let counting = self.spent_budgets.iter().filter(keeps);
        let SpentBudget { name, limit, until, .. } = counting.max_by_key(|budget| budget.until)?.clone();
        Some(OverBudget { budget: name, limit, until })
    }

    /// Holds back the jobs of budgets that are spent, and lets those go that none holds any more.
    pub(crate) fn evolve_spent_budgets(&mut self, now: Timestamp, spent: &[SpentBudget]) {
        self.spent_budgets = spent.to_vec();
        self.is_budget_stop_due = true;
        let waiting = self.jobs.values().filter(|job| job.attempt().is_none());
        let changed = waiting.filter(|job| job.over_budget != self.over_budget(job));
        for id in changed.map(|job| job.id).collect::<Vec<JobId>>() {
            self.reconsider(now, id, |engine, job| job.over_budget = engine.over_budget(job));
        }
    }

    /// Has running jobs save and stop that a spent budget stops, those with the least work since their last checkpoint first.
    /// Later on none begins that would have to.
    pub(crate) fn stop_over_budget(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let is_due = std::mem::take(&mut self.is_budget_stop_due);
        if !is_due || !self.spent_budgets.iter().any(|budget| budget.stops) {
            return;
        }
        let running = self.jobs.values().filter_map(|job| Some((job, job.attempt()?)));
        let stopped = running
            .filter(|(job, attempt)| attempt.stop.is_none() && !attempt.has_ended() && self.over_budget(job).is_some());
        let unsaved = |job: &Job, attempt: &Attempt| {
            let since = job.checkpoint_at.unwrap_or(attempt.placed_at).max(attempt.placed_at);
            now.since(since).saturating_mul(u32::try_from(attempt.devices()).unwrap_or(u32::MAX))
        };
        let mut stopped: Vec<(Duration, JobId, AttemptNumber)> =
            stopped.map(|(job, attempt)| (unsaved(job, attempt), job.id, attempt.number)).collect();
        stopped.sort_unstable();
        for (_, job, attempt) in stopped {
            let decision = Decision::Stop { job, attempt, reason: StopReason::SharedBudgetSpent };
            self.evolve_decision(now, &decision);
            decisions.push(decision);
        }
    }
}
