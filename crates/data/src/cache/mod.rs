//! A cache of remote datasets for all programs of a user on a node: an object is fetched once however many want it, in ranges of
//! 8 MiB, as they are read or before, and kept for later runs.
//!
//! An object's copy is named by its address, state (ETag) and size, so a changed object is another copy. Of each range of it is
//! known whether it is there, with the checksum of each MiB, which is compared before tokens of it are given; what differs is
//! fetched anew. Locks are the operating system's, which end with their process: whatever is killed, nothing is left locked, and
//! what it was fetching is fetched by the next. Copies that nobody uses make room for others, those used longest ago first; then
//! ranges of copies in use, by their next use.

mod buffers;
mod copy;
mod counts;
mod datasets;
mod fetched;
mod locks;
mod looks;
mod place;
mod quota;
mod record;
mod room;
mod users;
mod uses;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(crate) use copy::{Copy, ranges_of};
pub use datasets::{CACHE_VARIABLE, DatasetHolding, cache_folder, holdings_of};
pub use fetched::Fetched;
pub(crate) use fetched::in_parallel;
use gangline_objects::is_http;
pub(crate) use locks::wait_to_lock;
use quota::Quota;
pub use quota::{QUOTA_VARIABLE, QueueHolding};
pub(crate) use uses::{Near, Uses};

use crate::error::Error;
use crate::sealed::BLOCK_BYTES;
use counts::{COUNTS, Counts};
use record::{Ranges, Record};
use users::Users;

/// Bytes of a range that is asked for: what S3's operators advise, 8 to 16 MiB.
pub const RANGE_BYTES: u64 = RANGE as u64;
/// The same, of memory; it has whole blocks.
const RANGE: usize = BLOCKS * BLOCK_BYTES;
/// Bytes of an object's beginning that say what it is.
pub(crate) const HEAD_BYTES: usize = 16 << 10;
/// Blocks of a range.
const BLOCKS: usize = 8;
/// Ranges that are asked for at a time, if nothing else is said.
pub const THREADS: u32 = 8;
/// The end of a file's name that is locked, for sharing, by those that use or make a copy, and by who removes it alone.
const PIN: &str = "pin";
/// The end of a file's name that is locked, for sharing, by who reads the copy's file itself.
const WHOLE: &str = "whole";
/// The end of the name of a file with an object's first bytes, where its first range isn't there.
const HEAD: &str = "head";
/// The end of the name of the list of a copy's ranges.
const RANGES: &str = "ranges";
/// The folder of the copies.
const OBJECTS: &str = "objects";
/// The folder of datasets: the copies under their objects' names.
const SETS: &str = "sets";
/// The folder of the lists of datasets' copies, by the datasets' addresses.
const DATASETS: &str = "datasets";
/// The folder of blocks whose checksums were wrong.
const QUARANTINE: &str = "quarantine";
/// The folder of what a job's ranks saw of a dataset's objects.
const LOOKS: &str = "looks";
/// The file of which a byte is locked for each range that is fetched, and for whatever else one program at a time makes.
const PARTS_LOCK: &str = "parts.lock";
/// The folder in which queues' quotas are noted.
const QUEUES: &str = "queues";
/// The folder in which programs say what they use next.
const USES: &str = "uses";

/// Where the cache is, and what it may take.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The folder, made for its owner alone.
    pub root: PathBuf,
    /// The most bytes of copies; without a limit if none.
    pub bytes_max: Option<u64>,
    /// Settings for S3, named as in the environment of AWS's own tools, `HOME`, [`QUOTA_VARIABLE`] and
    /// [`gangline_objects::READS_VARIABLE`].
    pub settings: BTreeMap<String, String>,
    /// Ranges that are asked for at a time.
    pub threads: NonZeroU32,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    options: CacheOptions,
    /// What this program's queue may have.
    quota: Option<Quota>,
    /// Bytes that this program is fetching, for which it has made room.
    on_their_way: Arc<AtomicU64>,
}

/// What the cache holds of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its address.
    pub url: String,
    /// The object's bytes.
    pub bytes: u64,
    /// Those of them that are here.
    pub there: u64,
    /// Whether a program uses it now.
    pub is_used: bool,
    /// The programs of this machine that use it now.
    pub programs: Vec<u32>,
    /// Requests that it took, those that failed among them.
    pub requests: u64,
    /// Bytes that programs found here when each of them first wanted them, in 8 MiB.
    pub found: u64,
    /// Bytes that programs fetched.
    pub fetched: u64,
}

/// Returns the folder of a cache into which compressed files are unpacked.
#[must_use]
pub fn unpacked_folder(root: &Path) -> PathBuf {
    root.join("unpacked")
}

