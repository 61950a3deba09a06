//! Artifacts, which clients send through the control plane and [fetch](super::downloads). They are streamed, so their size has its own limit and
//! their time none but that something has to arrive.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gangline_store::tracking::{ArtifactEntry, Failure, Upload};
use gangline_tracking::{Refusal, limits};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::answer::MlflowError;
use super::{Tracking, downloads, names, no_endpoint, wire};
use crate::App;
use crate::crowd::Admission;

/// The scheme of URIs that this control plane keeps.
const SCHEME: &str = "mlflow-artifacts:/";
/// The largest artifact, in bytes.
const ARTIFACT_BYTES_MAX: u64 = 1 << 40;
/// The longest wait for the next bytes of an upload.
const STALLED_MAX: Duration = Duration::from_secs(60);
/// Pieces that wait between the network and the disk.
pub(super) const PIECES_WAITING: usize = 4;

/// The paths below `/api/2.0/mlflow-artifacts`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/artifacts", get(list))
        .route("/artifacts/{*path}", get(downloads::download).put(upload).delete(remove))
        .route("/mpu/{*rest}", post(no_endpoint))
        .route("/presigned/{*path}", get(downloads::sign))
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
pub(super) async fn blocking<T: Send + 'static>(
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
