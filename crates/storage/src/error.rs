//! What can go wrong, as decisions a caller can make.

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
        /// The step asked for.
        step: Step,
    },
    /// A file of the checkpoint is not what was saved. Fall back to an older checkpoint.
    #[error("read {}{}: {flaw}", path.display(), tensor.as_ref().map(|name| format!(", tensor {name:?}")).unwrap_or_default())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The tensor, if the fault is in one.
        tensor: Option<String>,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// An earlier fsync failed: what is on disk is unknown, so this store writes no more. Open a new one on a
    /// healthy disk.
    #[error("save: the store is poisoned since fsync of {} failed", path.display())]
    Poisoned {
        /// The file or folder whose fsync failed.
        path: PathBuf,
    },
    /// The disk or quota is full. This save is gone, earlier ones are untouched, and a later one may succeed.
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
        /// What was being done.
        act: &'static str,
        /// To what.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// There is no memory to copy the save to. Nothing of it is on disk, and a smaller or later one may succeed.
    #[error("save: reserve {bytes} bytes of host memory for its copy")]
    Memory {
        /// How much.
        bytes: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// Something is larger than a named limit allows.
    #[error("accept {what}: {value} is more than {max}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        value: u64,
        /// How much there may be.
        max: u64,
    },
    /// A tensor can't be saved as it is: the caller's mistake.
    #[error("accept tensor {tensor:?}: {why}")]
    InvalidTensor {
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Where something new was to go, there is something already; nothing was written over.
    #[error("make {}: it is there already, and not empty", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// None of the checkpoint's tensors is meant.
    #[error("find a tensor whose name begins with {prefix:?}")]
    NothingSelected {
        /// How the names should have begun.
        prefix: String,
    },
    /// The options contradict themselves.
    #[error("open the store: {why}")]
    InvalidOptions {
        /// How.
        why: &'static str,
    },
    /// A rank of the gang saved other tensors, values or metadata under the same step.
    #[error("commit step {step}: rank {rank} saved something else than rank 0: {what}")]
    Disagreement {
        /// The step.
        step: Step,
        /// The rank that differs from rank 0.
        rank: u32,
        /// What differs.
        what: String,
    },
    /// A rank of the gang was refused, or failed, and told the others so.
    #[error("commit step {step}: rank {rank} didn't save its part: {why}")]
    Abandoned {
        /// The step.
        step: Step,
        /// The rank.
        rank: u32,
        /// What went wrong there.
        why: String,
    },
    /// The gang's other ranks, or rank 0's commit, didn't come in time.
    #[error("commit step {step}: waited {waited:?} for {}", if *rank == 0 { "rank 0 to commit".to_owned() } else { format!("rank {rank}'s shard") })]
    Timeout {
        /// The step.
        step: Step,
        /// The first rank that was missing.
        rank: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A newer writer has saved a good checkpoint of this step: this process belongs to an attempt that is over.
    #[error("commit step {step}: writer {by} has saved it and is newer than writer {writer}")]
    Superseded {
        /// The step.
        step: Step,
        /// This store's writer tag.
        writer: u64,
        /// The newer tag.
        by: u64,
    },
    /// Another run writes to the folder, or a newer attempt of this one. Nothing was changed.
    #[error("write checkpoints to {}: {run} writes there (process {process} on {host})", path.display())]
    Held {
        /// The folder.
        path: PathBuf,
        /// The run that writes.
        run: String,
        /// Its writer's machine.
        host: String,
        /// Its writer's process there.
        process: u32,
    },
    /// Without this checkpoint, the current branch would have no good one left. Nothing was removed.
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
    /// The archive that checkpoints are to go to can't be opened.
    #[error("open the archive {address}")]
    Archive {
        /// Where it is said to be.
        address: String,
        /// Why.
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
    /// It isn't there.
    #[error("the file is missing")]
    Missing,
    /// It was cut short or grew.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// Its content doesn't match its hash.
    #[error("its hash doesn't match")]
    Hash,
    /// In an encrypted archive: it doesn't authenticate as what was encrypted there.
    #[error("it was changed, moved or renamed since it was encrypted")]
    Forged,
    /// The disk gave an I/O error, or the file ended, while it was read.
    #[error("it can't be read to its end")]
    Unreadable,
    /// It is of a format version that this program doesn't know.
    #[error("format version {found} is not known here (the newest known is {known})")]
    Version {
        /// The file's version.
        found: u32,
        /// The newest version this program reads.
        known: u32,
    },
    /// It isn't a file of the expected kind, or breaks its format's rules.
    #[error("malformed: {what}")]
    Malformed {
        /// The rule it breaks.
        what: &'static str,
    },
}

impl Error {
    /// An error of the operating system, sorted into the decision it means for the caller.
    pub(crate) fn io(act: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path, source },
            _ => Error::Io { act, path, source },
        }
    }

    /// An error of the operating system while a file was read. One that tells of damage on the disk is a fault of the file: an older
    /// checkpoint may be whole.
    pub(crate) fn reading(path: &Path, source: io::Error) -> Error {
        if is_damage(&source) { Error::corrupt(path, Flaw::Unreadable) } else { Error::io("read", path, source) }
    }

    /// The same, if it is a fault of a file: in this tensor of it.
    pub(crate) fn in_tensor(self, name: &str) -> Error {
        match self {
            Error::Corrupt { path, flaw, .. } => Error::Corrupt { path, tensor: Some(name.to_owned()), flaw },
            error => error,
        }
    }

    /// A file that isn't what was saved.
    pub(crate) fn corrupt(path: &Path, flaw: Flaw) -> Error {
        Error::Corrupt { path: path.to_owned(), tensor: None, flaw }
    }
}

/// Whether reading failed because of what is on the disk: a bad sector, metadata or checksums of the file system that don't fit (ext4 and
/// XFS say EUCLEAN and EBADMSG, a bad block of an array ENODATA), a file that ends early. That there are too many open files, or that
/// a server is away, says nothing about the file.
fn is_damage(error: &io::Error) -> bool {
    const DAMAGE: [Errno; 4] = [Errno::IO, Errno::UCLEAN, Errno::BADMSG, Errno::NODATA];
    Errno::from_io_error(error).is_some_and(|errno| DAMAGE.contains(&errno))
        || matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::IsADirectory)
}

/// `Ok` while `value` is at most `max`.
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
