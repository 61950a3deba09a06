//! The supervisor of an attempt's folder: a lock held for its lifetime, and `supervisor.json`, by which
//! others find the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{read_bounded, write_durably};
use crate::process::{Stat, boot_id, own_pid, stat};

/// The lock, held by the living supervisor of a folder.
const LOCK_FILE: &str = "supervisor.lock";
/// The file that identifies the supervisor; it exists from the moment a supervisor has started.
pub const IDENTITY_FILE: &str = "supervisor.json";

/// Identity of a process, different from any later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time, in clock ticks since the boot.
    pub start_ticks: u64,
    /// Id of the boot.
    pub boot: String,
}

impl Identity {
    /// Returns this process's identity.
    pub(crate) fn own() -> io::Result<Self> {
        let pid = own_pid();
        let stat = stat(pid).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc shows no such process"))?;
        Ok(Identity { pid, start_ticks: stat.start_ticks, boot: boot_id()? })
    }

    /// Reports whether a process is in the session that this one made, even if this one is gone by now.
    ///
    /// While a process is left in a session the id of its maker isn't reused. So if another process has the
    /// id, nothing is left.
    pub(crate) fn has_in_session(&self, process: &Stat) -> bool {
        process.session == self.pid && stat(self.pid).is_none_or(|leader| leader.start_ticks == self.start_ticks)
    }

    /// Reports whether the process belongs to this boot.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
    }

    /// Returns the supervisor that is recorded in `folder`, alive or not.
    pub(crate) fn of_supervisor(folder: &Path) -> io::Result<Option<Self>> {
        match read_bounded(&folder.join(IDENTITY_FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reports whether exactly this process still runs. Zombies don't count.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let is_same = stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.is_zombie);
        is_same && self.is_of_this_boot()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_one_with_its_number_from_another_time_is_not() {
        let own = Identity::own().expect("this process runs");
        assert!(own.is_alive());
        assert!(!Identity { start_ticks: own.start_ticks + 1, ..own.clone() }.is_alive());
        assert!(!Identity { boot: "another".to_owned(), ..own.clone() }.is_alive());
        assert!(!Identity { pid: u32::MAX, ..own }.is_alive());
    }
}
