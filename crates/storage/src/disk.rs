//! Durable changes to the disk, in an order that survives a crash: write to a temporary name, fsync the file,
//! rename, fsync the folder.
//!
//! Keeps A-7: the first fsync that fails poisons the store, because the kernel may have dropped any pending
//! write. Each change calls the [`DiskHook`] first, so a test can kill the writer, or fill the disk, at any
//! of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{CWD, FallocateFlags, OFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

use crate::memory::PAGE;
use crate::staged::Image;
use crate::threads::try_on_threads;
use crate::{Error, layout};

/// A change that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAct {
    /// Creates a folder.
    CreateFolder,
    /// Creates an empty file.
    CreateFile,
    /// Writes bytes to a file.
    Write,
    /// Syncs a file.
    SyncFile,
    /// Renames a file or folder to its final name; the path is the final one.
    Rename,
    /// Gives a file a second name.
    Link,
    /// Syncs a folder.
    SyncFolder,
    /// Removes a file or folder.
    Remove,
}

/// Called before each change; its error is treated as the operating system's.
pub type DiskHook = Arc<dyn Fn(DiskAct, &Path) -> io::Result<()> + Send + Sync>;

/// Writes bytes at an offset of a file; may be called from any thread.
pub(crate) type WriteAt<'a> = &'a (dyn Fn(u64, &[u8]) -> Result<(), Error> + Sync);

/// The most bytes of one write call.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// The most bytes of a block that is written with direct I/O. Disks reach full throughput at 1 to 4 MiB.
const BLOCK_BYTES: usize = 4 << 20;
/// Blocks in flight at the same time.
const BLOCKS_IN_FLIGHT: usize = 4;

/// Makes the store's changes to the disk.
pub(crate) struct Disk {
    hook: Option<DiskHook>,
    poisoned_by: OnceLock<PathBuf>,
}

impl Disk {
    pub(crate) fn new(hook: Option<DiskHook>) -> Self {
        Disk { hook, poisoned_by: OnceLock::new() }
    }

    /// Returns an error if any fsync has failed.
    pub(crate) fn check_poison(&self) -> Result<(), Error> {
        match self.poisoned_by.get() {
            None => Ok(()),
            Some(path) => Err(Error::Poisoned { path: path.clone() }),
        }
    }

    fn act<T>(&self, act: DiskAct, path: &Path, change: impl FnOnce() -> io::Result<T>) -> Result<T, Error> {
        let asked = self.hook.as_ref().map_or(Ok(()), |hook| hook(act, path));
        asked.and_then(|()| change()).map_err(|source| Error::io(act.verb(), path, source))
    }

    fn sync(&self, act: DiskAct, path: &Path, file: &File) -> Result<(), Error> {
        self.check_poison()?;
        let synced = self.act(act, path, || file.sync_all());
        if synced.is_err() {
            // Only the first failure is kept; later ones follow from it.
            self.poisoned_by.get_or_init(|| path.to_owned());
        }
        synced
    }

