//! How many bytes folders take on the disk.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gangline_base::Bytes;

/// The unit of a file's block count (`stat(2)`).
const BLOCK_BYTES: u64 = 512;
/// Entries between two calls of `rest`.
const ENTRIES_PER_BURST: u32 = 1_000;

/// Why a folder's size isn't known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unknown {
    /// The caller stops.
    #[error("stopped")]
    Stopped,
    /// Something can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// Returns the bytes that a folder takes on the disk, without those folders in it that `others` names and without what is
/// mounted in it. A file with several names counts once. A missing folder takes none, unless the folder around it is missing
/// too: then a file system may be away. `rest` is called now and then, and stops the count by returning false.
pub(crate) fn disk_usage(
    folder: &Path,
    others: &BTreeSet<PathBuf>,
    rest: &mut dyn FnMut() -> bool,
) -> Result<Bytes, Unknown> {
    let unreadable = |path: &Path, source| Unknown::Unreadable { path: path.to_owned(), source };
    let top = match fs::metadata(folder) {
        Ok(top) => top,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let around = folder.parent().unwrap_or(folder);
            return fs::metadata(around).map(|_| Bytes(0)).map_err(|error| unreadable(around, error));
        }
        Err(error) => return Err(unreadable(folder, error)),
    };
    let (mut blocks, mut entries, mut linked) = (top.blocks(), 0_u32, BTreeSet::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let listed = match fs::read_dir(&folder) {
            Ok(listed) => listed,
            // It was removed since it was seen.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(&folder, error)),
        };
        for entry in listed {
            let path = entry.map_err(|error| unreadable(&folder, error))?.path();
            entries += 1;
            if entries % ENTRIES_PER_BURST == 0 && !rest() {
                return Err(Unknown::Stopped);
            }
            let found = match fs::symlink_metadata(&path) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&path, error)),
            };
            let is_elsewhere = found.dev() != top.dev() || (found.is_dir() && others.contains(&path));
            if is_elsewhere || (found.nlink() > 1 && !found.is_dir() && !linked.insert(found.ino())) {
                continue;
            }
            blocks += found.blocks();
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(Bytes(blocks.saturating_mul(BLOCK_BYTES)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn size(folder: &Path, others: &[PathBuf]) -> Result<u64, Unknown> {
        disk_usage(folder, &others.iter().cloned().collect(), &mut || true).map(|bytes| bytes.0)
    }

    #[test]
    fn each_file_counts_once_and_other_folders_and_links_do_not() {
        let temporary = tempfile::tempdir().expect("the temporary folder is writable");
        let folder = temporary.path().join("a");
        fs::create_dir_all(folder.join("in/deep")).expect("writable");
        let empty = size(&folder, &[]).expect("readable");
        fs::write(folder.join("in/deep/file"), vec![7; 1 << 20]).expect("writable");
        let one = size(&folder, &[]).expect("readable");
        assert!((1 << 20..(1 << 20) + 65_536).contains(&(one - empty)), "{empty} {one}");
        fs::hard_link(folder.join("in/deep/file"), folder.join("again")).expect("writable");
        symlink("in/deep/file", folder.join("link")).expect("writable");
        symlink("/", folder.join("root")).expect("writable");
        let linked = size(&folder, &[]).expect("readable");
        assert!(linked - one < 65_536, "{one} {linked}");
        fs::remove_file(folder.join("again")).expect("writable");
        let without = size(&folder, &[folder.join("in/deep")]).expect("readable");
        assert!(without < 65_536, "{without}");
    }

    #[test]
    fn a_missing_folder_is_empty_and_a_missing_file_system_is_unknown() {
        let temporary = tempfile::tempdir().expect("the temporary folder is writable");
        assert_eq!(size(&temporary.path().join("gone"), &[]).expect("it is known"), 0);
        let away = size(&temporary.path().join("mount/gone"), &[]).expect_err("not known");
        assert!(away.to_string().contains("mount"), "{away}");
    }

    #[test]
    fn a_count_stops_when_it_is_told_to() {
        let temporary = tempfile::tempdir().expect("the temporary folder is writable");
        for number in 0..ENTRIES_PER_BURST {
            fs::write(temporary.path().join(number.to_string()), "").expect("writable");
        }
        let stopped = disk_usage(temporary.path(), &BTreeSet::new(), &mut || false);
        assert!(matches!(stopped, Err(Unknown::Stopped)));
    }
}
