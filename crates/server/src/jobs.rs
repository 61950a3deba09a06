//! Jobs: list, submit, show, cancel, explain, curves.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path as FsPath;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use gangline_api as api;
use gangline_base::{CodeSource, JobId, Submitter};
use gangline_orchestration::JobChange;
use gangline_specs::jobfile::{self, CopyCode, NotCopied, Submission};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::once::Caller;
use super::segment::Segment;
use super::{App, ErrorBody, metrics, read, try_read};
use gangline_control::service::{self, Resumption};
use gangline_control::views::{JOBS_PER_PAGE_MAX, JobPage, Standing, StateRecord, Wanted};
use gangline_store::db;

/// Default number of jobs in a listing.
const JOBS_PER_PAGE: u32 = 100;

/// The largest job file, in bytes, that is parsed without moving to a blocking thread.
const READ_AT_ONCE_BYTES_MAX: usize = 16 << 10;

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Only jobs before this one: give the `next` of the page before.
    before: Option<String>,
    /// Only live jobs, or only ended ones; both if absent. A page is filled with these.
    standing: Option<api::JobStanding>,
    /// Only jobs that this user submitted.
    user: Option<String>,
    /// Only jobs of this queue.
    queue: Option<String>,
    /// Only jobs with this in their names, in lower or upper case.
    name: Option<String>,
    /// Only jobs in this state, or in one of several, with commas between them.
    state: Option<String>,
    /// Only jobs submitted at or after this time (RFC 3339).
    since: Option<api::Time>,
    /// At most this many; 500 at most. A page of a filtered list may have fewer, or none, although there are more: then
    /// `next` is there.
    limit: Option<u32>,
}

impl ListQuery {
    fn wanted(&self) -> Result<Wanted, ApiError> {
        let standing = match self.standing {
            None => Standing::Any,
            Some(api::JobStanding::Live) => Standing::Live,
            Some(api::JobStanding::Ended) => Standing::Ended,
        };
        let states = self.state.as_deref().unwrap_or_default().split(',').filter(|word| !word.is_empty());
        let states = states.map(|word| {
            StateRecord::ALL.into_iter().find(|state| state.name() == word).ok_or_else(|| {
                let known = StateRecord::ALL.map(StateRecord::name).join(", ");
                ApiError::malformed(format!("\"{word}\" is no state of a job; the states are {known}"))
            })
        });
        Ok(Wanted {
            standing,
            user: self.user.clone(),
            queue: self.queue.clone(),
            name: self.name.clone(),
            states: states.collect::<Result<_, _>>()?,
            since: self.since.map(|time| time.0),
        })
    }
}

pub(super) fn parse_job(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|_| ApiError::no_job(text))
}

/// Returns the error for a job without a record: it never existed, or it was removed long ago.
pub(super) async fn missing(app: &App, id: JobId) -> ApiError {
    match app.handle.explain(id).await {
        Err(service::Error::JobEnded(_)) => ApiError::removed_job(id),
        _ => ApiError::no_job(&id.to_string()),
    }
}

