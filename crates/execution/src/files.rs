//! Small files that are whole or absent: written aside, fsynced, renamed, the folder fsynced; and read with a limit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::shared_place::open_regular;

/// The largest small file that is read: specs, records, the endpoint.
const SMALL_FILE_BYTES_MAX: u64 = 4 << 20;

/// Puts `bytes` at `path` with mode 0600, durably, replacing what was there.
///
/// # Errors
/// If the file, or one beside it, can't be written; what was there is whole then.
pub fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("aside");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Reads a small file. What isn't a file, such as a FIFO, is not waited for.
///
/// # Errors
/// If it can't be read, is no regular file, or has more than 4 MiB.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(SMALL_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > SMALL_FILE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 4 MiB"));
    }
    Ok(bytes)
}
