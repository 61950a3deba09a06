//! Why tracking can't do something.

use gangline_tracking::Refusal;
use thiserror::Error;

/// Why nothing was changed or read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The request is wrong.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The disk has no room left.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    /// The database or a file can't be read or written.
    #[error("tracking's store failed: {0}")]
    Store(String),
    /// An earlier failure keeps everything from being written.
    #[error("tracking writes nothing since an earlier failure ({0}): restart the control plane")]
    Poisoned(String),
    /// More changes wait than the queue holds.
    #[error("too many changes wait")]
    Busy,
    /// Tracking isn't running.
    #[error("tracking isn't running: {0}")]
    Stopped(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Failure::DiskFull(error.to_string()),
            _ => Failure::Store(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::DiskFull(error.to_string()),
            _ => Failure::Store(error.to_string()),
        }
    }
}
