//! Errors of the series store.

use std::io;
use std::path::{Path, PathBuf};

/// Why the store can't do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system failed an operation.
    #[error("{doing} {path}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file isn't what was written there.
    #[error("read {path}: it is damaged ({what})")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What doesn't fit.
        what: &'static str,
    },
    /// A newer release wrote the file.
    #[error("read {path}: its format is version {found}, this program knows {known}")]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: u32,
        /// The newest version that is known.
        known: u32,
    },
    /// A batch breaks a limit, or isn't one.
    #[error("take in a batch: {what}")]
    Refused {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The head is full, because segments can't be written.
    #[error("take in a batch: memory is full, because the disk can't be written to: {cause}")]
    Full {
        /// Why the last segment couldn't be written.
        cause: String,
    },
    /// Too many batches wait.
    #[error("take in a batch: the series store is overloaded")]
    Overloaded,
    /// The store isn't running.
    #[error("the series store is closed: {cause}")]
    Closed {
        /// Why.
        cause: String,
    },
}

impl Error {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { doing, path, source }
    }

    pub(super) fn damaged(path: &Path, what: &'static str) -> Error {
        Error::Damaged { path: path.to_owned(), what }
    }

    /// Reports whether the sender should send the batch again later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Io { .. } | Error::Full { .. } | Error::Overloaded | Error::Closed { .. })
    }
}
