//! Gives out the files of a folder over HTTP, by ranges and with the time of their last change: where the demo has no object store.

use std::path::PathBuf;

use tokio::net::TcpListener;
use tower_http::services::ServeDir;

/// Gives out a folder's files to whoever connects, without authentication, until the future is dropped.
///
/// # Errors
/// When the listener fails.
pub async fn give_out(listener: TcpListener, folder: PathBuf) -> std::io::Result<()> {
    axum::serve(listener, axum::Router::new().fallback_service(ServeDir::new(folder))).await
}
