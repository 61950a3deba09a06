//! Jobs: list, submit, show, cancel, explain, curves.

use std::cell::Cell;
use std::path::Path as FsPath;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use gangline_base::{JobId, Submitter};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::once::Keyed;
use super::segment::Segment;
use super::{App, ErrorBody, read, try_read};
use crate::db;
use crate::jobfile::{self, Submission};
use crate::model::{
    JOBS_PER_PAGE_MAX, JobRecord, Listing, Texts, history_to_wire, read_job, read_jobs, read_jobs_singly, read_series,
    to_wire,
};
use crate::service;
use crate::wire;

/// Jobs in a listing unless another number is asked for.
const JOBS_PER_PAGE: u32 = 100;
/// Points of a curve unless another number is asked for.
const POINTS: u32 = 500;
/// Points of a curve at most.
const POINTS_MAX: u32 = 10_000;

/// The largest job file that is read without a detour, in bytes.
const READ_AT_ONCE_BYTES_MAX: usize = 16 << 10;

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Only jobs before this one.
    before: Option<String>,
    /// At most this many; 500 at most.
    limit: Option<u32>,
}

/// How fine a curve.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesQuery {
    /// At most this many points.
    points: Option<u32>,
}

pub(super) fn parse_job(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|_| ApiError::no_job(text))
}

/// Why there is no record of a job: it never was, or it is long gone.
pub(super) async fn missing(app: &App, id: JobId) -> ApiError {
    match app.handle.explain(id).await {
        Err(service::Error::JobEnded(_)) => ApiError::removed_job(id),
        _ => ApiError::no_job(&id.to_string()),
    }
}

/// Jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", params(ListQuery), tag = "jobs", responses(
    (status = 200, body = wire::JobList), (status = 404, body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<wire::JobList>, ApiError> {
    let Query(query) = query?;
    let before = query.before.as_deref().map(parse_job).transpose()?;
    let limit = query.limit.unwrap_or(JOBS_PER_PAGE).clamp(1, JOBS_PER_PAGE_MAX);
    list_jobs(&app, before, limit).await.map(Json)
}

/// The list as the API and the page show it.
pub(super) async fn list_jobs(app: &Arc<App>, before: Option<JobId>, limit: u32) -> Result<wire::JobList, ApiError> {
    let Listing { jobs: records, damaged, last } = listing(app, before, limit).await?;
    let waiting = records.iter().map(|(record, _)| record).filter(|record| record.state == wire::JobState::Waiting);
    let mut reasons = app.handle.wait_reasons(waiting.map(|record| record.id).collect()).await?;
    let mut jobs: Vec<wire::Job> = Vec::with_capacity(records.len());
    for (record, booked) in &records {
        let mut job = to_wire(&app.folder, record, booked, Texts::Cut);
        if let Some(reason) = reasons.remove(&record.id).filter(|_| job.state == wire::JobState::Waiting) {
            job.because = reason;
        }
        jobs.push(job);
    }
    let is_full = u32::try_from(records.len() + damaged.len()).is_ok_and(|count| count >= limit);
    let next = last.filter(|_| is_full).map(|job| job.to_string());
    Ok(wire::JobList { jobs, damaged: damaged.iter().map(JobId::to_string).collect(), next })
}

/// A page of the list. Where the disk has a malformed page, it is come around job by job.
async fn listing(app: &Arc<App>, before: Option<JobId>, limit: u32) -> Result<Listing, ApiError> {
    let found = try_read(app, move |transaction| read_jobs(transaction, before, limit)).await?;
    match found {
        Err(db::Error::Damaged { .. }) => {
            let before = match before {
                Some(before) => before,
                None => JobId(app.handle.health().await?.last_job + 1),
            };
            read(app, move |transaction| read_jobs_singly(transaction, before, limit)).await
        }
        found => Ok(found?),
    }
}

/// Takes a job in, or says what would become of it. When a submission is answered it is on disk.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = wire::SubmitRequest, tag = "jobs", responses(
    (status = 200, body = wire::Answer), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 422, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn submit(
    State(app): State<Arc<App>>,
    Keyed(key): Keyed,
    request: Result<Json<wire::SubmitRequest>, JsonRejection>,
) -> Result<Json<wire::Answer>, ApiError> {
    let Json(request) = request?;
    let is_dry = request.dry_run;
    let submission = match read_at_once(&app, &request) {
        Some(read) => read?,
        None => read_aside(&app, request).await?,
    };
    let changing = app.handle.keyed(key);
    Ok(Json(match submission {
        Submission::Job(spec) if is_dry => wire::Answer::DryRun(app.handle.dry_run(*spec).await?),
        Submission::Job(spec) => changing.submit(*spec).await?,
        Submission::Sweep(sweep) if is_dry => wire::Answer::DryRun(app.handle.dry_run_sweep(*sweep).await?),
        Submission::Sweep(sweep) => changing.submit_sweep(*sweep).await?,
    }))
}

/// Reads a job file that takes next to no time; none if it might.
fn read_at_once(app: &App, request: &wire::SubmitRequest) -> Option<Result<Submission, ApiError>> {
    if request.job_file.len() > READ_AT_ONCE_BYTES_MAX {
        return None;
    }
    let is_afar = Cell::new(false);
    let is_folder = |path: &FsPath| {
        let is_at_hand = app.at_hand.is(path);
        is_afar.set(is_afar.get() || !is_at_hand);
        is_at_hand && path.is_dir()
    };
    let read = read_job_file(request, app.user.clone(), &is_folder);
    (!is_afar.get()).then_some(read)
}

/// Reads a job file where that may take long: a look at its folder, say.
async fn read_aside(app: &Arc<App>, request: wire::SubmitRequest) -> Result<Submission, ApiError> {
    let app = Arc::clone(app);
    let read = move || read_job_file(&request, app.user.clone(), &|path| app.at_hand.look(path));
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_| ApiError::internal("reading a job file panicked"))?
}

