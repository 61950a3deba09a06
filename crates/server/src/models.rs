//! The registry of models: checkpoints as versions.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use gangline_api as api;
use gangline_control::registry::{self, Registry};
use gangline_store::tracking::Failure;
use gangline_tracking::Code;

use super::error::ApiError;
use super::once::Caller;
use super::segment::Segment;
use super::{App, ErrorBody};

/// A version in a path.
type Version = Result<Path<(String, String)>, PathRejection>;

/// Returns the paths below `/api/v1`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/models", get(list))
        .route("/models/{model}", get(show))
        .route("/models/{model}/versions", post(register))
        .route("/models/{model}/versions/{version}", get(version))
        .route("/models/{model}/versions/{version}/verified", post(verified))
        .route("/models/{model}/versions/{version}/promote", post(promote))
        .route("/models/{model}/versions/{version}/exported", post(exported))
}

/// All registered models, by their names.
#[utoipa::path(get, path = "/api/v1/models", tag = "models", responses((status = 200, body = api::ModelList)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<api::ModelList>, ApiError> {
    ask(&app, Registry::models).await
}

/// A registered model with its versions.
#[utoipa::path(get, path = "/api/v1/models/{model}", params(("model" = String, Path, description = "its name")),
    tag = "models", responses((status = 200, body = api::Model), (status = 404, body = ErrorBody)))]
pub(super) async fn show(State(app): State<Arc<App>>, Segment(name): Segment) -> Result<Json<api::Model>, ApiError> {
    ask(&app, move |registry| registry.model(&name)).await
}

/// Makes a checkpoint a version of a model, without a copy. The model is made if there is none of this name. What the
/// checkpoint came from is written down with it. A checkpoint that is a version already stays that version.
#[utoipa::path(post, path = "/api/v1/models/{model}/versions",
    params(("model" = String, Path, description = "the model's name")), request_body = api::RegisterRequest,
    tag = "models", responses((status = 200, body = api::Registered), (status = 404, body = ErrorBody)))]
pub(super) async fn register(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    caller: Caller,
    request: Result<Json<api::RegisterRequest>, JsonRejection>,
) -> Result<Json<api::Registered>, ApiError> {
    let Json(request) = request?;
    ask(&app, move |registry| registry.register(&name, &request, &caller.user.0)).await
}

/// A version of a model, with its lineage.
#[utoipa::path(get, path = "/api/v1/models/{model}/versions/{version}",
    params(("model" = String, Path, description = "the model's name"), ("version" = u32, Path, description = "its number")),
    tag = "models", responses((status = 200, body = api::ModelVersion), (status = 404, body = ErrorBody)))]
pub(super) async fn version(State(app): State<Arc<App>>, path: Version) -> Result<Json<api::ModelVersion>, ApiError> {
    let (name, number) = read(path)?;
    ask(&app, move |registry| registry.version(&name, number)).await
}

/// Notes that every byte of a version's checkpoint was read, and is as it was saved.
#[utoipa::path(post, path = "/api/v1/models/{model}/versions/{version}/verified",
    params(("model" = String, Path, description = "the model's name"), ("version" = u32, Path, description = "its number")),
    request_body = api::VerifiedRequest, tag = "models",
    responses((status = 200, body = api::ModelVersion), (status = 404, body = ErrorBody)))]
pub(super) async fn verified(
    State(app): State<Arc<App>>,
    path: Version,
    caller: Caller,
    request: Result<Json<api::VerifiedRequest>, JsonRejection>,
) -> Result<Json<api::ModelVersion>, ApiError> {
    let (Json(request), (name, number)) = (request?, read(path)?);
    ask(&app, move |registry| {
        registry.verified(&name, number, &request.content_hash, &caller.user.0)?;
        registry.version(&name, number)
    })
    .await
}

/// Points an alias at a version. `production` asks for a verified checkpoint.
#[utoipa::path(post, path = "/api/v1/models/{model}/versions/{version}/promote",
    params(("model" = String, Path, description = "the model's name"), ("version" = u32, Path, description = "its number")),
    request_body = api::PromoteRequest, tag = "models",
    responses((status = 200, body = api::ModelVersion), (status = 404, body = ErrorBody)))]
