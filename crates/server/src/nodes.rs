//! Nodes, queues, health.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use gangline_api as api;
use gangline_base::NodeName;

use super::error::ApiError;
use super::once::Caller;
use super::segment::Segment;
use super::{App, ErrorBody};
use gangline_control::service::{self, DrainWish, Handle};

/// The nodes, and who holds each of their accelerators.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "cluster", responses((status = 200, body = api::NodeList)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<api::NodeList>, ApiError> {
    Ok(Json(app.handle.nodes().await?))
}

/// Nothing new starts on a node; what runs there goes on, or until a deadline.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/drain", params(("node" = String, Path, description = "its name")),
    request_body = api::Drain, tag = "cluster", responses((status = 200, body = api::Node), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn drain(
    State(app): State<Arc<App>>,
    Segment(node): Segment,
    caller: Caller,
    drain: Result<Json<api::Drain>, JsonRejection>,
) -> Result<Json<api::Node>, ApiError> {
    let Json(drain) = drain?;
    let within = drain.within_seconds.map(|seconds| DrainWish::Within(Duration::from_secs(u64::from(seconds))));
    let drained = set_drain(&caller.handle(&app), &node, within.unwrap_or(DrainWish::WhenFree)).await?;
    app.agents.note(&node, (app.clock)(), "drained", "drained by an administrator");
    Ok(drained)
}

/// A draining or suspect node takes jobs again, and its faults are forgotten.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/undrain", params(("node" = String, Path, description = "its name")),
    tag = "cluster", responses((status = 200, body = api::Node), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn undrain(
    State(app): State<Arc<App>>,
    Segment(node): Segment,
    caller: Caller,
) -> Result<Json<api::Node>, ApiError> {
    let taken_back = set_drain(&caller.handle(&app), &node, DrainWish::Undo).await?;
    app.agents.note(&node, (app.clock)(), "undrained", "taken back by an administrator, its faults forgotten");
    Ok(taken_back)
}

async fn set_drain(handle: &Handle, node: &str, wish: DrainWish) -> Result<Json<api::Node>, ApiError> {
    let name = NodeName::new(node).map_err(|_| ApiError::no_node(node))?;
    Ok(Json(handle.drain(name, wish).await?))
}

/// The queues that have jobs.
#[utoipa::path(get, path = "/api/v1/queues", tag = "cluster", responses((status = 200, body = api::QueueList)))]
pub(super) async fn queues(State(app): State<Arc<App>>) -> Result<Json<api::QueueList>, ApiError> {
    Ok(Json(app.handle.queues().await?))
}

/// How the control plane is: 200 if it takes changes, 503 with the reason if its journal can't be written. Needs no token.
#[utoipa::path(get, path = "/api/v1/health", tag = "cluster", security(()),
    responses((status = 200, body = api::Health), (status = 503, body = ErrorBody)))]
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<api::Health>, ApiError> {
    let health = app.handle.health().await?;
    match health.reason {
        Some(cause) if health.status == api::Health::POISONED => Err(service::Error::Poisoned { cause }.into()),
        _ => Ok(Json(health)),
    }
}
