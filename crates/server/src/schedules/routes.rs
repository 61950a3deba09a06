//! Schedules over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use gangline_api as api;
use gangline_specs::cron::Cron;
use gangline_specs::jobfile::Submission;

use super::state::{Change, SCHEDULES_MAX, Wish, parse_id};
use crate::error::ApiError;
use crate::once::Caller;
use crate::{App, ErrorBody, jobs};

/// All schedules.
#[utoipa::path(get, path = "/api/v1/schedules", tag = "schedules",
    responses((status = 200, body = api::ScheduleList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<api::ScheduleList> {
    Json(api::ScheduleList { schedules: app.schedules.state().list() })
}

/// Makes a schedule. Its job file is checked now, and read as it was sent at each of its times.
#[utoipa::path(post, path = "/api/v1/schedules", request_body = api::ScheduleRequest, tag = "schedules", responses(
    (status = 200, body = api::Schedule), (status = 400, body = ErrorBody), (status = 422, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Result<Json<api::ScheduleRequest>, JsonRejection>,
) -> Result<Json<api::Schedule>, ApiError> {
    let Json(api::ScheduleRequest { cron: text, job }) = request?;
    let cron = Cron::parse(&text).map_err(|message| bad_time(&text, &message))?;
    let now = (app.clock)();
    if cron.next_after(now).is_none() {
        return Err(bad_time(&text, "never comes"));
    }
    let checked = api::SubmitRequest { dry_run: true, ..job.clone() };
    let name = match jobs::read_aside(&app, &caller.user, checked).await? {
        Submission::Job(spec) => spec.name,
        Submission::Sweep(sweep) => sweep.job.name.clone(),
    };
    let wish = Wish { name, cron, submitter: caller.user, request: api::SubmitRequest { dry_run: false, ..job } };
    let made = app.schedules.state().add(wish, now).ok_or_else(too_many)?;
    app.schedules.shared.changed.notify_one();
    app.schedules.save().await?;
    Ok(Json(made))
}

/// Pauses, resumes or removes a schedule. Its jobs stay as they are.
#[utoipa::path(post, path = "/api/v1/schedules/{schedule}/{change}",
    params(("schedule" = String, Path, description = "its id"),
        ("change" = String, Path, description = "pause, resume or remove")), tag = "schedules",
    responses((status = 200, body = api::Schedule), (status = 404, body = ErrorBody)))]
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Path((schedule, change)): Path<(String, String)>,
) -> Result<Json<api::Schedule>, ApiError> {
    let change = match change.as_str() {
        "pause" => Change::Pause,
        "resume" => Change::Resume,
        "remove" => Change::Remove,
        _ => return Err(ApiError::no_such_path()),
    };
    let now = (app.clock)();
    let changed = parse_id(&schedule).and_then(|number| app.schedules.state().change(number, change, now));
    let changed = changed.ok_or_else(|| none(&schedule))?;
    app.schedules.shared.changed.notify_one();
    app.schedules.save().await?;
    Ok(Json(changed))
}

fn bad_time(text: &str, message: &str) -> ApiError {
    let hint = "write minute, hour, day of the month, month and day of the week in UTC, as in \"0 3 * * *\", or @daily";
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0324", format!("the time \"{text}\" {message}"), hint)
}

fn too_many() -> ApiError {
    let message = format!("there are {SCHEDULES_MAX} schedules, and no more may be made");
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "G0325", message, "remove one: gangline schedules lists them")
}

fn none(text: &str) -> ApiError {
    let hint = "gangline schedules lists them";
    ApiError::new(StatusCode::NOT_FOUND, "G0323", format!("there is no schedule \"{text}\""), hint)
}
