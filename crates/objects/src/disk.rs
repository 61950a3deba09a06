//! Durable changes of a folder, in the order that survives a crash: write aside, fsync the file, rename,
//! fsync the folder.
//!
//! Keeps A-6 (a file has its name only when it is whole) and A-7: the first fsync that fails poisons the
//! folder, because what the kernel dropped then can't be known.
//!
//! A store's own disk (`storage/src/disk.rs`) does more: it writes several files at once past the page cache,
//! and its tests stop it between any two changes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::DiskError;

/// What the names of half-written files begin with.
pub const ASIDE_PREFIX: &str = ".aside-";
/// The most bytes handed to the kernel at once.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// Makes changes, until an fsync fails.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    poisoned_by: OnceLock<PathBuf>,
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
    move |source| DiskError::Io { act, path: path.to_owned(), source }
}

impl Disk {
    fn sync(&self, path: &Path, file: &File) -> Result<(), DiskError> {
        if let Some(path) = self.poisoned_by.get() {
            return Err(DiskError::Poisoned { path: path.clone() });
        }
        let synced = file.sync_all().map_err(failed("fsync", path));
        if synced.is_err() {
            // Only the first failure is kept: later ones follow from it.
            self.poisoned_by.get_or_init(|| path.to_owned());
        }
        synced
    }

    fn sync_folder(&self, path: &Path) -> Result<(), DiskError> {
        let folder = File::open(path).map_err(failed("open", path))?;
        self.sync(path, &folder)
    }

    /// Makes a folder and its parents, durably.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), DiskError> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        fs::create_dir_all(path).map_err(failed("create", path))?;
        for parent in missing.into_iter().filter_map(Path::parent) {
            self.sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
        Ok(())
    }

    /// Publishes a file: afterwards it is there in full and durable; after an error the old or the new one is
    /// there, whole.
    pub(crate) fn publish(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let (path, aside) = (folder.join(name), folder.join(format!("{ASIDE_PREFIX}{name}")));
        let mut file = File::create(&aside).map_err(failed("create", &aside))?;
        bytes.chunks(WRITE_BYTES_MAX).try_for_each(|chunk| file.write_all(chunk)).map_err(failed("write", &aside))?;
        self.sync(&aside, &file)?;
        fs::rename(&aside, &path).map_err(failed("rename to", &path))?;
        self.sync_folder(folder)
    }

    /// Publishes a file that was written aside, in the same folder.
    pub(crate) fn publish_aside(&self, aside: &Path, path: &Path) -> Result<(), DiskError> {
        let file = File::open(aside).map_err(failed("open", aside))?;
        self.sync(aside, &file)?;
        fs::rename(aside, path).map_err(failed("rename to", path))?;
        path.parent().map_or(Ok(()), |folder| self.sync_folder(folder))
    }

    /// Removes a file; a file that isn't there is no error.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), DiskError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_published_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b");
        let disk = Disk::default();
        disk.create_folder(&place).unwrap();
        disk.publish(&place, "x", b"first").unwrap();
        disk.publish(&place, "x", b"second").unwrap();
        assert_eq!(fs::read(place.join("x")).unwrap(), b"second");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
        disk.remove_file(&place.join("x")).unwrap();
        disk.remove_file(&place.join("x")).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }

    /// Proves A-7 for folders of objects.
    #[test]
    fn after_a_failed_fsync_nothing_is_published_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::default();
        // fsync of a pipe or a character device fails with EINVAL.
        let null = File::options().write(true).open("/dev/null").unwrap();
        disk.sync(Path::new("/dev/null"), &null).unwrap_err();
        let refused = disk.publish(folder.path(), "x", b"bytes").unwrap_err();
        assert!(matches!(&refused, DiskError::Poisoned { path } if path == Path::new("/dev/null")), "{refused:?}");
        assert!(!folder.path().join("x").exists());
    }
}
