//! Bodies of requests. They are read after it is known who asks, into memory of a limited size and in a limited time; of
//! somebody who may not ask nothing is kept. Keeps A-10.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;

use super::error::ApiError;

/// The longest until a body is read.
const BODY_MAX: Duration = Duration::from_secs(30);
/// What is thrown away of a body that nobody wants, so that its sender, who reads only then, gets to see the answer.
const UNWANTED_BYTES_MAX: u64 = 256 << 10;
/// And for how long.
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

    /// The body's beginning: at least so many bytes, unless it is shorter.
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

    /// What hasn't been read.
    pub(super) fn rest(self) -> Body {
        self.body
    }

    /// The whole body.
    ///
    /// # Errors
    /// If it has more than `bytes_max`; as many again are read then and thrown away.
    pub(super) async fn whole(mut self, bytes_max: usize) -> Result<Bytes, ApiError> {
        self.beginning(bytes_max + 1).await?;
        if self.bytes.len() <= bytes_max {
            return Ok(self.bytes.into());
        }
        discard(self.body, bytes_max as u64).await;
        Err(ApiError::body_too_large(bytes_max))
    }
}

/// Reads the body of a request of somebody who may ask.
pub(super) async fn gather(request: Request, bytes_max: usize) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = Gathering::new(body).whole(bytes_max).await?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Does away with the request of somebody who may not ask.
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
    // Whoever sends for longer may miss the answer.
    let _ = tokio::time::timeout(UNWANTED_MAX, discarding).await;
}

/// The next piece; none at the end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.transpose().map_err(|_| ApiError::malformed("the body breaks off"))? {
            None => return Ok(None),
            // What isn't data is a trailer, which nobody asked for.
            Some(frame) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}
