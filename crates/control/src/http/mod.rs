//! The HTTP border: `/api/v1` as JSON with an OpenAPI document, and the page at `/`.
//!
//! Handlers translate; they decide nothing. Reads come from the read models, so they show only what is durable; changes
//! go through the service's handle. Keeps A-9, A-10 (bodies, pages and log pieces have limits) and A-11.

mod auth;
mod error;
mod jobs;
mod logs;
mod nodes;
mod once;
mod openapi;
mod page;
mod segment;
mod supervisors;
mod sweeps;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::Listener;
use axum::{Json, Router};
use gangline_base::Submitter;
use tokio::net::TcpListener;

pub use openapi::document as openapi_document;

use crate::db::Reader;
use crate::secret::Secrets;
use crate::service::Handle;
use crate::tls::Tls;
use crate::wire;
use error::ApiError;

/// The largest request body of a user, in bytes.
pub const USER_BODY_BYTES_MAX: usize = 1 << 20;
/// The largest report of a supervisor, in bytes.
pub const REPORT_BODY_BYTES_MAX: usize = 4 << 20;

/// The longest a request may take, its body included.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// The longest wait for requests under way at the end.
const GOODBYE_MAX: Duration = Duration::from_secs(5);

/// What handlers work with.
#[derive(Clone, Debug)]
pub struct App {
    /// Changes go here.
    pub handle: Handle,
    /// Reads come from here.
    pub reader: Reader,
    /// What bearers are checked against.
    pub secrets: Secrets,
    /// Who the users' token stands for.
    pub user: Submitter,
    /// The data folder, for logs and for where jobs save.
    pub folder: PathBuf,
    /// The names and addresses besides loopback's by which it is reached; none unless it speaks TLS.
    pub hosts: Vec<String>,
}

/// All routes.
pub fn router(app: App) -> Router {
    let app = Arc::new(app);
    let users = Router::new()
        .route("/jobs", get(jobs::list).post(jobs::submit))
        .route("/jobs/{job}", get(jobs::show))
        .route("/jobs/{job}/cancel", post(jobs::cancel))
        .route("/jobs/{job}/explain", get(jobs::explain))
        .route("/jobs/{job}/series", get(jobs::series))
        .route("/jobs/{job}/logs", get(logs::read))
        .route("/sweeps/{sweep}", get(sweeps::show))
        .route("/sweeps/{sweep}/cancel", post(sweeps::cancel))
        .route("/nodes", get(nodes::list))
        .route("/nodes/{node}/drain", post(nodes::drain))
        .route("/nodes/{node}/undrain", post(nodes::undrain))
        .route("/queues", get(nodes::queues))
        .layer(from_fn_with_state(app.clone(), once::answer_once))
        .layer(from_fn_with_state(app.clone(), auth::require_user))
        .layer(DefaultBodyLimit::max(USER_BODY_BYTES_MAX));
    let supervisors = Router::new()
        .route("/supervisors/report", post(supervisors::report))
        .layer(DefaultBodyLimit::max(REPORT_BODY_BYTES_MAX));
    let open = Router::new()
        .route("/health", get(nodes::health))
        .route("/openapi.json", get(|| async { Json(openapi::document()) }));
    Router::new()
        .nest("/api/v1", users.merge(supervisors).merge(open))
        .route("/", get(page::show))
        .fallback(|| async { ApiError::no_such_path() })
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        .layer(from_fn(limit_time))
        .layer(from_fn_with_state(app.clone(), auth::require_own_host))
        .with_state(app)
}

/// Serves until `stop` is ready, then finishes the requests under way, but waits no longer than five seconds for them.
///
/// # Errors
/// If the listener isn't a loopback one and there is no TLS, or it fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    app: App,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    match tls {
        Some(tls) => serve_on(tls.listen(listener), app, stop).await,
        None if address.ip().is_loopback() => serve_on(listener, app, stop).await,
        None => {
            let message = format!("refused to serve {address}: beyond loopback TLS is needed");
            Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message))
        }
    }
}

async fn serve_on<L>(listener: L, app: App, stop: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = async move {
        stop.await;
        // Fails only if nobody serves any more.
        let _ = stopping.send(());
    };
    let goodbye = async move {
        // An error means that serving has ended.
        let _ = stopped.await;
        tokio::time::sleep(GOODBYE_MAX).await;
    };
    tokio::select! {
        served = axum::serve(listener, router(app)).with_graceful_shutdown(stop).into_future() => served,
        () = goodbye => Ok(()),
    }
}

/// A request that takes longer is given up, so that a slow sender holds nothing for ever.
async fn limit_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_MAX, next.run(request)).await;
    answer.unwrap_or_else(|_| ApiError::too_slow().into_response())
}

/// Runs a query where blocking is allowed.
async fn read<T: Send + 'static>(
    app: &Arc<App>,
    query: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let reader = app.reader.clone();
    let outcome = tokio::task::spawn_blocking(move || reader.read(query)).await;
    outcome.map_err(|_| ApiError::internal("a query panicked"))?.map_err(ApiError::from)
}

/// The body of an error, for handlers' documentation.
type ErrorBody = wire::ErrorBody;
