//! A file system of its own size for the data folder, which fills up and has room again.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use xtask::command::output;

/// The file that takes the room.
const FILLER: &str = "filler";

/// A file system in a file, mounted.
#[derive(Debug)]
pub(super) struct Disk {
    place: PathBuf,
}

impl Disk {
    /// Makes a file system of so many bytes in `image` and mounts it at `place`.
    ///
    /// # Errors
    /// When that isn't permitted here, or a program for it is missing.
    pub(super) fn mount(image: &Path, place: &Path, bytes: u64) -> Result<Disk> {
        std::fs::create_dir_all(place).with_context(|| format!("make {}", place.display()))?;
        File::create(image).and_then(|file| file.set_len(bytes)).context("make the image of a file system")?;
        output(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image))?;
        output(Command::new("mount").args(["-o", "loop"]).arg(image).arg(place))?;
        Ok(Disk { place: place.to_owned() })
    }

    /// Takes all room but for `left` bytes.
    ///
    /// # Errors
    /// When the file system can't be asked or written to; that it is full is none.
    pub(super) fn fill(&self, left: u64) -> Result<()> {
        let filler = File::create(self.place.join(FILLER)).context("make what fills the disk")?;
        let mut at = 0;
        // What is free is in pieces, and some of it goes for the record of the pieces.
        for _ in 0..64 {
            let system = statvfs(&self.place).context("look at the disk")?;
            let free = (system.f_bavail * system.f_frsize).saturating_sub(left);
            if free < system.f_frsize {
                break;
            }
            if fallocate(filler.as_fd(), FallocateFlags::empty(), at, free).is_ok() {
                at += free;
            } else if fallocate(filler.as_fd(), FallocateFlags::empty(), at, free / 2 + 1).is_ok() {
                at += free / 2 + 1;
            }
        }
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// When the filler can't be removed.
    pub(super) fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.place.join(FILLER)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.context("remove what fills the disk"),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: something may still have a file open there, which the report has named.
        let _ = Command::new("umount").arg("-l").arg(&self.place).output();
    }
}
