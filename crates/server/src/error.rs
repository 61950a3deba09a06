//! Errors on the wire: HTTP status, stable code, sentence, hint. Never a stack trace.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use gangline_api as api;
use gangline_orchestration::Refusal;
use gangline_specs::jobfile;
use tracing::error;

use gangline_control::service;
use gangline_store::db;
use gangline_telemetry::series;

/// The most queues named in one hint.
const QUEUES_NAMED_MAX: usize = 20;

/// The error answer of a handler.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    detail: api::ErrorDetail,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (code, message, hint) = (code.to_owned(), message.into(), hint.into());
        ApiError { status, detail: api::ErrorDetail { code, message, hint, problems: Vec::new() } }
    }

    /// Returns the error in a line, with the first problem of a job file.
    pub(super) fn line(&self) -> String {
        let first = self.detail.problems.first();
        let first = first.map(|problem| format!(": {}: {}", problem.place, problem.message)).unwrap_or_default();
        format!("[{}] {}{first}", self.detail.code, self.detail.message)
    }

    pub(super) fn unauthorized() -> Self {
        let hint = "send the token of the data folder as \"Authorization: Bearer TOKEN\", or open a link that gangline token link prints";
        ApiError::new(StatusCode::UNAUTHORIZED, "G0301", "a valid token is required", hint)
    }

    pub(super) fn no_job(id: &str) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "G0302", format!("there is no job \"{id}\""), "gangline ps lists the jobs")
    }

    pub(super) fn no_sweep(id: &str) -> Self {
        let message = format!("there is no sweep \"{id}\"");
        ApiError::new(StatusCode::NOT_FOUND, "G0302", message, "gangline show JOB names the sweep of a job")
    }

    fn job_ended(id: impl std::fmt::Display) -> Self {
        ApiError::new(StatusCode::CONFLICT, "G0303", format!("{id} has already ended"), "gangline show tells how")
    }

    pub(super) fn no_node(name: &str) -> Self {
        let message = format!("there is no node \"{name}\"");
        ApiError::new(StatusCode::NOT_FOUND, "G0304", message, "gangline nodes lists them")
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        let hint = "/api/v1/openapi.json describes every request";
        ApiError::new(StatusCode::BAD_REQUEST, "G0306", message, hint)
    }

    pub(super) fn bad_change(message: String) -> Self {
        let hint = "docs/reference/job-file.md says how each value is written";
        ApiError::new(StatusCode::BAD_REQUEST, "G0107", message, hint)
    }

    pub(super) fn no_such_path() -> Self {
        let hint = "/api/v1/openapi.json lists the paths";
        ApiError::new(StatusCode::NOT_FOUND, "G0307", "there is nothing at this path", hint)
    }

    pub(super) fn wrong_method() -> Self {
        let hint = "/api/v1/openapi.json lists the methods of each path";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "G0307", "this path has no such method", hint)
    }

    pub(super) fn foreign_host() -> Self {
        let hint = "reach the control plane by 127.0.0.1, localhost, [::1], or the name it was given with --advertise";
        ApiError::new(StatusCode::FORBIDDEN, "G0309", "the request names a host that isn't this machine", hint)
    }

    pub(super) fn protocol_version(found: u32, known: u32) -> Self {
        let message = format!("the supervisor speaks protocol version {found}, this control plane {known}");
        let hint = "run the same version of gangline everywhere";
        ApiError::new(StatusCode::BAD_REQUEST, "G0310", message, hint)
    }

    pub(super) fn no_log(message: impl Into<String>) -> Self {
        let hint = "gangline show lists the attempts and ranks; a rank has a log once it was started";
        ApiError::new(StatusCode::NOT_FOUND, "G0311", message, hint)
    }

    pub(super) fn removed_log(message: impl Into<String>) -> Self {
        let hint = "[retention] in the control plane's configuration says how long logs are kept";
        ApiError::new(StatusCode::GONE, "G0318", message, hint)
    }

    pub(super) fn removed_job(id: impl std::fmt::Display) -> Self {
        let message = format!("{id} ended long ago, and its record was removed");
        let hint = "[retention] in the control plane's configuration says how long records are kept; the ledger keeps what the job cost";
        ApiError::new(StatusCode::GONE, "G0318", message, hint)
    }

    pub(super) fn body_too_large(bytes_max: usize) -> Self {
        let hint = format!("send less: a request may have {}", gangline_base::Bytes(bytes_max as u64));
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "G0305", "the request's body is too large", hint)
    }

    pub(super) fn too_slow() -> Self {
        let hint = "send the whole request at once, and a change again with the same Idempotency-Key";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "G0314", "the request took too long", hint)
    }

    pub(super) fn internal(message: &str) -> Self {
        error!(message, "a request failed");
        let hint = "the control plane's log says more; please report it";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "G0399", message, hint)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(api::ErrorBody { error: self.detail })).into_response()
    }
}

