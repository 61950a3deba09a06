//! The archive's existing content, as far as a push examines it: the packs, and the catalogs nearest to its
//! step.

use std::collections::BTreeMap;

use gangline_base::Step;
use gangline_objects::{Link, Object};

use super::Error;
use super::access::Access;
use super::catalog::{CATALOG_BYTES_MAX, Catalog, Form, Pack, Tensor, catalog_key, pack_key, step_of_key};
use super::fence::{MARK_BYTES, is_mark, unmarked};
use super::vault::{CATALOG_BYTES_ADDED, Vault};
use crate::{DataType, Digest, Flaw};

/// The most catalogs that a push searches for chunks to refer to.
const CATALOGS_CONSULTED_MAX: usize = 4;
/// The most differences to a chunk before it is stored anew, so that a checkpoint needs only nearby ones.
pub(crate) const DIFFERENCES_MAX: u32 = 8;

/// Properties that a base must have.
pub(crate) struct Like {
    /// The rank of its tensor; preferred, but not required.
    pub(crate) rank: usize,
    /// The data type of its tensor.
    pub(crate) data_type: DataType,
    /// The bytes of its tensor.
    pub(crate) bytes: u64,
    /// The bytes of the chunk.
    pub(crate) chunk_bytes: u64,
}

/// The index of a catalog, and the index of a chunk in it.
pub(crate) type Spot = (usize, usize);

/// The packs and catalogs of an archive.
pub(crate) struct Known {
    /// The catalogs, nearest first.
    pub(crate) catalogs: Vec<Catalog>,
    pub(crate) packs: BTreeMap<String, Object>,
    /// Whole items by content: the catalog's index, and the item's chunks.
    items: BTreeMap<Digest, (usize, Vec<usize>)>,
    chunks: BTreeMap<Digest, Spot>,
    /// The tensors of the nearest catalog by name, each with its rank: parts of one tensor may share a name.
    names: BTreeMap<String, Vec<(usize, Tensor)>>,
}

