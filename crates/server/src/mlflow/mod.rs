//! MLflow's REST API (3.17), so that its clients work unchanged: tracking, logged models, the model registry and artifacts.
//!
//! The paths, fields and error codes are those of <https://mlflow.org/docs/latest/api_reference/rest-api.html>. Each handler
//! translates a request's [`Fields`] into a change or a query of the tracking store, and what that returns into JSON. A user's
//! error is never a 5xx, which the clients would send again for minutes. What MLflow offers for agents and prompts is answered
//! by 404 at once. Keeps.

mod answer;
mod artifacts;
mod downloads;
mod experiments;
mod fields;
mod logged_models;
mod metrics;
mod names;
mod registry;
mod runs;
mod webhooks;
mod wire;

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on, post};
use axum::{Json, Router};
use gangline_base::Timestamp;
use gangline_control::job_runs::JobRuns;
use gangline_control::registry::Registry;
use gangline_control::views::Views;
use gangline_control::webhooks::Webhooks;
use gangline_store::tracking::{ArtifactStore, Handle};
use gangline_tracking::UnixMillis;
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::Reporting;
use super::rank_access::RankAccess;
use super::{App, USER_BODY_BYTES_MAX, auth, limit_time};
use answer::MlflowError;
use fields::Fields;

/// The version of MLflow whose API this is.
const VERSION: &str = "3.17.2";

/// What MLflow's handlers work on.
#[derive(Clone, Debug)]
pub struct Tracking {
    /// Experiments, runs, metrics and models.
    pub store: Handle,
    /// Artifacts.
    pub artifacts: ArtifactStore,
    /// Checkpoints as versions of models.
    pub registry: Registry,
    /// The runs of jobs.
    pub job_runs: JobRuns,
    /// Posts changes of the registry to webhooks.
    pub webhooks: Webhooks,
    /// How long the ranks of attempts may track.
    pub(super) rank_access: RankAccess,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
}

/// A handler of a request that waits for the store, and so runs on a thread of its own.
type Handler<T = Value> = fn(&Tracking, Fields) -> Result<T, MlflowError>;

impl Tracking {
    /// Returns what the handlers of a control plane work on.
    #[must_use]
    pub fn new(store: Handle, artifacts: ArtifactStore, views: Views, clock: fn() -> Timestamp) -> Tracking {
        let registry = Registry::new(store.clone(), views.clone(), clock);
        let job_runs = JobRuns::new(store.clone(), views, clock);
        let webhooks = Webhooks::new(store.clone(), clock);
        Tracking { store, artifacts, registry, job_runs, webhooks, rank_access: RankAccess::default(), clock }
    }

    fn now(&self) -> UnixMillis {
        UnixMillis::of((self.clock)())
    }
}

/// Returns the routes at the root: MLflow's API, and those for its version and health.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let tables =
        [experiments::ROUTES, runs::ROUTES, metrics::ROUTES, logged_models::ROUTES, registry::ROUTES, webhooks::ROUTES];
    let api = tables.into_iter().fold(Router::new(), add);
    let api = add(api, metrics::HISTORIES);
    let api = api
        .fallback(no_endpoint)
        .layer(from_fn(auth::read_body))
        .layer(from_fn_with_state(app.clone(), auth::require_tracker))
        .layer(from_fn(limit_time));
    let artifacts = artifacts::routes().layer(from_fn_with_state(app.clone(), auth::require_tracker));
    Router::new()
        .nest("/api/2.0/mlflow", api.clone())
        .nest("/ajax-api/2.0/mlflow", api)
        .nest("/api/2.0/mlflow-artifacts", artifacts.clone())
        .nest("/ajax-api/2.0/mlflow-artifacts", artifacts)
        .route("/api/3.0/mlflow/server-info", get(server_info))
        .route("/api/3.0/mlflow/{*rest}", get(no_endpoint).fallback(no_endpoint))
        .route("/version", get(|| async { VERSION }))
        .route("/health", get(|| async { "OK" }))
        .route("/graphql", post(no_endpoint))
}

/// Adds the routes of a table.
fn add<T: Serialize + Send + 'static>(
    api: Router<Arc<App>>,
    table: &[(MethodFilter, &'static str, Handler<T>)],
) -> Router<Arc<App>> {
    table.iter().fold(api, |api, (method, path, handler)| {
        let handler = *handler;
        let serve = move |State(app): State<Arc<App>>, query: RawQuery, path: RawPathParams, request: Request| {
            serve(app, query, path, request, handler)
        };
        api.route(path, on(*method, serve))
    })
}

async fn serve<T: Serialize + Send + 'static>(
    app: Arc<App>,
    RawQuery(query): RawQuery,
    path: RawPathParams,
    request: Request,
    handler: Handler<T>,
) -> Response {
    let attempt = request.extensions().get::<Reporting>().copied();
    let fields = match to_bytes(request.into_body(), USER_BODY_BYTES_MAX).await {
        Ok(body) => Fields::of(query.as_deref(), &body, &path),
        Err(_) => Err(MlflowError::invalid("the body breaks off")),
    };
    let fields = match fields {
        Ok(fields) => fields.sent_by(attempt),
        Err(error) => return error.into_response(),
    };
    let tracking = app.tracking.clone();
    // A long answer is written there too.
    let answer = move || handler(&tracking, fields).map(|answer| Json(answer).into_response());
    match tokio::task::spawn_blocking(answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => error.into_response(),
        Err(_) => MlflowError::internal("a handler panicked").into_response(),
    }
}

/// Says what clients ask before they choose a way; without authentication, as with MLflow.
async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "store_type": "SqlStore",
        "workspaces_enabled": false,
        "trace_archival_enabled": false,
        "multipart_uploads_enabled": false,
        "multipart_downloads_enabled": app.tracking.artifacts.is_direct(),
        "presigned_upload_run_id_supported": false,
        "presigned_upload_model_id_supported": false,
        "features_enabled": {"gateway": false},
    }))
}

async fn no_endpoint(method: Method) -> Response {
    MlflowError::no_endpoint(&method).into_response()
}

/// Shortens the tables of routes.
const GET: MethodFilter = MethodFilter::GET;
const POST: MethodFilter = MethodFilter::POST;
const PATCH: MethodFilter = MethodFilter::PATCH;
const DELETE: MethodFilter = MethodFilter::DELETE;
