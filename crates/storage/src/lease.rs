//! The lease of a folder's writer. Two runs that save into one folder would prune each other's checkpoints,
//! so the second one is refused.
//!
//! A writer locks a file of its own in `.gangline/` and writes its name into `writer.json`. The locks are
//! those of fcntl(2): a process that dies loses them at once, children don't inherit them, and NFS supports
//! them. The lease belongs to the run: another attempt of the same run takes it over from one that is still
//! dying, and the older attempt then commits nothing more. Stores of one process share it. On a file system
//! without locks there is no lease, and nobody is refused.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::manifest::unseal;
use crate::{Error, layout};

const MAGIC: &str = "gangline-writer";
const VERSION: u32 = 1;
/// The most bytes of the file that names the writer.
const HOLDER_BYTES_MAX: u64 = 16 << 10;
/// How long two processes that open the folder at the same time wait for each other.
const GUARD_WAIT_MAX: Duration = Duration::from_secs(10);
/// The time between two attempts to lock the guard.
const GUARD_INTERVAL: Duration = Duration::from_millis(5);

/// The content of `writer.json`: the current writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    magic: String,
    version: u32,
    run: String,
    tag: u64,
    host: String,
    process: u32,
    /// The name of the file that the writer has locked.
    lock: String,
}

/// The right to change a folder's checkpoints.
#[derive(Debug)]
pub(crate) struct Lease {
    folder: PathBuf,
    lock: String,
    /// The locked file; closing it releases the lock.
    _file: File,
}

/// The number of leases that this process has taken; makes the names of lock files unique.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A folder's device and inode.
type FolderId = (u64, u64);

/// The leases of this process: a lock doesn't exclude other threads of the same process.
static HELD: Mutex<BTreeMap<FolderId, Weak<Lease>>> = Mutex::new(BTreeMap::new());

impl Lease {
    /// Takes the lease of a folder; none if its file system doesn't support locks.
    ///
    /// # Errors
    /// [`Error::Held`] by another run, or by a newer attempt of this one; [`Error::Io`].
    pub(crate) fn take(root: &Path, run: &str, tag: u64) -> Result<Option<Arc<Lease>>, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::io("take the writer's lease", &path, source)
        };
        let about = fs::metadata(root).map_err(failed(root))?;
        let id = (about.dev(), about.ino());
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = held.get(&id).and_then(Weak::upgrade) {
            return Ok(Some(lease));
        }
        let folder = root.join(layout::OWN_FOLDER);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&folder)(error)),
            _ => {}
        }
        let Some(_guard) = guard(&folder)? else { return Ok(None) };
        if let Some(holder) = read_holder(&folder)
            && is_alive(&folder, &holder).map_err(failed(&folder))?
            && (holder.run != run || holder.tag > tag)
        {
            let Holder { run, host, process, .. } = holder;
            return Err(Error::Held { path: root.to_owned(), run, host, process });
        }
        let lease = Arc::new(Lease::write(folder.clone(), run, tag).map_err(failed(&folder))?);
        held.retain(|_, lease| lease.strong_count() > 0);
        held.insert(id, Arc::downgrade(&lease));
        Ok(Some(lease))
    }

    fn write(folder: PathBuf, run: &str, tag: u64) -> io::Result<Lease> {
        let process = std::process::id();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        let lock = format!("writer-{host}-{process}-{number}.lock").replace('/', "_");
        let file = open_lock(&folder.join(&lock))?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let holder = Holder {
            magic: MAGIC.to_owned(),
            version: VERSION,
            run: run.to_owned(),
            tag,
            host,
            process,
            lock: lock.clone(),
        };
        let aside = layout::aside(&folder, layout::WRITER);
        fs::write(&aside, crate::manifest::seal(&holder))?;
        fs::rename(&aside, folder.join(layout::WRITER))?;
        Ok(Lease { folder, lock, _file: file })
    }

    /// Returns `Ok` while the lease belongs to this attempt.
    ///
    /// # Errors
    /// [`Error::Held`] if another attempt has taken it over.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match read_holder(&self.folder) {
            Some(Holder { run, host, process, lock, .. }) if lock != self.lock => {
                let path = self.folder.parent().unwrap_or(&self.folder).to_owned();
                Err(Error::Held { path, run, host, process })
            }
            // A missing file doesn't indicate another writer.
            _ => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A file that stays isn't locked, and the next writer removes it.
        let _ = fs::remove_file(self.folder.join(&self.lock));
    }
}

/// Locks the guard, so that no other process takes the lease meanwhile; none if the file system doesn't
/// support locks.
fn guard(folder: &Path) -> Result<Option<File>, Error> {
    let path = folder.join(layout::WRITER_GUARD);
    let failed = |source| Error::io("lock", &path, source);
    let file = open_lock(&path).map_err(failed)?;
    let started = Instant::now();
    loop {
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(Errno::AGAIN | Errno::ACCESS) if started.elapsed() < GUARD_WAIT_MAX => {
                std::thread::sleep(GUARD_INTERVAL);
            }
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).expect("flags of open(2) are an int");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path)
}

/// Reads the writer's name; none if it is missing or unreadable.
fn read_holder(folder: &Path) -> Option<Holder> {
    let path = folder.join(layout::WRITER);
    if fs::metadata(&path).ok()?.len() > HOLDER_BYTES_MAX {
        return None;
    }
    unseal(&fs::read(&path).ok()?, MAGIC, VERSION).ok()
}

/// Reports whether the holder's lock is held. Removes the lock file of a dead holder.
fn is_alive(folder: &Path, holder: &Holder) -> io::Result<bool> {
    if holder.lock.contains('/') {
        return Ok(false);
    }
    let path = folder.join(&holder.lock);
    if !path.exists() {
        return Ok(false);
    }
    match fcntl_lock(open_lock(&path)?, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(true),
        Err(errno) => Err(errno.into()),
        Ok(()) => fs::remove_file(&path).map(|()| false),
    }
}
