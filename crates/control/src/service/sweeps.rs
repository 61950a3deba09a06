//! Sweeps: submitted and cancelled as a whole, and the metrics of their jobs.

use std::sync::Arc;

use gangline_api as api;
use gangline_base::{AttemptNumber, JobId, Step, Submitter, SweepId, SweepSpec, Timestamp};
use gangline_orchestration::Event;
use tracing::debug;

use super::Error;
use super::actor::Actor;
use super::batch::Batch;
use crate::views;
use gangline_store::model::{SampleRecord, SweepRecord};

impl Actor {
    /// Submits all jobs of a sweep, or none.
    pub(super) fn submit_sweep(
        &mut self,
        now: Timestamp,
        mut sweep: SweepSpec,
        batch: &mut Batch,
    ) -> Result<api::SweepSubmitted, Error> {
        self.refuse_unrunnable(&sweep.job)?;
        let after = self.settle_dependencies(&sweep.job.after)?;
        let job = Arc::make_mut(&mut sweep.job);
        job.after = after;
        job.queue = self.engine.configuration().queue_for(&job.queue);
        self.refuse_if_full(sweep.stored_bytes(), batch)?;
        let id = SweepId(self.engine.next_job_id());
        let (shared, records) = SweepRecord::with_jobs(id, &sweep, now);
        let jobs: Vec<JobId> = records.iter().map(|record| record.id).collect();
        let submitted = api::SweepSubmitted {
            sweep: id.to_string(),
            name: sweep.job.name.clone(),
            queue: sweep.job.queue.to_string(),
            jobs: jobs.iter().map(JobId::to_string).collect(),
            notes: self.notes_on(&sweep.job),
        };
        self.records.extend(records.into_iter().map(|record| (record.id, record)));
        match self.apply(now, Event::SweepSubmitted(Arc::new(sweep)), batch) {
            Ok(_) => {
                self.rows.sweeps.push(shared);
                self.rows.jobs.extend(jobs);
                Ok(submitted)
            }
            Err(refusal) => {
                jobs.iter().for_each(|job| drop(self.records.remove(job)));
                Err(refusal.into())
            }
        }
    }

    /// Cancels the unfinished jobs of a sweep.
    pub(super) fn cancel_sweep(
        &mut self,
        now: Timestamp,
        sweep: SweepId,
        by: Submitter,
        batch: &mut Batch,
    ) -> Result<api::CancelSweepAnswer, Error> {
        let jobs: Vec<JobId> = self.engine.sweep_jobs(sweep).map(|job| job.id).collect();
        for job in &jobs {
            if let Some(record) = self.records.get_mut(job) {
                record.note_sweep_cancel(now, sweep, &by);
            }
        }
        self.apply(now, Event::SweepCancelRequested { sweep, by }, batch)?;
        self.rows.jobs.extend(jobs.iter().copied());
        let answer = |job: JobId| api::CancelAnswer {
            job: job.to_string(),
            state: self.records.get(&job).map_or(api::JobState::Cancelled, |record| views::state(record.state)),
        };
        Ok(api::CancelSweepAnswer { sweep: sweep.to_string(), jobs: jobs.into_iter().map(answer).collect() })
    }

    /// Passes on to the engine the metric that the gang's first node measured at each rung the job reaches.
    pub(super) fn report_metrics(
        &mut self,
        now: Timestamp,
        (job, attempt): (JobId, AttemptNumber),
        samples: &[SampleRecord],
        batch: &mut Batch,
    ) {
        let next_rung = |actor: &Actor| actor.engine.job(job).and_then(|job| actor.engine.next_rung(job));
        let mut due = next_rung(self);
        for sample in samples {
            let step = Step(sample.step);
            let Some(value) = sample.metric.filter(|_| due.is_some_and(|due| step >= due)) else { continue };
            if let Some(record) = self.records.get_mut(&job) {
                record.note_metric(step, value);
            }
            if let Err(refusal) = self.apply(now, Event::MetricReported { job, attempt, step, value }, batch) {
                debug!(%job, %refusal, "a metric came too late");
            }
            due = next_rung(self);
        }
    }
}
