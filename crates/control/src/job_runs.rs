//! The runs of jobs: what rank 0 of a job reports, as a run of the experiment `jobs` that MLflow's clients see.
//!
//! The run begins with the first metric and ends with the job, whatever its attempts. It is beside what decides: a failure
//! here is logged, and metrics stay in the series store.

use gangline_api as api;
use gangline_base::{AttemptNumber, JobId, Timestamp, with_causes};
use gangline_store::tracking::{self, Failure, JobReport, JobRun, Logged, NewRun};
use gangline_tracking::{Entry, ExperimentId, Metric, Point, RunStatus, UnixMillis};

use crate::ids::hex_id;
use crate::views::Views;

/// The experiment of these runs.
pub const EXPERIMENT: &str = "jobs";
/// The longest command that is a tag of a run, in letters.
const COMMAND_MAX: usize = 1_000;

/// The runs of jobs. Cheap to clone. All of it blocks.
#[derive(Clone, Debug)]
pub struct JobRuns {
    tracking: tracking::Handle,
    views: Views,
    clock: fn() -> Timestamp,
}

/// What rank 0 reported at one time.
#[derive(Clone, Debug)]
pub struct JobRow {
    /// When.
    pub at: Timestamp,
    /// The step, if it belongs to one.
    pub step: Option<u64>,
    /// Values by name.
    pub values: Vec<(String, f64)>,
}

impl JobRuns {
    /// Returns the runs of a control plane's jobs.
    #[must_use]
    pub fn new(tracking: tracking::Handle, views: Views, clock: fn() -> Timestamp) -> JobRuns {
        JobRuns { tracking, views, clock }
    }

    /// Logs rows of rank 0, the first of which has this number in its attempt; each is logged once, however often it is sent.
    pub fn log(&self, (job, attempt): (JobId, AttemptNumber), first: u64, rows: Vec<JobRow>) {
        if let Err(failure) = self.try_log((job, attempt), first, rows) {
            tracing::warn!(%job, error = with_causes(&failure), "metrics of a job aren't in its run");
        }
    }

    fn try_log(&self, (job, attempt): (JobId, AttemptNumber), first: u64, rows: Vec<JobRow>) -> Result<(), Failure> {
        if rows.is_empty() {
            return Ok(());
        }
        if self.tracking.read(|reading| reading.job_run(job.0))?.is_none() && !self.begin(job)? {
            return Ok(());
        }
        let rows = rows.into_iter().map(logged).collect();
        let report = JobReport { job: job.0, attempt: attempt.0, first, rows };
        self.tracking.write(move |writing| writing.log_of_job(report))
    }

    /// Makes the run of a job; reports whether there is a record of the job.
    fn begin(&self, id: JobId) -> Result<bool, Failure> {
        let Some(job) = self.views.job(id).map_err(|error| Failure::Store(error.to_string()))? else {
            return Ok(false);
        };
        let (new, params) = (new_run(&job)?, params(&job));
        self.tracking.write(move |writing| writing.create_job_run(id.0, EXPERIMENT, new, &params))?;
        Ok(true)
    }

    /// Ends the runs of jobs that have ended since.
    pub fn end_ended(&self) {
        let ended = self
            .tracking
            .read(|reading| reading.open_job_runs())
            .and_then(|open| open.into_iter().try_for_each(|run| self.end_if_ended(run)));
        // Without tracking there is nothing to end.
        if let Err(failure) = ended
            && !matches!(failure, Failure::Stopped(_))
        {
            tracing::warn!(error = with_causes(&failure), "runs of ended jobs can't be ended");
        }
    }

    fn end_if_ended(&self, run: JobRun) -> Result<(), Failure> {
        let job = self.views.job(JobId(run.job)).map_err(|error| Failure::Store(error.to_string()))?;
        let (status, end) = match &job {
            // Its record was removed long after its end.
            None => (RunStatus::Killed, (self.clock)()),
            Some(job) => {
                let status = match job.state {
                    api::JobState::Succeeded => RunStatus::Finished,
                    api::JobState::Failed => RunStatus::Failed,
                    api::JobState::Cancelled | api::JobState::Stopped => RunStatus::Killed,
                    _ => return Ok(()),
                };
                (status, job.ended_at.map_or_else(self.clock, |at| at.0))
            }
        };
        self.tracking.write(move |writing| writing.end_job_run(&run, status, UnixMillis::of(end)))
    }
}

fn logged(row: JobRow) -> Vec<Logged> {
    let (at, step) = (UnixMillis::of(row.at), row.step.map_or(0, |step| i64::try_from(step).unwrap_or(i64::MAX)));
    let metric = |(key, value)| Metric { key, point: Point { at, step, value } };
    let logged = |metric| Logged { metric, model: None, dataset_name: None, dataset_digest: None };
    row.values.into_iter().map(metric).map(logged).collect()
}

fn new_run(job: &api::Job) -> Result<NewRun, Failure> {
    let start = job.attempts.first().map_or(job.submitted_at, |attempt| attempt.placed_at);
    let mut tags = vec![
        ("gangline.job", job.id.clone()),
        ("gangline.queue", job.queue.clone()),
        ("mlflow.user", job.submitter.clone()),
        ("mlflow.source.type", "JOB".to_owned()),
        ("mlflow.source.name", job.run.chars().take(COMMAND_MAX).collect()),
    ];
    tags.extend(job.code.as_ref().and_then(|code| Some(("mlflow.source.git.commit", code.commit.clone()?))));
    tags.extend(job.sweep.as_ref().map(|sweep| ("gangline.sweep", sweep.id.clone())));
    Ok(NewRun {
        id: hex_id()?,
        // The experiment's number is found where the run is made.
        experiment: ExperimentId(0),
        name: Some(job.name.clone()),
        default_name: job.id.clone(),
        user: job.submitter.clone(),
        start: UnixMillis::of(start.0),
        tags: tags.into_iter().map(|(key, value)| Entry { key: key.into(), value }).collect(),
    })
}

/// Returns what a sweep chose for a job.
fn params(job: &api::Job) -> Vec<Entry> {
    let parameters = job.sweep.iter().flat_map(|sweep| &sweep.parameters);
    parameters.map(|parameter| Entry { key: parameter.name.clone(), value: parameter.value.clone() }).collect()
}
