//! A cache of remote datasets for all programs of a user on a node: an object is fetched once however many want it, in ranges of
//! 8 MiB, several at a time, and kept for later runs.
//!
//! An object's copy is named by its address, state (ETag) and size, so a changed object is another copy. It appears under that name
//! when it is whole, on disk, and known to be of one state; with it, the checksum of each MiB, which is compared before tokens of it
//! are given. Locks are the operating system's, which end with their process: whatever is killed, nothing is left locked, and
//! what it had fetched in part is begun anew by the next. Copies in use are locked for sharing, and those used longest ago make
//! room for others. A program that has a copy open keeps it, though it is removed.

mod fetch;
mod place;
mod record;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::copied::{Copy, Fetched};
use crate::error::Error;
use place::Item;
use record::Record;

/// Bytes of a range that is asked for: what S3's operators advise, 8 to 16 MiB.
pub const RANGE_BYTES: u64 = 8 << 20;
/// Ranges that are asked for at a time, if nothing else is said.
pub const THREADS: u32 = 8;
/// The end of a file's name that is locked, for sharing, by those that use or make a copy, and by who removes it alone.
const PIN: &str = "pin";
/// The end of a file's name that is locked by who makes a copy.
const MAKING: &str = "making";
/// The folder of the copies.
const OBJECTS: &str = "objects";
/// The folder of datasets: the copies under their objects' names.
const SETS: &str = "sets";
/// The folder of copies whose checksums were wrong.
const QUARANTINE: &str = "quarantine";

/// Where the cache is, and what it may take.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The folder, made for its owner alone.
    pub root: PathBuf,
    /// The most bytes of copies; without a limit if none.
    pub bytes_max: Option<u64>,
    /// Settings for S3, named as in the environment of AWS's own tools, and `HOME`.
    pub settings: BTreeMap<String, String>,
    /// Ranges that are asked for at a time.
    pub threads: NonZeroU32,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    options: CacheOptions,
}

/// What the cache holds of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its address.
    pub url: String,
    /// Its bytes.
    pub bytes: u64,
    /// Whether a program uses it now.
    pub is_used: bool,
    /// Billed requests that it took.
    pub requests: u64,
}

/// Whether an address is that of a remote dataset.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("s3://") || text.starts_with("file://"))
}

impl Cache {
    /// Opens the cache, and makes its folders if they aren't there.
    ///
    /// # Errors
    /// When they can't be made.
    pub fn open(options: CacheOptions) -> Result<Cache, Error> {
        for name in [OBJECTS, SETS, QUARANTINE] {
            let folder = options.root.join(name);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::io("make", &folder))?;
        }
        Ok(Cache { options })
    }

    /// Brings the dataset at `url` (`s3://bucket/folder`, or one object) into the cache, unless it is there; `progress` is told
    /// the bytes that are there and those of the dataset.
    ///
    /// # Errors
    /// When the store doesn't answer or refuses, an object changes meanwhile, or there is no room.
    pub fn fetch(&self, url: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Fetched, Error> {
        let place = place::Place::open(url, &self.options.settings)?;
        let items = place.items()?;
        let bytes = items.iter().map(|item| item.bytes).sum();
        let fetching = fetch::Fetching::new(self, &place, bytes, progress);
        let copies = fetching.all(&items)?;
        let path = self.assemble(&items, &copies, place.is_object())?;
        let fetched = fetching.fetched();
        let copies = items.into_iter().map(|item| item.name).zip(copies).collect();
        Ok(Fetched { path, bytes, fetched, requests: place.requests(), copies })
    }

    /// What the cache holds, by address.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn holdings(&self) -> Result<Vec<Holding>, Error> {
        let mut found = Vec::new();
        for key in self.keys()? {
            let Some(record) = Record::read(&self.record_path(&key))? else { continue };
            let is_used = self.lock_file(&key, PIN)?.try_lock().is_err();
            let Record { url, bytes, requests, .. } = record;
            found.push(Holding { url, bytes, is_used, requests });
        }
        found.sort_by(|one, other| one.url.cmp(&other.url));
        Ok(found)
    }

    /// Makes the folder in which copies have their objects' names.
    fn assemble(&self, items: &[Item], copies: &[Copy], is_object: bool) -> Result<PathBuf, Error> {
        let mut hasher = blake3::Hasher::new();
        for item in items {
            hasher.update(format!("{} {}\n", item.name, item.key).as_bytes());
        }
        let folder = self.options.root.join(SETS).join(&hasher.finalize().to_hex()[..32]);
        fs::create_dir_all(&folder).map_err(Error::io("make", &folder))?;
        for (item, copy) in items.iter().zip(copies) {
            let link = folder.join(&item.name);
            let target = &copy.path;
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
        Ok(if is_object { folder.join(&items[0].name) } else { folder })
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
        self.copy_path(key).with_added_extension("json")
    }

    /// A file that is locked; it stays.
    fn lock_file(&self, key: &str, what: &str) -> Result<File, Error> {
        let path = self.copy_path(key).with_added_extension(what);
        File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::io("open", &path))
    }
}

fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
