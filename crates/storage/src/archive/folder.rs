//! An archive in a folder: a mounted file system, a disk to carry away, and what tests use. Objects are written aside, synced
//! and renamed by the store's own hands.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gangline_base::Timestamp;

use super::remote::{Fault, OBJECTS_MAX, Object, Remote};
use crate::disk::Disk;
use crate::layout;

/// A folder as a remote. A key is a path below it of two parts.
pub(crate) struct Folder {
    root: PathBuf,
    disk: Disk,
}

impl Folder {
    pub(crate) fn new(root: PathBuf) -> Folder {
        Folder { root, disk: Disk::new(None) }
    }
}

/// What the operating system refuses it will refuse again, but for what it says is passing.
fn fault(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::NotFound => Fault::Missing,
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Fault::Passing(error.into())
        }
        _ => Fault::Lasting(error.into()),
    }
}

fn lasting(error: crate::Error) -> Fault {
    Fault::Lasting(error.into())
}

/// When a file was written.
pub(crate) fn modified(metadata: &fs::Metadata) -> Timestamp {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Timestamp::from_unix_nanos(since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0))
}

impl Remote for Folder {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        let path = self.root.join(key);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(Fault::Lasting("the key is no path".into()));
        };
        self.disk.create_root(folder).map_err(lasting)?;
        self.disk.publish(folder, name, bytes).map_err(lasting)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        let file = File::open(self.root.join(key)).map_err(fault)?;
        let there = file.metadata().map_err(fault)?.len();
        // What the file doesn't have isn't made room for.
        let length = range.end.min(there).saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(length).expect("64-bit Linux only")];
        file.read_exact_at(&mut bytes, range.start).map_err(fault)?;
        Ok(bytes)
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
}

/// The object that an entry is; none for what is half written, for folders, and for what is gone again.
fn object(prefix: &str, entry: &fs::DirEntry) -> Result<Option<Object>, Fault> {
    let Ok(name) = entry.file_name().into_string() else { return Ok(None) };
    let metadata = match entry.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(fault)?,
    };
    if name.starts_with(layout::ASIDE_PREFIX) || !metadata.is_file() {
        return Ok(None);
    }
    Ok(Some(Object { key: format!("{prefix}{name}"), bytes: metadata.len(), modified: modified(&metadata) }))
}

/// The folder that an address names, if it names one: `file:///...`, or a path without a scheme.
pub(crate) fn folder_of(url: &str) -> Option<&Path> {
    match url.split_once("://") {
        None => Some(Path::new(url)),
        Some(("file", path)) if path.starts_with('/') => Some(Path::new(path)),
        Some(_) => None,
    }
}
