//! One look at a remote dataset for all ranks of a job's attempt on a node: which objects it has, each in one state. Sharing it
//! saves billed requests, and all ranks read the same data even if an object changes while they start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::place::{Item, Place};
use super::{Cache, LOOKS, put};
use crate::error::Error;
use crate::sealed;

/// The folder of the job's attempt that a program is a rank of, which no other attempt on the node has.
const ATTEMPT_FOLDER: &str = "GANGLINE_ATTEMPT_DIR";
/// How long a look counts: ranks start at about the same time.
const LIFETIME: Duration = Duration::from_secs(60);
/// Looks that are kept; older ones are removed.
const LOOKS_MAX: usize = 256;

/// An object's name, what tells its state from others, and its bytes.
type Seen = (String, String, u64);

#[derive(Serialize, Deserialize)]
struct Look {
    /// Seconds since the Unix epoch.
    at: u64,
    objects: Vec<Seen>,
}

/// Returns the objects of a place: as another rank of this attempt saw them on this node a moment ago, or as they are now.
pub(super) fn items(cache: &Cache, place: &Arc<Place>) -> Result<Vec<Item>, Error> {
    let attempt = cache.options.settings.get(ATTEMPT_FOLDER).filter(|_| place.is_billed());
    let Some(attempt) = attempt else { return place.items(cache) };
    let what = format!("{attempt}\n{}", place.identity());
    let name = blake3::hash(what.as_bytes()).to_hex();
    let path = cache.options.root.join(LOOKS).join(&name[..32]);
    let known = || read(&path);
    let _lock = if known().is_none() { cache.wait_for(&what, &|| known().is_some())? } else { None };
    if let Some(objects) = known() {
        return Ok(objects.into_iter().map(|(name, tag, bytes)| place.item(&name, tag, bytes)).collect());
    }
    let items = place.items(cache)?;
    let objects = items.iter().map(|item| (item.name.clone(), item.tag.clone(), item.bytes)).collect();
    // It only spares requests: without it, the next rank looks by itself.
    let _ = write(&path, &Look { at: seconds_now(), objects });
    Ok(items)
}

fn read(path: &Path) -> Option<Vec<Seen>> {
    let (look, is_intact) = sealed::unseal::<Look>(&fs::read(path).ok()?).ok()?;
    let age = seconds_now().checked_sub(look.at)?;
    (is_intact && age < LIFETIME.as_secs()).then_some(look.objects)
}

fn write(path: &Path, look: &Look) -> Result<(), Error> {
    let entries = fs::read_dir(path.with_file_name("")).into_iter().flatten().flatten();
    let others: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    if others.len() >= LOOKS_MAX {
        others.iter().filter(|other| read(other).is_none()).for_each(|other| drop(fs::remove_file(other)));
    }
    put(path, &sealed::seal(look))
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
