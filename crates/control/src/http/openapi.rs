//! The OpenAPI document. The one that is checked in (docs/openapi.json) is compared with this by a test.

use utoipa::OpenApi;

use super::{jobs, logs, nodes};

/// The API as a document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Gangline",
        description = "The control plane's API. Every path but /api/v1/health and \
        /api/v1/openapi.json needs the data folder's token as a bearer."
    ),
    paths(
        jobs::list,
        jobs::submit,
        jobs::show,
        jobs::cancel,
        jobs::explain,
        jobs::series,
        logs::read,
        nodes::list,
        nodes::drain,
        nodes::undrain,
        nodes::queues,
        nodes::health
    )
)]
struct Document;

/// The document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
