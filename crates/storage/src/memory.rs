//! Memory in whole pages: the process's own, or a file in memory (tmpfs), which outlives the process.
//!
//! Huge pages are requested, because the first write to each page takes a fault, and 512 times fewer faults
//! make new memory usable at once (`madvise(2)`, `MADV_HUGEPAGE`; without support for them nothing is lost).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::{Mode, OFlags};

/// The alignment of direct I/O, in memory and in the file: a page, and at least a sector of every disk.
pub(crate) const PAGE: usize = 4_096;

/// Bytes that start at a page boundary.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapMut,
    /// The file behind them, which is removed with them.
    file: Option<PathBuf>,
}

impl Memory {
    /// Allocates zeroed bytes of the process's own.
    pub(crate) fn own(bytes: usize) -> io::Result<Memory> {
        let map = MmapOptions::new().len(bytes.max(PAGE)).map_anon()?;
        // If the advice is ignored, only time is lost.
        let _ = map.advise(Advice::HugePage);
        Ok(Memory { map, file: None })
    }

    /// Creates a file in memory with this many bytes. All its space is reserved now: a full file system is an
    /// error here rather than a signal later.
    pub(crate) fn new_file(path: PathBuf, bytes: usize) -> io::Result<Memory> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let mapped = file.set_len(bytes as u64).and_then(|()| map(&file)).inspect_err(|_| remove(&path))?;
        let memory = Memory { map: mapped, file: Some(path) };
        let _ = memory.map.advise(Advice::HugePage);
        memory.map.advise(Advice::PopulateWrite)?;
        Ok(memory)
    }

    /// Maps the file at `path`, with the content that its creator left. Doesn't follow a link, and doesn't
    /// block on anything that isn't a file.
    pub(crate) fn found_file(path: PathBuf) -> io::Result<Memory> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok(Memory { map: map(&file)?, file: Some(path) })
    }

    /// Returns the file behind the bytes, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns all bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Returns all bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.file.iter().for_each(|file| remove(file));
    }
}

/// Ignores errors: a file that stays is removed with its folder.
fn remove(file: &Path) {
    let _ = std::fs::remove_file(file);
}

#[expect(unsafe_code, reason = "a file that is mapped may be cut short by others: see below")]
fn map(file: &File) -> io::Result<MmapMut> {
    // SAFETY: the file is in a staging folder, which belongs to one user. Only the rank that created the file
    // writes to it and, when that rank has ended, the process that finishes its saves. Neither changes a
    // file's length once it is mapped.
    unsafe { MmapMut::map_mut(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_starts_at_a_page_and_a_file_holds_what_was_written_until_it_is_let_go() {
        let mut own = Memory::own(3 * PAGE + 1).expect("memory");
        own.bytes_mut().fill(7);
        assert_eq!((own.bytes().len(), own.bytes().as_ptr().align_offset(PAGE)), (3 * PAGE + 1, 0));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("slab");
        let mut made = Memory::new_file(path.clone(), PAGE).expect("a file");
        made.bytes_mut().fill(9);
        assert_eq!(std::fs::read(&path).expect("it is there"), vec![9; PAGE]);
        assert!(Memory::new_file(path.clone(), PAGE).is_err(), "a file of that name is somebody's");
        assert_eq!(Memory::found_file(path.clone()).expect("the file").bytes()[5], 9);
        assert!(!path.exists(), "whoever found it took it over");
        drop(made);
    }
}
