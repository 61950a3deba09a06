//! The OpenAPI document. The one that is checked in (docs/openapi.json) is compared with this by a test.

use utoipa::openapi::RefOr;
use utoipa::openapi::content::Content;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::Ref;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{jobs, logs, nodes, sweeps};

/// The API as a document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Gangline",
        description = "The control plane's API. Every path but /api/v1/health and \
        /api/v1/openapi.json needs the data folder's token as a bearer. Every answer that isn't a success has an \
        ErrorBody: a stable code, a sentence, a hint."
    ),
    modifiers(&Bearer, &Refusals),
    security(("bearer" = [])),
    paths(
        jobs::list,
        jobs::submit,
        jobs::show,
        jobs::cancel,
        jobs::explain,
        jobs::series,
        sweeps::show,
        sweeps::cancel,
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

/// Describes what may happen to every request.
struct Refusals;

impl Modify for Refusals {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let items = document.paths.paths.values_mut();
        for operation in items.flat_map(|item| [item.get.as_mut(), item.post.as_mut()]).flatten() {
            let is_open = operation.security.is_some();
            let responses = &mut operation.responses.responses;
            for status in ALWAYS_POSSIBLE.into_iter().filter(|status| !is_open || *status != "401") {
                let content = Content::new(Some(Ref::from_schema_name("ErrorBody")));
                let response = ResponseBuilder::new().content("application/json", content).build();
                responses.entry(status.to_owned()).or_insert_with(|| response.into());
            }
            for (status, response) in responses {
                if let RefOr::T(response) = response {
                    response.description = describe(status).to_owned();
                }
            }
        }
    }
}

/// Refusals that every request may meet.
const ALWAYS_POSSIBLE: [&str; 4] = ["400", "401", "403", "503"];

fn describe(status: &str) -> &'static str {
    match status {
        "200" => "as asked",
        "400" => "the request is malformed, or the job file has problems",
        "401" => "a valid token is required",
        "403" => "the request names a host that isn't this machine",
        "404" => "there is no such job, sweep, node or log",
        "409" => "what it names is not in a state for that",
        "413" => "the request's body is too large",
        "422" => "the job could never fit",
        _ => "the control plane is overloaded, stopping, or can't write its journal",
    }
}

/// The document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
