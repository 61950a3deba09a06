//! Sweeps: show, cancel.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use gangline_api as api;
use gangline_base::SweepId;

use super::error::ApiError;
use super::once::Caller;
use super::segment::Segment;
use super::{App, ErrorBody, read};
use gangline_control::views::SweepView;

fn parse_sweep(text: &str) -> Result<SweepId, ApiError> {
    text.parse().map_err(|_| ApiError::no_sweep(text))
}

/// A sweep and its jobs.
#[utoipa::path(get, path = "/api/v1/sweeps/{sweep}", params(("sweep" = String, Path, description = "its id")),
    tag = "sweeps", responses((status = 200, body = api::Sweep), (status = 404, body = ErrorBody)))]
pub(super) async fn show(State(app): State<Arc<App>>, Segment(text): Segment) -> Result<Json<api::Sweep>, ApiError> {
    let id = parse_sweep(&text)?;
    let found = read(&app, move |views| views.sweep(id)).await?;
    let SweepView { mut sweep, waiting } = found.ok_or_else(|| ApiError::no_sweep(&text))?;
    let reasons = app.handle.wait_reasons(waiting).await?;
    let reasons: BTreeMap<String, String> = reasons.into_iter().map(|(job, why)| (job.to_string(), why)).collect();
    for point in sweep.points.iter_mut().filter(|point| point.state == api::JobState::Waiting) {
        if let Some(reason) = reasons.get(&point.job) {
            point.because.clone_from(reason);
        }
    }
    Ok(Json(sweep))
}

/// Asks for the end of what is left of a sweep. Waiting jobs end at once, running ones within their grace.
#[utoipa::path(post, path = "/api/v1/sweeps/{sweep}/cancel", params(("sweep" = String, Path, description = "its id")),
    tag = "sweeps", responses((status = 200, body = api::CancelSweepAnswer), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Segment(text): Segment,
    caller: Caller,
) -> Result<Json<api::CancelSweepAnswer>, ApiError> {
    let id = parse_sweep(&text)?;
    read(&app, move |views| views.sweep(id)).await?.ok_or_else(|| ApiError::no_sweep(&text))?;
    Ok(Json(caller.handle(&app).cancel_sweep(id, caller.user.clone()).await?))
}