pub(super) async fn promote(
    State(app): State<Arc<App>>,
    path: Version,
    caller: Caller,
    request: Result<Json<api::PromoteRequest>, JsonRejection>,
) -> Result<Json<api::ModelVersion>, ApiError> {
    let (Json(request), (name, number)) = (request?, read(path)?);
    ask(&app, move |registry| {
        registry.promote(&name, number, &request.alias, &caller.user.0)?;
        registry.version(&name, number)
    })
    .await
}

/// Notes that a version was exported.
#[utoipa::path(post, path = "/api/v1/models/{model}/versions/{version}/exported",
    params(("model" = String, Path, description = "the model's name"), ("version" = u32, Path, description = "its number")),
    request_body = api::ExportedRequest, tag = "models",
    responses((status = 200, body = api::ModelVersion), (status = 404, body = ErrorBody)))]
pub(super) async fn exported(
    State(app): State<Arc<App>>,
    path: Version,
    caller: Caller,
    request: Result<Json<api::ExportedRequest>, JsonRejection>,
) -> Result<Json<api::ModelVersion>, ApiError> {
    let (Json(request), (name, number)) = (request?, read(path)?);
    ask(&app, move |registry| {
        registry.exported(&name, number, &request.place, &caller.user.0)?;
        registry.version(&name, number)
    })
    .await
}

fn read(path: Version) -> Result<(String, u32), ApiError> {
    let Path((name, number)) = path?;
    let parsed = number.parse();
    parsed.map(|parsed| (name, parsed)).map_err(|_| ApiError::malformed(format!("\"{number}\" is no version's number")))
}

/// Asks the registry on a blocking thread.
async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&Registry) -> Result<T, registry::Error> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    let registry = app.tracking.registry.clone();
    let answer = tokio::task::spawn_blocking(move || question(&registry)).await;
    Ok(Json(answer.map_err(|_| ApiError::internal("the registry panicked"))??))
}

impl From<registry::Error> for ApiError {
    fn from(error: registry::Error) -> Self {
        let message = gangline_base::with_causes(&error);
        let conflict = |hint: &str| ApiError::new(StatusCode::CONFLICT, "G0333", message.clone(), hint);
        match error {
            registry::Error::NoJob(id) => ApiError::no_job(&id),
            registry::Error::NoPlace => ApiError::malformed(message),
            registry::Error::NoFolder { .. }
            | registry::Error::NoCheckpoint { .. }
            | registry::Error::NoStep { .. } => {
                let hint = "gangline checkpoint list shows the checkpoints of a job or a folder; the control plane has to reach the folder too";
                ApiError::new(StatusCode::NOT_FOUND, "G0334", message, hint)
            }
            registry::Error::Checkpoint { .. } => {
                let hint = "gangline checkpoint verify says what is wrong with it; a version is pinned by hard links, so the control \
                            plane has to be able to make them in that folder";
                ApiError::new(StatusCode::CONFLICT, "G0334", message, hint)
            }
            registry::Error::NotACheckpoint { .. } => conflict("gangline models register makes a checkpoint a version"),
            registry::Error::OtherBytes { .. } => conflict("verify what gangline models show names as its pin"),
            registry::Error::Tracking(failure) => untracked(&failure, message),
            registry::Error::Jobs(error) => error.into(),
        }
    }
}

fn untracked(failure: &Failure, message: String) -> ApiError {
    let refused = |status, hint: &str| ApiError::new(status, "G0333", message.clone(), hint);
    match failure {
        Failure::Refused(refusal) => match refusal.code {
            Code::InvalidParameterValue => refused(StatusCode::BAD_REQUEST, "docs/guides/models.md describes models"),
            Code::ResourceDoesNotExist => refused(StatusCode::NOT_FOUND, "gangline models list shows the models"),
            Code::ResourceAlreadyExists => refused(StatusCode::CONFLICT, "gangline models list shows the models"),
            Code::InvalidState => refused(StatusCode::CONFLICT, "docs/guides/models.md says what a promotion asks for"),
        },
        _ => {
            let hint = "look at the folder \"tracking\" in the data folder and at its disk; jobs go on without it";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0335", message, hint)
        }
    }
}
