//! The page at `/`: rendered here from what the API gives. The link that `gangline up` prints carries the token
//! once; it becomes a cookie that is good for reading only.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::auth::{COOKIE, has_cookie};
use super::error::ApiError;
use super::{App, jobs};
use crate::web::{self, PageData};

/// Jobs on the page.
const JOBS_SHOWN: u32 = 50;
/// Jobs whose curve is drawn.
const CURVES_SHOWN: usize = 12;
/// Points of a curve on the page.
const POINTS_SHOWN: u32 = 200;

/// The link's token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    token: Option<String>,
}

/// The page; with a token in the link, a cookie and the same page without it.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return ApiError::from(rejection).into_response(),
    };
    if let Some(token) = query.token {
        if !app.secrets.is_user(&token) {
            return refused();
        }
        let secure = if app.hosts.is_empty() { "" } else { "; Secure" };
        let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict{secure}", app.secrets.page_token());
        return ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response();
    }
    if !has_cookie(&app, &headers) {
        return refused();
    }
    match page_data(&app).await {
        Ok(data) => {
            // Nothing may be loaded or run but what is in the page itself.
            let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
            let headers = [(header::CONTENT_SECURITY_POLICY, policy), (header::CACHE_CONTROL, "no-store")];
            (headers, Html(web::page(&data).into_string())).into_response()
        }
        Err(error) => error.into_response(),
    }
}

fn refused() -> Response {
    (StatusCode::UNAUTHORIZED, Html(web::sign_in().into_string())).into_response()
}

async fn page_data(app: &Arc<App>) -> Result<PageData, ApiError> {
    let jobs = jobs::list_jobs(app, None, JOBS_SHOWN).await?.jobs;
    let mut curves = Vec::new();
    for job in jobs.iter().filter(|job| job.progress.step.is_some()).take(CURVES_SHOWN) {
        curves.push(jobs::series_of(app, jobs::parse_job(&job.id)?, POINTS_SHOWN).await?);
    }
    let nodes = app.handle.nodes().await?.nodes;
    let queues = app.handle.queues().await?.queues;
    let health = app.handle.health().await?;
    Ok(PageData { jobs, curves, nodes, queues, health })
}
