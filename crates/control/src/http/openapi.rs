//! The OpenAPI document. The one that is checked in (docs/openapi.json) is compared with this by a test.

use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{jobs, logs, nodes};

/// The API as a document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Gangline",
        description = "The control plane's API. Every path but /api/v1/health and \
        /api/v1/openapi.json needs the data folder's token as a bearer. Every answer that isn't a success has an \
        ErrorBody: a stable code, a sentence, a hint."
    ),
    modifiers(&Bearer),
    security(("bearer" = [])),
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

/// Describes the token.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some("the data folder's token, in its file \"token\"".to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// The document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
