//! Locks of the operating system, which end with the process that holds them, whatever ends it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Cache, LOCKS};
use crate::error::Error;

/// Files that are locked for ranges; ranges share them.
const LOCKS_MAX: usize = 1 << 10;
/// How long a program waits for another one that fetches a range. Then one of those that wait fetches the range as well, which
/// does no harm: the other one may have been suspended.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks at a range that another program fetches.
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// Locks a file under which something is made; false if that is there meanwhile, or if another program has had the lock for too
/// long.
pub(crate) fn wait_to_lock(path: &Path, file: &File, is_there: &dyn Fn() -> bool) -> Result<bool, Error> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut pause = Duration::from_micros(100);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if is_there() || Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Cache {
    /// Takes the lock under which a range is fetched; none if it is there meanwhile, or if another program has had the lock for
    /// too long. There is a limited number of locks, which ranges share. They end with their process.
    pub(super) fn wait_for(&self, what: &str, is_there: &dyn Fn() -> bool) -> Result<Option<File>, Error> {
        let (path, file) = self.shared_lock(what)?;
        Ok(wait_to_lock(&path, &file, is_there)?.then_some(file))
    }

    /// Takes the lock of a range if nobody has it.
    pub(super) fn try_for(&self, what: &str) -> Result<Option<File>, Error> {
        let (path, file) = self.shared_lock(what)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &path)(error)),
        }
    }

    fn shared_lock(&self, what: &str) -> Result<(PathBuf, File), Error> {
        let hash = blake3::hash(what.as_bytes());
        let number = hash.as_bytes()[..2].iter().fold(0, |sum, byte| sum * 256 + usize::from(*byte));
        let path = self.options.root.join(LOCKS).join(format!("{:03x}", number % LOCKS_MAX));
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let file = open().map_err(Error::io("open", &path))?;
        Ok((path, file))
    }

    /// Takes the lock under which copies are made and removed.
    pub(super) fn lock_room(&self) -> Result<File, Error> {
        let path = self.options.root.join("room.lock");
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let room = open().map_err(Error::io("open", &path))?;
        room.lock().map_err(Error::io("lock", &path))?;
        Ok(room)
    }

    /// A file of a copy that is locked; it stays.
    pub(super) fn lock_file(&self, key: &str, what: &str) -> Result<File, Error> {
        let path = self.part_path(key, what);
        File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::io("open", &path))
    }
}
