//! Folders on local file systems, which can be checked without delay. A network file system may hang its
//! caller, so such a check goes to a thread that may block. On a local disk that detour costs many times what
//! the check costs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most folders that are remembered.
const FOLDERS_MAX: usize = 64;
/// How long a folder is remembered: another file system may have been mounted there since.
const REMEMBERED: Duration = Duration::from_secs(10);
/// The magic numbers of `statfs(2)` for local file systems: ext4, XFS, Btrfs, F2FS, ZFS, bcachefs, memory.
/// Any other file system may be remote.
const LOCAL_FILE_SYSTEMS: [u32; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e, 0x0102_1994];

/// Folders that were found on a local file system a moment ago.
#[derive(Clone, Debug, Default)]
pub struct AtHand {
    folders: Arc<Mutex<BTreeMap<PathBuf, Instant>>>,
}

impl AtHand {
    /// Reports whether a check of this path won't take long.
    pub(super) fn is(&self, path: &Path) -> bool {
        self.folders().get(path).is_some_and(|seen| seen.elapsed() < REMEMBERED)
    }

    /// Reports whether the path is a folder, and remembers it if it is local. May take long.
    pub(super) fn look(&self, path: &Path) -> bool {
        let is_folder = path.is_dir();
        if is_folder && rustix::fs::statfs(path).is_ok_and(|status| is_local(status.f_type)) {
            let mut folders = self.folders();
            if folders.len() >= FOLDERS_MAX {
                folders.clear();
            }
            folders.insert(path.to_owned(), Instant::now());
        }
        is_folder
    }

    /// Locks the map. A panic while it was locked leaves it valid, since each change to it is atomic.
    fn folders(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Instant>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_local(kind: impl TryInto<u64>) -> bool {
    let kind = kind.try_into().unwrap_or_default();
    // Some kernels sign-extend these 32 bits.
    LOCAL_FILE_SYSTEMS.iter().any(|known| u64::from(*known) == kind & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_this_machine_that_were_seen_are_at_hand() {
        for (kind, is_so) in [(0xef53_u64, true), (0x0102_1994, true), (0x6969, false), (0x6573_5546, false)] {
            assert_eq!(is_local(kind), is_so, "{kind:x}");
        }
        let (at_hand, folder) = (AtHand::default(), tempfile::tempdir().expect("a folder"));
        assert!(!at_hand.is(folder.path()), "nobody has looked");
        assert!(!at_hand.look(&folder.path().join("none")));
        assert!(!at_hand.is(&folder.path().join("none")), "what isn't there isn't at hand");
        assert!(at_hand.look(folder.path()));
        let kind = rustix::fs::statfs(folder.path()).expect("it is there").f_type;
        assert_eq!(at_hand.is(folder.path()), is_local(kind));
    }

    /// Proves A-10 for what is remembered.
    #[test]
    fn only_so_many_folders_are_remembered() {
        let (at_hand, folder) = (AtHand::default(), tempfile::tempdir().expect("a folder"));
        for number in 0..3 * FOLDERS_MAX {
            let path = folder.path().join(number.to_string());
            std::fs::create_dir(&path).expect("there is room");
            assert!(at_hand.look(&path));
            assert!(at_hand.folders().len() <= FOLDERS_MAX);
        }
    }
}
