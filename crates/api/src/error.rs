//! Errors on the wire: a stable code, a lowercase sentence, and a hint.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that isn't a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A stable code with a page in docs/errors.
    #[schema(examples("G0301"))]
    pub code: String,
    /// What, as a sentence without capital or full stop.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// For a job file: every problem found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// One problem of a job file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A stable code with a page in docs/errors.
    pub code: String,
    /// Where: `line:column`, or the `--set` it came from.
    pub place: String,
    /// What, naming key and value.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}
