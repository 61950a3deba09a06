//! Request bodies. A body is read after authentication, with a limit on its size and on the time it takes;
//! nothing of an unauthenticated body is kept. Keeps A-10.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;

use super::error::ApiError;

/// The longest time to read a body.
const BODY_MAX: Duration = Duration::from_secs(30);
/// Bytes of a refused body that are read and discarded, because its sender reads the answer only afterwards.
const UNWANTED_BYTES_MAX: u64 = 256 << 10;
/// The longest time spent discarding a body.
const UNWANTED_MAX: Duration = Duration::from_secs(1);

/// A body that is being read.
pub(super) struct Gathering {
    body: Body,
    bytes: Vec<u8>,
}

impl Gathering {
    pub(super) fn new(body: Body) -> Self {
        Gathering { body, bytes: Vec::new() }
    }

    /// Returns the beginning of the body: at least `length` bytes, unless the body is shorter.
    pub(super) async fn beginning(&mut self, length: usize) -> Result<&[u8], ApiError> {
        let reading = async {
            while self.bytes.len() < length {
                let Some(piece) = next(&mut self.body).await? else { break };
                self.bytes.extend_from_slice(&piece);
            }
            Ok::<(), ApiError>(())
        };
        tokio::time::timeout(BODY_MAX, reading).await.map_err(|_| ApiError::too_slow())??;
        Ok(&self.bytes)
    }

    /// Returns the part of the body that hasn't been read.
    pub(super) fn rest(self) -> Body {
        self.body
    }

    /// Returns the whole body.
    ///
    /// # Errors
    /// If it has more than `bytes_max` bytes; up to as many again are then read and discarded.
    pub(super) async fn whole(mut self, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.beginning(bytes_max + 1).await?;
        if self.bytes.len() <= bytes_max {
            return Ok(self.bytes.into());
        }
        discard(self.body, bytes_max as u64).await;
        Err(ApiError::body_too_large(bytes_max))
    }
}

/// Reads the body of an authenticated request.
pub(super) async fn gather(request: Request, bytes_max: usize) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = Gathering::new(body).whole(bytes_max).await?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Discards the body of a refused request.
pub(super) async fn turn_away(request: Request) {
    let waits_for_word = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    if !waits_for_word && body.size_hint().lower() <= UNWANTED_BYTES_MAX {
        discard(body, UNWANTED_BYTES_MAX).await;
    }
}

async fn discard(mut body: Body, bytes_max: u64) {
    let discarding = async {
        let mut left = bytes_max;
        while let Ok(Some(piece)) = next(&mut body).await {
            match left.checked_sub(piece.len() as u64) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A sender that takes longer may miss the answer.
    let _ = tokio::time::timeout(UNWANTED_MAX, discarding).await;
}

/// Returns the next piece of the body, or none at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.transpose().map_err(|_| ApiError::malformed("the body breaks off"))? {
            None => return Ok(None),
            // Frames without data are trailers, which are ignored.
            Some(frame) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}
