//! The cache's limit: what makes room for a range. First copies that nobody uses, the one used longest ago first; then ranges of
//! copies in use, the one that is used last first, and only for what is used sooner: so what is fetched now never drives out
//! what is needed before it. A queue that has a quota makes room among its own ranges, in the same order.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, fallocate};

use super::copy::lock_names;
use super::counts::COUNTS;
use super::record::Ranges;
use super::uses::{self, Near};
use super::{Cache, HEAD, PIN, Quota, RANGE_BYTES, RANGES, WHOLE};
use crate::error::Error;

/// A copy as it is found.
struct Found {
    used: SystemTime,
    key: String,
    bytes: u64,
    ranges: Option<Ranges>,
    there: u64,
}

impl Found {
    /// Whether a range is there, and on a queue's account.
    fn owns(&self, range: usize, owner: u32) -> Result<bool, Error> {
        let Some(ranges) = &self.ranges else { return Ok(false) };
        Ok(ranges.state(range)? % 2 == 1 && ranges.owner(range)? == owner)
    }

    /// Bytes that are there on a queue's account.
    fn bytes_of(&self, owner: u32) -> Result<u64, Error> {
        let count = self.ranges.as_ref().map_or(0, Ranges::count);
        (0..count)
            .try_fold(0, |sum, range| Ok(sum + if self.owns(range, owner)? { length(range, self.bytes) } else { 0 }))
    }
}

