//! Where supervisors report. Each attempt has a token of its own, so a job can report only on itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::HeaderMap;
use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_execution::protocol::{Orders, PROTOCOL_VERSION, Report, is_understood};

use super::App;
use super::auth::bearer;
use super::error::ApiError;

/// Takes a report and answers with orders. Not in the OpenAPI document: its contract is `execution::protocol`.
pub(super) async fn report(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    report: Result<Json<Report>, JsonRejection>,
) -> Result<Json<Orders>, ApiError> {
    let token = bearer(&headers).ok_or_else(ApiError::unauthorized)?;
    let Json(report) = report?;
    if !app.secrets.is_attempt(token, JobId(report.job), AttemptNumber(report.attempt), Epoch(report.epoch)) {
        return Err(ApiError::unauthorized());
    }
    if !is_understood(report.version) {
        return Err(ApiError::protocol_version(report.version, PROTOCOL_VERSION));
    }
    Ok(Json(app.handle.report(report).await?))
}
