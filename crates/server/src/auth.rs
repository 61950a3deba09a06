//! Authentication: users send the data folder's token, supervisors their attempt's. The token is checked
//! before the body is read. Requests for a foreign host name are refused, so that a web page can't reach a
//! control plane on loopback under another name.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gangline_base::{AttemptNumber, Epoch, JobId, NodeName, Submitter};
use gangline_execution::endpoint::{ATTEMPT_HEADER, TrackingToken};
use gangline_execution::protocol::agent::NODE_HEADER;

use super::basic::password;
use super::body::{Gathering, gather, turn_away};
use super::crowd::Admission;
use super::error::ApiError;
use super::{App, REPORT_BODY_BYTES_MAX, USER_BODY_BYTES_MAX};

/// The cookie that the page's link sets.
pub(super) const COOKIE: &str = "gangline_session";
/// Bytes of a report's body within which its job and attempt stand, for reports without the header.
const NAMED_WITHIN: usize = 128;

/// Lets requests with the users' token through. The page's cookie allows reading only.
pub(super) async fn require_user(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let Some(user) = user_of(&app, &request) else {
        turn_away(request).await;
        return ApiError::unauthorized().into_response();
    };
    prove(request.extensions().get());
    request.extensions_mut().insert(user);
    match gather(request, USER_BODY_BYTES_MAX).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets requests through that track experiments: those of users, and those of an attempt's ranks. The handler reads the body.
pub(super) async fn require_tracker(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let rank = match bearer(request.headers()).and_then(|token| rank_of(&app, token)) {
        Some(rank) if !app.tracking.rank_access.is_open(&app, rank.job, rank.attempt).await => None,
        rank => rank,
    };
    match (rank, user_of(&app, &request)) {
        (Some(rank), _) => {
            request.extensions_mut().insert(rank);
        }
        (None, Some(user)) => {
            request.extensions_mut().insert(user);
        }
        (None, None) => {
            turn_away(request).await;
            return ApiError::unauthorized().into_response();
        }
    }
    prove(request.extensions().get());
    next.run(request).await
}

/// Returns the attempt whose rank a token for tracking belongs to.
fn rank_of(app: &App, token: &str) -> Option<Reporting> {
    let token = TrackingToken::read(token)?;
    let TrackingToken { job, attempt, epoch, .. } = token;
    token.is_of(&app.secrets.attempt_token(job, attempt, epoch)).then_some(Reporting { job, attempt, epoch })
}

/// Reads the whole body of an authenticated request.
pub(super) async fn read_body(request: Request, next: Next) -> Response {
    match gather(request, USER_BODY_BYTES_MAX).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Returns the user that a request proves to come from.
fn user_of(app: &App, request: &Request) -> Option<Submitter> {
    let headers = request.headers();
    let by_password = || app.user_of(&password(headers)?);
    let by_header = bearer(headers).and_then(|token| app.user_of(token)).or_else(by_password);
    let by_cookie = || (request.method() == Method::GET && has_cookie(app, headers)).then(|| app.user.clone());
    by_header.or_else(by_cookie)
}

/// The attempt that a report belongs to, proved by its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reporting {
    pub(super) job: JobId,
    pub(super) attempt: AttemptNumber,
    pub(super) epoch: Epoch,
}

/// The node whose agent a report comes from, proved by its token.
#[derive(Clone, Debug)]
pub(super) struct AgentOf(pub(super) NodeName);

/// Lets reports with the token of their attempt through. Supervisors of the previous release don't name the
/// attempt in a header but at the beginning of their reports, so that much of the body is read first.
pub(super) async fn require_attempt(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut body = Gathering::new(body);
    let named = match parts.headers.get(ATTEMPT_HEADER) {
        Some(value) => value.to_str().ok().and_then(named_in_header),
        None if bearer(&parts.headers).is_some() => body.beginning(NAMED_WITHIN).await.ok().and_then(named_in_body),
        None => None,
    };
    let is_its_own = |named: &Reporting| {
        bearer(&parts.headers).is_some_and(|token| app.secrets.is_attempt(token, named.job, named.attempt, named.epoch))
    };
    let Some(named) = named.filter(is_its_own) else {
        turn_away(Request::from_parts(parts, body.rest())).await;
        return ApiError::unauthorized().into_response();
    };
    prove(parts.extensions.get());
    parts.extensions.insert(named);
    match body.whole(REPORT_BODY_BYTES_MAX).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(error) => error.into_response(),
    }
}

