//! A file whose bytes are mapped into memory, or bytes that are there already.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::Error;

/// The bytes of a file as it was when it was opened.
pub(crate) struct Mapped {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Own(Vec<u8>),
    File { map: Mmap, file: File, modified: Option<SystemTime> },
}

impl Mapped {
    /// Maps a file.
    pub(crate) fn open(path: &Path) -> Result<Mapped, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let metadata = file.metadata().map_err(Error::io("open", path))?;
        if !metadata.is_file() {
            return Err(Error::NotFound { path: path.to_owned(), problem: "it is no regular file".to_owned() });
        }
        let map = map(&file).map_err(Error::io("map", path))?;
        let modified = metadata.modified().ok();
        Ok(Mapped { path: path.to_owned(), bytes: Bytes::File { map, file, modified } })
    }

    /// Bytes in memory, with a name for messages.
    pub(crate) fn own(name: &str, bytes: Vec<u8>) -> Mapped {
        Mapped { path: PathBuf::from(name), bytes: Bytes::Own(bytes) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::File { map, .. } => map,
        }
    }

    /// Refuses a file that was changed since it was opened.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Bytes::File { map, file, modified } = &self.bytes else { return Ok(()) };
        let is_same = |now: &Metadata| now.len() == map.len() as u64 && now.modified().ok() == *modified;
        let now = file.metadata().map_err(Error::io("look at", &self.path))?;
        if is_same(&now) {
            return Ok(());
        }
        Err(Error::Changed { path: self.path.clone(), opened: map.len() as u64 })
    }
}

#[expect(unsafe_code, reason = "a file that is mapped may be changed by others: see below")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read, as bytes that are copied out and of which every pattern is a token or, in an index, a
    // number that is checked after it was read once. A file that others change gives other tokens, and `check` tells before
    // each batch; one that is cut short between that check and the copy ends the process with SIGBUS, and reads no memory of
    // others.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_short_or_rewritten_is_told_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        std::fs::write(&path, [1; 100]).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert!(mapped.check().is_ok());
        File::options().write(true).open(&path).unwrap().set_len(50).unwrap();
        let error = mapped.check().unwrap_err().to_string();
        assert!(error.contains("tokens.bin: it had 100 bytes when it was opened and was changed"), "{error}");
        let mapped = Mapped::open(&path).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(matches!(mapped.check(), Err(Error::Changed { opened: 50, .. })));
    }

    #[test]
    fn a_file_that_was_replaced_by_another_goes_on_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        std::fs::write(&path, [1; 100]).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        std::fs::write(folder.path().join("new"), [2; 10]).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(mapped.check().is_ok());
        assert_eq!(mapped.bytes(), [1; 100]);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Mapped::open(&folder.path().join("none")), Err(Error::NotFound { .. })));
        assert!(matches!(Mapped::open(folder.path()), Err(Error::NotFound { .. })));
    }
}
