//! Small files that are whole or absent: written aside, fsynced, renamed, and the folder fsynced. Reads have
//! a limit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::shared_place::open_regular;

/// Maximum size of a small file (spec, record, endpoint), in bytes.
const SMALL_FILE_BYTES_MAX: u64 = 4 << 20;

/// Writes `bytes` durably to `path` with mode 0600, replacing any previous content.
///
/// # Errors
/// If the file, or the temporary file next to it, can't be written; the previous content is then intact.
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

/// Reads a small file. Doesn't block on anything that isn't a file, such as a FIFO.
///
/// # Errors
/// If it can't be read, isn't a regular file, or has more than 4 MiB.
pub fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(SMALL_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > SMALL_FILE_BYTES_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 4 MiB"));
    }
    Ok(bytes)
}