/// Whether an address is that of a remote dataset.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("s3://") || text.starts_with("file://") || is_http(text))
}

/// Puts a file into place whole: who reads it meanwhile finds the one before it, or none.
fn put(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let aside = path.with_added_extension(format!("{}.{:?}.new", std::process::id(), std::thread::current().id()));
    fs::write(&aside, bytes).map_err(Error::io("write", &aside))?;
    fs::rename(&aside, path).map_err(Error::io("make", path))
}

impl Cache {
    /// Opens the cache, and makes its folders if they aren't there.
    ///
    /// # Errors
    /// When they can't be made, or the quota can't be read.
    pub fn open(options: CacheOptions) -> Result<Cache, Error> {
        for name in [OBJECTS, SETS, DATASETS, QUARANTINE, LOOKS, USES, QUEUES] {
            let folder = options.root.join(name);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::io("make", &folder))?;
        }
        let quota = options.settings.get(QUOTA_VARIABLE).map(|text| Quota::parse(text)).transpose()?;
        let cache = Cache { options, quota, on_their_way: Arc::default() };
        cache.quota.iter().try_for_each(|quota| quota.note(&cache))?;
        Ok(cache)
    }

    /// Finds the dataset at `url` (`s3://bucket/folder`, or one object). What says what its other objects hold is fetched, and
    /// these as they are read.
    ///
    /// # Errors
    /// When the store doesn't answer or refuses, or there is no room.
    pub fn find(&self, url: &str) -> Result<Fetched, Error> {
        fetched::find(self, url)
    }

    /// Brings all of the dataset at `url` into the cache, as far as it isn't there; `progress` is told the bytes that are there
    /// and those of the dataset.
    ///
    /// # Errors
    /// When the store doesn't answer or refuses, an object changes meanwhile, or there is no room.
    pub fn fetch(&self, url: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Fetched, Error> {
        let found = fetched::find(self, url)?;
        found.fetch_all(progress)?;
        Ok(found)
    }

    /// The most bytes that a program may have here at a time: the cache's limit, or its queue's quota if that is less.
    #[must_use]
    pub fn bytes_max(&self) -> Option<u64> {
        let quota = self.quota.as_ref().map(|quota| quota.bytes_max);
        self.options.bytes_max.into_iter().chain(quota).min()
    }

    /// Bytes that are free on the cache's disk for this user.
    ///
    /// # Errors
    /// When it can't be told.
    pub fn free_bytes(&self) -> Result<u64, Error> {
        let root = &self.options.root;
        let about = rustix::fs::statvfs(root).map_err(|error| Error::io("look at the disk of", root)(error.into()))?;
        Ok(about.f_bavail.saturating_mul(about.f_frsize))
    }

    /// What the cache holds, by address.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn holdings(&self) -> Result<Vec<Holding>, Error> {
        let mut found = Vec::new();
        let users = Users::now();
        for key in self.keys()? {
            let Some(record) = Record::read(&self.record_path(&key))? else { continue };
            let pin = self.lock_file(&key, PIN)?;
            let is_used = pin.try_lock().is_err();
            let inode = pin.metadata().map_err(Error::io("look at", &self.part_path(&key, PIN)))?.ino();
            let programs = if is_used { users.holding(inode) } else { Vec::new() };
            let Record { url, bytes, .. } = record;
            let ranges = Ranges::open(&self.part_path(&key, RANGES), bytes)?;
            let there = room::there(&ranges, bytes)?;
            let mut requests = 0;
            for range in 0..ranges.count() {
                requests += ranges.entry(range)?.map_or(0, |entry| u64::from(entry.requests));
            }
            let counts = Counts::read(&self.part_path(&key, COUNTS));
            let (found_here, fetched) = (counts.found, counts.fetched);
            found.push(Holding { url, bytes, there, is_used, programs, requests, found: found_here, fetched });
        }
        found.sort_by(|one, other| one.url.cmp(&other.url));
        Ok(found)
    }

    /// The names of the copies, whole or not.
    fn keys(&self) -> Result<Vec<String>, Error> {
        let folder = self.options.root.join(OBJECTS);
        let mut keys = Vec::new();
        for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let name = entry.map_err(Error::io("list", &folder))?.file_name();
            keys.extend(name.to_str().and_then(|name| name.strip_suffix(".pin")).map(str::to_owned));
        }
        Ok(keys)
    }

    fn copy_path(&self, key: &str) -> PathBuf {
        self.options.root.join(OBJECTS).join(key)
    }

    fn record_path(&self, key: &str) -> PathBuf {
        self.part_path(key, "json")
    }

    /// A file beside a copy.
    fn part_path(&self, key: &str, part: &str) -> PathBuf {
        self.copy_path(key).with_added_extension(part)
    }
}
