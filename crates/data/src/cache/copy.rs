//! One object's copy, which is fetched as it is read: a range at a time, by one program however many want it, and with the
//! checksum of each block compared before its bytes are given.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use gangline_objects::Tag;
use xxhash_rust::xxh3::xxh3_64;

use super::counts::Counts;
use super::place::{Item, Place, failed};
use super::record::{Ranges, Record};
use super::uses::Near;
use super::{BLOCKS, Cache, HEAD, HEAD_BYTES, PIN, QUARANTINE, Quota, RANGE, RANGE_BYTES, WHOLE, put};
use crate::error::Error;
use crate::guarded::Guarded;
use crate::sealed::{self, BLOCK_BYTES};

/// How often a block is fetched again whose checksum is wrong, or bytes are read again that were removed meanwhile.
const TRIES_MAX: u32 = 8;
/// What is said of a copy whose bytes can't be kept.
const DAMAGED: &str = "the cache's copy was damaged each time it was fetched: check this machine's disk and memory";

/// One object's copy, locked for sharing.
pub(crate) struct Copy {
    cache: Cache,
    place: Arc<Place>,
    item: Item,
    path: PathBuf,
    data: Guarded,
    ranges: Ranges,
    /// Of each range, the state in which blocks were compared with their checksums, and a bit for each of these.
    known: Vec<AtomicU64>,
    /// Which ranges this program has wanted already.
    wanted: Vec<AtomicBool>,
    _pin: File,
    /// Held by who reads the file itself: then none of its ranges is removed.
    whole: OnceLock<File>,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copy").field("url", &self.item.url).finish_non_exhaustive()
    }
}

impl Copy {
    /// Opens an object's copy, which nobody removes as long as this lives; nothing is fetched.
    pub(super) fn open(cache: &Cache, place: &Arc<Place>, item: Item) -> Result<Copy, Error> {
        let path = cache.copy_path(&item.key);
        let pin = cache.lock_file(&item.key, PIN)?;
        pin.lock_shared().map_err(Error::io("lock", &path))?;
        // By which copies that were used longest ago are found. Of another user's cache it can't be set, and isn't needed.
        let _ = pin.set_modified(SystemTime::now());
        let room = cache.lock_room()?;
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open().map_err(Error::io("open", &path))?;
        let ranges = Ranges::open(&cache.part_path(&item.key, super::RANGES), item.bytes)?;
        if file.metadata().map_err(Error::io("open", &path))?.len() != item.bytes {
            // It was just made, or somebody cut it short.
            file.set_len(item.bytes).map_err(Error::io("make", &path))?;
            (0..ranges.count()).try_for_each(|range| ranges.remove(range))?;
        }
        let record = Record::new(&item.url, &item.tag, item.bytes);
        if Record::read(&cache.record_path(&item.key))?.as_ref() != Some(&record) {
            record.write(&cache.record_path(&item.key))?;
        }
        drop(room);
        let data = Guarded::of(&file).map_err(Error::io("map", &path))?;
        let known = (0..ranges.count()).map(|_| AtomicU64::new(0)).collect();
        let wanted = (0..ranges.count()).map(|_| AtomicBool::new(false)).collect();
        let (cache, place) = (cache.clone(), Arc::clone(place));
        // Few files are kept open: a dataset may have many.
        Ok(Copy { cache, place, item, path, data, ranges, known, wanted, _pin: pin, whole: OnceLock::new() })
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    pub(super) fn item(&self) -> &Item {
        &self.item
    }

    /// What tells it from all other copies.
    pub(crate) fn key(&self) -> &str {
        &self.item.key
    }

    /// The ranges that there are.
    pub(crate) fn ranges(&self) -> Range<usize> {
        0..self.ranges.count()
    }

    /// Whether a range is there, as far as a glance tells.
    pub(crate) fn has(&self, range: usize) -> bool {
        self.ranges.state(range).is_ok_and(|state| state % 2 == 1)
    }

    /// See [`Cache::bytes_max`].
    pub(crate) fn limit(&self) -> Option<u64> {
        self.cache.bytes_max()
    }

    /// See [`Guarded::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self, bytes: &Range<usize>) {
        self.data.prefetch(bytes);
    }

    /// Bytes of a range.
    pub(crate) fn bytes_of(&self, range: usize) -> u64 {
        super::room::length(range, self.item.bytes)
    }

    /// Keeps all of its ranges, for who reads the file itself.
    pub(super) fn keep_whole(&self) -> Result<(), Error> {
        let whole = self.cache.lock_file(&self.item.key, WHOLE)?;
        whole.lock_shared().map_err(Error::io("lock", &self.path))?;
        // Another thread may have done it.
        let _ = self.whole.set(whole);
        Ok(())
    }

    /// What `act` makes of a range of the bytes, which are fetched if they aren't there, and verified if they weren't.
    #[inline]
    pub(crate) fn read<R>(&self, bytes: Range<usize>, mut act: impl FnMut(&[u8]) -> R) -> Result<R, Error> {
        for _ in 0..TRIES_MAX {
            let states = self.ready(&bytes)?;
            let made = self.data.read(bytes.clone(), &mut act).ok_or_else(|| self.cut())?;
            fence(Ordering::Acquire);
            // Another program may have removed them meanwhile, to make room.
            if self.states(&bytes)? == states {
                return Ok(made);
            }
        }
        let problem = "bytes are removed from the cache as soon as they are fetched: allow more";
        Err(Error::refused("cache_limit", problem))
    }

