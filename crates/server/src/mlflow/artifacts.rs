//! Artifacts, which clients send and fetch through the control plane. They are streamed, so their size has its own limit and
//! their time none but that something has to arrive.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gangline_store::tracking::{ArtifactEntry, Failure, Upload};
use gangline_tracking::{Refusal, limits};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::answer::MlflowError;
use super::{Tracking, names, no_endpoint, wire};
use crate::App;
use crate::crowd::Admission;

/// The scheme of URIs that this control plane keeps.
const SCHEME: &str = "mlflow-artifacts:/";
/// The largest artifact, in bytes.
const ARTIFACT_BYTES_MAX: u64 = 1 << 40;
/// The longest wait for the next bytes of an upload, or for a reader to take them.
const STALLED_MAX: Duration = Duration::from_secs(60);
/// Bytes read from a file at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait between the network and the disk.
const PIECES_WAITING: usize = 4;

/// The paths below `/api/2.0/mlflow-artifacts`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/artifacts", get(list))
        .route("/artifacts/{*path}", get(download).put(upload).delete(remove))
        .route("/mpu/{*rest}", post(no_endpoint))
        .route("/presigned/{*rest}", get(no_endpoint))
        .fallback(no_endpoint)
}

/// Lists what lies below a URI, with paths relative to it.
pub(super) fn list_below(tracking: &Tracking, uri: &str, path: &str) -> Result<Value, MlflowError> {
    let Some(root) = uri.strip_prefix(SCHEME) else {
        let message = format!("the artifacts lie at {uri}, which this control plane doesn't read: list them there");
        return Err(MlflowError::invalid(message));
    };
    if !path.is_empty() {
        limits::check_artifact_path(path)?;
    }
    let folder = if path.is_empty() { root.to_owned() } else { format!("{root}/{path}") };
    let listed = tracking.artifacts.list(&folder)?;
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let files = wire::Object::new().with("root_uri", uri);
    Ok(files.with_list("files", &listed, |entry| file(entry, &prefix)).done())
}

fn file(entry: &ArtifactEntry, prefix: &str) -> Value {
    wire::Object::new()
        .with("path", format!("{prefix}{}", entry.name))
        .with("is_dir", entry.bytes.is_none())
        .with_some("file_size", entry.bytes)
        .done()
}

async fn list(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, MlflowError> {
    let folder = super::fields::Fields::of_query(query.as_deref()).text("path")?.unwrap_or_default();
    let listed = blocking(&app, move |tracking| tracking.artifacts.list(folder.trim_matches('/'))).await?;
    let files = wire::Object::new().with_list("files", &listed, |entry| file(entry, ""));
    Ok(Json(files.done()).into_response())
}

/// Runs something on a thread where blocking is allowed.
async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    call: impl FnOnce(&Tracking) -> Result<T, Failure> + Send + 'static,
) -> Result<T, MlflowError> {
    let tracking = app.tracking.clone();
    let outcome = tokio::task::spawn_blocking(move || call(&tracking)).await;
    outcome.map_err(|_| MlflowError::internal("a handler panicked"))?.map_err(MlflowError::from)
}

async fn remove(State(app): State<Arc<App>>, Path(path): Path<String>) -> Result<Response, MlflowError> {
    blocking(&app, move |tracking| tracking.artifacts.remove(path)).await?;
    Ok(Json(json!({})).into_response())
}

async fn upload(
    State(app): State<Arc<App>>,
    Path(path): Path<String>,
    request: Request,
) -> Result<Response, MlflowError> {
    limits::check_artifact_path(&path)?;
    let admission = request.extensions().get::<Arc<Admission>>().cloned();
    let (pieces, waiting) = mpsc::channel::<Bytes>(PIECES_WAITING);
    let name = names::id()?;
    let tracking = app.tracking.clone();
    let written = tokio::task::spawn_blocking(move || {
        let upload = tracking.artifacts.begin(&name)?;
        write(upload, waiting)
    });
    let received = receive(request.into_body(), pieces, admission).await;
    let upload = written.await.map_err(|_| MlflowError::internal("the writer panicked"))?;
    // What was cut off is dropped, which removes its file.
    let upload = upload?;
    received?;
    let now = app.tracking.now();
    blocking(&app, move |tracking| tracking.artifacts.put(path, upload, now)).await?;
    Ok(Json(json!({})).into_response())
}

fn write(mut upload: Upload, mut pieces: mpsc::Receiver<Bytes>) -> Result<Upload, Failure> {
    while let Some(piece) = pieces.blocking_recv() {
        upload.write(&piece)?;
    }
    Ok(upload)
}

/// Passes a body on, piece by piece.
async fn receive(
    mut body: Body,
    pieces: mpsc::Sender<Bytes>,
    admission: Option<Arc<Admission>>,
) -> Result<(), MlflowError> {
    let mut bytes = 0;
    loop {
        let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context));
        let frame = tokio::time::timeout(STALLED_MAX, frame).await;
        let stalled = || Refusal::invalid(format!("the upload stalled for {} s", STALLED_MAX.as_secs()));
        let frame = match frame.map_err(|_| stalled())? {
            None => return Ok(()),
            Some(frame) => frame.map_err(|_| Refusal::invalid("the upload breaks off"))?,
        };
        let Ok(piece) = frame.into_data() else { continue };
        bytes += piece.len() as u64;
        if bytes > ARTIFACT_BYTES_MAX {
            return Err(MlflowError::invalid(format!("an artifact has at most {ARTIFACT_BYTES_MAX} bytes: split it")));
        }
        // Bytes that arrive show that the connection is needed.
        admission.iter().for_each(|admission| admission.prove());
        if pieces.send(piece).await.is_err() {
            // The writer says why it ended.
            return Ok(());
        }
    }
}

async fn download(
    State(app): State<Arc<App>>,
    Path(path): Path<String>,
    request: Request,
) -> Result<Response, MlflowError> {
    let admission = request.extensions().get::<Arc<Admission>>().cloned();
    let name = path.rsplit('/').next().unwrap_or_default().replace(['"', '\\'], "_");
    let (file, stored) = blocking(&app, move |tracking| tracking.artifacts.read(&path)).await?;
    let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
    tokio::task::spawn_blocking(move || read(file, &pieces));
    let body = Body::new(Outgoing { waiting, admission, bytes: stored.bytes });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, stored.bytes.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
        // Nothing that a client uploaded runs as a page of this control plane.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::ETAG, format!("\"{}\"", stored.digest)),
    ];
    Ok((StatusCode::OK, headers, body).into_response())
}

/// Sends a file's contents until it ends or nobody takes them.
fn read(mut file: std::fs::File, pieces: &mpsc::Sender<std::io::Result<Bytes>>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let sent = match file.read(&mut piece) {
            Ok(0) => return,
            Ok(length) => Ok(Bytes::copy_from_slice(&piece[..length])),
            Err(error) => Err(error),
        };
        let is_last = sent.is_err();
        if pieces.blocking_send(sent).is_err() || is_last {
            return;
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
