//! Serves the files of a folder over HTTP, with ranges and `Last-Modified`. The demo uses it in place of an object store.

use std::path::PathBuf;

use tokio::net::TcpListener;
use tower_http::services::ServeDir;

/// Serves a folder's files without authentication until the future is dropped.
///
/// # Errors
/// When the listener fails.
pub async fn serve_folder(listener: TcpListener, folder: PathBuf) -> std::io::Result<()> {
    axum::serve(listener, axum::Router::new().fallback_service(ServeDir::new(folder))).await
}
