//! Links to the page, and another token for the users.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_api as api;

use super::error::ApiError;
use super::visits::LINK_TIME_MAX;
use super::{App, ErrorBody};

/// Makes a link to the page that is good once and for some minutes.
#[utoipa::path(post, path = "/api/v1/links", tag = "token",
    responses((status = 200, body = api::PageLink), (status = 503, body = ErrorBody)))]
pub(super) async fn link(State(app): State<Arc<App>>) -> Result<Json<api::PageLink>, ApiError> {
    let path = app.visits.link().map_err(|_| ApiError::internal("there is no randomness"))?;
    Ok(Json(api::PageLink { path, good_for_seconds: LINK_TIME_MAX.as_secs() }))
}

/// Replaces the users' token, and ends all links and sessions of the page. Running jobs go on.
#[utoipa::path(post, path = "/api/v1/token/rotate", tag = "token",
    responses((status = 200, body = api::TokenRotated), (status = 503, body = ErrorBody)))]
pub(super) async fn rotate(State(app): State<Arc<App>>) -> Result<Json<api::TokenRotated>, ApiError> {
    let (secrets, folder) = (app.secrets.clone(), app.folder.clone());
    let written = tokio::task::spawn_blocking(move || secrets.rotate(&folder)).await;
    written.map_err(|_| ApiError::internal("the rotation panicked"))?.map_err(|error| {
        let message = format!("the new token can't be kept: {error}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0502", message, "free the disk; the old token is still good")
    })?;
    app.visits.end();
    tracing::info!("the users' token was replaced");
    Ok(Json(api::TokenRotated { file: api::TOKEN_FILE.to_owned() }))
}
