//! `Idempotency-Key`: a user's change that comes with one is made once. Sent again with the same path and body, it is answered
//! as it was the first time, whatever has happened since; with others it is refused. See docs/guarantees.md.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::{App, USER_BODY_BYTES_MAX, read};
use crate::model::{RequestKey, read_answer};

/// What a client names its request with.
const KEY: &str = "idempotency-key";
/// Says that an answer is one of before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = 255;

/// The key of a change, if it has one.
pub(super) struct Keyed(pub(super) Option<RequestKey>);

impl<S: Send + Sync> FromRequestParts<S> for Keyed {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Keyed(parts.extensions.remove::<RequestKey>()))
    }
}

/// Answers a change that was answered before as it was then, and marks any other with its key.
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
    /// It was answered with this body.
    Answered(String),
    /// It wasn't, and goes on with its key.
    New(Box<Request>),
}

async fn recall(app: &Arc<App>, request: Request) -> Result<Recalled, ApiError> {
    let text = key_of(request.headers())?.to_owned();
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, USER_BODY_BYTES_MAX).await.map_err(|_| ApiError::body_too_large(USER_BODY_BYTES_MAX))?;
    let key =
        RequestKey { user: app.user.0.clone(), key: text, request: fingerprint(&parts.method, &parts.uri, &body) };
    if app.handle.may_know(&key) {
        let (user, text) = (key.user.clone(), key.key.clone());
        if let Some(kept) = read(app, move |transaction| read_answer(transaction, &user, &text)).await? {
            return Ok(Recalled::Answered(kept.for_request(&key)?.to_owned()));
        }
    }
    parts.extensions.insert(key);
    Ok(Recalled::New(Box::new(Request::from_parts(parts, Body::from(body)))))
}

/// One key of visible letters.
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

/// What is asked for: two requests with the same one ask for the same.
fn fingerprint(method: &Method, uri: &Uri, body: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    for part in [method.as_str().as_bytes(), target.as_bytes(), body] {
        let length = u64::try_from(part.len()).expect("u64 holds a usize on Linux");
        hasher.update(&length.to_le_bytes()).update(part);
    }
    hasher.finalize()
}
