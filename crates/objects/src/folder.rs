//! Objects in a folder: a mounted file system, a disk to carry away, and what tests use. Objects are written
//! aside, synced and renamed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use gangline_base::Timestamp;

use crate::disk::{ASIDE_PREFIX, Disk};
use crate::error::DiskError;
use crate::remote::OBJECTS_MAX;
use crate::{Fault, Meter, Object, Part, Remote, State, Tag};

/// The file that is locked during a conditional change; no object has this name.
const LOCK: &str = ".lock";
/// How often the lock is tried, and how long between two tries.
const LOCK_TRIES: u32 = 500;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Tells apart the uploads of this process.
static UPLOADS: AtomicU64 = AtomicU64::new(0);

/// A folder as a remote. A key is a path below it of two parts.
pub struct Folder {
    root: PathBuf,
    disk: Disk,
    meter: Meter,
}

impl Folder {
    /// Returns the folder at this path, which is created when the first object is put.
    #[must_use]
    pub fn new(root: PathBuf) -> Folder {
        Folder::metered(root, Meter::default())
    }

    /// The same; the meter counts the bytes that are read.
    pub(crate) fn metered(root: PathBuf, meter: Meter) -> Folder {
        Folder { root, disk: Disk::default(), meter }
    }
}

/// The operating system refuses again what it has refused once, except for errors that it says are passing.
fn fault(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::NotFound => Fault::Missing,
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Fault::Passing(error.into())
        }
        _ => Fault::Lasting(error.into()),
    }
}

fn lasting(error: DiskError) -> Fault {
    Fault::Lasting(error.into())
}

impl Remote for Folder {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        let path = self.root.join(key);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(Fault::Lasting("the key is no path".into()));
        };
        self.disk.create_folder(folder).map_err(lasting)?;
        self.disk.publish(folder, name, bytes).map_err(lasting)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        let file = File::open(self.root.join(key)).map_err(fault)?;
        let there = file.metadata().map_err(fault)?.len();
        // No memory is taken for bytes that the file doesn't have.
        let length = range.end.min(there).saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(length).expect("64-bit Linux only")];
        file.read_exact_at(&mut bytes, range.start).map_err(fault)?;
        Ok(bytes)
    }

    fn get_of(&self, key: &str, range: Range<u64>, mark: &Tag, into: &mut Vec<u8>) -> Result<(), Fault> {
        let file = File::open(self.root.join(key)).map_err(fault)?;
        let length = usize::try_from(range.end - range.start).expect("64-bit Linux only");
        let check = || if mark_of(&file.metadata().map_err(fault)?) == *mark { Ok(()) } else { Err(Fault::Changed) };
        check()?;
        into.resize(length, 0);
        match file.read_exact_at(into, range.start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Fault::Changed),
            read => read.map_err(fault)?,
        }
        self.meter.receive(length);
        check()
    }

    fn meter(&self) -> Option<&Meter> {
        Some(&self.meter)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        let entries = match fs::read_dir(self.root.join(prefix)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fault)?,
        };
        let mut objects = Vec::new();
        for entry in entries {
            if objects.len() == OBJECTS_MAX {
                return Err(Fault::Lasting("there are more objects than can be listed".into()));
            }
            objects.extend(object(prefix, &entry.map_err(fault)?)?);
        }
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        self.disk.remove_file(&self.root.join(key)).map_err(lasting)
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        match File::open(self.root.join(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => {
                // Hashed piece by piece: an object may be larger than the memory.
                let mut hasher = blake3::Hasher::new();
                hasher.update_reader(opened.map_err(fault)?).map_err(fault)?;
                Ok(Some(State { tag: tag(&hasher.finalize()), bytes: hasher.count() }))
            }
        }
    }

    fn mark(&self, key: &str) -> Result<Option<State>, Fault> {
        match fs::metadata(self.root.join(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => {
                let found = found.map_err(fault)?;
                let is_file = found.is_file();
                Ok(is_file.then(|| State { tag: mark_of(&found), bytes: found.len() }))
            }
        }
    }

    fn size(&self, key: &str) -> Result<Option<u64>, Fault> {
        match fs::metadata(self.root.join(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => Ok(Some(found.map_err(fault)?.len())),
        }
    }

    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        let _lock = self.lock()?;
        if self.state(key)?.map(|state| state.tag).as_ref() != tag {
            return Ok(None);
        }
        self.put(key, bytes)?;
        Ok(Some(tag_of(bytes)))
    }

    /// The upload is a file beside the object.
    fn begin_parts(&self, key: &str) -> Result<String, Fault> {
        let path = self.root.join(key);
        let folder = path.parent().unwrap_or(&self.root);
        self.disk.create_folder(folder).map_err(lasting)?;
        let number = UPLOADS.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let upload = format!("{ASIDE_PREFIX}{name}-{}-{number}", std::process::id());
        File::create(folder.join(&upload)).map_err(fault)?;
        Ok(upload)
    }

    fn put_part(&self, key: &str, part: Part<'_>, bytes: &[u8]) -> Result<Tag, Fault> {
        let file = OpenOptions::new().write(true).open(self.aside(key, part.upload)).map_err(fault)?;
        file.write_all_at(bytes, part.offset).map_err(fault)?;
        Ok(Tag(part.number.to_string()))
    }

    fn finish_parts(&self, key: &str, upload: &str, _parts: &[Tag]) -> Result<(), Fault> {
        let aside = self.aside(key, upload);
        if !aside.exists() {
            return Err(Fault::Missing);
        }
        self.disk.publish_aside(&aside, &self.root.join(key)).map_err(lasting)
    }

    fn abandon_parts(&self, key: &str, upload: &str) -> Result<(), Fault> {
        self.disk.remove_file(&self.aside(key, upload)).map_err(lasting)
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        // Without locks, only a suspension of this process can come between.
        let _lock = match self.lock() {
            Err(Fault::Unable(_)) => None,
            lock => Some(lock?),
        };
        if !may() {
            return Ok(false);
        }
        self.delete(key).map(|()| true)
    }
}

