//! The HTTP border: `/api/v1` as JSON with an OpenAPI document, and the page at `/`.
//!
//! Handlers translate and decide nothing. Reads come from the read models, so they show only durable state;
//! changes go through the service's handle. Keeps A-9, A-10 (bodies, pages and log chunks have limits) and
//!

mod agents;
pub mod alerts;
mod at_hand;
mod auth;
mod basic;
mod body;
pub mod budgets;
mod cost;
mod crowd;
mod dcgm;
mod error;
pub mod export;
mod exposition;
#[cfg(feature = "files")]
pub mod files;
mod goodput;
mod jobs;
mod logs;
mod loss;
mod metrics;
mod mlflow;
mod models;
mod nodes;
mod observing;
mod once;
mod openapi;
mod page;
mod rank_access;
mod reload;
mod remote_read;
mod rendering;
pub mod schedules;
mod segment;
mod server;
mod socket;
mod state_file;
mod supervisors;
mod sweeps;
mod templates;
pub mod tls;
mod token;
mod visits;
mod web;
mod why;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use gangline_api as api;
use gangline_base::{Submitter, Timestamp};

pub use agents::Agents;
pub use at_hand::AtHand;
pub use mlflow::Tracking;
pub use openapi::document as openapi_document;
pub use reload::{Configured, ReadConfiguration};
pub use remote_read::RemoteRead;
pub use server::{Doors, serve};
pub use socket::Socket;
pub use templates::Templates;
pub use visits::{LINK_TIME_MAX, Visits};

use error::ApiError;
use gangline_control::code::CodeStore;
use gangline_control::secret::Secrets;
use gangline_control::service::Handle;
use gangline_control::views::Views;
use gangline_store::db;
use rendering::Rendering;

/// The largest body of a user's request, in bytes.
pub const USER_BODY_BYTES_MAX: usize = 1 << 20;
/// The largest report of a supervisor, in bytes.
pub const REPORT_BODY_BYTES_MAX: usize = 4 << 20;

/// The longest time that a request may take, including its body.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct App {
    /// The service's handle, for changes.
    pub handle: Handle,
    /// Answers from the read models.
    pub views: Views,
    /// The secrets that tokens are checked against.
    pub secrets: Secrets,
    /// The links and sessions of the page.
    pub visits: Visits,
    /// The submitter that the users' token stands for.
    pub user: Submitter,
    /// The data folder, where a new token is written.
    pub folder: PathBuf,
    /// Names and addresses of this control plane besides loopback; empty unless it uses TLS.
    pub hosts: Vec<String>,
    /// Folders that can be checked without moving to a blocking thread.
    pub at_hand: AtHand,
    /// The copies of jobs' code.
    pub code: CodeStore,
    /// The series store.
    pub series: gangline_telemetry::series::Handle,
    /// Where measurements and traces of jobs are sent as well.
    pub exports: Vec<export::Handle>,
    /// The nodes' agents, and what happened on the nodes.
    pub agents: Agents,
    /// Experiments, runs and models.
    pub tracking: Tracking,
    /// Alerts.
    pub alerts: alerts::Handle,
    /// Job files whose keys others take over.
    pub templates: Templates,
    /// Job files that are submitted again and again.
    pub schedules: schedules::Handle,
    /// The configuration's budgets.
    pub budgets: budgets::Budgets,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
    /// Reads the configuration file again.
    pub read_configuration: ReadConfiguration,
}

impl App {
    /// Reports whether measurements are sent elsewhere.
    fn is_exporting_samples(&self) -> bool {
        self.exports.iter().any(export::Handle::takes_samples)
    }

    /// Returns the user that a token stands for, if it is a user's.
    fn user_of(&self, token: &str) -> Option<Submitter> {
        self.secrets.is_user(token).then(|| self.user.clone())
    }
}

