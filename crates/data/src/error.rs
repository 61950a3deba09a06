//! What can go wrong, by what a caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::order::MixtureError;

/// Why data can't be opened, read or written. The message names the file, the place in it, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file or folder, or nothing in it that holds tokens.
    #[error("find tokens at {}: {problem}", path.display())]
    NotFound {
        /// What was asked for.
        path: PathBuf,
        /// What was missing.
        problem: String,
    },
    /// A file isn't what its format says: cut off, damaged, or of another format.
    #[error("read {} at byte {offset}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A file was changed after it was opened.
    #[error(
        "read {}: it had {opened} bytes when it was opened and was changed since; open the data again, from a checkpoint of \
         before the change",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its bytes when it was opened.
        opened: u64,
    },
    /// A token doesn't fit the numbers that were asked for.
    #[error("give the tokens of {} as 32-bit numbers: one does not fit; ask for int64", path.display())]
    TooWide {
        /// The data.
        path: PathBuf,
    },
    /// An option makes no sense, alone or with this data. Nothing was changed.
    #[error("use {option}: {problem}")]
    Refused {
        /// The option.
        option: &'static str,
        /// Why not, and what to do.
        problem: String,
    },
    /// A saved position is of other data or another order.
    #[error("resume the data: {problem}")]
    OtherState {
        /// What differs.
        problem: String,
    },
    /// The weights of a mixture make no sense.
    #[error("mix sources: {0}")]
    Mixture(#[from] MixtureError),
    /// A remote dataset couldn't be fetched.
    #[error("fetch {url}")]
    Remote {
        /// The object, or the folder.
        url: String,
        /// Why not.
        source: Box<gangline_objects::Error>,
    },
    /// The operating system refused.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: the operating system refused to do `action` with `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => {
                Error::NotFound { path: path.to_owned(), problem: "no such file or folder".to_owned() }
            }
            _ => Error::Io { action, path: path.to_owned(), source },
        }
    }

    pub(crate) fn malformed(path: &Path, offset: usize, problem: impl Into<String>) -> Error {
        Error::Malformed { path: path.to_owned(), offset: offset as u64, problem: problem.into() }
    }

    pub(crate) fn refused(option: &'static str, problem: impl Into<String>) -> Error {
        Error::Refused { option, problem: problem.into() }
    }
}
