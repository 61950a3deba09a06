//! Alerts over HTTP: what fires, acknowledgements and silences.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use gangline_api as api;
use gangline_base::Timestamp;
use gangline_telemetry::alerts::{Alert, Silence, State as AlertState, Wish};

use super::Handle;
use crate::error::ApiError;
use crate::once::Caller;
use crate::segment::Segment;
use crate::{App, ErrorBody};

/// The longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Bytes of each text of a silence.
const TEXT_BYTES_MAX: usize = 1_024;

/// What fires, what may soon, what ended last, silences, and how receivers are reached.
#[utoipa::path(get, path = "/api/v1/alerts", tag = "alerts", responses((status = 200, body = api::AlertList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<api::AlertList> {
    Json(app.alerts.list())
}

/// Notes that the caller takes care of an alert: receivers aren't told of it again until it ends.
#[utoipa::path(post, path = "/api/v1/alerts/{alert}/acknowledge",
    params(("alert" = String, Path, description = "its number")), tag = "alerts",
    responses((status = 200, body = api::Alert), (status = 404, body = ErrorBody)))]
pub(crate) async fn acknowledge(
    State(app): State<Arc<App>>,
    Segment(alert): Segment,
    caller: Caller,
) -> Result<Json<api::Alert>, ApiError> {
    let by = &caller.user.0;
    let now = (app.clock)();
    let found = alert.parse().ok().and_then(|id| app.alerts.shared().engine.acknowledge(id, by, now));
    let found = found.ok_or_else(|| none(format!("no alert with the number \"{alert}\" is pending or firing")))?;
    keep(&app).await?;
    Ok(Json(alert_to_api(&found, false)))
}

/// Silences alerts for a time: nobody is told of them, and they are still shown.
#[utoipa::path(post, path = "/api/v1/silences", request_body = api::SilenceRequest, tag = "alerts",
    responses((status = 200, body = api::Silence), (status = 429, body = ErrorBody)))]
pub(crate) async fn silence(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Result<Json<api::SilenceRequest>, JsonRejection>,
) -> Result<Json<api::Silence>, ApiError> {
    let Json(request) = request?;
    let now = (app.clock)();
    let wish = wish(&app, request, now)?;
    let made = app.alerts.shared().engine.silence(wish, &caller.user.0, now);
    let made = made.ok_or_else(|| {
        let hint = "end some that aren't needed any more, or silence more with one: gangline alerts";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "G0653", "there are too many silences", hint)
    })?;
    keep(&app).await?;
    Ok(Json(silence_to_api(&made)))
}

/// Checks what somebody wants to silence.
fn wish(app: &App, request: api::SilenceRequest, now: Timestamp) -> Result<Wish, ApiError> {
    let api::SilenceRequest { rule, subject, for_seconds, comment } = request;
    let length = Duration::from_secs(for_seconds);
    if length.is_zero() || length > SILENCE_MAX {
        return Err(ApiError::malformed("for_seconds has to be from 1 to 7776000 (90 days)"));
    }
    if [&rule, &subject].into_iter().flatten().chain([&comment]).any(|text| text.len() > TEXT_BYTES_MAX) {
        return Err(ApiError::malformed(format!("a text of a silence has at most {TEXT_BYTES_MAX} bytes")));
    }
    let shared = app.alerts.shared();
    let has_rule = |name: &String| shared.engine.rules().iter().any(|rule| rule.name == *name);
    match rule.as_ref().filter(|rule| !has_rule(rule)) {
        Some(unknown) => Err(none(format!("there is no rule \"{unknown}\""))),
        None => Ok(Wish { rule, subject, until: now + length, comment }),
    }
}

/// Ends a silence.
#[utoipa::path(post, path = "/api/v1/silences/{silence}/end",
    params(("silence" = String, Path, description = "its number")), tag = "alerts",
    responses((status = 200, body = api::AlertList), (status = 404, body = ErrorBody)))]
pub(crate) async fn end_silence(
    State(app): State<Arc<App>>,
    Segment(silence): Segment,
) -> Result<Json<api::AlertList>, ApiError> {
    if !silence.parse().is_ok_and(|id| app.alerts.shared().engine.end_silence(id)) {
        return Err(none(format!("there is no silence \"{silence}\"")));
    }
    keep(&app).await?;
    Ok(Json(app.alerts.list()))
}

fn none(message: String) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "G0652", message, "gangline alerts lists alerts, silences and rules")
}

/// Writes the change down. One that can't be kept isn't promised: it holds until the control plane stops.
async fn keep(app: &App) -> Result<(), ApiError> {
    let alerts = app.alerts.clone();
    let saved = tokio::task::spawn_blocking(move || alerts.save()).await;
    saved.map_err(|_| ApiError::internal("keeping alerts panicked"))?.map_err(|error| {
        let message = format!("it holds only until the control plane stops: alerts.json can't be written: {error}");
        let hint = "free the disk or give access to the data folder";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0654", message, hint)
    })
}

impl Handle {
    /// Returns everything about alerts.
    pub(crate) fn list(&self) -> api::AlertList {
        let shared = self.shared();
        let overview = shared.engine.overview();
        api::AlertList {
            alerts: overview.alerts.iter().map(|(alert, is_silenced)| alert_to_api(alert, *is_silenced)).collect(),
            left_out: u64::try_from(overview.left_out).unwrap_or(u64::MAX),
            silences: overview.silences.iter().map(silence_to_api).collect(),
            receivers: shared.deliveries.as_ref().map(super::Deliveries::standings).unwrap_or_default(),
            rules: shared.engine.rules().iter().map(|rule| rule.name.clone()).collect(),
            every_seconds: shared.every().as_secs_f64(),
            evaluated_at: shared.evaluated_at.map(api::Time),
            failure: shared.failure.clone(),
        }
    }

    /// Returns the alerts about a subject that fire, each as a sentence.
    pub(crate) fn firing_about(&self, subject: &str) -> Vec<String> {
        let overview = self.shared().engine.overview();
        let is_it = |alert: &Alert| alert.state == AlertState::Firing && alert.subject.to_string() == subject;
        let firing = overview.alerts.iter().filter(|(alert, _)| is_it(alert));
        firing.map(|(alert, _)| format!("{}: {}", alert.severity.name(), alert.summary)).collect()
    }
}

fn alert_to_api(alert: &Alert, is_silenced: bool) -> api::Alert {
    api::Alert {
        id: alert.id,
        rule: alert.rule.clone(),
        subject: alert.subject.to_string(),
        severity: alert.severity.name().to_owned(),
        state: alert.state.name().to_owned(),
        since: api::Time(alert.since),
        fired_at: alert.fired_at.map(api::Time),
        resolved_at: alert.resolved_at.map(api::Time),
        value: alert.value.clone(),
        parts: alert.parts.clone(),
        more_parts: u64::try_from(alert.more_parts).unwrap_or(u64::MAX),
        summary: alert.summary.clone(),
        hint: alert.hint.clone(),
        is_silenced,
        acknowledged_by: alert.acknowledged.as_ref().map(|(by, _)| by.clone()),
        acknowledged_at: alert.acknowledged.as_ref().map(|(_, at)| api::Time(*at)),
    }
}

fn silence_to_api(silence: &Silence) -> api::Silence {
    api::Silence {
        id: silence.id,
        rule: silence.rule.clone(),
        subject: silence.subject.clone(),
        since: api::Time(silence.since),
        until: api::Time(silence.until),
        by: silence.by.clone(),
        comment: silence.comment.clone(),
    }
}
