//! The log: batches on the disk before they are acknowledged. One file from one segment to the next.
//!
//! A record is its length (4 bytes), its XXH3 (8) and a batch. A record that doesn't fit its checksum is skipped and
//! counted; a torn one can only be the last. After a failed write the file is cut back to its last whole record; after a
//! failed sync nobody knows what is on the disk, so the next record begins another file.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::wide;
use super::error::Error;
use super::key::Batch;
use super::writer::sync_folder;

const FRAME_BYTES: usize = 12;
/// The longest record that is read.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    number: u64,
    /// The open file and the length of its whole records; none until there is a record, or after a failure.
    open: Option<(File, u64)>,
    /// Bytes that were appended since the last call of [`Log::rotate`].
    pub(super) bytes: u64,
}

/// What a log file held.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) batches: Vec<Batch>,
    /// Records that don't fit their checksum.
    pub(super) damaged: u64,
    /// Bytes at the end that are no whole record.
    pub(super) torn_bytes: u64,
}

pub(super) fn file_name(number: u64) -> String {
    format!("log-{number:010}")
}

impl Log {
    /// Returns a log whose first file has this number.
    pub(super) fn beginning(folder: &Path, number: u64) -> Log {
        Log { folder: folder.to_owned(), number, open: None, bytes: 0 }
    }

    /// Appends batches and syncs them. After an error none of them is in the log, or the next start finds some of them
    /// there and their source sends them again, which changes nothing.
    pub(super) fn append(&mut self, batches: &[&Batch]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for batch in batches {
            let record = batch.encode();
            let length = u32::try_from(record.len()).map_err(|_| Error::Refused { what: "it is too long" })?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&xxh3_64(&record).to_le_bytes());
            bytes.extend_from_slice(&record);
        }
        let path = self.folder.join(file_name(self.number));
        let (mut file, length) = match self.open.take() {
            Some(open) => open,
            None => (self.make(&path)?, 0),
        };
        if let Err(error) = file.write_all(&bytes) {
            let cut = file.set_len(length).and_then(|()| file.seek(SeekFrom::Start(length)));
            match cut {
                Ok(_) => self.open = Some((file, length)),
                Err(_) => self.number += 1,
            }
            return Err(Error::io("write", &path)(error));
        }
        if let Err(error) = file.sync_data() {
            self.number += 1;
            return Err(Error::io("sync", &path)(error));
        }
        self.open = Some((file, length + wide(bytes.len())));
        self.bytes += wide(bytes.len());
        Ok(())
    }

    fn make(&self, path: &Path) -> Result<File, Error> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = file.map_err(Error::io("make", path))?;
        sync_folder(&self.folder)?;
        Ok(file)
    }

    /// Begins another file and returns the number of the last one before it.
    pub(super) fn rotate(&mut self) -> u64 {
        (self.open, self.bytes) = (None, 0);
        self.number += 1;
        self.number - 1
    }
}

/// Reads a log file as far as it goes.
pub(super) fn replay(path: &Path) -> Result<Replayed, Error> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let (mut rest, mut found) = (bytes.as_slice(), Replayed::default());
    while !rest.is_empty() {
        let Some((record, sum, after)) = cut_record(rest) else {
            found.torn_bytes = wide(rest.len());
            break;
        };
        rest = after;
        match (xxh3_64(record) == sum).then(|| Batch::decode(record)).flatten() {
            Some(batch) => found.batches.push(batch),
            None => found.damaged += 1,
        }
    }
    Ok(found)
}

/// Returns the first record, its checksum, and the bytes after it; none if the record isn't whole.
fn cut_record(bytes: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (frame, rest) = bytes.split_first_chunk::<FRAME_BYTES>()?;
    let (length, sum) = frame.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= RECORD_BYTES_MAX)?;
    let (record, after) = rest.split_at_checked(length)?;
    Some((record, u64::from_le_bytes(sum.try_into().ok()?), after))
}