/// Room for bytes on their way, until this is dropped.
pub(super) struct Reservation {
    bytes: u64,
    on_their_way: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.on_their_way.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Cache {
    /// Makes room for bytes that are about to be fetched, beside those that are on their way already: else ranges would be
    /// fetched ahead that find no room when they are here. What is waited for takes their room.
    pub(super) fn reserve(&self, bytes: u64, near: Near) -> Result<Reservation, Error> {
        let others = if near == Near::NOW { 0 } else { self.on_their_way.load(Ordering::Relaxed) };
        let _room = self.make_room(bytes.saturating_add(others), near)?;
        self.on_their_way.fetch_add(bytes, Ordering::Relaxed);
        Ok(Reservation { bytes, on_their_way: Arc::clone(&self.on_their_way) })
    }

    /// Makes room for so many bytes that are used so soon. Nobody else does, as long as what is returned lives.
    pub(super) fn make_room(&self, bytes: u64, near: Near) -> Result<Option<File>, Error> {
        if self.bytes_max().is_none() {
            return Ok(None);
        }
        let room = self.lock_room()?;
        let mut copies = self.copies()?;
        if let Some(quota) = &self.quota {
            self.make_room_of_queue(quota, &mut copies, bytes, near)?;
        }
        let Some(most) = self.options.bytes_max else { return Ok(Some(room)) };
        let mut there: u64 = copies.iter().map(|copy| copy.there).sum();
        let fits = |there: u64| there.saturating_add(bytes) <= most;
        for copy in &mut copies {
            if fits(there) {
                return Ok(Some(room));
            }
            if copy.bytes > 0 && self.remove(&copy.key)? {
                there -= copy.there;
                copy.ranges = None;
            }
        }
        for (_, copy, range) in self.by_next_use(&copies, near)? {
            if fits(there) {
                return Ok(Some(room));
            }
            if self.remove_range(&copies[copy], range)? {
                there -= length(range, copies[copy].bytes);
            }
        }
        if fits(there) {
            return Ok(Some(room));
        }
        let root = self.options.root.display();
        let problem = format!(
            "{bytes} bytes more don't fit the cache {root}, which may have {most}, and {there} of it are in use: allow more, or wait"
        );
        Err(Error::refused("cache_limit", problem))
    }

    /// Removes ranges of a program's own queue until so many bytes more are within its quota.
    fn make_room_of_queue(&self, quota: &Quota, copies: &mut [Found], bytes: u64, near: Near) -> Result<(), Error> {
        let mut has: u64 = copies.iter().map(|copy| copy.bytes_of(quota.owner())).sum::<Result<u64, Error>>()?;
        let fits = |has: u64| has.saturating_add(bytes) <= quota.bytes_max;
        if fits(has) {
            return Ok(());
        }
        let mut own = Vec::new();
        for (next, number, range) in self.by_next_use(copies, near)? {
            let copy = &copies[number];
            if copy.owns(range, quota.owner())? {
                // Those of copies that nobody uses go first, the one used longest ago before others.
                let is_used = self.lock_file(&copy.key, PIN)?.try_lock().is_err();
                own.push(((is_used, Reverse(next), number), number, range));
            }
        }
        own.sort();
        for (_, number, range) in own {
            if fits(has) {
                return Ok(());
            }
            let length = length(range, copies[number].bytes);
            if self.remove_range(&copies[number], range)? {
                has -= length;
                copies[number].there -= length;
            }
        }
        if fits(has) {
            return Ok(());
        }
        let Quota { queue, bytes_max } = quota;
        let problem = format!(
            "{bytes} bytes more don't fit what queue {queue} may have of the cache, which is {bytes_max}, and {has} of it are in use: \
             allow it more, or wait"
        );
        Err(Error::refused("cache_quota", problem))
    }

    /// The copies, the one used longest ago first.
    fn copies(&self) -> Result<Vec<Found>, Error> {
        let mut copies =
            self.keys()?.into_iter().map(|key| self.look_at(key)).collect::<Result<Vec<Found>, Error>>()?;
        copies.sort_by(|one, other| (one.used, &one.key).cmp(&(other.used, &other.key)));
        Ok(copies)
    }

    fn look_at(&self, key: String) -> Result<Found, Error> {
        let used = fs::metadata(self.part_path(&key, PIN)).and_then(|found| found.modified());
        let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
        let bytes = fs::metadata(self.copy_path(&key)).map(|found| found.len()).unwrap_or(0);
        let path = self.part_path(&key, RANGES);
        if bytes == 0 || !path.exists() {
            // A copy of an earlier version has no ranges.
            return Ok(Found { used, key, bytes, ranges: None, there: bytes });
        }
        let ranges = Ranges::open(&path, bytes)?;
        let there = there(&ranges, bytes)?;
        Ok(Found { used, key, bytes, ranges: Some(ranges), there })
    }

    /// The ranges that are used later than what room is made for, the last first.
    fn by_next_use(&self, copies: &[Found], near: Near) -> Result<Vec<(Near, usize, usize)>, Error> {
        let uses = uses::all(self)?;
        let mut all = Vec::new();
        for (number, copy) in copies.iter().enumerate() {
            let Some(ranges) = &copy.ranges else { continue };
            for range in 0..ranges.count() {
                let next = uses.get(&copy.key).and_then(|ranges| ranges.get(range)).copied().unwrap_or(Near::FAR);
                if next > near && ranges.state(range)? % 2 == 1 {
                    all.push((next, number, range));
                }
            }
        }
        all.sort_by(|one, other| other.cmp(one));
        Ok(all)
    }

    /// Removes a range of a copy in use; false if it may not be removed. Who reads it meanwhile notices, and fetches it again.
    fn remove_range(&self, copy: &Found, range: usize) -> Result<bool, Error> {
        let Some(ranges) = &copy.ranges else { return Ok(false) };
        let path = self.copy_path(&copy.key);
        let whole = self.lock_file(&copy.key, WHOLE)?;
        if whole.try_lock().is_err() {
            return Ok(false);
        }
        let mut locks = Vec::new();
        for name in lock_names(&copy.key, range) {
            match self.try_for(&name)? {
                Some(lock) => locks.push(lock),
                None => return Ok(false),
            }
        }
        ranges.remove(range)?;
        let file = File::options().write(true).open(&path).map_err(Error::io("open", &path))?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(&file, flags, range as u64 * RANGE_BYTES, length(range, copy.bytes));
        punched.map_err(|error| Error::io("make room in", &path)(error.into()))?;
        Ok(true)
    }

    /// Removes a copy that nobody uses or makes; false if somebody does.
    fn remove(&self, key: &str) -> Result<bool, Error> {
        let pin = self.lock_file(key, PIN)?;
        if pin.try_lock().is_err() {
            return Ok(false);
        }
        let path = self.copy_path(key);
        let inode = fs::metadata(&path).map(|found| found.ino()).ok();
        for part in ["json", "partial", HEAD, "tail", COUNTS, RANGES] {
            let _ = fs::remove_file(self.part_path(key, part));
        }
        let _ = fs::remove_file(path);
        self.unlink(inode);
        Ok(true)
    }

    /// Removes a copy's names in datasets, which keep its bytes on disk.
    fn unlink(&self, inode: Option<u64>) {
        let Some(inode) = inode else { return };
        let folders = fs::read_dir(self.options.root.join(super::SETS)).into_iter().flatten().flatten();
        for file in folders.filter_map(|folder| fs::read_dir(folder.path()).ok()).flatten().flatten() {
            if file.metadata().is_ok_and(|found| found.ino() == inode) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// The bytes of a cache that are on a queue's account.
pub(super) fn bytes_of(cache: &Cache, owner: u32) -> Result<u64, Error> {
    cache.copies()?.iter().map(|copy| copy.bytes_of(owner)).sum()
}

/// The bytes of the ranges that are there.
pub(super) fn there(ranges: &Ranges, bytes: u64) -> Result<u64, Error> {
    (0..ranges.count())
        .try_fold(0, |sum, range| Ok(sum + if ranges.state(range)? % 2 == 1 { length(range, bytes) } else { 0 }))
}

pub(super) fn length(range: usize, bytes: u64) -> u64 {
    let start = range as u64 * RANGE_BYTES;
    bytes.min(start + RANGE_BYTES).saturating_sub(start)
}
