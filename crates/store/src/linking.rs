//! Copies of files that never change.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Links or copies a file that never changes, durably.
///
/// # Errors
/// If it can't be.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to)?;
        File::open(to)?.sync_all()?;
    }
    Ok(())
}
