//! Errors as MLflow's clients read them: `{"error_code": …, "message": …}`.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use gangline_store::tracking::Failure;
use gangline_tracking::{Code, Refusal};
use serde_json::json;

/// An error answer.
#[derive(Debug)]
pub(super) struct MlflowError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl MlflowError {
    pub(super) fn invalid(message: impl Into<String>) -> MlflowError {
        Refusal::invalid(message).into()
    }

    pub(super) fn missing_parameter(name: &str) -> MlflowError {
        MlflowError::invalid(format!(
            "Missing value for required parameter '{name}'. See the API docs for more information about request parameters."
        ))
    }

    /// The token doesn't allow it.
    pub(super) fn denied(message: &str) -> MlflowError {
        MlflowError { status: StatusCode::FORBIDDEN, code: "PERMISSION_DENIED", message: message.to_owned() }
    }

    pub(super) fn internal(message: &str) -> MlflowError {
        MlflowError { status: StatusCode::INTERNAL_SERVER_ERROR, code: "INTERNAL_ERROR", message: message.to_owned() }
    }

    /// Something of MLflow's that Gangline doesn't offer. 404 isn't sent again, as a 5xx would be.
    pub(super) fn no_endpoint(method: &Method) -> MlflowError {
        MlflowError {
            status: StatusCode::NOT_FOUND,
            code: "ENDPOINT_NOT_FOUND",
            message: format!(
                "Gangline has no such endpoint for {method}; docs/guides/tracking.md lists what it offers"
            ),
        }
    }
}

impl From<Refusal> for MlflowError {
    fn from(Refusal { code, message }: Refusal) -> MlflowError {
        let (status, code) = match code {
            Code::InvalidParameterValue => (StatusCode::BAD_REQUEST, "INVALID_PARAMETER_VALUE"),
            Code::ResourceDoesNotExist => (StatusCode::NOT_FOUND, "RESOURCE_DOES_NOT_EXIST"),
            Code::ResourceAlreadyExists => (StatusCode::BAD_REQUEST, "RESOURCE_ALREADY_EXISTS"),
            // MLflow answers 500 here, which its clients would send again for minutes.
            Code::InvalidState => (StatusCode::BAD_REQUEST, "INVALID_STATE"),
        };
        MlflowError { status, code, message }
    }
}

impl From<Failure> for MlflowError {
    fn from(failure: Failure) -> MlflowError {
        let message = failure.to_string();
        let unavailable = |status, code| MlflowError { status, code, message };
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Busy => unavailable(StatusCode::TOO_MANY_REQUESTS, "REQUEST_LIMIT_EXCEEDED"),
            // Clients send these again for a while, in which a disk may get room.
            Failure::DiskFull(_) | Failure::Stopped(_) | Failure::Poisoned(_) => {
                unavailable(StatusCode::SERVICE_UNAVAILABLE, "TEMPORARILY_UNAVAILABLE")
            }
            Failure::Store(_) => unavailable(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR"),
        }
    }
}

impl IntoResponse for MlflowError {
    fn into_response(self) -> Response {
        let MlflowError { status, code, message } = self;
        (status, Json(json!({"error_code": code, "message": message}))).into_response()
    }
}
