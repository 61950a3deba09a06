//! A dataset in the cache: the copies of its objects, under their names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gangline_objects::Requests;

use super::copy::Copy;
use super::datasets;
use super::looks;
use super::place::{Item, Place};
use super::uses::{Near, Uses};
use super::{Cache, SETS, unpacked_folder};
use crate::error::Error;
use crate::index::native::MANIFEST;

/// The ends of names of objects that are read in parts; of all others, all is fetched at once.
const READ_IN_PARTS: [&str; 5] = ["bin", "npy", "ds", "tokens", "mds"];

/// A dataset in the cache, which stays there as long as this lives.
pub struct Fetched {
    path: PathBuf,
    bytes: u64,
    cache: Cache,
    place: Arc<Place>,
    copies: BTreeMap<String, Arc<Copy>>,
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetched").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(super) fn find(cache: &Cache, url: &str) -> Result<Fetched, Error> {
    let place = Arc::new(Place::open(url, &cache.options.settings)?);
    let items = looks::items(cache, &place)?;
    let bytes = items.iter().map(|item| item.bytes).sum();
    let open = |item: &Item| Copy::open(cache, &place, item.clone());
    let copies = items.iter().map(open).collect::<Result<Vec<Copy>, Error>>()?;
    let path = assemble(cache, &copies, place.is_object())?;
    datasets::list(cache, &place.address(), &copies)?;
    let copies = copies.into_iter().map(|copy| (copy.item().name.clone(), Arc::new(copy))).collect();
    let found = Fetched { path, bytes, cache: cache.clone(), place, copies };
    let at_once = found.copies.values().filter(|copy| !is_read_in_parts(&copy.item().name));
    found.fetch(at_once, &|_| {})?;
    Ok(found)
}

/// Reports whether an object of this name is read in parts. LitData's compressed chunks are `NAME.zstd.bin` or `NAME.zstd:4.bin`.
fn is_read_in_parts(name: &str) -> bool {
    let (stem, end) = name.rsplit_once('.').unwrap_or((name, ""));
    let is_compressed = stem.rsplit_once('.').is_some_and(|(_, how)| how.starts_with("zstd"));
    READ_IN_PARTS.contains(&end) && !is_compressed
}

impl Fetched {
    /// The folder of its files, or its only file. Only with [`Cache::fetch`] do these hold all bytes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where compressed files of it are unpacked.
    pub(crate) fn unpacked_folder(&self) -> PathBuf {
        unpacked_folder(&self.cache.options.root)
    }

    /// Its address, without what is secret in it.
    #[must_use]
    pub fn address(&self) -> String {
        self.place.address()
    }

    /// Bytes of the dataset.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that this program has received for it. Answers that broke off count with what came of them.
    #[must_use]
    pub fn fetched(&self) -> u64 {
        self.place.bytes_received()
    }

    /// Requests that were sent for it by this program, retries included.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.place.requests()
    }

    /// Compares every byte with its checksum; what differs is fetched anew.
    ///
    /// # Errors
    /// When that can't be done.
    pub fn verify(&self) -> Result<(), Error> {
        self.copies.values().try_for_each(|copy| copy.verify())
    }

    /// The copy of a file in it.
    pub(crate) fn copy(&self, path: &Path) -> Option<&Arc<Copy>> {
        self.copies.get(path.file_name()?.to_str()?)
    }

    /// Fetches what formats without a manifest are known by, several objects' at a time: one after the other, each would take a
    /// round trip.
    pub(crate) fn bring_heads(&self) -> Result<(), Error> {
        if self.copies.contains_key(MANIFEST) {
            return Ok(());
        }
        let in_parts: Vec<_> = self.copies.values().filter(|copy| is_read_in_parts(&copy.item().name)).collect();
        in_parallel(self.threads(), &in_parts, &|copy| copy.bring_head())
    }

    /// Ranges that are asked for at a time.
    pub(crate) fn threads(&self) -> usize {
        usize::try_from(self.cache.options.threads.get()).expect("32 bits fit")
    }

    /// Where to say what is used next; none without a limit, where nobody asks.
    pub(crate) fn uses(&self) -> Result<Option<Uses>, Error> {
        self.cache.bytes_max().map(|_| Uses::new(&self.cache)).transpose()
    }

    /// Fetches all of it, as far as it isn't there, and keeps it whole; `progress` is told the bytes that are there and those of
    /// the dataset.
    ///
    /// # Errors
    /// When the store doesn't answer or refuses, an object changes meanwhile, or there is no room.
    pub fn fetch_all(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<(), Error> {
        let there = AtomicU64::new(0);
        self.fetch(self.copies.values(), &|more| {
            progress(there.fetch_add(more, Ordering::Relaxed) + more, self.bytes);
        })
    }

    fn fetch<'a>(&self, copies: impl Iterator<Item = &'a Arc<Copy>>, tell: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        let mut ranges = Vec::new();
        for copy in copies {
            copy.keep_whole()?;
            ranges.extend(copy.ranges().map(|range| (Arc::clone(copy), range)));
        }
        in_parallel(self.threads(), &ranges, &|(copy, range)| {
            copy.bring(*range, Near::NOW)?;
            tell(copy.bytes_of(*range));
            Ok(())
        })
    }
}

/// Makes the folder in which copies have their objects' names.
fn assemble(cache: &Cache, copies: &[Copy], is_object: bool) -> Result<PathBuf, Error> {
    let mut hasher = blake3::Hasher::new();
    for item in copies.iter().map(Copy::item) {
        hasher.update(format!("{} {}\n", item.name, item.key).as_bytes());
    }
    let folder = cache.options.root.join(SETS).join(&hasher.finalize().to_hex()[..32]);
    fs::create_dir_all(&folder).map_err(Error::io("make", &folder))?;
    for (item, copy) in copies.iter().map(|copy| (copy.item(), copy)) {
        let link = folder.join(&item.name);
        let target = copy.path();
        let is_it =
            fs::metadata(&link).is_ok_and(|found| fs::metadata(target).is_ok_and(|copy| same_file(&found, &copy)));
        if is_it {
            continue;
        }
        // Replaced at once, for those that look at the same time.
        let aside = folder.join(format!(".{}.{}.{:?}", item.name, std::process::id(), std::thread::current().id()));
        let _ = fs::remove_file(&aside);
        fs::hard_link(target, &aside).map_err(Error::io("link", &aside))?;
        fs::rename(&aside, &link).map_err(Error::io("link", &link))?;
        // Renaming one link of a file over another of it leaves both.
        let _ = fs::remove_file(&aside);
    }
    Ok(if is_object { folder.join(&copies[0].item().name) } else { folder })
}

fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Does something with each one, by so many threads; the first error, after which nothing more is begun.
pub(crate) fn in_parallel<T: Sync>(
    threads: usize,
    all: &[T],
    act: &(dyn Fn(&T) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let Err(error) = act(one) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(all.len())).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
