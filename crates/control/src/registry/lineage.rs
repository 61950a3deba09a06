//! Where a checkpoint came from: its manifest, the jobs that saved it, the runs that those logged, and the data that was read.

use std::collections::BTreeMap;

use gangline_api::{self as api, Time};
use gangline_base::{JobId, Timestamp};
use gangline_storage::CheckpointInfo;
use gangline_store::tracking::{self, Failure, Search};
use gangline_tracking::{ExperimentId, Run, View};
use serde::Deserialize;

use super::Error;
use crate::views::Views;

/// The metadata of a checkpoint in which the trainer says which data it read: a list of [`ReadData`] in JSON.
const DATA: &str = "gangline.data";
/// The metadata in which it says what software it ran on: an object of texts in JSON.
const ENVIRONMENT: &str = "gangline.environment";
/// The most jobs that continued each other.
const JOBS_MAX: usize = 32;
/// The most runs that are named.
const RUNS_MAX: usize = 100;
/// The most experiments whose runs are looked through.
const EXPERIMENTS_MAX: usize = 10_000;

/// Finds out where checkpoints came from.
pub(super) struct Origin<'a> {
    pub(super) views: &'a Views,
    pub(super) tracking: &'a tracking::Handle,
    pub(super) now: Timestamp,
}

/// A dataset, as the trainer says.
#[derive(Deserialize)]
struct ReadData {
    name: String,
    source: String,
    digest: String,
    #[serde(default)]
    samples: Option<String>,
}

impl Origin<'_> {
    /// Returns where a checkpoint came from. Its job is this one, or the one that its manifest names.
    pub(super) fn of(&self, folder: &str, info: &CheckpointInfo, job: Option<JobId>) -> Result<api::Lineage, Error> {
        let mut unknown = Vec::new();
        let saved_by = job.or_else(|| info.run.as_deref()?.parse().ok());
        let jobs = self.jobs(saved_by, folder, info, &mut unknown)?;
        let runs = self.runs(&jobs)?;
        let mut data = data_of_checkpoint(info, &mut unknown);
        data.extend(runs.iter().flat_map(data_of_run));
        if data.is_empty() {
            unknown.push(
                "which data was read: neither the checkpoint nor a run says it (docs/guides/models.md says how they do)".into(),
            );
        }
        let job_of = |run: &Run| tag(run, "gangline.job").unwrap_or_default().to_owned();
        let run =
            |run: &Run| api::RunLineage { run: run.info.id.clone(), name: run.info.name.clone(), job: job_of(run) };
        Ok(api::Lineage {
            version: api::LINEAGE_VERSION,
            checkpoint: checkpoint(folder, info),
            data,
            environment: environment(info, &mut unknown),
            runs: runs.iter().map(run).collect(),
            jobs,
            unknown,
        })
    }

    /// Returns the job that saved a checkpoint, then the one that it continued, and so on.
    fn jobs(
        &self,
        saved_by: Option<JobId>,
        folder: &str,
        info: &CheckpointInfo,
        unknown: &mut Vec<String>,
    ) -> Result<Vec<api::JobLineage>, Error> {
        let mut jobs = Vec::new();
        let mut next = saved_by;
        if next.is_none() {
            unknown.push("which job saved it: its manifest names none".into());
        }
        while let Some(id) = next.take().filter(|_| jobs.len() < JOBS_MAX) {
            let Some(job) = self.views.job(id)? else {
                unknown.push(format!("what {id} was: it has no record here"));
                break;
            };
            // Another control plane may have had a job of this number.
            let own = std::path::Path::new(job.checkpoint_path.as_deref().unwrap_or_default()).canonicalize();
            if jobs.is_empty() && own.ok().as_deref() != Some(std::path::Path::new(folder)) {
                unknown.push(format!("which job saved it: its manifest names {id}, which saves into another folder"));
                break;
            }
            next = job.origin.as_deref().and_then(|origin| origin.parse().ok());
            jobs.push(self.job(id, job, info.saved_at, unknown)?);
        }
        Ok(jobs)
    }

    fn job(
        &self,
        id: JobId,
        job: api::Job,
        saved_at: Option<Timestamp>,
        unknown: &mut Vec<String>,
    ) -> Result<api::JobLineage, Error> {
        let cost = self.views.job_cost(id, self.now)?.map(|cost| cost.total);
        if job.attempts.first().is_some_and(|attempt| attempt.number > 1) {
            unknown.push(format!("on which nodes the first attempts of {id} ran: their records went"));
        }
        if job.code.is_none() {
            unknown.push(format!(
                "which code {id} ran: it ran what was in its folder (workdir), of which no copy was taken"
            ));
        }
        let is_before = |attempt: &api::Attempt| saved_at.is_none_or(|saved| attempt.placed_at.0 <= saved);
        let attempt = |attempt: api::Attempt| api::AttemptLineage {
            number: attempt.number,
            placed_at: attempt.placed_at,
            ended_at: attempt.ended_at,
            nodes: attempt.shares.into_iter().map(|share| (share.node, share.devices)).collect(),
        };
        Ok(api::JobLineage {
            job: job.id,
            name: job.name,
            submitter: job.submitter,
            submitted_at: job.submitted_at,
            run: job.run,
            workdir: job.workdir,
            code: job.code,
            image: job.image,
            attempts: job.attempts.into_iter().filter(is_before).map(attempt).collect(),
            gpu_seconds: cost.as_ref().map_or(0.0, |cost| cost.gpu_seconds),
            cost_nano_dollars: cost.as_ref().map_or(0, |cost| cost.cost_nano_dollars),
            cost: cost.map_or_else(|| "unknown".to_owned(), |cost| cost.cost),
            is_estimated: job.ended_at.is_none(),
        })
    }

    /// Returns the runs that these jobs logged, oldest first.
    fn runs(&self, jobs: &[api::JobLineage]) -> Result<Vec<Run>, Error> {
        let everything = Search { count_max: EXPERIMENTS_MAX, ..Search::default() };
        let mut found = Vec::new();
        for job in jobs {
            let search = Search {
                filter: format!("tags.`gangline.job` = '{}'", job.job),
                order_by: vec!["attributes.start_time ASC".into()],
                count_max: RUNS_MAX - found.len(),
                offset: 0,
            };
            found.extend(self.tracking.read(|reading| {
                let experiments: Vec<ExperimentId> =
                    reading.search_experiments(View::Active, &everything)?.found.iter().map(|one| one.id).collect();
                Ok::<_, Failure>(reading.search_runs(&experiments, View::Active, &search)?.found)
            })?);
            if found.len() == RUNS_MAX {
                break;
            }
        }
        Ok(found)
    }
}