    /// Creates a folder and its parents; an existing one is no error.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), Error> {
        self.act(DiskAct::CreateFolder, path, || fs::create_dir_all(path))
    }

    /// Creates a folder and its parents, durably.
    pub(crate) fn create_root(&self, path: &Path) -> Result<(), Error> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        self.create_folder(path)?;
        for parent in missing.into_iter().filter_map(Path::parent) {
            self.sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
        Ok(())
    }

    /// Publishes a small file: on success it is complete and durable; after an error the old
    /// or the new one has its name, whole.
    pub(crate) fn publish(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.publish_stream(folder, name, |write| write(bytes))
    }

    /// Publishes a file that is written piece by piece: `fill` receives a function that appends bytes.
    pub(crate) fn publish_stream<E: From<Error>>(
        &self,
        folder: &Path,
        name: &str,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.publish_with(folder, name, create, |aside, mut file| {
            fill(&mut |bytes| {
                let mut chunks = bytes.chunks(WRITE_BYTES_MAX);
                chunks.try_for_each(|chunk| self.act(DiskAct::Write, aside, || file.write_all(chunk)))
            })
        })
    }

    /// Publishes a file of a known length, written in any order and from several threads: `fill` receives a
    /// function that writes bytes at an offset. Whole pages are written with direct I/O.
    pub(crate) fn publish_placed(
        &self,
        folder: &Path,
        name: &str,
        bytes: u64,
        fill: impl FnOnce(WriteAt<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.publish_with(folder, name, create, |aside, file| {
            self.act(DiskAct::Write, aside, || reserve(file, bytes))?;
            let mut options = OpenOptions::new();
            options.write(true);
            let direct = past_the_cache(options).open(aside).ok();
            fill(&|at, bytes| self.act(DiskAct::Write, aside, || write_placed((direct.as_ref(), file), bytes, at)))
        })
    }

    /// Publishes a file whose content is in memory, with direct I/O if the file system supports it: several
    /// blocks in flight keep the disk busy, and the page cache would copy each byte and then hold data that
    /// nobody reads.
    pub(crate) fn publish_image(&self, folder: &Path, name: &str, image: Image<'_>) -> Result<(), Error> {
        self.publish_with(folder, name, create_direct, |aside, file| {
            self.act(DiskAct::Write, aside, || reserve(file, image.padded.len() as u64))?;
            self.write_blocks(aside, file, image.padded)?;
            // Removes the padding up to a page.
            self.act(DiskAct::Write, aside, || file.set_len(image.bytes))
        })
    }

    /// Creates a file under a temporary name, fills it, syncs it, and renames it.
    fn publish_with<E: From<Error>>(
        &self,
        folder: &Path,
        name: &str,
        create: impl FnOnce(&Path) -> io::Result<File>,
        fill: impl FnOnce(&Path, &File) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = folder.join(name);
        let aside = layout::aside(folder, name);
        let file = self.act(DiskAct::CreateFile, &aside, || create(&aside))?;
        fill(&aside, &file)?;
        self.sync(DiskAct::SyncFile, &aside, &file)?;
        self.act(DiskAct::Rename, &path, || fs::rename(&aside, &path))?;
        Ok(self.sync_folder(folder)?)
    }

    /// Writes the blocks of a file, several at once; stops after an error.
    fn write_blocks(&self, path: &Path, file: &File, bytes: &[u8]) -> Result<(), Error> {
        let blocks: Vec<(usize, &[u8])> = bytes.chunks(BLOCK_BYTES).enumerate().collect();
        let write = |(number, block): (usize, &[u8])| {
            let offset = (number * BLOCK_BYTES) as u64;
            self.act(DiskAct::Write, path, || file.write_all_at(block, offset))
        };
        try_on_threads(BLOCKS_IN_FLIGHT, blocks, write).map(drop)
    }

    /// Builds a checkpoint's folder under a temporary name and renames it in one step. Removes what an
    /// earlier build left, and after a failed build also what this one left, unless an fsync failed.
    pub(crate) fn publish_folder<T, E: From<Error>>(
        &self,
        root: &Path,
        (aside, name): (&str, &str),
        build: impl FnOnce(&Path) -> Result<T, E>,
    ) -> Result<T, E> {
        let aside = root.join(aside);
        self.remove_folder(&aside)?;
        self.create_folder(&aside)?;
        let built = build(&aside);
        if built.is_err() && self.check_poison().is_ok() {
            // The build's own error is reported; what can't be removed now is removed at the next build.
            let _ = self.remove_folder(&aside);
        }
        let built = built?;
        self.rename_folder(&aside, &root.join(name))?;
        self.sync_folder(root)?;
        // If a folder of that name existed, it now has the temporary name.
        self.remove_folder(&aside)?;
        Ok(built)
    }

    /// Renames a finished folder to its final name. If the name is taken, the two are exchanged in one step,
    /// so that a checkpoint has the name at every instant; the old one is then at `from`.
    pub(crate) fn rename_folder(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.act(DiskAct::Rename, to, || {
            let flags = if to.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            match renameat_with(CWD, from, CWD, to, flags) {
                // Some network file systems don't support the flags. A plain rename replaces only an empty
                // folder.
                Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
                renamed => renamed.map_err(io::Error::from),
            }
        })
    }

    /// Gives a file a second name, on the same file system. The folder must be synced later.
    pub(crate) fn link_file(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.act(DiskAct::Link, to, || fs::hard_link(from, to))
    }

    /// Renames a file within its folder. The folder must be synced later.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.act(DiskAct::Rename, to, || fs::rename(from, to))
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync_folder(&self, path: &Path) -> Result<(), Error> {
        let folder = File::open(path).map_err(|source| Error::io("open", path, source))?;
        self.sync(DiskAct::SyncFolder, path, &folder)
    }

    /// Removes a file; a missing one is no error.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), Error> {
        self.act(DiskAct::Remove, path, || missing_is_fine(fs::remove_file(path)))
    }

    /// Removes a folder and its content; a missing one is no error.
    pub(crate) fn remove_folder(&self, path: &Path) -> Result<(), Error> {
        self.act(DiskAct::Remove, path, || missing_is_fine(fs::remove_dir_all(path)))
    }
}

impl DiskAct {
    fn verb(self) -> &'static str {
        match self {
            DiskAct::CreateFolder | DiskAct::CreateFile => "create",
            DiskAct::Write => "write",
            DiskAct::SyncFile | DiskAct::SyncFolder => "fsync",
            DiskAct::Rename => "rename to",
            DiskAct::Link => "link",
            DiskAct::Remove => "remove",
        }
    }
}

/// Creates a file, or truncates an existing one.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

/// Creates a file for direct I/O, or for buffered I/O where the file system doesn't support it (EINVAL,
/// open(2)).
fn create_direct(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    match past_the_cache(options.clone()).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => options.open(path),
        opened => opened,
    }
}

/// Writes bytes at an offset: page-aligned memory that goes to whole pages of the file with direct I/O, if
/// the file system supports it, and the rest buffered.
fn write_placed((direct, file): (Option<&File>, &File), bytes: &[u8], at: u64) -> io::Result<()> {
    let is_aligned = at.is_multiple_of(PAGE as u64) && bytes.as_ptr().addr().is_multiple_of(PAGE);
    let (pages, rest) = bytes.split_at(if is_aligned { bytes.len() - bytes.len() % PAGE } else { 0 });
    match direct.map_or_else(|| file.write_all_at(pages, at), |direct| direct.write_all_at(pages, at)) {
        // Its sectors are larger than pages.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => file.write_all_at(pages, at)?,
        written => written?,
    }
    file.write_all_at(rest, at + pages.len() as u64)
}

/// Adds direct I/O to the options: data that is written or read once needn't be cached.
pub(crate) fn past_the_cache(mut options: OpenOptions) -> OpenOptions {
    options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).expect("flags of open(2) are an int"));
    options
}

/// Reserves space, if the file system supports it: blocks can then be written in parallel, while writes that
/// extend a file are serialized, and a full disk is reported before anything is written.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        reserved => reserved.map_err(io::Error::from),
    }
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
