//! Compressed files of a source: unpacked once for all programs of a user, and read from there.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::cache::wait_to_lock;
use crate::compressed::{Compression, unpack};
use crate::error::Error;

/// The folder of files that are locked by who unpacks something; some share one.
const LOCKS: &str = "locks";

/// Returns what a file holds that is compressed by gzip or zstd, which its name's end says, as a file below `folder`, which may be
/// several programs'.
///
/// # Errors
/// When the file can't be read or decompressed, or the folder's disk fails.
pub fn unpacked(path: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    unpacked_by(Compression::of_name(name).1, path, folder, u64::MAX)
}

/// Returns what a compressed file holds, as a file below `folder`. Its name tells the compressed file's place, size and time, so that
/// another file at that place is another one.
///
/// # Errors
/// When the file can't be read or decompressed, holds more than `bytes_max`, or the folder's disk fails.
pub(super) fn unpacked_by(
    compression: Compression,
    path: &Path,
    folder: &Path,
    bytes_max: u64,
) -> Result<PathBuf, Error> {
    let path = &fs::canonicalize(path).map_err(Error::io("open", path))?;
    let found = fs::metadata(path).map_err(Error::io("open", path))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_os_str().as_bytes());
    let times = [found.mtime(), found.mtime_nsec()].map(i64::cast_unsigned);
    for number in [found.size(), times[0], times[1]] {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let to = folder.join(&hash[..32]);
    if to.exists() {
        return Ok(to);
    }
    let locks = folder.join(LOCKS);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&locks).map_err(Error::io("make", &locks))?;
    // One program unpacks it and the others wait, but not for one that is suspended: then both make the same.
    let lock = locks.join(&hash[..2]);
    let open = || File::options().create(true).truncate(false).write(true).open(&lock);
    let locked = open().map_err(Error::io("open", &lock))?;
    wait_to_lock(&lock, &locked, &|| to.exists())?;
    if to.exists() {
        return Ok(to);
    }
    let aside = to.with_added_extension(format!("{}.{:?}.partial", std::process::id(), std::thread::current().id()));
    let made = unpack(path, compression, &aside, bytes_max)
        .and_then(|_| fs::rename(&aside, &to).map_err(Error::io("make", &to)));
    if made.is_err() {
        // The error that is returned says what failed first.
        let _ = fs::remove_file(&aside);
    }
    made.map(|()| to)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn programs_that_want_a_file_at_the_same_time_unpack_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin.gz");
        let mut writer = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
        writer.write_all(&vec![7; 16 << 20]).unwrap();
        writer.finish().unwrap();
        let inode = || {
            let made = unpacked(&path, &folder.path().join("unpacked")).unwrap();
            fs::metadata(made).unwrap().ino()
        };
        let inodes: Vec<u64> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..4).map(|_| scope.spawn(inode)).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(inodes.iter().all(|one| *one == inodes[0]), "{inodes:?}");
    }
}