/// Lists the catalogs: steps and bytes, oldest first.
pub(crate) fn list_catalogs(link: &Link) -> Result<Vec<(u64, u64)>, Error> {
    let objects = link.list("catalogs/")?;
    let listed = objects.iter().filter(|object| !is_mark(object));
    let mut steps: Vec<(u64, u64)> =
        listed.filter_map(|object| Some((step_of_key(&object.key)?, object.bytes))).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Lists the packs by name.
pub(crate) fn list_packs(link: &Link) -> Result<BTreeMap<String, Object>, Error> {
    Ok(link.list("packs/")?.into_iter().map(|object| (object.key.clone(), object)).collect())
}

/// Reads the catalog of a step, which has this many bytes.
pub(crate) fn read_catalog(link: &Link, vault: &Vault, (step, bytes): (u64, u64)) -> Result<Catalog, Error> {
    let key = catalog_key(step);
    if bytes > CATALOG_BYTES_MAX + CATALOG_BYTES_ADDED + MARK_BYTES as u64 {
        return Err(Error::corrupt(key, Flaw::Malformed { what: "it is larger than 512 MiB" }));
    }
    let mut bytes = link.get(&key, 0..bytes)?;
    bytes.truncate(unmarked(&bytes).len());
    Catalog::read(step, &vault.open_catalog(&key, bytes)?)
}

/// Reads the catalog of a step, or of the newest save.
pub(crate) fn find_catalog(access: &Access<'_>, step: Option<Step>) -> Result<Catalog, Error> {
    let listed = list_catalogs(access.link)?;
    if let Some(step) = step {
        let found = listed.into_iter().find(|(found, _)| step.0 == *found);
        return read_catalog(access.link, &access.vault, found.ok_or(Error::NotFound { step: Some(step) })?);
    }
    let mut newest: Option<Catalog> = None;
    let mut damaged = None;
    for listed in listed {
        match read_catalog(access.link, &access.vault, listed) {
            Ok(catalog) if newest.as_ref().is_none_or(|newest| newest.moment() < catalog.moment()) => {
                newest = Some(catalog);
            }
            Ok(_) => {}
            // The damaged catalog may be the newest.
            Err(error @ Error::Corrupt { .. }) => damaged = Some((listed.0, error)),
            Err(error) => return Err(error),
        }
    }
    match (newest, damaged) {
        (Some(newest), Some((step, error))) if step > newest.step => Err(error),
        (None, Some((_, error))) => Err(error),
        (newest, _) => newest.ok_or(Error::NotFound { step: None }),
    }
}

impl Known {
    /// Reads what a push of `step` needs to know. A catalog that can't be read is skipped: nothing in it is
    /// referred to.
    pub(crate) fn around(access: &Access<'_>, step: u64) -> Result<Known, Error> {
        let mut listed = list_catalogs(access.link)?;
        listed.sort_by_key(|(found, _)| (found.abs_diff(step), *found));
        let mut known = Known::of(list_packs(access.link)?, Vec::new());
        for listed in listed.into_iter().take(CATALOGS_CONSULTED_MAX) {
            match read_catalog(access.link, &access.vault, listed) {
                Ok(catalog) => known.add(catalog),
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    /// Indexes these catalogs, the nearest first.
    pub(crate) fn of(packs: BTreeMap<String, Object>, catalogs: Vec<Catalog>) -> Known {
        let (items, chunks, names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut known = Known { catalogs: Vec::new(), packs, items, chunks, names };
        catalogs.into_iter().take(CATALOGS_CONSULTED_MAX).for_each(|catalog| known.add(catalog));
        known
    }

    fn add(&mut self, catalog: Catalog) {
        let place = self.catalogs.len();
        let is_there: Vec<bool> = catalog.packs.iter().map(|pack| self.has_pack(pack)).collect();
        let mut is_usable: Vec<bool> = Vec::with_capacity(catalog.chunks.len());
        for (index, chunk) in catalog.chunks.iter().enumerate() {
            let has_bytes = chunk.form.place().is_none_or(|place| is_there[place.0]);
            is_usable.push(has_bytes && chunk.form.base().is_none_or(|base| is_usable[base]));
            if is_usable[index] {
                self.chunks.entry(chunk.blake3).or_insert((place, index));
            }
        }
        for item in catalog.items().filter(|item| item.chunks.iter().all(|index| is_usable[*index])) {
            self.items.entry(item.blake3).or_insert_with(|| (place, item.chunks.clone()));
        }
        if place == 0 {
            let shards = catalog.shards.iter().zip(0..);
            for (rank, tensor) in shards.flat_map(|(shard, rank)| shard.tensors.iter().map(move |one| (rank, one))) {
                self.names.entry(tensor.name.clone()).or_default().push((rank, tensor.clone()));
            }
        }
        self.catalogs.push(catalog);
    }

    /// Reports whether a pack exists with its full length.
    pub(crate) fn has_pack(&self, pack: &Pack) -> bool {
        pack.check(self.packs.get(&pack_key(&pack.blake3))).is_ok()
    }

    /// Returns the whole item with this content.
    pub(crate) fn item(&self, content: Digest) -> Option<(&Catalog, &[usize])> {
        self.items.get(&content).map(|(place, chunks)| (&self.catalogs[*place], chunks.as_slice()))
    }

    /// Returns the chunk with this content.
    pub(crate) fn chunk(&self, content: Digest) -> Option<(&Catalog, usize)> {
        self.chunks.get(&content).map(|(place, index)| (&self.catalogs[*place], *index))
    }

    /// Returns the chunk of the nearest catalog against which the `number`th chunk of such a tensor may be
    /// coded, and the age of that difference. The base always follows from no other chunk: so a checkpoint
    /// needs the packs of at most one other, and the checkpoints between the two can be removed.
    pub(crate) fn base(&self, name: &str, number: usize, like: &Like) -> Option<(usize, u32)> {
        let is_like =
            |(_, tensor): &&(usize, Tensor)| (tensor.data_type, tensor.item.bytes) == (like.data_type, like.bytes);
        let candidates = || self.names.get(name).into_iter().flatten().filter(is_like);
        let (_, tensor) = candidates().find(|(rank, _)| *rank == like.rank).or_else(|| candidates().next())?;
        let catalog = self.catalogs.first()?;
        let index = *tensor.item.chunks.get(number)?;
        if catalog.chunks[index].bytes != like.chunk_bytes {
            return None;
        }
        let (base, age) = match catalog.chunks[index].form {
            Form::Difference { base, age, .. } => (base, age.saturating_add(1)),
            _ => (index, 1),
        };
        let is_usable = |index: usize| self.chunks.contains_key(&catalog.chunks[index].blake3);
        let is_root = catalog.chunks[base].form.base().is_none();
        (is_root && age <= DIFFERENCES_MAX && is_usable(base)).then_some((base, age))
    }
}
