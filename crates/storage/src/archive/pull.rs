//! Pulls a checkpoint from the archive into a store. The folder is built under a temporary name, read back
//! and checked, and only then renamed, through the store's own `Disk`. The
//! manifest and shards are restored bit for bit.

use std::path::Path;

use gangline_base::{Bytes, Step};
use rustix::fs::statvfs;
use serde::Serialize;

use super::Error;
use super::access::Access;
use super::catalog::{Catalog, catalog_key};
use super::fetch::Fetcher;
use crate::check::{check, check_folder};
use crate::{Flaw, Store, layout};

/// The result of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pulled {
    /// The checkpoint.
    pub step: Step,
    /// The total size of its shards.
    pub bytes: Bytes,
    /// Whether the store already had it, whole and good.
    pub was_there: bool,
}

/// Rebuilds the checkpoint of a catalog in the store's folder.
pub(crate) fn pull(access: &Access<'_>, catalog: &Catalog, store: &Store) -> Result<Pulled, Error> {
    let step = Step(catalog.step);
    match check(store.path(), catalog.step) {
        Ok((Some(manifest), report)) if report.is_good() && manifest.content_blake3 == catalog.content_blake3 => {
            return Ok(Pulled { step, bytes: Bytes(catalog.bytes), was_there: true });
        }
        Ok((_, report)) if report.is_good() => return Err(Error::Occupied { step }),
        // A damaged checkpoint is replaced.
        Ok(_) | Err(crate::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    rebuild(access, catalog, store)
}

/// Rebuilds the checkpoint without regard to the store's checkpoint of that step.
pub(crate) fn rebuild(access: &Access<'_>, catalog: &Catalog, store: &Store) -> Result<Pulled, Error> {
    let pulled = Pulled { step: Step(catalog.step), bytes: Bytes(catalog.bytes), was_there: false };
    let disk = store.disk();
    disk.create_root(store.path())?;
    check_room(store.path(), catalog)?;
    let names = (layout::pulled_folder(catalog.step), layout::checkpoint_folder(catalog.step));
    disk.publish_folder(store.path(), (&names.0, &names.1), |aside| build(access, catalog, store, aside))?;
    Ok(pulled)
}

/// Refuses a checkpoint that is larger than the free space before the disk fills up.
fn check_room(root: &Path, catalog: &Catalog) -> Result<(), Error> {
    let failed = |errno: rustix::io::Errno| crate::Error::io("look at the disk of", root, errno.into());
    let room = statvfs(root).map_err(failed)?;
    let (free, needed) = (room.f_bavail.saturating_mul(room.f_frsize), catalog.bytes);
    if needed <= free { Ok(()) } else { Err(Error::NoRoom { step: Step(catalog.step), needed, free }) }
}

fn build(access: &Access<'_>, catalog: &Catalog, store: &Store, aside: &Path) -> Result<(), Error> {
    let mut fetcher = Fetcher::new(access, catalog);
    let world_size = u32::try_from(catalog.shards.len()).expect("a catalog's reader has checked how many there are");
    for (shard, rank) in catalog.shards.iter().zip(0..) {
        store.disk().publish_stream(aside, &layout::shard_file(rank, world_size), |write| -> Result<(), Error> {
            shard.items().try_for_each(|item| fetcher.item(item, |bytes| Ok(write(bytes)?)))
        })?;
    }
    store.disk().publish_stream(aside, layout::MANIFEST, |write| {
        fetcher.item(&catalog.manifest, |bytes| Ok::<(), Error>(write(bytes)?))
    })?;
    let (manifest, report) = check_folder(aside, catalog.step)?;
    if let Some(problem) = report.problems.into_iter().next() {
        return Err(Error::damaged(catalog_key(catalog.step), problem.to_string(), problem.flaw));
    }
    match manifest {
        Some(manifest) if manifest.content_blake3 == catalog.content_blake3 => Ok(()),
        _ => Err(Error::corrupt(catalog_key(catalog.step), Flaw::Malformed { what: "its manifest is another's" })),
    }
}
