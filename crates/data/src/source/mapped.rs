//! A file whose bytes are mapped into memory, bytes that are there already, or a copy that is fetched as it is read.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::place::OnDisk;
use crate::cache::{Copy, HEAD_BYTES};
use crate::error::Error;
use crate::guarded::Guarded;

/// The bytes of a file as it was when it was opened.
pub(crate) struct Mapped {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Own(Vec<u8>),
    File { map: Guarded, file: Arc<File>, modified: Option<SystemTime> },
    Copy(Arc<Copy>),
}

impl Mapped {
    /// Maps a file.
    pub(crate) fn open(path: &Path) -> Result<Mapped, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let metadata = file.metadata().map_err(Error::io("open", path))?;
        if !metadata.is_file() {
            return Err(Error::NotFound { path: path.to_owned(), problem: "it is no regular file".to_owned() });
        }
        let map = Guarded::of(&file).map_err(Error::io("map", path))?;
        let modified = metadata.modified().ok();
        Ok(Mapped { path: path.to_owned(), bytes: Bytes::File { map, file: Arc::new(file), modified } })
    }

    /// Bytes in memory, with a name for messages.
    pub(crate) fn own(name: &str, bytes: Vec<u8>) -> Mapped {
        Mapped { path: PathBuf::from(name), bytes: Bytes::Own(bytes) }
    }

    /// A copy of the cache, with its name in the dataset.
    pub(crate) fn copied(path: &Path, copy: &Arc<Copy>) -> Mapped {
        Mapped { path: path.to_owned(), bytes: Bytes::Copy(Arc::clone(copy)) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file on disk of which a range of the bytes can be read; none for bytes in memory, and for those that a copy lacks.
    pub(crate) fn on_disk(&self, range: &Range<usize>) -> Option<OnDisk> {
        match &self.bytes {
            Bytes::Own(_) => None,
            Bytes::File { file, .. } => Some(OnDisk::File(Arc::clone(file))),
            Bytes::Copy(copy) => {
                crate::cache::ranges_of(range).all(|range| copy.has(range)).then(|| OnDisk::Copy(Arc::clone(copy)))
            }
        }
    }

    /// The copy, if it is one.
    pub(crate) fn copy(&self) -> Option<&Arc<Copy>> {
        if let Bytes::Copy(copy) = &self.bytes { Some(copy) } else { None }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.len(),
            Bytes::File { map, .. } => map.len(),
            Bytes::Copy(copy) => copy.len(),
        }
    }

    /// What `act` makes of a range of the bytes; it may be called again for the same, whose bytes then count.
    #[inline]
    pub(crate) fn read<R>(&self, range: Range<usize>, mut act: impl FnMut(&[u8]) -> R) -> Result<R, Error> {
        match &self.bytes {
            Bytes::Own(bytes) => Ok(act(&bytes[range])),
            Bytes::File { map, .. } => map.read(range, act).ok_or_else(|| self.lost()),
            Bytes::Copy(copy) => copy.read(range, act),
        }
    }

    /// The first bytes, [`HEAD_BYTES`] of them at most.
    pub(crate) fn head(&self) -> Result<Vec<u8>, Error> {
        match &self.bytes {
            Bytes::Copy(copy) => copy.head(),
            _ => self.read(0..self.len().min(HEAD_BYTES), <[u8]>::to_vec),
        }
    }

    /// Has the processor fetch the beginning of a range from memory, as far as it is there.
    #[inline]
    pub(crate) fn prefetch(&self, range: &Range<usize>) {
        match &self.bytes {
            Bytes::Own(_) => {}
            Bytes::File { map, .. } => map.prefetch(range),
            Bytes::Copy(copy) => copy.prefetch(range),
        }
    }

    /// Refuses a file that was changed since it was opened.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Bytes::File { map, file, modified } = &self.bytes else { return Ok(()) };
        let is_same = |now: &Metadata| now.len() == map.len() as u64 && now.modified().ok() == *modified;
        let now = file.metadata().map_err(Error::io("look at", &self.path))?;
        if is_same(&now) { Ok(()) } else { Err(self.changed()) }
    }

    /// Why a map has lost bytes: the file was cut short, or its disk doesn't give them.
    #[cold]
    fn lost(&self) -> Error {
        let Bytes::File { map, file, .. } = &self.bytes else { return self.changed() };
        let is_there = file.metadata().is_ok_and(|now| now.len() >= map.len() as u64);
        let source = std::io::Error::other("the disk didn't give all of it, now or before");
        if is_there { Error::Io { action: "read", path: self.path.clone(), source } } else { self.changed() }
    }

    fn changed(&self) -> Error {
        Error::Changed { path: self.path.clone(), opened: self.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: &[u8]) -> (tempfile::TempDir, PathBuf, Mapped) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        std::fs::write(&path, bytes).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        (folder, path, mapped)
    }

    #[test]
    fn a_file_that_is_cut_short_or_rewritten_is_told_before_it_is_read() {
        let (_folder, path, mapped) = opened(&[1; 100]);
        assert!(mapped.check().is_ok());
        File::options().write(true).open(&path).unwrap().set_len(50).unwrap();
        let error = mapped.check().unwrap_err().to_string();
        assert!(error.contains("tokens.bin: it had 100 bytes when it was opened and was changed"), "{error}");
        let mapped = Mapped::open(&path).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(matches!(mapped.check(), Err(Error::Changed { opened: 50, .. })));
    }

    /// Between the look at the file and the read of it.
    #[test]
    fn a_file_that_is_cut_short_after_it_was_checked_is_an_error_and_no_signal() {
        let (_folder, path, mapped) = opened(&vec![1; 3 << 20]);
        mapped.check().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        let error = mapped.read(1 << 20..2 << 20, <[u8]>::to_vec).unwrap_err().to_string();
        assert!(error.contains("tokens.bin: it had 3145728 bytes when it was opened and was changed"), "{error}");
    }

    #[test]
    fn a_file_that_was_replaced_by_another_goes_on_as_it_was() {
        let (folder, path, mapped) = opened(&[1; 100]);
        std::fs::write(folder.path().join("new"), [2; 10]).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(mapped.check().is_ok());
        assert_eq!(mapped.read(0..100, <[u8]>::to_vec).unwrap(), [1; 100]);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Mapped::open(&folder.path().join("none")), Err(Error::NotFound { .. })));
        assert!(matches!(Mapped::open(folder.path()), Err(Error::NotFound { .. })));
    }
}