/// Builds the router with all routes.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    let users = Router::new()
        .route("/jobs", get(jobs::list).post(jobs::submit))
        .route("/jobs/{job}", get(jobs::show))
        .route("/jobs/{job}/cancel", post(jobs::cancel))
        .route("/jobs/{job}/change", post(jobs::change))
        .route("/jobs/{job}/resume", post(jobs::resume))
        .route("/jobs/{job}/explain", get(jobs::explain))
        .route("/jobs/{job}/metrics", get(metrics::list))
        .route("/jobs/{job}/metrics/curves", get(metrics::curves))
        .route("/jobs/{job}/logs", get(logs::read))
        .route("/jobs/{job}/why", get(why::show))
        .route("/jobs/{job}/goodput", get(goodput::show))
        .route("/cost/report", get(cost::report))
        .route("/cost/jobs/{job}", get(cost::of_job))
        .route("/cost/usage", get(cost::usage))
        .route("/cost/demand", get(cost::demand))
        .route("/cost/budgets", get(cost::budgets))
        .route("/cost/forecast", get(cost::forecast))
        .route("/cost/estimate", post(cost::estimate))
        .route("/alerts", get(alerts::routes::list))
        .route("/alerts/{alert}/acknowledge", post(alerts::routes::acknowledge))
        .route("/silences", post(alerts::routes::silence))
        .route("/silences/{silence}/end", post(alerts::routes::end_silence))
        .route("/sweeps/{sweep}", get(sweeps::show))
        .route("/sweeps/{sweep}/cancel", post(sweeps::cancel))
        .route("/schedules", get(schedules::list).post(schedules::create))
        .route("/schedules/{schedule}/{change}", post(schedules::change))
        .route("/templates", get(templates::list))
        .route("/templates/{template}", get(templates::show))
        .merge(models::routes())
        .route("/nodes", get(nodes::list))
        .route("/nodes/{node}", get(agents::show))
        .route("/nodes/{node}/metrics", get(metrics::list_of_node))
        .route("/nodes/{node}/metrics/curves", get(metrics::curves_of_node))
        .route("/nodes/{node}/drain", post(nodes::drain))
        .route("/nodes/{node}/undrain", post(nodes::undrain))
        .route("/queues", get(nodes::queues))
        .route("/reload", post(reload::reload))
        .route("/links", post(token::link))
        .route("/token/rotate", post(token::rotate))
        .layer(from_fn_with_state(app.clone(), once::answer_once))
        .layer(from_fn_with_state(app.clone(), auth::require_user));
    let supervisors = Router::new()
        .route("/supervisors/report", post(supervisors::report))
        .route("/supervisors/metrics", post(metrics::take))
        .layer(from_fn_with_state(app.clone(), auth::require_attempt));
    let agents = Router::new()
        .route("/agents/report", post(agents::report))
        .layer(from_fn_with_state(app.clone(), auth::require_agent));
    let open = Router::new()
        .route("/health", get(nodes::health))
        .route("/openapi.json", get(|| async { Json(openapi::document()) }));
    let own = Router::new()
        .nest("/api/v1", users.merge(supervisors).merge(agents).merge(open))
        .route("/metrics", get(exposition::scrape).layer(from_fn_with_state(app.clone(), auth::require_user)))
        .route("/metrics/dcgm", get(dcgm::scrape).layer(from_fn_with_state(app.clone(), auth::require_user)))
        .route("/", get(page::show).layer(Extension(Arc::new(Rendering::default()))))
        .layer(from_fn(limit_time));
    own.merge(mlflow::routes(&app))
        .fallback(|| async { ApiError::no_such_path() })
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        // The authentication layer has read the body by then, within a limit of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), auth::require_own_host))
        .with_state(app)
}

/// Gives up a request that takes too long, so that a slow sender doesn't hold resources for ever.
async fn limit_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_MAX, next.run(request)).await;
    answer.unwrap_or_else(|_| ApiError::too_slow().into_response())
}

/// Runs a query of the views on a blocking thread.
async fn read<T: Send + 'static>(
    app: &Arc<App>,
    query: impl FnOnce(&Views) -> Result<T, db::Error> + Send + 'static,
) -> Result<T, ApiError> {
    try_read(app, query).await?.map_err(ApiError::from)
}

/// Runs a query of the views on a blocking thread and passes the database's error through.
async fn try_read<T: Send + 'static>(
    app: &Arc<App>,
    query: impl FnOnce(&Views) -> Result<T, db::Error> + Send + 'static,
) -> Result<Result<T, db::Error>, ApiError> {
    let views = app.views.clone();
    let outcome = tokio::task::spawn_blocking(move || query(&views)).await;
    outcome.map_err(|_| ApiError::internal("a query panicked"))
}

/// The body of an error, for handlers' documentation.
type ErrorBody = api::ErrorBody;
