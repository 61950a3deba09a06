//! The store's errors as the exceptions of `gangline/errors.py`, one for each decision that a caller can make.

use pyo3::prelude::*;

use gangline_storage::Error;

/// Where the exceptions are defined: in Python, since one that is also a `ValueError` needs two bases.
const MODULE: &str = "gangline.errors";

/// The exception for an error of the store; its text is the whole chain of causes.
pub(crate) fn exception(error: &Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    raise(class(error), &text)
}

/// A refusal of arguments that the store never saw.
pub(crate) fn refused(text: &str) -> PyErr {
    raise("Refused", text)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "NotFound",
        Error::Corrupt { .. } => "Corrupt",
        Error::Poisoned { .. } => "Poisoned",
        Error::NoSpace { .. } => "NoSpace",
        Error::Io { .. } | Error::Memory { .. } => "IoFailed",
        Error::Disagreement { .. } => "Disagreement",
        Error::Timeout { .. } => "TimedOut",
        Error::Superseded { .. } => "Superseded",
        Error::Closed => "Closed",
        Error::Archive { .. }
        | Error::ReadOnly
        | Error::Limit { .. }
        | Error::InvalidTensor { .. }
        | Error::InvalidOptions { .. } => "Refused",
    }
}

fn raise(class: &str, text: &str) -> PyErr {
    let text = text.to_owned();
    let made = Python::attach(|py| py.import(MODULE)?.getattr(class)?.call1((text,)).map(PyErr::from_value));
    made.unwrap_or_else(|import_failed| import_failed)
}