    /// The object's first bytes, [`HEAD_BYTES`] of them at most. Of an object that has more than one range, they are asked for
    /// by themselves, unless their range is there.
    pub(crate) fn head(&self) -> Result<Vec<u8>, Error> {
        let bytes = 0..self.len().min(HEAD_BYTES);
        if self.ranges.count() <= 1 || self.has(0) {
            return self.read(bytes, <[u8]>::to_vec);
        }
        let path = self.cache.part_path(&self.item.key, HEAD);
        let kept = || fs::read(&path).ok().and_then(|text| sealed::unseal::<Vec<u8>>(&text).ok());
        let kept = || kept().filter(|(found, is_intact)| *is_intact && found.len() == bytes.len());
        if let Some((found, _)) = kept() {
            return Ok(found);
        }
        let _lock = self.cache.wait_for(&format!("{} {HEAD}", self.item.key), &|| kept().is_some())?;
        if let Some((found, _)) = kept() {
            return Ok(found);
        }
        let mut found = Vec::new();
        self.get(0..bytes.end as u64, &mut found)?;
        put(&path, &sealed::seal(&found))?;
        Ok(found)
    }

    /// Fetches the beginning of an object of several ranges, unless it is there.
    pub(super) fn bring_head(&self) -> Result<(), Error> {
        if self.ranges.count() <= 1 { Ok(()) } else { self.head().map(drop) }
    }

    /// Fetches a range unless it is there; returns its state. `near` says how soon it is used: room is made of what is used
    /// later.
    pub(crate) fn bring(&self, range: usize, near: Near) -> Result<u64, Error> {
        let (state, is_fetched) = self.bring_counted(range, near)?;
        let is_first = !self.wanted[range].swap(true, Ordering::Relaxed);
        let bytes = self.bytes_of(range);
        if is_fetched {
            Counts { found: 0, fetched: bytes }.add(&self.cache, &self.item.key);
        } else if is_first {
            Counts { found: bytes, fetched: 0 }.add(&self.cache, &self.item.key);
        }
        Ok(state)
    }

    /// The same; says as well whether this program fetched it.
    fn bring_counted(&self, range: usize, near: Near) -> Result<(u64, bool), Error> {
        let there = || self.ranges.entry(range).map(|entry| entry.map(|entry| entry.state));
        if let Some(state) = there()? {
            return Ok((state, false));
        }
        let is_there = || there().is_ok_and(|state| state.is_some());
        let mut lock = None;
        for name in self.lock_names(range) {
            lock = self.cache.wait_for(&name, &is_there)?;
            if let Some(state) = there()? {
                return Ok((state, false));
            }
            if lock.is_some() {
                break;
            }
        }
        if lock.is_none() {
            let problem = "other programs began to fetch it, and didn't end it: end them, if they are suspended";
            let source = std::io::Error::new(std::io::ErrorKind::TimedOut, problem);
            return Err(Error::Io { action: "fetch a part of", path: self.item.url.clone().into(), source });
        }
        let start = range as u64 * RANGE_BYTES;
        let bytes = start..self.item.bytes.min(start + RANGE_BYTES);
        // Nothing is asked for in vain.
        let reservation = self.cache.reserve(bytes.end - bytes.start, near)?;
        let mut body = self.place.buffers.borrow();
        let tries = self.get(bytes, &mut body)?;
        drop(reservation);
        // Held until the range counts.
        let _room = self.cache.make_room(body.len() as u64, near)?;
        self.ranges.remove(range)?;
        let file = File::options().write(true).open(&self.path).map_err(Error::io("open", &self.path))?;
        let (mut sums, mut at) = (Vec::with_capacity(BLOCKS), start);
        for block in body.chunks(BLOCK_BYTES) {
            sums.push(xxh3_64(block));
            file.write_all_at(block, at).map_err(Error::io("write", &self.path))?;
            at += block.len() as u64;
        }
        let owner = self.cache.quota.as_ref().map_or(0, Quota::owner);
        Ok((self.ranges.add(range, (tries, owner), &sums)?, true))
    }

    fn lock_names(&self, range: usize) -> [String; 2] {
        lock_names(&self.item.key, range)
    }

    /// Asks for bytes; returns how often that took.
    fn get(&self, bytes: Range<u64>, into: &mut Vec<u8>) -> Result<u32, Error> {
        let Item { name, url, tag, .. } = &self.item;
        self.place.link.get_of(name, bytes, &Tag(tag.clone()), into).map_err(|error| match error {
            gangline_objects::Error::Changed { .. } => Error::Changed { path: url.into(), opened: self.item.bytes },
            error => failed(url, error),
        })
    }