fn read_job_file(
    request: &wire::SubmitRequest,
    user: Submitter,
    is_folder: &dyn Fn(&FsPath) -> bool,
) -> Result<Submission, ApiError> {
    let base = FsPath::new(&request.directory);
    if !base.is_absolute() {
        return Err(ApiError::malformed(format!("directory \"{}\" is not absolute", request.directory)));
    }
    let context = jobfile::Context {
        file_name: request.file_name.as_deref().unwrap_or("job.yaml"),
        base,
        submitter: user,
        overrides: &request.set,
        is_folder,
    };
    Ok(jobfile::parse(&request.job_file, &context)?)
}

async fn record_of(app: &Arc<App>, text: &str) -> Result<wire::Job, ApiError> {
    let id = parse_job(text)?;
    let found = read(app, move |transaction| read_job(transaction, id)).await?;
    let Some((record, booked)) = found else { return Err(missing(app, id).await) };
    let mut job = to_wire(&app.folder, &record, &booked, Texts::Whole);
    if job.state == wire::JobState::Waiting
        && let Ok(explanation) = app.handle.explain(id).await
    {
        job.because = explanation.summary;
    }
    Ok(job)
}

/// One job.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", params(("job" = String, Path, description = "its id")), tag = "jobs",
    responses((status = 200, body = wire::Job), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(super) async fn show(State(app): State<Arc<App>>, Segment(job): Segment) -> Result<Json<wire::Job>, ApiError> {
    record_of(&app, &job).await.map(Json)
}

/// Asks for a job's end. A waiting job ends at once, a running one within its grace.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/cancel", params(("job" = String, Path, description = "its id")),
    tag = "jobs", responses((status = 200, body = wire::CancelAnswer), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    Keyed(key): Keyed,
) -> Result<Json<wire::CancelAnswer>, ApiError> {
    let id = parse_job(&job)?;
    Ok(Json(app.handle.keyed(key).cancel(id, app.user.clone()).await?))
}

/// Why a job waits, runs where it runs, or ended.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/explain", params(("job" = String, Path, description = "its id")),
    tag = "jobs", responses((status = 200, body = wire::Explanation), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
) -> Result<Json<wire::Explanation>, ApiError> {
    let id = parse_job(&job)?;
    match app.handle.explain(id).await {
        Ok(explanation) => Ok(Json(explanation)),
        Err(service::Error::JobEnded(_)) => {
            let found = read(&app, move |transaction| read_job(transaction, id)).await?;
            let (record, _) = found.ok_or_else(|| ApiError::removed_job(id))?;
            Ok(Json(explain_ended(&record)))
        }
        Err(error) => Err(error.into()),
    }
}

fn explain_ended(record: &JobRecord) -> wire::Explanation {
    wire::Explanation {
        job: Some(record.id.to_string()),
        state: Some(record.state),
        summary: record.because.clone(),
        blocker: None,
        ahead: 0,
        waiting: 0,
        starts_by: None,
        history: history_to_wire(record),
    }
}

/// A job's training curve, by its first node's ranks.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/series", params(("job" = String, Path, description = "its id"), SeriesQuery),
    tag = "jobs", responses((status = 200, body = wire::Series), (status = 404, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub(super) async fn series(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    query: Result<Query<SeriesQuery>, QueryRejection>,
) -> Result<Json<wire::Series>, ApiError> {
    let id = parse_job(&job)?;
    let points = query?.points.unwrap_or(POINTS);
    series_of(&app, id, points).await.map(Json)
}

/// A curve as the API and the page show it.
pub(super) async fn series_of(app: &Arc<App>, id: JobId, points: u32) -> Result<wire::Series, ApiError> {
    let points = points.clamp(2, POINTS_MAX);
    let found = read(app, move |transaction| read_job(transaction, id)).await?;
    let Some((record, _)) = found else { return Err(missing(app, id).await) };
    read(app, move |transaction| read_series(transaction, id, points, record.removed.thinned_at)).await
}
