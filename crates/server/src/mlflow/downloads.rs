//! Artifacts on their way to clients: through the control plane, whole or a range of them, or by an address at the place of
//! their contents.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gangline_store::tracking::{ArtifactReader, StoredArtifact};
use serde_json::json;
use tokio::sync::mpsc;

use super::answer::MlflowError;
use super::artifacts::{PIECES_WAITING, blocking};
use super::wire;
use crate::App;
use crate::crowd::Admission;

/// Most bytes handed to the network at once.
const PIECE_BYTES: usize = 256 << 10;

/// Says where a client downloads an artifact by itself. Without an address it takes the way through the control plane, since it
/// isn't told the size either (`MlflowArtifactsRepository._download_file`).
pub(super) async fn sign(State(app): State<Arc<App>>, Path(path): Path<String>) -> Result<Response, MlflowError> {
    if !app.tracking.artifacts.is_direct() {
        return Err(MlflowError::no_endpoint(&axum::http::Method::GET));
    }
    let (stored, url) = blocking(&app, move |tracking| tracking.artifacts.signed_url(&path)).await?;
    let answer =
        wire::Object::new().with("headers", json!({})).with_some("file_size", url.as_ref().map(|_| stored.bytes));
    Ok(Json(answer.with("url", url.unwrap_or_default()).done()).into_response())
}

pub(super) async fn download(
    State(app): State<Arc<App>>,
    Path(path): Path<String>,
    request: Request,
) -> Result<Response, MlflowError> {
    let admission = request.extensions().get::<Arc<Admission>>().cloned();
    let name = path.rsplit('/').next().unwrap_or_default().replace(['"', '\\'], "_");
    let reader = blocking(&app, move |tracking| tracking.artifacts.read(&path)).await?;
    let stored = reader.stored().clone();
    let length = [(header::ACCEPT_RANGES, "bytes".to_owned())];
    let (status, range) = match wanted(request.headers(), &stored) {
        Wanted::All => (StatusCode::OK, 0..stored.bytes),
        Wanted::Range(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Nothing => {
            let size = [(header::CONTENT_RANGE, format!("bytes */{}", stored.bytes))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, length, size).into_response());
        }
    };
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, (range.end - range.start).to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
        // Nothing that a client uploaded runs as a page of this control plane.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::ETAG, tag(&stored)),
    ];
    let part = (status == StatusCode::PARTIAL_CONTENT)
        .then(|| [(header::CONTENT_RANGE, format!("bytes {}-{}/{}", range.start, range.end - 1, stored.bytes))]);
    let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
    let bytes = range.end - range.start;
    tokio::task::spawn_blocking(move || read(reader.within(range), &pieces));
    let body = Body::new(Outgoing { waiting, admission, bytes });
    Ok(match part {
        Some(part) => (status, length, headers, part, body).into_response(),
        None => (status, length, headers, body).into_response(),
    })
}

fn tag(stored: &StoredArtifact) -> String {
    format!("\"{}\"", stored.digest)
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Range(Range<u64>),
    /// A range that begins behind the end.
    Nothing,
}

/// Returns what a request asks for (RFC 9110, section 14). A header with several ranges or another unit is passed over, as is
/// one of an artifact that was replaced since.
fn wanted(headers: &HeaderMap, stored: &StoredArtifact) -> Wanted {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_RANGE).is_some_and(|condition| condition != tag(stored)) {
        return Wanted::All;
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.trim().split_once('-')) else { return Wanted::All };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (first, end) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(stored.bytes)),
        (Some(first), None) if last.is_empty() => (first, stored.bytes),
        // The last bytes.
        (None, Some(count)) if first.is_empty() => (stored.bytes.saturating_sub(count), stored.bytes),
        _ => return Wanted::All,
    };
    if first < end { Wanted::Range(first..end) } else { Wanted::Nothing }
}

/// Sends what a reader reads until it ends or nobody takes it.
fn read(mut reader: ArtifactReader, pieces: &mpsc::Sender<std::io::Result<Bytes>>) {
    loop {
        let mut piece = match reader.next_piece() {
            Ok(None) => return,
            Ok(Some(piece)) => Bytes::from(piece),
            Err(failure) => {
                tracing::warn!(%failure, "an artifact can't be read");
                // Breaks the answer off; nobody may be there any more.
                let _ = pieces.blocking_send(Err(std::io::Error::other(failure)));
                return;
            }
        };
        while !piece.is_empty() {
            let next = piece.split_to(piece.len().min(PIECE_BYTES));
            if pieces.blocking_send(Ok(next)).is_err() {
                return;
            }
        }
    }
}

/// The body of a download.
struct Outgoing {
    waiting: mpsc::Receiver<std::io::Result<Bytes>>,
    admission: Option<Arc<Admission>>,
    bytes: u64,
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        self.waiting.poll_recv(context).map(|piece| {
            match &piece {
                // Bytes that leave show that the connection is needed.
                Some(_) => self.admission.iter().for_each(|admission| admission.prove()),
                None => self.admission.iter().for_each(|admission| admission.rest()),
            }
            piece.map(|piece| piece.map(http_body::Frame::data))
        })
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use gangline_store::tracking::Digest;

    use super::*;

    #[test]
    fn a_range_is_what_lies_in_the_artifact() {
        let stored = StoredArtifact { digest: Digest([7; 32]), bytes: 10, place: None };
        let check = |range: &str, expected: Wanted| {
            let headers = HeaderMap::from_iter([(header::RANGE, range.parse().expect("a header"))]);
            assert_eq!(wanted(&headers, &stored), expected, "{range}");
        };
        check("bytes=0-3", Wanted::Range(0..4));
        check("bytes=4-", Wanted::Range(4..10));
        check("bytes=-3", Wanted::Range(7..10));
        check("bytes=-30", Wanted::Range(0..10));
        check("bytes=8-99", Wanted::Range(8..10));
        check("bytes=10-", Wanted::Nothing);
        check("bytes=-0", Wanted::Nothing);
        for strange in ["bytes=3-2", "bytes=0-1,4-5", "bytes=x-", "bytes=+1-2", "items=0-1", "bytes=", "bytes=-"] {
            check(strange, Wanted::All);
        }
        let condition = |tag: &str| {
            let pairs = [(header::RANGE, "bytes=0-3"), (header::IF_RANGE, tag)];
            HeaderMap::from_iter(pairs.map(|(name, value)| (name, value.parse().expect("a header"))))
        };
        assert_eq!(wanted(&condition(&tag(&stored)), &stored), Wanted::Range(0..4));
        assert_eq!(wanted(&condition("\"another\""), &stored), Wanted::All);
    }
}
