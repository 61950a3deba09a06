//! The page at `/`, rendered from what the API returns. A link holds a code that works once. Opening
//! the link exchanges the code for a cookie that allows reading for a day, or until the control plane
//! restarts.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use gangline_api::{Job, JobState, Queue};
use gangline_base::JobId;
use gangline_control::views::Standing;
use serde::Deserialize;

use super::auth::{COOKIE, has_cookie, prove};
use super::crowd::Admission;
use super::error::ApiError;
use super::rendering::Rendering;
use super::visits::SESSION_TIME_MAX;
use super::{App, jobs, loss, metrics};
use crate::web::{self, PageData};

/// The most jobs on the page that hold devices, that wait, and that have ended, each.
const ACTIVE_SHOWN: u32 = 200;
const WAITING_SHOWN: u32 = 50;
const ENDED_SHOWN: u32 = 50;
/// The most jobs whose curve is drawn.
const CURVES_SHOWN: usize = 12;

/// The query of the page's URL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    code: Option<String>,
    /// The parameter of earlier releases' links; a request with it is refused.
    token: Option<String>,
}

/// Shows the page. If the link has a code, sets a cookie and redirects to the page without the code.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(rendering): Extension<Arc<Rendering>>,
    admission: Option<Extension<Arc<Admission>>>,
    headers: HeaderMap,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return ApiError::from(rejection).into_response(),
    };
    if let Some(code) = query.code {
        return match app.visits.open(&code) {
            Ok(Some(session)) => welcome(&app, &session),
            Ok(None) => refused(&app, &headers),
            Err(_) => ApiError::internal("there is no randomness").into_response(),
        };
    }
    if query.token.is_some() || !has_cookie(&app, &headers) {
        return refused(&app, &headers);
    }
    prove(admission.as_ref().map(|Extension(admission)| admission));
    match shown(&app, &rendering).await {
        Ok(page) => {
            // The policy forbids every load and script except the styles in the page itself.
            let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
            let headers = [(header::CONTENT_SECURITY_POLICY, policy), (header::CACHE_CONTROL, "no-store")];
            (headers, Html(page.to_string())).into_response()
        }
        Err(error) => error.into_response(),
    }
}

fn welcome(app: &App, session: &str) -> Response {
    let secure = if app.hosts.is_empty() { "" } else { "; Secure" };
    let age = SESSION_TIME_MAX.as_secs();
    let cookie = format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
}

fn refused(app: &App, headers: &HeaderMap) -> Response {
    // The host was checked to be this control plane's.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let scheme = if app.hosts.is_empty() { "http" } else { "https" };
    let address = host.map(|host| format!("{scheme}://{host}"));
    (StatusCode::UNAUTHORIZED, Html(web::sign_in(address.as_deref()).into_string())).into_response()
}

async fn shown(app: &Arc<App>, rendering: &Rendering) -> Result<Arc<str>, ApiError> {
    let entries = app.handle.health().await?.journal_entries;
    let render = async |reload| Ok(web::page(&page_data(app).await?, reload).into_string());
    rendering.page(entries, render).await
}

async fn page_data(app: &Arc<App>) -> Result<PageData, ApiError> {
    let queues = app.handle.queues().await?.queues;
    let mut jobs = jobs_shown(app, &queues).await?;
    jobs.iter_mut().for_each(|job| job.alerts = app.alerts.firing_about(&job.id));
    let mut curves = Vec::new();
    for job in jobs.iter_mut().filter(|job| job.progress.step.is_some()).take(CURVES_SHOWN) {
        let id = jobs::parse_job(&job.id)?;
        curves.push((job.id.clone(), loss::curves(app, id).await));
        job.metrics = metrics::last_values(app, id).await;
    }
    let nodes = app.handle.nodes().await?.nodes;
    let health = app.handle.health().await?;
    Ok(PageData { jobs, curves, nodes, queues, health })
}

/// Returns the jobs on the page: those that hold devices, then those that wait, then those that have ended, each newest
/// first. However many wait or have ended, those that run are there.
async fn jobs_shown(app: &Arc<App>, queues: &[Queue]) -> Result<Vec<Job>, ApiError> {
    let active = queues.iter().flat_map(|queue| &queue.running).filter_map(|id| id.parse().ok());
    let mut active: Vec<JobId> = active.collect();
    active.sort_unstable_by(|a, b| b.cmp(a));
    let mut shown = jobs::active_jobs(app, active, ACTIVE_SHOWN).await?;
    let waiting = jobs::list_jobs(app, Standing::Live.into(), None, WAITING_SHOWN).await?.jobs;
    shown.extend(waiting.into_iter().filter(|job| job.state == JobState::Waiting));
    shown.extend(jobs::list_jobs(app, Standing::Ended.into(), None, ENDED_SHOWN).await?.jobs);
    Ok(shown)
}
