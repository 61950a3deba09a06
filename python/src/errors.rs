//! Maps the store's errors to the exceptions of `gangline/errors.py`, one for each decision a caller can
//! make.

use pyo3::prelude::*;

use gangline_data::Error as DataError;
use gangline_storage::{Error, archive, with_causes};

/// The module of the exceptions. They are defined in Python, since one that is also a `ValueError` needs two
/// bases.
const MODULE: &str = "gangline.errors";

/// Returns the exception for an error of the store.
pub(crate) fn exception(error: &Error) -> PyErr {
    let mut text = with_causes(error);
    if let Error::Disagreement { .. } = error {
        text.push_str("; what is to differ by rank goes into a gangline.PerRank");
    }
    numbered(raise(class(error), &text), error)
}

/// Sets Python's `errno`, if the operating system caused the error.
fn numbered(raised: PyErr, error: &Error) -> PyErr {
    let number = match error {
        Error::NoSpace { source, .. } | Error::Io { source, .. } | Error::Memory { source, .. } => {
            source.raw_os_error()
        }
        _ => None,
    };
    let noted = Python::attach(|py| number.map_or(Ok(()), |number| raised.value(py).setattr("errno", number)));
    noted.map_or_else(|failed| failed, |()| raised)
}

/// Returns the exception for an error of an archive.
pub(crate) fn archive_exception(error: &archive::Error) -> PyErr {
    let class = match error {
        archive::Error::Store(error) => class(error),
        archive::Error::NotFound { .. } => "NotFound",
        archive::Error::Corrupt { .. } => "Corrupt",
        archive::Error::NoRoom { .. } => "NoSpace",
        archive::Error::Remote { .. } => "Unreachable",
        // The caller must correct the others; nothing was changed.
        _ => "Refused",
    };
    let raised = raise(class, &with_causes(error));
    if let archive::Error::Store(error) = error { numbered(raised, error) } else { raised }
}

/// Returns the exception for an error of token data.
pub(crate) fn data_exception(error: &DataError) -> PyErr {
    let class = match error {
        DataError::NotFound { .. } => "NotFound",
        DataError::Malformed { .. } => "Corrupt",
        DataError::Changed { .. } => "Changed",
        DataError::Io { .. } => "IoFailed",
        DataError::Remote { .. } => "Unreachable",
        DataError::TooWide { .. }
        | DataError::Refused { .. }
        | DataError::OtherState { .. }
        | DataError::Mixture { .. } => "Refused",
    };
    let raised = raise(class, &with_causes(error));
    let number = if let DataError::Io { source, .. } = error { source.raw_os_error() } else { None };
    let noted = Python::attach(|py| number.map_or(Ok(()), |number| raised.value(py).setattr("errno", number)));
    noted.map_or_else(|failed| failed, |()| raised)
}

/// Returns a `Refused` exception, for arguments refused before the store sees them.
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
        Error::Disagreement { .. } | Error::Abandoned { .. } => "Disagreement",
        Error::Timeout { .. } => "TimedOut",
        Error::Superseded { .. } => "Superseded",
        Error::Held { .. } => "Held",
        Error::Closed => "Closed",
        Error::Changed { .. } => "Changed",
        Error::Archive { .. } | Error::Occupied { .. } | Error::NothingSelected { .. } => "Refused",
        Error::LastGood { .. } | Error::NoSuchBranch { .. } => "Refused",
        Error::ReadOnly | Error::Limit { .. } | Error::InvalidTensor { .. } | Error::InvalidOptions { .. } => "Refused",
    }
}

fn raise(class: &str, text: &str) -> PyErr {
    let text = text.to_owned();
    let made = Python::attach(|py| py.import(MODULE)?.getattr(class)?.call1((text,)).map(PyErr::from_value));
    made.unwrap_or_else(|import_failed| import_failed)
}
