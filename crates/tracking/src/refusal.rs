//! Why a request is refused, in the words that MLflow's clients know.

use thiserror::Error;

/// The kinds of refusals; clients see them as `error_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Something in the request is wrong.
    InvalidParameterValue,
    /// What the request names doesn't exist.
    ResourceDoesNotExist,
    /// What the request would make exists already.
    ResourceAlreadyExists,
    /// What the request names is in no state for it.
    InvalidState,
}

/// A refused request: nothing of it was done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of refusal it is.
    pub code: Code,
    /// What is wrong, and where.
    pub message: String,
}

impl Refusal {
    /// Something in the request is wrong.
    pub fn invalid(message: impl Into<String>) -> Refusal {
        Refusal { code: Code::InvalidParameterValue, message: message.into() }
    }

    /// What the request names doesn't exist.
    pub fn missing(message: impl Into<String>) -> Refusal {
        Refusal { code: Code::ResourceDoesNotExist, message: message.into() }
    }

    /// What the request would make exists already.
    pub fn exists(message: impl Into<String>) -> Refusal {
        Refusal { code: Code::ResourceAlreadyExists, message: message.into() }
    }

    /// What the request names is in no state for it.
    pub fn state(message: impl Into<String>) -> Refusal {
        Refusal { code: Code::InvalidState, message: message.into() }
    }
}
