//! Reports of supervisors. Each attempt has a token of its own, so a job can report only on itself.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use gangline_base::{AttemptNumber, Epoch, JobId, Principal};
use gangline_execution::protocol::{Orders, PROTOCOL_VERSION, Report, is_understood};

use super::App;
use super::auth::Reporting;
use super::error::ApiError;

/// Takes in a report and answers with orders. Not in the OpenAPI document: its contract is
/// `execution::protocol`.
pub(super) async fn report(
    State(app): State<Arc<App>>,
    Extension(named): Extension<Reporting>,
    report: Result<Json<Report>, JsonRejection>,
) -> Result<Json<Orders>, ApiError> {
    let Json(report) = report?;
    let (job, attempt, epoch) = (JobId(report.job), AttemptNumber(report.attempt), Epoch(report.epoch));
    if named != (Reporting { job, attempt, epoch }) {
        return Err(ApiError::unauthorized());
    }
    if !is_understood(report.version) {
        return Err(ApiError::protocol_version(report.version, PROTOCOL_VERSION));
    }
    Ok(Json(app.handle.by(Principal::Attempt { job, attempt }).report(report).await?))
}
