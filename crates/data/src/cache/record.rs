//! What is known of a copy: which object it is of; and of each range of it, whether it is there, and its blocks' checksums.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{BLOCKS, RANGE_BYTES, put};
use crate::error::Error;
use crate::guarded::Guarded;
use crate::sealed;

/// The version of records that are written, and the only one that is read.
const VERSION: u32 = 2;
/// Numbers of a range: its state, the requests it took with the queue on whose account it is, its blocks' checksums, and the
/// checksum of all of these.
const NUMBERS: usize = BLOCKS + 3;
const ENTRY_BYTES: usize = NUMBERS * 8;

/// Which object a copy is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    pub(crate) url: String,
    pub(crate) tag: String,
    pub(crate) bytes: u64,
}

impl Record {
    pub(super) fn new(url: &str, tag: &str, bytes: u64) -> Record {
        Record { version: VERSION, url: url.to_owned(), tag: tag.to_owned(), bytes }
    }

    /// The record at a path; none if there is none, or one that can't be trusted.
    pub(super) fn read(path: &Path) -> Result<Option<Record>, Error> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::io("read", path))?,
        };
        let record =
            sealed::unseal::<Record>(&text).ok().filter(|(record, is_intact)| *is_intact && record.version == VERSION);
        Ok(record.map(|(record, _)| record))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        // What a crash leaves of it is told by its checksum.
        put(path, &sealed::seal(self))
    }
}

/// The ranges of a copy, in a file that all programs share.
///
/// A range's state is a count that is odd while the range is there, and grows with each change: who reads bytes looks at it
/// before and afterwards, and knows that they were there all the time. Changes are made by who holds the range's lock. The
/// checksum tells entries that were lost in part, as when a machine fails.
pub(super) struct Ranges {
    path: PathBuf,
    map: Guarded,
    count: usize,
}

/// A range that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) state: u64,
    pub(super) requests: u32,
    /// The queue on whose account it is; 0 is none.
    pub(super) owner: u32,
    pub(super) sums: [u64; BLOCKS],
}

impl Ranges {
    /// Opens the ranges of an object of so many bytes; without an entry, none is there. Bytes of an empty file would be a signal
    /// when the disk is full, so zeros are written.
    pub(super) fn open(path: &Path, bytes: u64) -> Result<Ranges, Error> {
        let count = usize::try_from(bytes.div_ceil(RANGE_BYTES)).expect("64-bit Linux only");
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = open().map_err(Error::io("open", path))?;
        let there = file.metadata().map_err(Error::io("open", path))?.len();
        let length = (count * ENTRY_BYTES) as u64;
        let missing = usize::try_from(length.saturating_sub(there)).expect("64-bit Linux only");
        // Two programs may do it at the same time; both hold the room's lock.
        file.write_all_at(&vec![0; missing], there).map_err(Error::io("write", path))?;
        let map = Guarded::of(&file).map_err(Error::io("map", path))?;
        Ok(Ranges { path: path.to_owned(), map, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// A range's state: odd if it is there.
    #[inline]
    pub(super) fn state(&self, range: usize) -> Result<u64, Error> {
        self.map.number(range * ENTRY_BYTES).ok_or_else(|| self.cut())
    }

    /// The queue on whose account a range is that is there; 0 is none.
    pub(super) fn owner(&self, range: usize) -> Result<u32, Error> {
        let number = self.map.number(range * ENTRY_BYTES + 8).ok_or_else(|| self.cut())?;
        Ok(halves(number).0)
    }

    /// A range's entry; none if it isn't there.
    pub(super) fn entry(&self, range: usize) -> Result<Option<Entry>, Error> {
        let place = range * ENTRY_BYTES..(range + 1) * ENTRY_BYTES;
        let bytes = self.map.read(place, <[u8]>::to_vec).ok_or_else(|| self.cut())?;
        let number = |at: usize| u64::from_ne_bytes(*bytes[at * 8..].first_chunk().expect("an entry has so many"));
        let state = number(0);
        let is_whole = state % 2 == 1 && number(NUMBERS - 1) == xxh3_64(&bytes[..ENTRY_BYTES - 8]);
        let (owner, requests) = halves(number(1));
        let sums = std::array::from_fn(|block| number(2 + block));
        Ok(is_whole.then_some(Entry { state, requests, owner, sums }))
    }

    /// Says that a range is there. The range's lock is held.
    pub(super) fn add(&self, range: usize, (requests, owner): (u32, u32), sums: &[u64]) -> Result<u64, Error> {
        self.remove(range)?;
        let state = self.state(range)? + 1;
        let mut numbers = vec![state, u64::from(owner) << 32 | u64::from(requests)];
        numbers.extend(sums);
        numbers.resize(NUMBERS - 1, 0);
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        bytes.extend(xxh3_64(&bytes).to_ne_bytes());
        // The state is written last: with it, the rest holds.
        self.write(range * ENTRY_BYTES + 8, &bytes[8..])?;
        self.write(range * ENTRY_BYTES, &bytes[..8])?;
        Ok(state)
    }

    /// Says that a range isn't there. The range's lock is held.
    pub(super) fn remove(&self, range: usize) -> Result<(), Error> {
        let state = self.state(range)?;
        if state % 2 == 1 { self.write(range * ENTRY_BYTES, &(state + 1).to_ne_bytes()) } else { Ok(()) }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let file = File::options().write(true).open(&self.path).map_err(Error::io("open", &self.path))?;
        file.write_all_at(bytes, at as u64).map_err(Error::io("write", &self.path))
    }

    #[cold]
    fn cut(&self) -> Error {
        Error::malformed(&self.path, 0, "the cache's list of ranges was cut short: remove the file, and start again")
    }
}

/// The upper and the lower half of a number.
fn halves(number: u64) -> (u32, u32) {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).expect("32 bits");
    (half(number >> 32), half(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ranges");
        let ranges = Ranges::open(&path, 3 * RANGE_BYTES - 1).unwrap();
        assert_eq!((ranges.count(), ranges.entry(1).unwrap()), (3, None));
        assert_eq!(ranges.add(1, (2, 9), &[5, 6]).unwrap(), 1);
        let entry = Entry { state: 1, requests: 2, owner: 9, sums: [5, 6, 0, 0, 0, 0, 0, 0] };
        assert_eq!(ranges.entry(1).unwrap(), Some(entry));
        // Another program sees it, and each change of it.
        let other = Ranges::open(&path, 3 * RANGE_BYTES - 1).unwrap();
        assert_eq!((other.state(1).unwrap(), other.entry(1).unwrap()), (1, Some(entry)));
        assert_eq!(other.owner(1).unwrap(), 9);
        other.remove(1).unwrap();
        assert_eq!((ranges.state(1).unwrap(), ranges.entry(1).unwrap()), (2, None));
        assert_eq!(ranges.add(1, (1, 0), &[7]).unwrap(), 3);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for byte in 0..ENTRY_BYTES {
            let at = (ENTRY_BYTES + byte) as u64;
            let mut was = [0];
            file.read_exact_at(&mut was, at).unwrap();
            file.write_all_at(&[was[0] ^ 1], at).unwrap();
            assert_eq!(ranges.entry(1).unwrap(), None, "byte {byte}");
            file.write_all_at(&was, at).unwrap();
        }
        assert!(ranges.entry(1).unwrap().is_some());
    }
}
