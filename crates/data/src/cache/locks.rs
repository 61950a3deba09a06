//! Locks of the operating system, which end with the process that holds them, whatever ends it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Cache, PARTS_LOCK};
use crate::error::Error;

/// How long a program waits for another one that fetches a range. Then one of those that wait fetches the range as well, which
/// does no harm: the other one may have been suspended.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks at a range that another program fetches.
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// Locks a file under which something is made; false if that is there meanwhile, or if another program has had the lock for too
/// long.
pub(crate) fn wait_to_lock(path: &Path, file: &File, is_there: &dyn Fn() -> bool) -> Result<bool, Error> {
    let lock = || match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
    };
    wait(&lock, is_there)
}

fn wait(lock: &dyn Fn() -> Result<bool, Error>, is_there: &dyn Fn() -> bool) -> Result<bool, Error> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut pause = Duration::from_micros(100);
    loop {
        if lock()? {
            return Ok(true);
        }
        if is_there() || Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A part of a cache that one program at a time makes or removes. Each has a byte of one file, which need not be that long, and
/// which is locked for a file that was opened once: the lock ends when that is closed.
struct Part {
    file: File,
    byte: i64,
}

impl Part {
    /// False if somebody else has the lock.
    #[expect(unsafe_code, reason = "neither std nor rustix locks a part of a file")]
    #[expect(clippy::cast_possible_truncation, reason = "the constants are below 3")]
    fn try_lock(&self) -> io::Result<bool> {
        // SAFETY: all fields are integers, for which zero is a value.
        let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
        wanted.l_type = libc::F_WRLCK as libc::c_short;
        wanted.l_whence = libc::SEEK_SET as libc::c_short;
        (wanted.l_start, wanted.l_len) = (self.byte, 1);
        // SAFETY: the file is open, and the command takes this structure and keeps no pointer to it.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                error => Err(error),
            },
        }
    }
}

impl Cache {
    /// Takes the lock under which a range is fetched; none if it is there meanwhile, or if another program has had the lock for
    /// too long. It ends with its process.
    pub(super) fn wait_for(&self, what: &str, is_there: &dyn Fn() -> bool) -> Result<Option<File>, Error> {
        let (path, part) = self.part(what)?;
        let is_locked = wait(&|| part.try_lock().map_err(Error::io("lock", &path)), is_there)?;
        Ok(is_locked.then_some(part.file))
    }

    /// Takes the lock of a range if nobody has it.
    pub(super) fn try_for(&self, what: &str) -> Result<Option<File>, Error> {
        let (path, part) = self.part(what)?;
        let is_locked = part.try_lock().map_err(Error::io("lock", &path))?;
        Ok(is_locked.then_some(part.file))
    }

    fn part(&self, what: &str) -> Result<(PathBuf, Part), Error> {
        let hash = blake3::hash(what.as_bytes());
        let number = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let path = self.options.root.join(PARTS_LOCK);
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let file = open().map_err(Error::io("open", &path))?;
        // Offsets in files are positive, and the byte behind the last one is the end of the lock.
        Ok((path, Part { file, byte: (number >> 2).cast_signed() }))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::CacheOptions;
    use super::*;

    fn cache(root: &Path) -> Cache {
        let threads = std::num::NonZeroU32::MIN;
        Cache::open(CacheOptions { root: root.to_owned(), bytes_max: None, settings: BTreeMap::new(), threads })
            .unwrap()
    }

    /// Two ranges that share a lock would wait for each other, and neither could be removed while the other is fetched.
    #[test]
    fn each_part_has_a_lock_of_its_own_that_ends_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (cache(folder.path()), cache(folder.path()));
        let held: BTreeMap<usize, File> = (0..200)
            .map(|range| (range, one.try_for(&format!("key {range}")).unwrap().expect("nobody has it")))
            .collect();
        assert!((0..200).all(|range| other.try_for(&format!("key {range}")).unwrap().is_none()), "in no other cache");
        assert!(one.try_for("key 7").unwrap().is_none(), "nor in this one");
        assert!(other.wait_for("key 7", &|| true).unwrap().is_none(), "it is there meanwhile");
        drop(held);
        assert!(other.wait_for("key 7", &|| false).unwrap().is_some());
    }
}
