//! Who may ask: users with the data folder's token, supervisors with their attempt's. Requests that name a foreign host are
//! refused, so that a page somewhere on the web can't reach a control plane on loopback under another name.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::App;
use super::error::ApiError;

/// The cookie that the page's link sets.
pub(super) const COOKIE: &str = "gangline_token";

/// Lets requests with the users' token through. The page's cookie is good for reading only.
pub(super) async fn require_user(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let by_header = bearer(headers).is_some_and(|token| app.secrets.is_user(token));
    let is_read = request.method() == Method::GET;
    if by_header || is_read && has_cookie(&app, headers) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

/// Whether the request has the page's cookie.
pub(super) fn has_cookie(app: &App, headers: &HeaderMap) -> bool {
    let cookies = headers.get(header::COOKIE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = cookies.split(';').filter_map(|cookie| cookie.trim().split_once('=')).find(|(name, _)| *name == COOKIE);
    token.is_some_and(|(_, token)| app.secrets.is_page(token))
}

/// The token of an `Authorization: Bearer` header.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::trim)
}

/// Refuses requests whose Host header is neither this machine's loopback nor a name that this control plane goes by.
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

/// Without the port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_local, is_named};

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
}