    /// The sum of the states of the ranges of these bytes, which have been verified. States only grow, so a sum stays as it is
    /// only if all do.
    #[inline]
    fn ready(&self, bytes: &Range<usize>) -> Result<u64, Error> {
        let mut sum = 0;
        for range in ranges_of(bytes) {
            let state = self.ranges.state(range)?;
            let (known, wanted) = (self.known[range].load(Ordering::Relaxed), bits(range, bytes));
            let is_ready = state % 2 == 1 && known >> BLOCKS == state && known & wanted == wanted;
            sum += if is_ready { state } else { self.make_ready(range, wanted)? };
        }
        Ok(sum)
    }

    #[inline]
    fn states(&self, bytes: &Range<usize>) -> Result<u64, Error> {
        ranges_of(bytes).try_fold(0, |sum, range| Ok(sum + self.ranges.state(range)?))
    }

    /// Fetches a range if it isn't there, and compares some of its blocks with their checksums.
    #[cold]
    fn make_ready(&self, range: usize, wanted: u64) -> Result<u64, Error> {
        for _ in 0..TRIES_MAX {
            let state = self.bring(range, Near::NOW)?;
            let Some(entry) = self.ranges.entry(range)?.filter(|entry| entry.state == state) else { continue };
            let mut wrong = None;
            for block in (0..BLOCKS).filter(|block| wanted & (1 << block) != 0) {
                let bytes = self.block(range, block);
                let sum = self.data.read(bytes, xxh3_64).ok_or_else(|| self.cut())?;
                wrong = wrong.or((sum != entry.sums[block]).then_some(block));
            }
            if self.ranges.state(range)? != state {
                continue;
            }
            let Some(block) = wrong else {
                let slot = &self.known[range];
                let before = slot.load(Ordering::Relaxed);
                let before = if before >> BLOCKS == state { before } else { 0 };
                slot.store((state << BLOCKS) | (before & ((1 << BLOCKS) - 1)) | wanted, Ordering::Relaxed);
                return Ok(state);
            };
            self.quarantine(range, block, state)?;
        }
        Err(Error::malformed(&self.path, range * RANGE, DAMAGED))
    }

    /// Keeps a damaged block for who looks for the cause, and has its range fetched anew.
    fn quarantine(&self, range: usize, block: usize, state: u64) -> Result<(), Error> {
        let bytes = self.block(range, block);
        let name = format!("{}.{}", self.item.key, bytes.start);
        // It may be gone, or the disk full.
        let found = self.data.read(bytes, <[u8]>::to_vec).unwrap_or_default();
        let _ = fs::write(self.cache.options.root.join(QUARANTINE).join(name), found);
        let _lock = self.cache.wait_for(&self.lock_names(range)[0], &|| false)?;
        if self.ranges.state(range)? == state { self.ranges.remove(range) } else { Ok(()) }
    }

    /// The bytes of a block.
    fn block(&self, range: usize, block: usize) -> Range<usize> {
        let start = (range * BLOCKS + block) * BLOCK_BYTES;
        start.min(self.len())..(start + BLOCK_BYTES).min(self.len())
    }

    /// Compares every byte with its checksum; what differs is fetched anew.
    pub(super) fn verify(&self) -> Result<(), Error> {
        self.ranges().try_for_each(|range| {
            let blocks = self.len().div_ceil(BLOCK_BYTES).saturating_sub(range * BLOCKS).min(BLOCKS);
            self.make_ready(range, (1 << blocks) - 1).map(drop)
        })
    }

    #[cold]
    fn cut(&self) -> Error {
        Error::malformed(&self.path, 0, "the cache's copy was cut short by another program: start again")
    }
}

/// The locks of a range: of who fetches it, and of who fetches it as well since that takes too long.
pub(super) fn lock_names(key: &str, range: usize) -> [String; 2] {
    [format!("{key} {range}"), format!("{key} {range} late")]
}

/// The ranges in which these bytes are.
#[inline]
pub(crate) fn ranges_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / RANGE..bytes.end.div_ceil(RANGE)
}

/// A bit for each block of a range that has some of these bytes.
#[inline]
fn bits(range: usize, bytes: &Range<usize>) -> u64 {
    let first = (bytes.start / BLOCK_BYTES).saturating_sub(range * BLOCKS);
    let behind = (bytes.end.div_ceil(BLOCK_BYTES) - range * BLOCKS).min(BLOCKS);
    ((1 << behind) - 1) & !((1 << first) - 1)
}

const _: () = assert!(HEAD_BYTES <= RANGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_that_have_some_of_the_bytes() {
        let mib = BLOCK_BYTES;
        let check = |range, bytes: Range<usize>, expected: u64| assert_eq!(bits(range, &bytes), expected, "{bytes:?}");
        check(0, 0..1, 0b1);
        check(0, mib - 1..mib + 1, 0b11);
        check(0, 7 * mib..9 * mib, 0b1000_0000);
        check(1, 7 * mib..9 * mib, 0b1);
        check(1, 8 * mib..16 * mib, 0b1111_1111);
        assert_eq!(ranges_of(&(7 * mib..9 * mib)), 0..2);
        assert_eq!(ranges_of(&(0..8 * mib)), 0..1);
    }
}
