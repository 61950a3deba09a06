//! Changes that users make to waiting jobs, and jobs that are held back: by a user, or because they come
//! after jobs that haven't ended.
//!
//! A job that is held back waits outside of its queue, so no scheduling rule sees it. When it may start, it
//! joins its queue with the turn of a job submitted then: holding a job wins it no place. Cycles can't arise,
//! since a job comes only after jobs submitted before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Bytes, DEPENDENCIES_MAX, Dependency, JobId, JobSpec, Priority, QueueName, Timestamp};

use crate::engine::Engine;
use crate::job::Job;
use crate::{Blocker, Refusal};

/// The most dependencies named in one explanation.
const DEPENDENCIES_NAMED_MAX: usize = 16;

/// A change of a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// It may not start until it is released.
    Hold,
    /// It may start again.
    Release,
    /// It waits in another queue.
    Queue(QueueName),
    /// It gets another priority.
    Priority(Priority),
    /// Its attempts get another time limit, or none.
    TimeLimit(Option<Duration>),
}

impl fmt::Display for JobChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobChange::Hold => f.write_str("held"),
            JobChange::Release => f.write_str("released"),
            JobChange::Queue(queue) => write!(f, "queue set to {queue}"),
            JobChange::Priority(priority) => write!(f, "priority set to {}", priority.value()),
            JobChange::TimeLimit(Some(limit)) => write!(f, "time limit set to {} s", limit.as_secs()),
            JobChange::TimeLimit(None) => f.write_str("time limit removed"),
        }
    }
}

impl JobChange {
    /// Reports whether the change would change this job.
    #[must_use]
    pub fn changes(&self, job: &Job) -> bool {
        match self {
            JobChange::Hold => !job.is_held,
            JobChange::Release => job.is_held,
            JobChange::Queue(queue) => *queue != job.spec.queue,
            JobChange::Priority(priority) => *priority != job.spec.priority,
            JobChange::TimeLimit(limit) => *limit != job.spec.time_limit,
        }
    }

    fn apply(&self, job: &mut Job) {
        match self {
            JobChange::Hold => job.is_held = true,
            JobChange::Release => job.is_held = false,
            _ => self.apply_to(Arc::make_mut(&mut job.spec)),
        }
    }

    /// Changes a specification; a hold is no part of one.
    pub fn apply_to(&self, spec: &mut JobSpec) {
        match self {
            JobChange::Hold | JobChange::Release => {}
            JobChange::Queue(queue) => spec.queue.clone_from(queue),
            JobChange::Priority(priority) => spec.priority = *priority,
            JobChange::TimeLimit(limit) => spec.time_limit = *limit,
        }
    }
}

/// The jobs that are held back. Derived like an index: snapshots don't contain it.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBack {
    jobs: BTreeSet<JobId>,
    /// By job, the jobs that wait for its end.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
}

impl Job {
    /// Reports whether it waits outside of its queue and may not start.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.is_held || !self.after.is_empty() || self.broken.is_some()
    }

    /// Returns what holds it back, if anything does.
    pub(crate) fn held_back_by(&self) -> Option<Blocker> {
        if self.is_held { Some(Blocker::Held) } else { waits_for(&self.after) }
    }
}

/// Returns the blocker of a job that comes after these jobs.
pub(crate) fn waits_for(after: &BTreeSet<Dependency>) -> Option<Blocker> {
    let named: Vec<Dependency> = after.iter().take(DEPENDENCIES_NAMED_MAX).copied().collect();
    (!named.is_empty()).then(|| Blocker::After { more: after.len() - named.len(), dependencies: named })
}

impl Engine {
    /// Returns the live jobs that wait for this job's end.
    pub fn dependents(&self, id: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.held_back.dependents.get(&id).into_iter().flatten().copied()
    }

    /// Returns the number of jobs that are held back.
    #[must_use]
    pub fn held_back_count(&self) -> usize {
        self.held_back.jobs.len()
    }

    pub(crate) fn is_known_as_held_back(&self, id: JobId) -> bool {
        self.held_back.jobs.contains(&id)
    }

    /// Adds a waiting job to its queue, or to the jobs that are held back.
    pub(crate) fn line_up(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if !job.is_held_back() {
            self.queues.insert(&job.spec, job.key());
            return;
        }
        self.held_back.jobs.insert(id);
        for dependency in &job.after {
            self.held_back.dependents.entry(dependency.job).or_default().insert(id);
        }
    }

    /// Undoes [`Engine::line_up`] for a job that leaves.
    pub(crate) fn leave_line(&mut self, job: &Job) {
        self.queues.remove(&job.spec, &job.key());
        if !self.held_back.jobs.remove(&job.id) {
            return;
        }
        for dependency in &job.after {
            let dependents = self.held_back.dependents.get_mut(&dependency.job);
            if dependents.is_some_and(|dependents| dependents.remove(&job.id) && dependents.is_empty()) {
                self.held_back.dependents.remove(&dependency.job);
            }
        }
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
        let Some(mut job) = self.jobs.get(&id).filter(|job| job.attempt().is_none()).cloned() else { return };
        self.leave_line(&job);
        self.loads.job_went(&job, self.sweeps.has_own_spec(&job));
        let was_held_back = job.is_held_back();
        changes.iter().for_each(|change| change.apply(&mut job));
        if job.is_held_back() {
            (job.claim, job.kept) = (None, None);
            self.claimants.remove(&id);
        } else if was_held_back {
            job.turn = self.turn_from(now, &job.spec);
        }
        self.loads.job_came(&job, self.sweeps.has_own_spec(&job));
        self.jobs.insert(id, job);
        self.line_up(id);
        self.attention.insert(id);
        self.is_placement_due = true;
    }

    /// Tells the jobs that wait for a job's end how it has ended.
    pub(crate) fn note_end(&mut self, now: Timestamp, ended: JobId, has_succeeded: bool) {
        for id in self.held_back.dependents.remove(&ended).unwrap_or_default() {
            let Some(mut job) = self.jobs.get(&id).cloned() else { continue };
            self.leave_line(&job);
            let (of_ended, after) = job.after.iter().copied().partition(|dependency| dependency.job == ended);
            job.after = after;
            let of_ended: BTreeSet<Dependency> = of_ended;
            job.broken = job.broken.or(of_ended.into_iter().find(|it| !it.condition.is_met(has_succeeded)));
            if !job.is_held_back() {
                job.turn = self.turn_from(now, &job.spec);
            }
            self.jobs.insert(id, job);
            self.line_up(id);
            self.attention.insert(id);
            self.is_placement_due = true;
        }
    }

    /// Returns the turn of a job that joins its queue now.
    pub(crate) fn turn_from(&self, now: Timestamp, spec: &JobSpec) -> Timestamp {
        self.configuration.order.turn(now, spec, self.estimates.expect(spec))
    }
}