impl From<series::Error> for ApiError {
    fn from(error: series::Error) -> Self {
        let message = gangline_base::with_causes(&error);
        match error {
            series::Error::Refused { .. } => ApiError::malformed(message),
            series::Error::Overloaded => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0308", message, "try again in a moment")
            }
            _ => {
                let hint = "look at the folder \"series\" in the data folder and at its disk; jobs and decisions go on without it";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0322", message, hint)
            }
        }
    }
}

impl From<service::Error> for ApiError {
    fn from(error: service::Error) -> Self {
        let message = error.to_string();
        match error {
            service::Error::Refused(refusal) => refused(&refusal),
            service::Error::NoJob(id) => ApiError::no_job(&id.to_string()),
            service::Error::JobEnded(id) => ApiError::job_ended(id),
            service::Error::DependencyFailed(_) => {
                let hint = "leave out \"after\", or say how the job may have ended, as in after: {job-12: any}";
                ApiError::new(StatusCode::CONFLICT, "G0422", message, hint)
            }
            service::Error::Finished(id) => {
                let hint = format!("gangline resume --again {id} runs it all the same");
                ApiError::new(StatusCode::CONFLICT, "G0330", message, hint)
            }
            service::Error::NotEnded(_) | service::Error::NotResumable(_) => cannot_resume(&error, message),
            service::Error::NoMailServer(_) => {
                let hint = "name one in the table [smtp] of the configuration, or leave notify.email out";
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0331", message, hint)
            }
            service::Error::TooLong { .. } => {
                let hint =
                    "ask for less, and save: a job that its launcher ends goes on from its checkpoint in a new attempt";
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0336", message, hint)
            }
            service::Error::TooLarge { .. } => {
                let hint =
                    "ask for less, or let an administrator raise the limit: no attempt of the job would ever start";
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0338", message, hint)
            }
            service::Error::NoContainers { .. } => {
                let hint = "install what is missing where the control plane's PATH finds it, or leave image out";
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0337", message, hint)
            }
            service::Error::Forgotten(id) => ApiError::removed_job(id),
            service::Error::NoNode(name) => ApiError::no_node(name.as_str()),
            service::Error::Poisoned { .. } => {
                let hint = "free the disk or repair it: the control plane then goes on by itself; running jobs go on meanwhile";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0207", message, hint)
            }
            service::Error::JournalFull { .. } => {
                let hint = "send it again later, or restart the control plane with a higher --journal-max; jobs that are there go on";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0214", message, hint)
            }
            service::Error::NotConfigured(_) => {
                let hint = "add it to the configuration again and restart the control plane";
                ApiError::new(StatusCode::CONFLICT, "G0313", message, hint)
            }
            service::Error::KeyReused(_) => {
                let hint = "make a new key for each change; send a key again only with the same path and body";
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0320", message, hint)
            }
            service::Error::AnswerDamaged(_) => {
                let hint = "the change was made: gangline ps and gangline nodes show what it led to; don't send it again with another \
                            key before looking";
                ApiError::new(StatusCode::CONFLICT, "G0321", message, hint)
            }
            service::Error::Unreadable { code, .. } => {
                let hint = "look at the control plane's disk and log, then send it again with the same key";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message, hint)
            }
            service::Error::Unanswered => {
                let hint = "send it again with the same Idempotency-Key; without one look with gangline ps first";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0314", message, hint)
            }
            service::Error::Overloaded | service::Error::Stopping => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "G0308", message, "try again in a moment")
            }
        }
    }
}

/// Returns the error for a job that can't be resumed.
fn cannot_resume(error: &service::Error, message: String) -> ApiError {
    let hint = match error {
        service::Error::NotEnded(_) => "only an ended job is resumed; one that is held starts with gangline release",
        _ => "submit its job file again; it finds the checkpoints if it has the same checkpoint.path",
    };
    ApiError::new(StatusCode::CONFLICT, "G0423", message, hint)
}

/// Returns the error for a change of a job that doesn't wait, or for a job that would wait for too many others.
fn cannot_wait_so(refusal: &Refusal, message: String) -> ApiError {
    if matches!(refusal, Refusal::NotWaiting(_)) {
        let hint = "cancel it, or wait until it waits again";
        return ApiError::new(StatusCode::CONFLICT, "G0421", message, hint);
    }
    let hint = "let one job come after them, and further jobs after that one";
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0402", message, hint)
}

