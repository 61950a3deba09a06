//! What users change: submit, cancel, drain.

use std::sync::Arc;

use gangline_base::{JobId, JobSpec, NodeName, Submitter, Timestamp};
use gangline_orchestration::{Event, Refusal};

use super::Error;
use super::actor::Actor;
use super::batch::Batch;
use crate::model::JobRecord;
use crate::wire;

impl Actor {
    pub(super) fn submit(
        &mut self,
        now: Timestamp,
        spec: JobSpec,
        batch: &mut Batch,
    ) -> Result<wire::Submitted, Error> {
        let id = self.engine.next_job_id();
        let submitted = wire::Submitted { job: id.to_string(), name: spec.name.clone(), queue: spec.queue.to_string() };
        self.records.insert(id, JobRecord::new(id, &spec, now));
        match self.apply(now, Event::JobSubmitted(Arc::new(spec)), batch) {
            Ok(_) => {
                self.rows.jobs.insert(id);
                Ok(submitted)
            }
            Err(refusal) => {
                self.records.remove(&id);
                Err(refusal.into())
            }
        }
    }

    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        job: JobId,
        by: Submitter,
        batch: &mut Batch,
    ) -> Result<wire::CancelAnswer, Error> {
        if let Some(record) = self.records.get_mut(&job) {
            record.note(now, format!("cancel requested by {by}"));
        }
        self.apply(now, Event::CancelRequested { job, by }, batch).map_err(|refusal| match refusal {
            Refusal::UnknownJob(job) if job < self.engine.next_job_id() => Error::JobEnded(job),
            Refusal::UnknownJob(job) => Error::NoJob(job),
            other => other.into(),
        })?;
        self.rows.jobs.insert(job);
        let state = self.records.get(&job).map_or(wire::JobState::Cancelled, |record| record.state);
        Ok(wire::CancelAnswer { job: job.to_string(), state })
    }

    pub(super) fn drain(
        &mut self,
        now: Timestamp,
        name: &NodeName,
        is_wanted: bool,
        batch: &mut Batch,
    ) -> Result<wire::Node, Error> {
        let node = self.engine.node_id(name).ok_or_else(|| Error::NoNode(name.clone()))?;
        let event = if is_wanted { Event::DrainRequested { node } } else { Event::DrainCancelled { node } };
        self.apply(now, event, batch)?;
        let shown = self.node_list().nodes.into_iter().find(|node| node.name == name.as_str());
        shown.ok_or_else(|| Error::NoNode(name.clone()))
    }
}
