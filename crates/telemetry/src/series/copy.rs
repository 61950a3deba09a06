//! Copies of a store while it runs.
//!
//! Logs are copied before segments are listed: what leaves a log meanwhile is in a segment that is listed. Segments never
//! change, so they are linked where that is possible; if a merge removes one before it is linked, the copy begins again.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::error::Error;
use super::log;
use super::segment;
use super::store::Found;

/// How often a copy begins again. Two merges in a row are minutes apart.
const TRIES_MAX: u32 = 10;

/// Copies the store in `from` into the folder `to`, which it makes, and returns the names of the files. A copy has all that was
/// acknowledged before this began; it has no file if there is no store.
///
/// # Errors
/// [`Error::Io`].
pub fn copy(from: &Path, to: &Path) -> Result<Vec<String>, Error> {
    if !from.is_dir() {
        return Ok(Vec::new());
    }
    for _ in 1..TRIES_MAX {
        if let Some(names) = copy_once(from, to)? {
            return Ok(names);
        }
        fs::remove_dir_all(to).map_err(Error::io("remove", to))?;
    }
    let moving = io::Error::other("its segments are merged all the time");
    copy_once(from, to)?.ok_or_else(|| Error::io("copy", from)(moving))
}

/// Reports whether a store has files of this name.
#[must_use]
pub fn is_of_store(name: &str) -> bool {
    let is = |prefix: &str, file_name: fn(u64) -> String| {
        name.strip_prefix(prefix).and_then(|number| number.parse().ok()).is_some_and(|number| file_name(number) == name)
    };
    is("segment-", segment::file_name) || is("log-", log::file_name)
}

/// Returns nothing if a segment went before it was linked.
fn copy_once(from: &Path, to: &Path) -> Result<Option<Vec<String>>, Error> {
    fs::create_dir_all(to).map_err(Error::io("make", to))?;
    let mut names = Vec::new();
    for name in Found::look(from)?.logs.into_iter().map(log::file_name) {
        match fs::copy(from.join(&name), to.join(&name)).and_then(|_| sync(&to.join(&name))) {
            Ok(()) => names.push(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("copy", &from.join(&name))(error)),
        }
    }
    for name in Found::look(from)?.segments.into_iter().map(segment::file_name) {
        let (old, new) = (from.join(&name), to.join(&name));
        let linked = fs::hard_link(&old, &new).or_else(|_| fs::copy(&old, &new).and_then(|_| sync(&new)));
        match linked {
            Ok(()) => names.push(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("copy", &old)(error)),
        }
    }
    sync(to).map_err(Error::io("sync", to))?;
    Ok(Some(names))
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
