//! The supervisor of an attempt's folder: a lock held for its lifetime, and `supervisor.json`, by which
//! others find the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{read_bounded, write_durably};
use crate::process::Identity;

/// The lock, held by the living supervisor of a folder.
const LOCK_FILE: &str = "supervisor.lock";
/// The file that identifies the supervisor; it exists from the moment a supervisor has started.
pub const IDENTITY_FILE: &str = "supervisor.json";

/// Returns the supervisor that is recorded in `folder`, alive or not.
pub(crate) fn recorded_in(folder: &Path) -> io::Result<Option<Identity>> {
    match read_bounded(&folder.join(IDENTITY_FILE)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The right to supervise a folder, for the lifetime of this value.
pub(super) struct Claim {
    folder: PathBuf,
    was_claimed_before: bool,
    _lock: File,
}

impl Claim {
    /// Takes the lock; none if another process has it.
    pub(super) fn take(folder: &Path) -> io::Result<Option<Self>> {
        let lock = OpenOptions::new().create(true).write(true).truncate(false).open(folder.join(LOCK_FILE))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let was_claimed_before = folder.join(IDENTITY_FILE).try_exists()?;
        Ok(Some(Claim { folder: folder.to_owned(), was_claimed_before, _lock: lock }))
    }

    /// Reports whether a supervisor was recorded here before.
    pub(super) fn was_claimed_before(&self) -> bool {
        self.was_claimed_before
    }

    /// Records this process's identity.
    pub(super) fn sign(&self) -> io::Result<()> {
        write_durably(&self.folder.join(IDENTITY_FILE), &serde_json::to_vec(&Identity::own()?)?)
    }
}
