//! The staging folder of a node's share of an attempt: memory that outlives the ranks, into which their
//! checkpoint stores copy saves. Copies that were complete when a rank ended are saved from here, so a fault
//! costs no save in progress.
//!
//! It is in `/dev/shm`, belongs to this user alone, and is removed with the supervisor; the folder of a
//! killed supervisor is removed by the next supervisor on the node, of any job.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_storage::{Finished, finish_staged};
use rustix::fs::{FlockOperation, flock, statfs};

use crate::rank_protocol::CheckpointSaved;
use crate::shared_place::{make_folder, open_own};

/// Where Linux has a file system in memory.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Type that statfs(2) reports for such a file system.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Prefix of the folders' names; a random part follows.
const NAME_PREFIX: &str = "gangline-";
/// The file in a folder that its supervisor holds locked.
const LOCK: &str = "lock";
/// How long this node waits for the others' parts of a save; their ranks may need some time to end.
const OTHERS_WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum number of folders that are examined for abandoned ones.
const FOLDERS_MAX: usize = 10_000;

/// A folder in memory; removed when it is dropped.
#[derive(Debug)]
pub(super) struct StagingFolder {
    path: PathBuf,
    /// Locked as long as this supervisor lives.
    _lock: File,
}

impl StagingFolder {
    /// Makes a staging folder. None where there is no file system in memory: saves in progress are then lost
    /// with their ranks, as in most systems.
    pub(super) fn make() -> Option<StagingFolder> {
        let is_in_memory = statfs(MEMORY_FOLDER).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC));
        if !is_in_memory {
            tracing::info!("{MEMORY_FOLDER} is no file system in memory: saves under way are lost with their ranks");
            return None;
        }
        remove_abandoned(Path::new(MEMORY_FOLDER));
        match make_folder(Path::new(MEMORY_FOLDER), NAME_PREFIX).and_then(StagingFolder::take) {
            Ok(folder) => Some(folder),
            Err(error) => {
                tracing::warn!(%error, "no staging folder: saves under way are lost with their ranks");
                None
            }
        }
    }

    /// Locks a folder that was just made.
    fn take(path: PathBuf) -> io::Result<StagingFolder> {
        let lock = File::create_new(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(StagingFolder { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "the staging folder stays");
        }
    }
}

/// Removes the folders of supervisors that are gone, to free their memory. Skips everything of other users.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME_PREFIX));
    for folder in ours.take(FOLDERS_MAX).map(|entry| entry.path()) {
        // A folder without a lock is being made right now.
        let Ok(lock) = open_own(&folder, LOCK) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let removed = std::fs::remove_dir_all(&folder);
            tracing::info!(folder = %folder.display(), ?removed, "an abandoned staging folder");
        }
    }
}

/// Finishes the saves that ranks had copied when they ended. Returns the newest checkpoint that is durable
/// then, on the node whose rank 0 committed it. Blocks for as long as the writing takes, and
/// [`OTHERS_WAIT_MAX`] for each save.
pub(super) fn finish(folder: &Path) -> Option<CheckpointSaved> {
    let finished = finish_staged(folder, OTHERS_WAIT_MAX)
        .inspect_err(|error| tracing::error!(%error, "saves under way are lost"))
        .unwrap_or_default();
    finished.iter().filter_map(told).max_by_key(|saved| saved.step)
}

fn told(Finished { step, rank, outcome }: &Finished) -> Option<CheckpointSaved> {
    match outcome {
        Ok(saved) => {
            tracing::info!(%step, rank, "finished a save that its rank had begun");
            (*rank == 0).then_some(CheckpointSaved { step: saved.step, bytes: saved.bytes })
        }
        Err(error) => {
            tracing::warn!(%step, rank, %error, "a save that its rank had begun is lost");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::shared_place::make_folder_at;

    fn make_at(path: PathBuf) -> StagingFolder {
        make_folder_at(&path).and_then(|()| StagingFolder::take(path)).expect("a folder")
    }

    #[test]
    fn abandoned_folders_go_and_those_of_the_living_and_of_strangers_stay() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = |name: &str| parent.path().join(name);
        let living = make_at(path("gangline-living"));
        let dead = make_at(path("gangline-dead"));
        // A killed process releases its locks and removes nothing.
        let StagingFolder { path: left, _lock: lock } = &dead;
        flock(lock, FlockOperation::Unlock).expect("its lock");
        std::fs::write(left.join("rank-00000-0"), "a copy").expect("a file");
        std::fs::create_dir(path("somebody")).expect("a folder");
        std::fs::create_dir(path("gangline-new")).expect("a folder");
        std::fs::create_dir(path("gangline-trap")).expect("a folder");
        let trap = std::process::Command::new("mkfifo").arg(path("gangline-trap/lock")).status();
        assert!(trap.is_ok_and(|status| status.success()));
        remove_abandoned(parent.path());
        let stays = |name: &str| path(name).exists();
        assert_eq!(
            ["living", "dead", "new", "trap"].map(|name| stays(&format!("gangline-{name}"))),
            [true, false, true, true]
        );
        assert!(stays("somebody"));
        let mode = living.path().metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(living);
        assert!(!stays("gangline-living"));
    }
}
