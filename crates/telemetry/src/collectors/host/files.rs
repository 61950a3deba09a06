//! Reads files of /proc and /sys, each with a size limit.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::PARTS_MAX;
use crate::collectors::source::SourceError;

/// The most that is read of a file; mountstats of a node with many mounts is the longest.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the kernel's files are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) proc: PathBuf,
    pub(super) sys: PathBuf,
}

impl Files {
    /// Returns a file of /proc; empty if it isn't there.
    pub(super) fn proc(&self, name: &str) -> String {
        read(&self.proc.join(name)).unwrap_or_default()
    }

    /// Returns a file of /proc.
    pub(super) fn required(&self, name: &str) -> Result<String, SourceError> {
        let path = self.proc.join(name);
        read(&path).map_err(|source| SourceError::Unreadable { path, source })
    }

    /// Reports whether a disk is a whole one, and not a partition, a loop device or memory.
    pub(super) fn is_whole_disk(&self, name: &str) -> bool {
        let is_memory = ["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind));
        !is_memory && self.sys.join("block").join(name).exists()
    }
}

/// Returns a file's text.
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the number in a file.
pub(super) fn number(path: &Path) -> Option<u64> {
    read(path).ok()?.trim().parse().ok()
}

/// Returns the names in a folder, sorted.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names.truncate(PARTS_MAX);
    names
}
