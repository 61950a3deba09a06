//! Every change to the disk, in the order that survives a crash: write aside, fsync the file, rename, fsync the folder.
//!
//! Keeps A-7: the first fsync that fails poisons the store, because what the kernel dropped then can't be known. Each
//! change asks the [`DiskHook`] first, so a test can kill the writer, or fill the disk, at any of them.

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
    /// Make a folder.
    CreateFolder,
    /// Make an empty file.
    CreateFile,
    /// Write some bytes to a file.
    Write,
    /// fsync a file.
    SyncFile,
    /// Give a file or folder its final name; the path is the final one.
    Rename,
    /// fsync a folder.
    SyncFolder,
    /// Remove a file or folder.
    Remove,
}

/// Asked before each change; an error is taken for the operating system's own.
pub type DiskHook = Arc<dyn Fn(DiskAct, &Path) -> io::Result<()> + Send + Sync>;

/// Writes bytes at a place of a file; from any thread.
pub(crate) type WriteAt<'a> = &'a (dyn Fn(u64, &[u8]) -> Result<(), Error> + Sync);

/// The most bytes handed to the kernel at once.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// The most bytes of a block that is written past the page cache. Disks reach their rate from 1 to 4 MiB on.
const BLOCK_BYTES: usize = 4 << 20;
/// Blocks under way at once.
const BLOCKS_IN_FLIGHT: usize = 4;

/// The store's hands.
pub(crate) struct Disk {
    hook: Option<DiskHook>,
    poisoned_by: OnceLock<PathBuf>,
}

impl Disk {
    pub(crate) fn new(hook: Option<DiskHook>) -> Self {
        Disk { hook, poisoned_by: OnceLock::new() }
    }

    /// An error once any fsync has failed.
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
            // Only the first failure is kept: later ones follow from it.
            self.poisoned_by.get_or_init(|| path.to_owned());
        }
        synced
    }

    /// Makes a folder and its parents; one that is there already is fine.
    pub(crate) fn create_folder(&self, path: &Path) -> Result<(), Error> {
        self.act(DiskAct::CreateFolder, path, || fs::create_dir_all(path))
    }

    /// Makes a folder and its parents, durably.
    pub(crate) fn create_root(&self, path: &Path) -> Result<(), Error> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        self.create_folder(path)?;
        for parent in missing.into_iter().filter_map(Path::parent) {
            self.sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
        Ok(())
    }

    /// Publishes a small file: after this it is there in full and durable, or (after an error) not there under its name.
    pub(crate) fn publish(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.publish_stream(folder, name, |write| write(bytes))
    }

    /// Publishes a file that is made piece by piece: `fill` gets a function that writes the next bytes.
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

    /// Publishes a file of so many bytes that come in any order and from several threads: `fill` gets a function that writes
    /// bytes at a place. Whole pages go past the page cache.
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

    /// Publishes a file that is laid out in memory, past the page cache where the file system can: several blocks under way
    /// at once keep the disk busy, and the cache would copy each byte and then hold what nobody reads.
    pub(crate) fn publish_image(&self, folder: &Path, name: &str, image: Image<'_>) -> Result<(), Error> {
        self.publish_with(folder, name, create_direct, |aside, file| {
            self.act(DiskAct::Write, aside, || reserve(file, image.padded.len() as u64))?;
            self.write_blocks(aside, file, image.padded)?;
            // What was written up to a page goes again.
            self.act(DiskAct::Write, aside, || file.set_len(image.bytes))
        })
    }

    /// Makes a file aside, fills it, makes it durable, and gives it its name.
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

    /// Writes blocks of a file, several at once; none after one has failed.
    fn write_blocks(&self, path: &Path, file: &File, bytes: &[u8]) -> Result<(), Error> {
        let blocks: Vec<(usize, &[u8])> = bytes.chunks(BLOCK_BYTES).enumerate().collect();
        let write = |(number, block): (usize, &[u8])| {
            let offset = (number * BLOCK_BYTES) as u64;
            self.act(DiskAct::Write, path, || file.write_all_at(block, offset))
        };
        try_on_threads(BLOCKS_IN_FLIGHT, blocks, write).map(drop)
    }

    /// Builds a checkpoint's folder aside and gives it its name in one step. What a build before left there goes first; what a
    /// failed one leaves goes too, unless an fsync failed.
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
            // The build has failed already and that is what is reported; what can't be removed now goes with the next one.
            let _ = self.remove_folder(&aside);
        }
        let built = built?;
        self.rename_folder(&aside, &root.join(name))?;
        self.sync_folder(root)?;
        // If a folder of that name was there, it is aside now.
        self.remove_folder(&aside)?;
        Ok(built)
    }

    /// Gives a finished folder its final name. If that name is taken the two change places in one step, so that there
    /// is a checkpoint under the name at every instant; the old one is then at `from`.
    pub(crate) fn rename_folder(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.act(DiskAct::Rename, to, || {
            let flags = if to.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            match renameat_with(CWD, from, CWD, to, flags) {
                // Some network file systems know no flags; a plain rename replaces nothing but an empty folder.
                Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
                renamed => renamed.map_err(io::Error::from),
            }
        })
    }

    /// Gives a file another name in its folder, whose names are made durable later.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.act(DiskAct::Rename, to, || fs::rename(from, to))
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync_folder(&self, path: &Path) -> Result<(), Error> {
        let folder = File::open(path).map_err(|source| Error::io("open", path, source))?;
        self.sync(DiskAct::SyncFolder, path, &folder)
    }

    /// Removes a file; one that isn't there is fine.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), Error> {
        self.act(DiskAct::Remove, path, || missing_is_fine(fs::remove_file(path)))
    }

    /// Removes a folder and all in it; one that isn't there is fine.
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
            DiskAct::Remove => "remove",
        }
    }
}

/// A new file.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

/// A new file to write past the page cache; through it, where the file system can't (EINVAL, open(2)).
fn create_direct(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    match past_the_cache(options.clone()).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => options.open(path),
        opened => opened,
    }
}

/// Writes bytes at a place: whole pages of memory that belong to whole pages of the file past the page cache, if the file
/// system can, and the rest through it.
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

/// The same way of opening a file, past the page cache: what is written or read once needn't be kept there.
pub(crate) fn past_the_cache(mut options: OpenOptions) -> OpenOptions {
    options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).expect("flags of open(2) are an int"));
    options
}

/// Reserves space, where the file system can: then blocks are written at the same time, while a file that grows takes one
/// after the other, and a disk that is too full says so before anything is written.
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
