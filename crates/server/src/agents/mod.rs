//! The nodes' agents: what they read goes to the series store, what their checks find to the engine and into the node's
//! history.
//!
//! Keeps A-13: a fault makes its node suspect, and running jobs go on; and A-15: readings and history neither delay nor
//! stop a decision.

mod history;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::{Extension, Json};
use gangline_api as api;
use gangline_base::{JobId, NodeName};
use gangline_control::views::{JOBS_PER_PAGE_MAX, Standing};
use gangline_execution::protocol::NodeFinding;
use gangline_execution::protocol::agent::{
    AGENT_VERSION, AgentAnswer, AgentFinding, AgentReport, BATCHES_MAX, DeviceBatch, FETCHED_MAX, FINDINGS_MAX,
};
use gangline_telemetry::series::{self, Batch, Scope, Source};

use super::auth::AgentOf;
use super::error::ApiError;
use super::metrics::{ask, known_node, metric_of, row_of, store};
use super::segment::Segment;
use super::{App, ErrorBody, read};

pub use history::Agents;

/// The largest index of a device.
const DEVICE_MAX: u32 = 4_096;
/// How far back readings are shown of a node.
const SHOWN: Duration = Duration::from_secs(3_600);
/// The most metrics of a node that are shown.
const METRICS_MAX: usize = 2_000;
/// Attempts of a node that are shown, and how many of the newest jobs are looked at for them.
const ATTEMPTS_MAX: usize = 20;
const JOBS_LOOKED_AT_MAX: usize = 1_000;

/// Takes an agent's report in. Not in the OpenAPI document: its contract is `execution::protocol::agent`.
pub(super) async fn report(
    State(app): State<Arc<App>>,
    Extension(AgentOf(node)): Extension<AgentOf>,
    report: Result<Json<AgentReport>, JsonRejection>,
) -> Result<Json<AgentAnswer>, ApiError> {
    let Json(report) = report?;
    if report.node != node.as_str() {
        return Err(ApiError::unauthorized());
    }
    if report.version != AGENT_VERSION {
        return Err(ApiError::protocol_version(report.version, AGENT_VERSION));
    }
    let is_long = report.batches.len() > BATCHES_MAX || report.fetched.len() > FETCHED_MAX;
    if is_long || report.findings.as_ref().is_some_and(|all| all.len() > FINDINGS_MAX) {
        let most =
            format!("a report has at most {BATCHES_MAX} batches, {FINDINGS_MAX} findings and {FETCHED_MAX} fetches");
        return Err(ApiError::malformed(most));
    }
    known_node(&app, node.as_str()).await?;
    let now = (app.clock)();
    if app.agents.is_read_by_another(&node, now, &report) {
        return Ok(Json(answer(Vec::new(), true)));
    }
    if report.stands_in && report.batches.is_empty() {
        return Ok(Json(answer(Vec::new(), false)));
    }
    let new = app.agents.heard(&node, now, &report);
    for finding in new.into_iter().filter(|finding| finding.is_fault) {
        let AgentFinding { place, measured, .. } = finding;
        app.handle.agent_found(node.clone(), NodeFinding { place, measured }).await?;
    }
    if !report.fetched.is_empty() {
        app.handle.agent_fetched(node.clone(), report.fetched).await?;
    }
    let fetch = if report.fetches { app.handle.agent_cached(node.clone(), report.cache).await? } else { Vec::new() };
    let batches = report.batches.into_iter().map(|batch| batch_of(&node, batch)).collect::<Result<Vec<_>, _>>()?;
    let stored = store(&app, batches).await?;
    Ok(Json(AgentAnswer { fetch, ..answer(stored, false) }))
}

fn answer(stored: Vec<u64>, stand_by: bool) -> AgentAnswer {
    AgentAnswer { version: AGENT_VERSION, stored, stand_by, fetch: Vec::new() }
}

fn batch_of(node: &NodeName, batch: DeviceBatch) -> Result<Batch, ApiError> {
    if batch.device.is_some_and(|device| device > DEVICE_MAX) {
        return Err(ApiError::malformed(format!("no node has more than {DEVICE_MAX} devices")));
    }
    let (scope, node) = (Scope::Node(node.clone()), Some(node.clone()));
    let source = Source { scope, attempt: None, node, rank: None, device: batch.device };
    Ok(Batch { source, first: batch.first, names: batch.names, rows: batch.rows.into_iter().map(row_of).collect() })
}

/// A node: who holds it, what its agent reads, what went wrong on it, and who ran there.
#[utoipa::path(get, path = "/api/v1/nodes/{node}", params(("node" = String, Path, description = "its name")),
    tag = "cluster", responses((status = 200, body = api::NodeDetail), (status = 404, body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Segment(node): Segment,
) -> Result<Json<api::NodeDetail>, ApiError> {
    let nodes = app.handle.nodes().await?.nodes;
    let found = nodes.into_iter().find(|known| known.name == node).ok_or_else(|| ApiError::no_node(&node))?;
    let name = NodeName::new(&node).map_err(|_| ApiError::no_node(&node))?;
    let now = (app.clock)();
    let query = series::Query {
        times: (Some(now - SHOWN), None),
        ..series::Query::all(Scope::Node(name.clone()), 1, METRICS_MAX)
    };
    // A store that is closed hides readings, and nothing else of the node.
    let readings = ask(&app, query).await.map(|answer| answer.curves).unwrap_or_default();
    let attempts = attempts_on(&app, node).await?;
    let (agent, problems, history) = app.agents.of_node(&name, now);
    let readings = readings.into_iter().filter_map(metric_of).collect();
    Ok(Json(api::NodeDetail { node: found, agent, problems, history, readings, attempts }))
}

/// Returns the newest attempts that had devices of a node.
async fn attempts_on(app: &Arc<App>, node: String) -> Result<Vec<api::NodeAttempt>, ApiError> {
    read(app, move |views| {
        let (mut found, mut before, mut looked_at): (Vec<api::NodeAttempt>, Option<JobId>, usize) =
            (Vec::new(), None, 0);
        while found.len() < ATTEMPTS_MAX && looked_at < JOBS_LOOKED_AT_MAX {
            let page = views.jobs(&Standing::Any.into(), before, JOBS_PER_PAGE_MAX)?;
            looked_at += page.jobs.len();
            found.extend(page.jobs.iter().flat_map(|(_, job)| of_job(job, &node)));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        found.sort_by_key(|attempt| std::cmp::Reverse(attempt.placed_at.0));
        found.truncate(ATTEMPTS_MAX);
        Ok(found)
    })
    .await
}

fn of_job(job: &api::Job, node: &str) -> Vec<api::NodeAttempt> {
    let on_node = |attempt: &api::Attempt| {
        let share = attempt.shares.iter().find(|share| share.node == node)?;
        Some(api::NodeAttempt {
            job: job.id.clone(),
            name: job.name.clone(),
            user: job.submitter.clone(),
            attempt: attempt.number,
            devices: share.devices.clone(),
            placed_at: attempt.placed_at,
            ended_at: attempt.ended_at,
            ended_because: attempt.ended_because.clone(),
        })
    };
    job.attempts.iter().filter_map(on_node).collect()
}