impl Folder {
    fn aside(&self, key: &str, upload: &str) -> PathBuf {
        self.root.join(key).with_file_name(upload)
    }

    /// Keeps other programs from making conditional changes until it is dropped. The file system releases it
    /// when the process ends; a process that is suspended meanwhile can't be overtaken.
    fn lock(&self) -> Result<File, Fault> {
        self.disk.create_folder(&self.root).map_err(lasting)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).expect("flags of open(2) are an int"));
        let file = options.open(self.root.join(LOCK)).map_err(fault)?;
        for _ in 0..LOCK_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(Fault::Unable(error.into())),
            }
        }
        Err(Fault::Passing("another program holds its lock".into()))
    }
}

fn tag_of(bytes: &[u8]) -> Tag {
    tag(&blake3::hash(bytes))
}

fn tag(hash: &blake3::Hash) -> Tag {
    Tag(hash.to_hex().to_string())
}

/// What tells a file's state without its content: a writer that changes it in place changes its time, and one that
/// replaces it changes its number.
fn mark_of(file: &fs::Metadata) -> Tag {
    Tag(format!("{}.{:09} {} {}", file.mtime(), file.mtime_nsec(), file.ino(), file.len()))
}

/// Returns when a file was last written.
#[must_use]
pub fn modified(file: &fs::Metadata) -> Timestamp {
    let seconds = u64::try_from(file.mtime()).unwrap_or(0);
    let nanos = u64::try_from(file.mtime_nsec()).unwrap_or(0);
    Timestamp::from_unix_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Returns the object of an entry; none for a half-written file, a folder, or a file that is gone by now.
fn object(prefix: &str, entry: &fs::DirEntry) -> Result<Option<Object>, Fault> {
    let Ok(name) = entry.file_name().into_string() else { return Ok(None) };
    let metadata = match entry.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(fault)?,
    };
    if name.starts_with(ASIDE_PREFIX) || !metadata.is_file() {
        return Ok(None);
    }
    Ok(Some(Object { key: format!("{prefix}{name}"), bytes: metadata.len(), modified: modified(&metadata), tag: None }))
}

/// Returns the folder of an address, if it is one: `file:///...`, or a path without a scheme.
#[must_use]
pub fn folder_of(url: &str) -> Option<&Path> {
    match url.split_once("://") {
        None => Some(Path::new(url)),
        Some(("file", path)) if path.starts_with('/') => Some(Path::new(path)),
        Some(_) => None,
    }
}