/// Jobs, newest first. Live jobs may be far behind ended ones: `standing=live` lists them alone.
#[utoipa::path(get, path = "/api/v1/jobs", params(ListQuery), tag = "jobs", responses(
    (status = 200, body = api::JobList), (status = 404, body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<api::JobList>, ApiError> {
    let Query(query) = query?;
    let before = query.before.as_deref().map(parse_job).transpose()?;
    let limit = query.limit.unwrap_or(JOBS_PER_PAGE).clamp(1, JOBS_PER_PAGE_MAX);
    list_jobs(&app, query.wanted()?, before, limit).await.map(Json)
}

/// Lists jobs as the API and the page show them.
pub(super) async fn list_jobs(
    app: &Arc<App>,
    wanted: Wanted,
    before: Option<JobId>,
    limit: u32,
) -> Result<api::JobList, ApiError> {
    with_reasons(app, page(app, wanted, before, limit).await?).await
}

/// Returns the jobs that hold devices, newest first, `limit` at most.
pub(super) async fn active_jobs(app: &Arc<App>, ids: Vec<JobId>, limit: u32) -> Result<Vec<api::Job>, ApiError> {
    let page = read(app, move |views| views.live_among(&ids, limit)).await?;
    Ok(page.jobs.into_iter().map(|(_, job)| job).collect())
}

/// Adds to waiting jobs what they wait for.
async fn with_reasons(app: &Arc<App>, JobPage { jobs, damaged, next }: JobPage) -> Result<api::JobList, ApiError> {
    let waiting = jobs.iter().filter(|(_, job)| job.state == api::JobState::Waiting);
    let mut reasons = app.handle.wait_reasons(waiting.map(|(id, _)| *id).collect()).await?;
    let jobs = jobs.into_iter().map(|(id, mut job)| {
        if let Some(reason) = reasons.remove(&id).filter(|_| job.state == api::JobState::Waiting) {
            job.because = reason;
        }
        job
    });
    let jobs = jobs.collect();
    let next = next.map(|job| job.to_string());
    Ok(api::JobList { jobs, damaged: damaged.iter().map(JobId::to_string).collect(), next })
}

/// Reads a page of the list. Where the database has a malformed page, jobs are read one by one around it.
async fn page(app: &Arc<App>, wanted: Wanted, before: Option<JobId>, limit: u32) -> Result<JobPage, ApiError> {
    let wanted = Arc::new(wanted);
    let same = Arc::clone(&wanted);
    match try_read(app, move |views| views.jobs(&wanted, before, limit)).await? {
        Err(db::Error::Damaged { .. }) => {
            let before = match before {
                Some(before) => before,
                None => JobId(app.handle.health().await?.last_job + 1),
            };
            read(app, move |views| views.jobs_singly(&same, before, limit)).await
        }
        found => Ok(found?),
    }
}

/// Takes a job in, or says what would become of it. When a submission is answered it is on disk.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = api::SubmitRequest, tag = "jobs", responses(
    (status = 200, body = api::Answer), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(super) async fn submit(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Result<Json<api::SubmitRequest>, JsonRejection>,
) -> Result<Json<api::Answer>, ApiError> {
    let Json(request) = request?;
    let is_dry = request.dry_run;
    let submission = match read_at_once(&app, &caller.user, &request) {
        Some(read) => read?,
        None => read_aside(&app, &caller.user, request).await?,
    };
    if !is_dry {
        return Ok(Json(take_in(&caller.handle(&app), submission).await?));
    }
    Ok(Json(api::Answer::DryRun(match submission {
        Submission::Job(spec) => app.handle.dry_run(*spec).await?,
        Submission::Sweep(sweep) => app.handle.dry_run_sweep(*sweep).await?,
    })))
}

/// Submits what a job file says.
pub(super) async fn take_in(handle: &service::Handle, submission: Submission) -> Result<api::Answer, ApiError> {
    Ok(match submission {
        Submission::Job(spec) => handle.submit(*spec).await?,
        Submission::Sweep(sweep) => handle.submit_sweep(*sweep).await?,
    })
}

/// What reading a job file does on the disk.
struct Looks<'a> {
    is_folder: &'a dyn Fn(&FsPath) -> bool,
    template: &'a dyn Fn(&str) -> Result<String, String>,
    copy_code: &'a CopyCode<'a>,
}

/// Parses a job file that takes next to no time; none if it may take longer.
fn read_at_once(app: &App, user: &Submitter, request: &api::SubmitRequest) -> Option<Result<Submission, ApiError>> {
    if request.job_file.len() > READ_AT_ONCE_BYTES_MAX {
        return None;
    }
    let is_afar = Cell::new(false);
    let is_folder = |path: &FsPath| {
        let is_at_hand = app.at_hand.is(path);
        is_afar.set(is_afar.get() || !is_at_hand);
        is_at_hand && path.is_dir()
    };
    let copy_code = |_: &CodeSource, _: Option<&FsPath>| {
        is_afar.set(true);
        Err(NotCopied { message: "takes long to copy".to_owned(), hint: "it is copied aside".to_owned() })
    };
    let template = |_: &str| {
        is_afar.set(true);
        Err("it is read aside".to_owned())
    };
    let looks = Looks { is_folder: &is_folder, template: &template, copy_code: &copy_code };
    let read = read_job_file(request, user.clone(), &looks);
    (!is_afar.get()).then_some(read)
}

/// Parses a job file on a blocking thread, since a check of its folder, say, may take long.
pub(super) async fn read_aside(
    app: &Arc<App>,
    user: &Submitter,
    request: api::SubmitRequest,
) -> Result<Submission, ApiError> {
    let (app, user) = (Arc::clone(app), user.clone());
    let read = move || {
        let is_folder = |path: &FsPath| app.at_hand.look(path);
        let copy_code =
            |source: &CodeSource, left_out: Option<&FsPath>| app.code.copy(source, left_out, request.dry_run);
        let template = |name: &str| app.templates.text(name);
        let looks = Looks { is_folder: &is_folder, template: &template, copy_code: &copy_code };
        read_job_file(&request, user, &looks)
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_| ApiError::internal("reading a job file panicked"))?
}

