//! Errors of the store, one variant for each decision a caller can make.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Step;
use rustix::io::Errno;

use crate::Branch;

/// Why the store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no checkpoint of this step.
    #[error("find a checkpoint of step {step}")]
    NotFound {
        /// The requested step.
        step: Step,
    },
    /// A file of the checkpoint is not what was saved. The caller should fall back to an older checkpoint.
    #[error("read {}{}: {flaw}", path.display(), tensor.as_ref().map(|name| format!(", tensor {name:?}")).unwrap_or_default())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The tensor, if the fault is within one.
        tensor: Option<String>,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// An earlier fsync failed: the state of the disk is unknown, so this store writes no more. Open a
    /// new one on a healthy disk.
    #[error("save: the store is poisoned since fsync of {} failed", path.display())]
    Poisoned {
        /// The file or folder whose fsync failed.
        path: PathBuf,
    },
    /// The disk or quota is full. This save is lost, earlier ones are unaffected, and a later one may
    /// succeed.
    #[error("write {}: no space left", path.display())]
    NoSpace {
        /// The file that didn't fit.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{act} {}", path.display())]
    Io {
        /// The operation that failed.
        act: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// There is not enough memory to copy the save. Nothing of it is on disk, and a smaller or later one may
    /// succeed.
    #[error("save: reserve {bytes} bytes of host memory for its copy")]
    Memory {
        /// The bytes needed.
        bytes: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// Something is larger than a named limit allows.
    #[error("accept {what}: {value} is more than {max}")]
    Limit {
        /// The thing that is limited.
        what: &'static str,
        /// The actual value.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// A tensor is invalid and can't be saved: the caller's mistake.
    #[error("accept tensor {tensor:?}: {why}")]
    InvalidTensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The target already exists; nothing was overwritten.
    #[error("make {}: it is there already, and not empty", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// No tensor of the checkpoint matches the selection.
    #[error("find a tensor whose name begins with {prefix:?}")]
    NothingSelected {
        /// The prefix of the wanted names.
        prefix: String,
    },
    /// The options contradict themselves.
    #[error("open the store: {why}")]
    InvalidOptions {
        /// The contradiction.
        why: &'static str,
    },
    /// A value changed before the copy of the save was complete: the caller's mistake. The checkpoint isn't
    /// visible.
    #[error("save step {step}: {what} changed before it was copied")]
    Changed {
        /// The step.
        step: Step,
        /// What changed.
        what: String,
    },
    /// A rank of the gang saved different tensors, values or metadata for the same step.
    #[error("commit step {step}: rank {rank} saved something else than rank 0: {what}")]
    Disagreement {
        /// The step.
        step: Step,
        /// The rank that differs from rank 0.
        rank: u32,
        /// What differs.
        what: String,
    },
    /// A rank of the gang was refused or failed, and told the others.
    #[error("commit step {step}: rank {rank} didn't save its part: {why}")]
    Abandoned {
        /// The step.
        step: Step,
        /// The rank that failed.
        rank: u32,
        /// The reason it gave.
        why: String,
    },
    /// Other ranks, or rank 0's commit, didn't arrive in time.
    #[error("commit step {step}: waited {waited:?} for {}", if *rank == 0 { "rank 0 to commit".to_owned() } else { format!("rank {rank}'s shard") })]
    Timeout {
        /// The step.
        step: Step,
        /// The first rank that was missing.
        rank: u32,
        /// The time waited.
        waited: Duration,
    },
    /// A newer writer has saved a good checkpoint of this step: this process belongs to an attempt that has
    /// ended.
    #[error("commit step {step}: writer {by} has saved it and is newer than writer {writer}")]
    Superseded {
        /// The step.
        step: Step,
        /// This store's writer tag.
        writer: u64,
        /// The newer tag.
        by: u64,
    },
    /// Another run, or a newer attempt of this one, writes to the folder. Nothing was changed.
    #[error("write checkpoints to {}: {run} writes there (process {process} on {host})", path.display())]
    Held {
        /// The folder.
        path: PathBuf,
        /// The run that holds the folder.
        run: String,
        /// The host of its writer.
        host: String,
        /// The process id of its writer.
        process: u32,
    },
    /// Removing this checkpoint would leave the current branch without a good one. Nothing was removed.
    #[error("remove step {step}: no other good checkpoint of the current branch would be left")]
    LastGood {
        /// The checkpoint.
        step: Step,
    },
    /// No abandoned checkpoint belongs to this branch.
    #[error("find an abandoned branch {branch}")]
    NoSuchBranch {
        /// The branch.
        branch: Branch,
    },
    /// The archive for the checkpoints can't be opened.
    #[error("open the archive {address}")]
    Archive {
        /// The archive's address.
        address: String,
        /// The archive's error.
        source: Box<crate::archive::Error>,
    },
    /// The store was opened for reading.
    #[error("save: the store was opened for reading")]
    ReadOnly,
    /// The store was dropped, or its thread died, before the save was committed.
    #[error("save: the store was closed before the save was committed")]
    Closed,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The file doesn't exist.
    #[error("the file is missing")]
    Missing,
    /// The file was truncated or has grown.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// The expected length in bytes.
        expected: u64,
        /// The actual length in bytes.
        found: u64,
    },
    /// The content doesn't match its hash.
    #[error("its hash doesn't match")]
    Hash,
    /// In an encrypted archive: authentication of the ciphertext failed.
    #[error("it was changed, moved or renamed since it was encrypted")]
    Forged,
    /// Reading failed with an I/O error, or the file ended early.
    #[error("it can't be read to its end")]
    Unreadable,
    /// The format version is unknown to this program.
    #[error("format version {found} is not known here (the newest known is {known})")]
    Version {
        /// The file's version.
        found: u32,
        /// The newest version this program reads.
        known: u32,
    },
    /// The file isn't of the expected kind, or breaks a rule of its format.
    #[error("malformed: {what}")]
    Malformed {
        /// The rule that is broken.
        what: &'static str,
    },
}

impl Error {
    /// Returns the variant for an error of the operating system.
    pub(crate) fn io(act: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path, source },
            _ => Error::Io { act, path, source },
        }
    }

    /// Returns the variant for an error of the operating system while a file was read. An error that
    /// indicates damage of the disk becomes `Corrupt`: an older checkpoint may be intact.
    pub(crate) fn reading(path: &Path, source: io::Error) -> Error {
        if is_damage(&source) { Error::corrupt(path, Flaw::Unreadable) } else { Error::io("read", path, source) }
    }

    /// Adds the tensor's name to an error about a file.
    pub(crate) fn in_tensor(self, name: &str) -> Error {
        match self {
            Error::Corrupt { path, flaw, .. } => Error::Corrupt { path, tensor: Some(name.to_owned()), flaw },
            error => error,
        }
    }

    /// Returns a `Corrupt` error without a tensor.
    pub(crate) fn corrupt(path: &Path, flaw: Flaw) -> Error {
        Error::Corrupt { path: path.to_owned(), tensor: None, flaw }
    }
}

