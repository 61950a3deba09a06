//! `Idempotency-Key`: a user's change with a key is made once. A repetition with the same path and body gets
//! the first answer, whatever has happened since; the same key with another path or body is refused. See
//! docs/reference/guarantees.md.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use gangline_base::{Principal, Submitter};

use super::error::ApiError;
use super::{App, USER_BODY_BYTES_MAX, read};
use gangline_control::service::{self, Handle};
use gangline_control::views::RequestKey;

/// The header with the client's idempotency key.
const KEY: &str = "idempotency-key";
/// The header that marks a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = 255;

/// Who requests a change, and its idempotency key, if it has one.
pub(super) struct Caller {
    /// The user, as the authentication layer proved.
    pub(super) user: Submitter,
    key: Option<RequestKey>,
}

impl Caller {
    /// Returns the handle for the caller's change.
    pub(super) fn handle(&self, app: &App) -> Handle {
        app.handle.by(Principal::User(self.user.clone())).keyed(self.key.clone())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let key = parts.extensions.remove::<RequestKey>();
        let user = parts.extensions.get::<Submitter>().cloned().ok_or_else(ApiError::unauthorized)?;
        Ok(Caller { user, key })
    }
}

/// Repeats the stored answer of a change that was made before, and attaches the key to any other change.
pub(super) async fn answer_once(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }
    match recall(&app, request).await {
        Ok(Recalled::Answered(body)) => {
            let json = HeaderValue::from_static("application/json");
            let yes = HeaderValue::from_static("true");
            ([(header::CONTENT_TYPE, json), (REPLAYED, yes)], body).into_response()
        }
        Ok(Recalled::New(request)) => next.run(*request).await,
        Err(error) => error.into_response(),
    }
}

enum Recalled {
    /// The change was answered before, with this body.
    Answered(String),
    /// The change is new and goes on with its key.
    New(Box<Request>),
}

async fn recall(app: &Arc<App>, request: Request) -> Result<Recalled, ApiError> {
    let text = key_of(request.headers())?.to_owned();
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, USER_BODY_BYTES_MAX).await.map_err(|_| ApiError::body_too_large(USER_BODY_BYTES_MAX))?;
    let user = parts.extensions.get::<Submitter>().ok_or_else(ApiError::unauthorized)?.0.clone();
    let key = RequestKey { user, key: text, request: fingerprint(&parts.method, &parts.uri, &body) };
    if app.handle.may_know(&key) {
        let asked = key.clone();
        if let Some(kept) = read(app, move |views| views.answer(&asked)).await? {
            let body = kept.for_request(&key).map_err(service::Error::from)?;
            return Ok(Recalled::Answered(body.to_owned()));
        }
    }
    parts.extensions.insert(key);
    Ok(Recalled::New(Box::new(Request::from_parts(parts, Body::from(body)))))
}

/// Returns the request's only key, which consists of visible ASCII characters.
fn key_of(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut values = headers.get_all(KEY).iter();
    let only = values.next().filter(|_| values.next().is_none());
    let text = only
        .and_then(|value| value.to_str().ok())
        .filter(|text| (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.ok_or_else(|| {
        ApiError::malformed(format!("the Idempotency-Key isn't one word of 1 to {KEY_BYTES_MAX} visible ASCII letters"))
    })
}

/// Returns a hash that identifies what is requested: equal requests have equal hashes.
fn fingerprint(method: &Method, uri: &Uri, body: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    for part in [method.as_str().as_bytes(), target.as_bytes(), body] {
        let length = u64::try_from(part.len()).expect("u64 holds a usize on Linux");
        hasher.update(&length.to_le_bytes()).update(part);
    }
    hasher.finalize()
}
