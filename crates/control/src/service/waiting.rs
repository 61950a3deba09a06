//! Changes of waiting jobs, the dependencies of submitted ones, and the resumption of ended ones.
//!
//! A resumption is a new job that names the ended one as its origin and saves where that one did. An ended job thus
//! stays ended: its attempts, folders and bookings are final, and no id is used twice.
//!
//! The engine knows live jobs only. So the dependencies on jobs that have ended are settled here, from their
//! records, before the submission is journaled: a replay then needs no records.

use std::collections::BTreeSet;

use gangline_api as api;
use gangline_base::{Dependency, EndCondition, JobId, Submitter, Timestamp};
use gangline_orchestration::{Event, Fate, JobChange};

use super::actor::Actor;
use super::batch::Batch;
use super::{Error, Resumption};
use crate::folders::checkpoint_folder;
use crate::views;
use gangline_store::model::{JobRecord, StateRecord};
use gangline_store::ports::Queries as _;
use gangline_store::{codec, db};

/// A request to change a job.
pub(super) struct Changing {
    pub(super) job: JobId,
    pub(super) changes: Vec<JobChange>,
    pub(super) by: Submitter,
}

impl Actor {
    /// Changes a waiting job. Changes that it has already are not made again.
    pub(super) fn change_job(
        &mut self,
        now: Timestamp,
        Changing { job: id, mut changes, by }: Changing,
        batch: &mut Batch,
    ) -> Result<api::ChangeAnswer, Error> {
        let job = self.engine.job(id).ok_or_else(|| self.not_live(id))?;
        if changes.iter().any(|change| matches!(change, JobChange::TimeLimit(_) | JobChange::Queue(_))) {
            let mut changed = (*job.spec).clone();
            changes.iter().for_each(|change| change.apply_to(&mut changed));
            self.refuse_beyond_limits(&changed)?;
        }
        if job.attempt().is_none() {
            changes.retain(|change| change.changes(job));
        }
        let changed = changes.iter().map(ToString::to_string).collect();
        if !changes.is_empty() {
            self.make_changes(now, Changing { job: id, changes, by }, batch)?;
        }
        let state = self.records.get(&id).map_or(api::JobState::Waiting, |record| views::state(record.state));
        Ok(api::ChangeAnswer { job: id.to_string(), state, changed })
    }

    /// Notes the changes, so that decisions that follow from them come after them in the job's history, and
    /// makes them.
    fn make_changes(
        &mut self,
        now: Timestamp,
        Changing { job: id, changes, by }: Changing,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let before = self.records.get(&id).cloned();
        if let Some(record) = self.records.get_mut(&id) {
            record.note_changes(now, &changes, &by);
        }
        let made = self.apply(now, Event::ChangeRequested { job: id, changes, by }, batch);
        match made {
            Ok(_) => drop(self.rows.jobs.insert(id)),
            Err(_) => self.records.extend(before.map(|before| (id, before))),
        }
        Ok(made.map(drop)?)
    }

    /// Returns the error for a job that isn't live.
    pub(super) fn not_live(&self, id: JobId) -> Error {
        if id < self.engine.next_job_id() { Error::JobEnded(id) } else { Error::NoJob(id) }
    }

    /// Returns the dependencies that still have to be met.
    ///
    /// # Errors
    /// [`Error::NoJob`] if a job was never submitted, [`Error::DependencyFailed`] if a job has ended otherwise
    /// than it has to.
    pub(super) fn settle_dependencies(&self, after: &BTreeSet<Dependency>) -> Result<BTreeSet<Dependency>, Error> {
        let mut pending = BTreeSet::new();
        for dependency in after {
            let job = dependency.job;
            if self.engine.job(job).is_some() {
                pending.insert(*dependency);
                continue;
            }
            if job >= self.engine.next_job_id() || job == JobId(0) {
                return Err(Error::NoJob(job));
            }
            if dependency.condition != EndCondition::Any && !dependency.condition.is_met(self.has_succeeded(job)?) {
                return Err(Error::DependencyFailed(Fate::DependencyFailed(*dependency)));
            }
        }
        Ok(pending)
    }

    /// Submits a job that continues the work of an ended one from its checkpoints, or does it afresh.
    pub(super) fn resume_job(
        &mut self,
        now: Timestamp,
        Resumption { origin, changes, again, afresh, by }: Resumption,
        batch: &mut Batch,
    ) -> Result<api::Submitted, Error> {
        if self.engine.job(origin).is_some() {
            return Err(Error::NotEnded(origin));
        }
        if origin >= self.engine.next_job_id() || origin == JobId(0) {
            return Err(Error::NoJob(origin));
        }
        let record = self.record_of(origin)?;
        if record.state == StateRecord::Succeeded && !again && !afresh {
            return Err(Error::Finished(origin));
        }
        let unreadable = |error: codec::Error| Error::Unreadable { code: "G0213", cause: error.to_string() };
        let mut spec = record.resumable().map_err(unreadable)?.ok_or(Error::NotResumable(origin))?;
        let folder = checkpoint_folder(&self.options.folder, origin, spec.checkpoint.path.as_deref());
        // Done afresh, it saves where a job without a folder of its own does.
        spec.checkpoint.path = (!afresh).then(|| folder.display().to_string());
        (spec.origin, spec.submitter) = ((!afresh).then_some(origin), by);
        changes.iter().for_each(|change| change.apply_to(&mut spec));
        self.submit(now, spec, batch)
    }

    fn has_succeeded(&self, ended: JobId) -> Result<bool, Error> {
        Ok(self.record_of(ended)?.state == StateRecord::Succeeded)
    }

    /// Returns the record of a job that is live, or that has ended durably or in the current batch.
    pub(super) fn record_of(&self, ended: JobId) -> Result<JobRecord, Error> {
        if let Some(record) = self.records.get(&ended) {
            return Ok(record.clone());
        }
        let (record, _) = self.reader.job(ended).map_err(unreadable)?.ok_or(Error::Forgotten(ended))?;
        Ok(record)
    }
}

/// Returns why the read models gave no answer.
pub(super) fn unreadable(error: db::Error) -> Error {
    Error::Unreadable { code: error.code(), cause: error.to_string() }
}
