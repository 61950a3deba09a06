//! The OpenAPI document. A test compares it with the committed docs/openapi.json.

use utoipa::openapi::content::Content;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Ref, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Required};
use utoipa::{Modify, OpenApi};

use super::once::KEY_BYTES_MAX;
use super::{
    agents, alerts, cost, goodput, jobs, logs, metrics, models, nodes, reload, schedules, sweeps, templates, token, why,
};

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
        jobs::change,
        jobs::resume,
        jobs::explain,
        metrics::list,
        metrics::curves,
        sweeps::show,
        sweeps::cancel,
        logs::read,
        why::show,
        goodput::show,
        cost::report,
        cost::of_job,
        cost::usage,
        cost::demand,
        cost::budgets,
        cost::forecast,
        cost::estimate,
        alerts::routes::list,
        alerts::routes::acknowledge,
        alerts::routes::silence,
        alerts::routes::end_silence,
        schedules::list,
        schedules::create,
        schedules::change,
        templates::list,
        templates::show,
        models::list,
        models::show,
        models::register,
        models::version,
        models::verified,
        models::promote,
        models::exported,
        nodes::list,
        agents::show,
        metrics::list_of_node,
        metrics::curves_of_node,
        nodes::drain,
        nodes::undrain,
        nodes::queues,
        nodes::health,
        reload::reload,
        token::link,
        token::rotate
    ),
    components(schemas(gangline_api::JobStanding, logs::LogKind))
)]
struct Document;

/// Adds the description of the bearer token.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some("the data folder's token, in its file \"token\"".to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// Adds the errors that every operation can return.
struct Refusals;

impl Modify for Refusals {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            item.get.iter_mut().for_each(|operation| complete(operation, &[]));
            if let Some(operation) = &mut item.post {
                let with_body = &CHANGES_MAY_MEET[..if operation.request_body.is_some() { 3 } else { 2 }];
                complete(operation, with_body);
                operation.parameters.get_or_insert_default().push(RefOr::T(idempotency_key()));
            }
        }
    }
}

/// Errors that every request can return.
const ALWAYS_POSSIBLE: [&str; 6] = ["400", "401", "403", "408", "500", "503"];
/// Errors that a change can return besides: the body is too large, the key was used for another request, or
/// (last, only with a body) the content type isn't JSON.
const CHANGES_MAY_MEET: [&str; 3] = ["413", "422", "415"];

/// Adds the errors that an operation can return besides its own, and describes all of them.
fn complete(operation: &mut Operation, besides: &[&str]) {
    let is_open = operation.security.is_some();
    let responses = &mut operation.responses.responses;
    for status in ALWAYS_POSSIBLE.iter().chain(besides).filter(|status| !is_open || **status != "401") {
        let content = Content::new(Some(Ref::from_schema_name("ErrorBody")));
        let response = ResponseBuilder::new().content("application/json", content).build();
        responses.entry((*status).to_owned()).or_insert_with(|| response.into());
    }
    for (status, response) in responses {
        if let RefOr::T(response) = response {
            response.description = describe(status).to_owned();
        }
    }
}

fn idempotency_key() -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(KEY_BYTES_MAX));
    let description = "Names this change: sent again with the same key, path and body, it is made once and answered as at \
                       first. See docs/reference/guarantees.md.";
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(text))
        .build()
}

fn describe(status: &str) -> &'static str {
    match status {
        "200" => "as asked",
        "400" => "the request is malformed, or the job file has problems",
        "401" => "a valid token is required",
        "403" => "the request names a host that isn't this machine",
        "404" => "there is no such job, sweep, node, log, alert or silence",
        "408" => "the request took too long",
        "409" => "what it names is not in a state for that, or is in use by another job",
        "413" => "the request's body is too large",
        "415" => "the body isn't said to be application/json",
        "422" => "the job could never fit, or the Idempotency-Key was used for another request",
        "429" => "too many jobs wait, or there are too many silences",
        "500" => "a bug in the control plane",
        _ => "the control plane is overloaded, stopping, or can't write its journal",
    }
}

/// Returns the OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}