/// Lets reports with the token of their node's agent through.
pub(super) async fn require_agent(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let named = headers.get(NODE_HEADER).and_then(|value| NodeName::new(value.to_str().ok()?).ok());
    let is_its_own = |node: &NodeName| bearer(headers).is_some_and(|token| app.secrets.is_agent(token, node));
    let Some(node) = named.filter(is_its_own) else {
        turn_away(request).await;
        return ApiError::unauthorized().into_response();
    };
    prove(request.extensions().get());
    request.extensions_mut().insert(AgentOf(node));
    match gather(request, REPORT_BODY_BYTES_MAX).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn named_in_header(text: &str) -> Option<Reporting> {
    let (job, rest) = text.split_once('/')?;
    let (attempt, epoch) = rest.split_once('/')?;
    let epoch = Epoch(u64::from_str_radix(epoch, 16).ok()?);
    Some(Reporting { job: JobId(job.parse().ok()?), attempt: AttemptNumber(attempt.parse().ok()?), epoch })
}

/// Reads job, attempt and epoch from `{"version":1,"job":7,"attempt":3,...`, as every release so far begins
/// its reports; some name the epoch next.
fn named_in_body(beginning: &[u8]) -> Option<Reporting> {
    let text = String::from_utf8_lossy(beginning);
    let number = |name: &str| {
        let (_, after) = text.split_once(&format!("\"{name}\":"))?;
        let digits = after.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    let attempt = u32::try_from(number("attempt")?).ok()?;
    let epoch = Epoch(number("epoch").unwrap_or_default());
    Some(Reporting { job: JobId(number("job")?), attempt: AttemptNumber(attempt), epoch })
}

/// Marks the connection as authenticated. Without a server there is no admission.
pub(super) fn prove(admission: Option<&Arc<Admission>>) {
    if let Some(admission) = admission {
        admission.prove();
    }
}

/// Reports whether the request has a valid cookie of the page.
pub(super) fn has_cookie(app: &App, headers: &HeaderMap) -> bool {
    let cookies = headers.get(header::COOKIE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let session =
        cookies.split(';').filter_map(|cookie| cookie.trim().split_once('=')).find(|(name, _)| *name == COOKIE);
    session.is_some_and(|(_, session)| app.visits.is_open(session))
}

/// Returns the token of an `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::trim)
}

/// Refuses requests whose Host header names neither loopback nor this control plane.
pub(super) async fn require_own_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let is_own = host.is_none_or(|host| is_local(host) || is_named(host, &app.hosts));
    if is_own { next.run(request).await } else { ApiError::foreign_host().into_response() }
}

fn is_local(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_named(host: &str, names: &[String]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(name_of(host)))
}

/// Returns the host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_local() {
        for host in ["localhost", "LOCALHOST:7878", "127.0.0.1:80", "127.1.2.3", "[::1]:7878", "[::1]"] {
            assert!(is_local(host), "{host} is local");
        }
        for host in ["example.com", "127.0.0.1.example.com", "10.0.0.1:7878", "[::2]", "", "localhost.evil"] {
            assert!(!is_local(host), "{host} is not local");
        }
    }

    #[test]
    fn beyond_loopback_only_its_own_names_are_good() {
        let names = ["head.example", "10.0.0.1", "fd00::2"].map(str::to_owned);
        for host in ["head.example", "HEAD.example:7878", "10.0.0.1:7878", "[fd00::2]:7878"] {
            assert!(is_named(host, &names), "{host} is its own");
        }
        for host in ["head.example.evil", "10.0.0.2:7878", "[fd00::3]", ""] {
            assert!(!is_named(host, &names), "{host} is not");
        }
    }

    #[test]
    fn a_report_names_its_attempt_in_its_header_or_at_its_beginning() {
        let named = |job, attempt, epoch| {
            Some(Reporting { job: JobId(job), attempt: AttemptNumber(attempt), epoch: Epoch(epoch) })
        };
        let epoch = Epoch(u64::MAX - 1);
        assert_eq!(named_in_header(&format!("7/3/{epoch}")), named(7, 3, epoch.0));
        for bad in
            ["", "7", "7/3", "/3/1", "7//1", "7/3/", "7/3/x", "7/3/1/1", "-7/3/1", "7/99999999999/1", "job-7/3/1"]
        {
            assert_eq!(named_in_header(bad), None, "{bad}");
        }
        assert_eq!(named_in_body(br#"{"version":1,"job":7,"attempt":3,"node":"n1","supervi"#), named(7, 3, 0));
        let newer = br#"{"version":1,"job":7,"attempt":3,"epoch":18446744073709551614,"node":"n1"#;
        assert_eq!(named_in_body(newer), named(7, 3, epoch.0));
        for bad in ["", "{}", r#"{"job":7}"#, r#"{"job":"7","attempt":3}"#, r#"{"job":7,"attempt":99999999999}"#] {
            assert_eq!(named_in_body(bad.as_bytes()), None, "{bad}");
        }
    }
}