fn refused(refusal: &Refusal) -> ApiError {
    let message = refusal.to_string();
    let unprocessable =
        |code, hint: &str| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, refusal.to_string(), hint);
    match refusal {
        Refusal::UnknownJob(id) => ApiError::no_job(&id.to_string()),
        Refusal::NotWaiting(_) | Refusal::TooManyDependencies { .. } => cannot_wait_so(refusal, message),
        Refusal::UnknownNode(id) => ApiError::no_node(&id.to_string()),
        Refusal::LostNode(_) => ApiError::new(StatusCode::CONFLICT, "G0312", message, "bring the node back first"),
        Refusal::Stale { job, .. } | Refusal::MetricNotDue { job, .. } => ApiError::job_ended(job),
        Refusal::NeverFits(fit) => {
            let hint = format!("what would fit: {}", fit.what_would_fit());
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0401", message, hint)
        }
        Refusal::UnknownSweep(id) => ApiError::job_ended(id),
        Refusal::SweepPoint { because, .. } => {
            let mut error = refused(because);
            error.detail.message = message;
            error
        }
        Refusal::SweepSize { .. } => unprocessable("G0402", "split it into several sweeps"),
        Refusal::NoPrice { .. } => unprocessable(
            "G0410",
            "leave the budget out, or have a [[price]] put into the control plane's configuration",
        ),
        Refusal::BudgetTooSmall { .. } => {
            unprocessable("G0411", "raise the budget, or ask for less or for a shorter checkpoint.grace")
        }
        Refusal::UnknownQueue { queues, .. } => {
            let names: Vec<&str> = queues.iter().map(gangline_base::QueueName::as_str).take(QUEUES_NAMED_MAX).collect();
            let hint = format!(
                "queues that take jobs: {}; name one (queue: NAME), or have scheduling.default_queue configured",
                names.join(", ")
            );
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "G0404", message, hint)
        }
        Refusal::BeyondLimit { .. } => {
            unprocessable("G0405", "ask for less, or have the queue's borrowing limit raised")
        }
        Refusal::Configuration(_) => unprocessable("G0508", "docs/reference/configuration.md describes queues"),
        Refusal::QueueFull { .. } => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "G0402", message, "wait until some have run, or cancel some")
        }
        Refusal::FolderTaken { holder, .. } => {
            let hint = format!(
                "name another folder, end {holder} first, or write checkpoint: {{share: true}} if both are meant to use it"
            );
            ApiError::new(StatusCode::CONFLICT, "G0415", message, hint)
        }
        Refusal::TooLarge { .. } => {
            unprocessable("G0412", "put data and scripts into files that the job reads, or split the sweep")
        }
        Refusal::UserJobs { .. } => {
            let hint = "wait until some have ended, cancel some, or have limits.jobs_per_user raised";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "G0413", message, hint)
        }
        Refusal::Stored { .. } => {
            let hint = "wait until some have ended, or put long texts into files that the jobs read";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "G0414", message, hint)
        }
        Refusal::UnevenSegments { .. } => unprocessable("G0401", "make the nodes a multiple of topology.segment.nodes"),
        Refusal::Misplaced(_) => {
            unprocessable("G0406", "make the configuration's nodes agree on where their domains lie")
        }
        Refusal::ClusterFull { .. } => unprocessable("G0403", "configure fewer nodes"),
    }
}

impl From<db::Error> for ApiError {
    fn from(error: db::Error) -> Self {
        error!(%error, code = error.code(), "a read failed");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), error.to_string(), error.hint())
    }
}

impl From<Vec<jobfile::Problem>> for ApiError {
    fn from(problems: Vec<jobfile::Problem>) -> Self {
        let message = format!("the job file has {} problem(s)", problems.len());
        let hint = "correct the places named; docs/reference/job-file.md describes every key";
        let mut error = ApiError::new(StatusCode::BAD_REQUEST, "G0100", message, hint);
        error.detail.problems = problems.into_iter().map(problem_to_api).collect();
        error
    }
}

fn problem_to_api(problem: jobfile::Problem) -> api::Problem {
    let place = match problem.place {
        jobfile::Place::File { line, column } => format!("{line}:{column}"),
        jobfile::Place::Template { name, line, column } => format!("template {name}:{line}:{column}"),
        jobfile::Place::Override(option) => format!("--set {option}"),
    };
    let code = problem.code.as_str().to_owned();
    api::Problem { code, place, message: problem.message, hint: problem.hint.unwrap_or_default() }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        if rejection.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            let hint = "send JSON with \"Content-Type: application/json\"";
            let message = lowercase(&rejection.body_text());
            return ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "G0306", message, hint);
        }
        ApiError::malformed(lowercase(&rejection.body_text()))
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        ApiError::malformed(lowercase(&rejection.body_text()))
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::malformed(lowercase(&rejection.body_text()))
    }
}

fn lowercase(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
