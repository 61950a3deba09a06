//! Compressed files of a source: unpacked once for all programs of a user, and read from there.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::compressed::{Compression, unpack};
use crate::error::Error;

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
    let to = folder.join(&hasher.finalize().to_hex()[..32]);
    if to.exists() {
        return Ok(to);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(Error::io("make", folder))?;
    // Whoever is second replaces the file by the same.
    let aside = to.with_added_extension(format!("{}.{:?}.partial", std::process::id(), std::thread::current().id()));
    let made = unpack(path, compression, &aside, bytes_max)
        .and_then(|_| fs::rename(&aside, &to).map_err(Error::io("make", &to)));
    if made.is_err() {
        // The error that is returned says what failed first.
        let _ = fs::remove_file(&aside);
    }
    made.map(|()| to)
}