fn read_job_file(request: &api::SubmitRequest, user: Submitter, looks: &Looks<'_>) -> Result<Submission, ApiError> {
    let base = FsPath::new(&request.directory);
    if !base.is_absolute() {
        return Err(ApiError::malformed(format!("directory \"{}\" is not absolute", request.directory)));
    }
    let context = jobfile::Context {
        file_name: request.file_name.as_deref().unwrap_or("job.yaml"),
        base,
        submitter: user,
        overrides: &request.set,
        is_folder: looks.is_folder,
        template: looks.template,
        copy_code: looks.copy_code,
    };
    Ok(jobfile::parse(&request.job_file, &context)?)
}

async fn record_of(app: &Arc<App>, text: &str) -> Result<api::Job, ApiError> {
    let id = parse_job(text)?;
    let found = read(app, move |views| views.job(id)).await?;
    let Some(mut job) = found else { return Err(missing(app, id).await) };
    if !job.state.is_final()
        && let Ok(explanation) = app.handle.explain(id).await
    {
        job.notes = explanation.notes;
        if job.state == api::JobState::Waiting {
            job.because = explanation.summary;
        }
    }
    Ok(job)
}

/// One job.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", params(("job" = String, Path, description = "its id")), tag = "jobs",
    responses((status = 200, body = api::Job), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(super) async fn show(State(app): State<Arc<App>>, Segment(job): Segment) -> Result<Json<api::Job>, ApiError> {
    let mut job = record_of(&app, &job).await?;
    job.alerts = app.alerts.firing_about(&job.id);
    job.metrics = metrics::last_values(&app, parse_job(&job.id)?).await;
    Ok(Json(job))
}

/// Asks for a job's end. A waiting job ends at once, a running one within its grace.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/cancel", params(("job" = String, Path, description = "its id")),
    tag = "jobs", responses((status = 200, body = api::CancelAnswer), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    caller: Caller,
) -> Result<Json<api::CancelAnswer>, ApiError> {
    let id = parse_job(&job)?;
    Ok(Json(caller.handle(&app).cancel(id, caller.user.clone()).await?))
}

/// Changes a waiting job: holds or releases it, or sets its queue, its priority or its time limit. All changes are made,
/// or none is; a change that was made already is not made again.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/change", params(("job" = String, Path, description = "its id")),
    request_body = api::ChangeRequest, tag = "jobs", responses((status = 200, body = api::ChangeAnswer),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    caller: Caller,
    request: Result<Json<api::ChangeRequest>, JsonRejection>,
) -> Result<Json<api::ChangeAnswer>, ApiError> {
    let (id, Json(request)) = (parse_job(&job)?, request?);
    let hold = request.hold.map(|hold| if hold { JobChange::Hold } else { JobChange::Release });
    let changes = hold.into_iter().chain(parse_changes(&request.set)?).collect();
    Ok(Json(caller.handle(&app).change(id, changes, caller.user.clone()).await?))
}

/// Submits a job that continues the work of an ended one from its checkpoints. It is a new job: the ended one keeps its
/// attempts and what it cost.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/resume", params(("job" = String, Path, description = "the ended job")),
    request_body = api::ResumeRequest, tag = "jobs", responses((status = 200, body = api::Submitted),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 410, body = ErrorBody), (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    caller: Caller,
    request: Result<Json<api::ResumeRequest>, JsonRejection>,
) -> Result<Json<api::Submitted>, ApiError> {
    let (id, Json(request)) = (parse_job(&job)?, request?);
    let changes = parse_changes(&request.set)?;
    let resumption =
        Resumption { origin: id, changes, again: request.again, afresh: request.afresh, by: caller.user.clone() };
    Ok(Json(caller.handle(&app).resume(resumption).await?))
}

fn parse_changes(set: &BTreeMap<String, String>) -> Result<Vec<JobChange>, ApiError> {
    let parsed = set.iter().map(|(key, text)| jobfile::parse_change(key, text));
    parsed.collect::<Result<_, _>>().map_err(ApiError::bad_change)
}

/// Why a job waits, runs where it runs, or ended.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/explain", params(("job" = String, Path, description = "its id")),
    tag = "jobs", responses((status = 200, body = api::Explanation), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
) -> Result<Json<api::Explanation>, ApiError> {
    let id = parse_job(&job)?;
    match app.handle.explain(id).await {
        Ok(explanation) => Ok(Json(explanation)),
        Err(service::Error::JobEnded(_)) => {
            let found = read(&app, move |views| views.explain_ended(id)).await?;
            found.map(Json).ok_or_else(|| ApiError::removed_job(id))
        }
        Err(error) => Err(error.into()),
    }
}
