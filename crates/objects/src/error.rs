//! Why objects couldn't be read or changed, as decisions that a caller can make.

use std::path::PathBuf;

/// What the remote reported, in its own words.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why an act on an object failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address names no place that this program can reach.
    #[error("open {url:?}: {why}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it, and what to write instead.
        why: String,
    },
    /// There is no such object.
    #[error("read {key}: it is missing")]
    Missing {
        /// The object.
        key: String,
    },
    /// The object isn't in the state that was asked for any more.
    #[error("read {key}: it was changed")]
    Changed {
        /// The object.
        key: String,
    },
    /// The object is shorter than the range asked for, or the answer was cut off in every try.
    #[error("read {key}: {found} bytes instead of {expected}")]
    Length {
        /// The object.
        key: String,
        /// The length of the range.
        expected: u64,
        /// The bytes received.
        found: u64,
    },
    /// The remote didn't do what it was asked, after all tries that make sense. The act may have taken effect
    /// all the same: its answer may be what was lost.
    #[error("{act} {key}, tried {tries} times")]
    Failed {
        /// What was being done.
        act: &'static str,
        /// To which object.
        key: String,
        /// The number of tries.
        tries: u32,
        /// The last answer.
        source: Source,
    },
}

/// Why a change of a folder failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// An fsync has failed before, so what is on the disk can't be known.
    #[error("write: the folder is poisoned since fsync of {} failed", path.display())]
    Poisoned { path: PathBuf },
    /// The operating system refused.
    #[error("{act} {}", path.display())]
    Io { act: &'static str, path: PathBuf, source: std::io::Error },
}
