//! Changes that users request: submit, cancel, drain.

use std::sync::Arc;

use gangline_api as api;
use gangline_base::{JobId, JobSpec, NodeName, Submitter, Timestamp};
use gangline_execution::launcher::GangLimit;
use gangline_orchestration::{Event, NodeStatus};

use super::Error;
use super::actor::Actor;
use super::batch::Batch;
use super::handle::DrainWish;
use crate::retention::shown;
use crate::views;
use gangline_store::model::JobRecord;

impl Actor {
    pub(super) fn submit(
        &mut self,
        now: Timestamp,
        mut spec: JobSpec,
        batch: &mut Batch,
    ) -> Result<api::Submitted, Error> {
        self.refuse_unmailable(&spec.notify)?;
        self.refuse_unrunnable(&spec)?;
        spec.after = self.settle_dependencies(&spec.after)?;
        spec.queue = self.engine.configuration().queue_for(&spec.queue);
        self.refuse_if_full(spec.stored_bytes(), batch)?;
        let id = self.engine.next_job_id();
        let submitted = api::Submitted {
            job: id.to_string(),
            name: spec.name.clone(),
            queue: spec.queue.to_string(),
            notes: self.notes_on(&spec),
        };
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

    /// Returns what a user should know about a job that is taken.
    pub(super) fn notes_on(&self, spec: &JobSpec) -> Vec<String> {
        let asks = spec.gang.cpus_per_node > 0 || spec.gang.memory_per_node.0 > 0;
        let image = spec.program.container.as_ref().map(|container| container.image.as_str());
        let unenforced = self.options.launcher.unenforced(image).filter(|_| asks);
        let unenforced = unenforced.map(|why| format!("what it asks for is counted, but {why}"));
        let queue = self.engine.configuration().queue_for(&spec.queue);
        let longest = self.options.launcher.longest_run(queue.as_str()).filter(|_| spec.time_limit.is_none());
        let longest = longest.map(|(longest, why)| {
            format!(
                "an attempt runs for {} at most ({why}); the next one goes on from the last checkpoint",
                shown(longest)
            )
        });
        unenforced.into_iter().chain(longest).collect()
    }

    /// Refuses a job of which no attempt could run as it asks.
    pub(super) fn refuse_unrunnable(&self, spec: &JobSpec) -> Result<(), Error> {
        self.refuse_beyond_limits(spec)?;
        let Some(container) = &spec.program.container else { return Ok(()) };
        match self.options.launcher.missing_for_image(&container.image) {
            Some(why) => Err(Error::NoContainers { image: container.image.clone(), why }),
            None => Ok(()),
        }
    }

    /// Refuses a time limit that no attempt could make use of, and a gang that would never start.
    pub(super) fn refuse_beyond_limits(&self, spec: &JobSpec) -> Result<(), Error> {
        let (launcher, queue) = (&self.options.launcher, self.engine.configuration().queue_for(&spec.queue));
        if let Some((asked, (longest, why))) = spec.time_limit.zip(launcher.longest_run(queue.as_str()))
            && asked > longest
        {
            return Err(Error::TooLong { asked, longest, why });
        }
        let mut sizes = launcher.largest_gang(queue.as_str()).into_iter();
        match sizes.find(|size| size.of.needed_by(&spec.gang) > size.max) {
            Some(GangLimit { of, max, why }) => Err(Error::TooLarge { needs: of.needed_by(&spec.gang), of, max, why }),
            None => Ok(()),
        }
    }

    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        job: JobId,
        by: Submitter,
        batch: &mut Batch,
    ) -> Result<api::CancelAnswer, Error> {
        let Some(live) = self.engine.job(job) else {
            return Err(self.not_live(job));
        };
        if !live.is_cancelled {
            if let Some(record) = self.records.get_mut(&job) {
                record.note_cancel(now, &by);
                self.rows.jobs.insert(job);
            }
            self.apply(now, Event::CancelRequested { job, by }, batch)?;
        }
        let state = self.records.get(&job).map_or(api::JobState::Cancelled, |record| views::state(record.state));
        Ok(api::CancelAnswer { job: job.to_string(), state })
    }

    pub(super) fn drain(
        &mut self,
        now: Timestamp,
        name: &NodeName,
        wish: DrainWish,
        batch: &mut Batch,
    ) -> Result<api::Node, Error> {
        let node = self.engine.node_id(name).ok_or_else(|| Error::NoNode(name.clone()))?;
        if wish == DrainWish::Undo && !self.options.nodes.iter().any(|config| config.name == *name) {
            return Err(Error::NotConfigured(name.clone()));
        }
        let shown = self.engine.cluster().node(node);
        let is_draining = shown.is_some_and(|node| node.condition.is_draining);
        let is_suspect = shown.is_some_and(|node| node.status == NodeStatus::Suspect);
        let event = match wish {
            DrainWish::Undo if is_draining || is_suspect => Some(Event::DrainCancelled { node }),
            DrainWish::WhenFree if !is_draining => Some(Event::DrainRequested { node, within: None }),
            DrainWish::Within(within) => Some(Event::DrainRequested { node, within: Some(within) }),
            DrainWish::Undo | DrainWish::WhenFree => None,
        };
        if let Some(event) = event {
            self.apply(now, event, batch)?;
        }
        let shown = self.node_list(now).nodes.into_iter().find(|node| node.name == name.as_str());
        shown.ok_or_else(|| Error::NoNode(name.clone()))
    }
}
