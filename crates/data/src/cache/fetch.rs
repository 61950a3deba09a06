//! Makes copies: one program fetches an object while others wait for it, as far as the limit leaves room.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::place::{Item, Place, failed};
use super::{Cache, MAKING, PIN, QUARANTINE, RANGE_BYTES, Record};
use crate::convert::sync_folder;
use crate::copied::Copy;
use crate::error::Error;
use crate::sealed::BLOCK_BYTES;

/// One dataset that is brought into the cache.
pub(super) struct Fetching<'a> {
    cache: &'a Cache,
    place: &'a Place,
    progress: &'a (dyn Fn(u64, u64) + Sync),
    bytes: u64,
    /// Bytes that are there, and those that were fetched for it.
    there: AtomicU64,
    fetched: AtomicU64,
}

impl<'a> Fetching<'a> {
    pub(super) fn new(cache: &'a Cache, place: &'a Place, bytes: u64, progress: &'a (dyn Fn(u64, u64) + Sync)) -> Self {
        Fetching { cache, place, progress, bytes, there: AtomicU64::new(0), fetched: AtomicU64::new(0) }
    }

    pub(super) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// The copies of all objects, in their order; several are made at a time.
    pub(super) fn all(&self, items: &[Item]) -> Result<Vec<Copy>, Error> {
        let threads = usize::try_from(self.cache.options.threads.get()).expect("32 bits fit");
        let at_a_time = threads.min(items.len()).max(1);
        let copies = in_parallel(at_a_time, items, &|item| self.copy(item, threads.div_ceil(at_a_time)))?;
        Ok(copies)
    }

    /// An object's copy, which is made if it isn't there. It is pinned before that, so that nobody removes it again.
    fn copy(&self, item: &Item, threads: usize) -> Result<Copy, Error> {
        let path = self.cache.copy_path(&item.key);
        let pin = self.cache.lock_file(&item.key, PIN)?;
        pin.lock_shared().map_err(Error::io("lock", &path))?;
        // By which copies that were used longest ago are found. Of another user's cache it can't be set, and isn't needed.
        let _ = pin.set_modified(SystemTime::now());
        let record = match self.record(item)? {
            Some(record) => record,
            None => {
                let making = self.cache.lock_file(&item.key, MAKING)?;
                making.lock().map_err(Error::io("lock", &path))?;
                // Another program may have made it meanwhile.
                self.record(item)?.map_or_else(|| self.make(item, threads), Ok)?
            }
        };
        self.tell(item.bytes);
        let quarantine = self.cache.options.root.join(QUARANTINE).join(&item.key);
        Ok(Copy { path, quarantine, bytes: record.bytes, sums: record.sums().collect(), _pin: pin })
    }

    fn record(&self, item: &Item) -> Result<Option<Record>, Error> {
        let size = fs::metadata(self.cache.copy_path(&item.key)).map(|found| found.len()).ok();
        let record = Record::read(&self.cache.record_path(&item.key))?;
        Ok(record.filter(|record| size == Some(record.bytes)))
    }

    /// Fetches an object; its lock is held.
    fn make(&self, item: &Item, threads: usize) -> Result<Record, Error> {
        let path = self.cache.copy_path(&item.key);
        let partial = path.with_added_extension("partial");
        let file = self.cache.reserve(&item.key, item.bytes)?;
        let made = self.fill(item, &file, threads).and_then(|record| {
            file.sync_all().map_err(Error::io("sync", &partial))?;
            fs::rename(&partial, &path).map_err(Error::io("make", &path))?;
            record.write(&self.cache.record_path(&item.key))?;
            sync_folder(path.parent().expect("a copy is in a folder"))?;
            Ok(record)
        });
        if made.is_err() {
            // Its room is free for others.
            let _ = fs::remove_file(&partial);
        }
        made
    }