fn tag<'a>(run: &'a Run, key: &str) -> Option<&'a str> {
    run.tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
}

fn checkpoint(folder: &str, info: &CheckpointInfo) -> api::CheckpointLineage {
    let mut metadata = info.metadata.clone();
    metadata.retain(|name, _| name != DATA && name != ENVIRONMENT);
    api::CheckpointLineage {
        folder: folder.to_owned(),
        step: info.step.0,
        content_hash: info.content_hash.to_string(),
        bytes: info.bytes.0,
        tensors: info.tensors.len() as u64,
        world_size: info.world_size,
        saved_at: info.saved_at.map(Time),
        branch: info.branch.to_string(),
        parent: info.parent.map(|step| step.0),
        metadata,
    }
}

/// Returns the datasets that the checkpoint names.
fn data_of_checkpoint(info: &CheckpointInfo, unknown: &mut Vec<String>) -> Vec<api::DataLineage> {
    let Some(text) = info.metadata.get(DATA) else { return Vec::new() };
    let told: Vec<ReadData> = serde_json::from_str(text).unwrap_or_else(|error| {
        unknown.push(format!("which data was read: the checkpoint's {DATA} can't be read: {error}"));
        Vec::new()
    });
    let data = |ReadData { name, source, digest, samples }| api::DataLineage {
        name,
        source,
        digest,
        samples,
        told_by: "checkpoint".into(),
    };
    told.into_iter().map(data).collect()
}

/// Returns the datasets that a run logged.
fn data_of_run(run: &Run) -> impl Iterator<Item = api::DataLineage> {
    run.inputs.iter().map(|input| api::DataLineage {
        name: input.dataset.name.clone(),
        source: input.dataset.source.clone(),
        digest: input.dataset.digest.clone(),
        samples: input.tags.iter().find(|tag| tag.key == "mlflow.data.context").map(|tag| tag.value.clone()),
        told_by: run.info.id.clone(),
    })
}

/// Returns the software that the checkpoint names.
fn environment(info: &CheckpointInfo, unknown: &mut Vec<String>) -> BTreeMap<String, String> {
    let Some(text) = info.metadata.get(ENVIRONMENT) else {
        unknown.push("what software it ran on: the checkpoint doesn't say it".into());
        return BTreeMap::new();
    };
    serde_json::from_str(text).unwrap_or_else(|error| {
        unknown.push(format!("what software it ran on: the checkpoint's {ENVIRONMENT} can't be read: {error}"));
        BTreeMap::new()
    })
}