/// Reports whether a read failed because of damage on the disk: a bad sector, inconsistent metadata or
/// checksums of the file system (ext4 and XFS return EUCLEAN and EBADMSG, a bad block of an array ENODATA),
/// or a file that ends early. Errors such as too many open files or an unreachable server say nothing about
/// the file.
fn is_damage(error: &io::Error) -> bool {
    const DAMAGE: [Errno; 4] = [Errno::IO, Errno::UCLEAN, Errno::BADMSG, Errno::NODATA];
    Errno::from_io_error(error).is_some_and(|errno| DAMAGE.contains(&errno))
        || matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::IsADirectory)
}

/// Returns `Ok` if `value` is at most `max`.
pub(crate) fn within(what: &'static str, value: usize, max: usize) -> Result<(), Error> {
    if value <= max { Ok(()) } else { Err(Error::Limit { what, value: value as u64, max: max as u64 }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_of_the_disk_is_a_fault_of_the_file_and_want_of_the_system_is_not() {
        let reading = |errno: Errno| Error::reading(Path::new("x"), errno.into());
        for errno in [Errno::IO, Errno::UCLEAN, Errno::BADMSG, Errno::NODATA] {
            assert!(matches!(reading(errno), Error::Corrupt { flaw: Flaw::Unreadable, .. }), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::ACCESS, Errno::STALE, Errno::NOMEM] {
            assert!(matches!(reading(errno), Error::Io { .. }), "{errno}");
        }
    }
}