    fn fill(&self, item: &Item, file: &File, threads: usize) -> Result<Record, Error> {
        let before = count(self.place);
        let starts: Vec<u64> = (0..item.bytes.div_ceil(RANGE_BYTES)).map(|range| range * RANGE_BYTES).collect();
        let sums = in_parallel(threads, &starts, &|start| {
            let range = *start..item.bytes.min(start + RANGE_BYTES);
            let bytes = self.place.link.get(&item.name, range.clone()).map_err(|error| match error {
                // It was longer when it was listed.
                gangline_objects::Error::Length { .. } => {
                    Error::Changed { path: item.url.clone().into(), opened: item.bytes }
                }
                error => failed(&item.url, error),
            })?;
            file.write_all_at(&bytes, range.start).map_err(Error::io("write", &self.cache.copy_path(&item.key)))?;
            self.fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(bytes.chunks(BLOCK_BYTES).map(xxh3_64).collect::<Vec<u64>>())
        })?;
        self.place.check(item)?;
        // Of several objects at a time, some requests of the others are among these.
        let requests = count(self.place) - before;
        Ok(Record::new(&item.url, item.tag.as_ref(), item.bytes, &sums.concat(), requests))
    }

    fn tell(&self, more: u64) {
        let there = self.there.fetch_add(more, Ordering::Relaxed) + more;
        (self.progress)(there, self.bytes);
    }
}

impl Cache {
    /// Takes room for a copy, by removing those that were used longest ago and aren't used now; returns its file, all of it zeros.
    fn reserve(&self, key: &str, bytes: u64) -> Result<File, Error> {
        let path = self.options.root.join("room.lock");
        let room =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::io("open", &path))?;
        room.lock().map_err(Error::io("lock", &path))?;
        let partial = self.copy_path(key).with_added_extension("partial");
        let _ = fs::remove_file(&partial);
        if let Some(most) = self.options.bytes_max {
            self.make_room(bytes, most)?;
        }
        let file = File::create_new(&partial).map_err(Error::io("make", &partial))?;
        file.set_len(bytes).map_err(Error::io("make", &partial))?;
        Ok(file)
    }

    fn make_room(&self, bytes: u64, most: u64) -> Result<(), Error> {
        let mut copies = Vec::new();
        for key in self.keys()? {
            let used = fs::metadata(self.copy_path(&key).with_added_extension(PIN)).and_then(|found| found.modified());
            let path = self.copy_path(&key);
            let size = [path.clone(), path.with_added_extension("partial")]
                .into_iter()
                .filter_map(|path| fs::metadata(path).ok());
            copies.push((used.unwrap_or(SystemTime::UNIX_EPOCH), size.map(|found| found.len()).sum::<u64>(), key));
        }
        copies.sort();
        let mut there: u64 = copies.iter().map(|(_, size, _)| size).sum();
        for (_, size, key) in copies {
            if there.saturating_add(bytes) <= most {
                return Ok(());
            }
            if size > 0 && self.remove(&key)? {
                there -= size;
            }
        }
        if there.saturating_add(bytes) <= most {
            return Ok(());
        }
        let root = self.options.root.display();
        let problem = format!(
            "{bytes} bytes more don't fit the cache {root}, which may have {most}, and {there} of it are in use: allow more, or wait"
        );
        Err(Error::refused("cache_limit", problem))
    }

    /// Removes a copy that nobody uses or makes; false if somebody does.
    fn remove(&self, key: &str) -> Result<bool, Error> {
        let pin = self.lock_file(key, PIN)?;
        if pin.try_lock().is_err() {
            return Ok(false);
        }
        let path = self.copy_path(key);
        let inode = fs::metadata(&path).map(|found| found.ino()).ok();
        for path in [path.with_added_extension("json"), path.with_added_extension("partial"), path] {
            let _ = fs::remove_file(path);
        }
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

fn count(place: &Place) -> u64 {
    let requests = place.requests();
    requests.get + requests.head + requests.list
}

/// What `act` gives for each one, in their order, by so many threads; the first error, after which nothing more is begun.
fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    all: &[T],
    act: &(dyn Fn(&T) -> Result<R, Error> + Sync),
) -> Result<Vec<R>, Error> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(all.len()));
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(at) else { return };
            match act(one) {
                Ok(made) => done.lock().unwrap_or_else(PoisonError::into_inner).push((at, made)),
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(all.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, made)| made).collect())
}
