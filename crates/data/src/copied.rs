//! What is used from the cache: copies of a dataset's objects, each with the checksums of its blocks, and locked so that it stays.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gangline_objects::Requests;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::sealed::BLOCK_BYTES;

/// What is said of a copy whose bytes aren't those that were fetched.
pub(crate) const DAMAGED: &str =
    "the cache's copy was changed after it was fetched, and was taken out: start again, and it is fetched anew";

/// A dataset in the cache, which stays there as long as this lives.
#[derive(Debug)]
pub struct Fetched {
    /// The folder of its files, or its only file.
    pub path: PathBuf,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// Bytes that were fetched for it now, by this program.
    pub fetched: u64,
    /// Billed requests that were sent for it now, retries included.
    pub requests: Requests,
    pub(crate) copies: BTreeMap<String, Copy>,
}

/// One object's copy, locked for sharing.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) path: PathBuf,
    /// Where it goes if it is damaged.
    pub(crate) quarantine: PathBuf,
    pub(crate) bytes: u64,
    /// Of each block.
    pub(crate) sums: Vec<u64>,
    pub(crate) _pin: File,
}

impl Fetched {
    /// The copy of a file in it.
    pub(crate) fn copy(&self, path: &Path) -> Option<&Copy> {
        self.copies.get(path.file_name()?.to_str()?)
    }

    /// Compares every byte with its checksum; what differs is quarantined.
    ///
    /// # Errors
    /// Names the first place that differs.
    pub fn verify(&self) -> Result<(), Error> {
        self.copies.values().try_for_each(Copy::verify)
    }
}

impl Copy {
    /// Takes the copy out of the cache, so that the next program fetches the object anew.
    pub(crate) fn quarantine(&self) {
        // Another program may have done it.
        let _ = fs::remove_file(self.path.with_added_extension("json"));
        let _ = fs::rename(&self.path, &self.quarantine);
    }

    fn verify(&self) -> Result<(), Error> {
        use std::io::Read as _;
        let mut file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        let (mut block, mut read) = (Vec::with_capacity(BLOCK_BYTES), 0);
        for sum in &self.sums {
            block.clear();
            let limited = file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block);
            limited.map_err(Error::io("read", &self.path))?;
            if xxh3_64(&block) != *sum {
                return Err(self.damaged(read));
            }
            read += block.len();
        }
        if read as u64 == self.bytes { Ok(()) } else { Err(self.damaged(read)) }
    }

    fn damaged(&self, offset: usize) -> Error {
        self.quarantine();
        Error::malformed(&self.path, offset, DAMAGED)
    }
}
