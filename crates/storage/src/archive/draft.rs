//! A catalog under construction: chunks that the archive already has are referred to, new ones go into packs.
//!
//! A draft holds the open pack and the catalog's lists in memory, never a checkpoint.

use std::collections::BTreeMap;

use super::catalog::{CATALOG_BYTES_MAX, Catalog, Chunk, DEPTH_MAX, Form, Pack, Place};
use super::encode::{Coded, Way};
use super::pack::{Closed, OpenPack};
use super::vault::Vault;
use crate::{Digest, Error};

/// The fewest bytes that a chunk takes in a catalog. Limits the chunks, so that no catalog too large to be
/// read is begun.
const CHUNK_RECORD_BYTES: u64 = 100;
/// The most chunks of a checkpoint.
const CHUNKS_MAX: u64 = CATALOG_BYTES_MAX / CHUNK_RECORD_BYTES;

/// A catalog and its open pack.
pub(crate) struct Draft {
    pub(crate) catalog: Catalog,
    depths: Vec<usize>,
    by_hash: BTreeMap<Digest, usize>,
    pack_places: BTreeMap<Digest, usize>,
    open: Option<(usize, OpenPack)>,
}

/// A chunk that another is coded against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    /// The base's index.
    pub(crate) index: usize,
    /// The number of differences to the base so far, this one included.
    pub(crate) age: u32,
}

impl Draft {
    pub(crate) fn new(step: u64) -> Draft {
        Draft {
            catalog: Catalog::empty(step),
            depths: Vec::new(),
            by_hash: BTreeMap::new(),
            pack_places: BTreeMap::new(),
            open: None,
        }
    }

    /// Returns the index of the chunk with this content, if there is one.
    pub(crate) fn find(&self, content: Digest) -> Option<usize> {
        self.by_hash.get(&content).copied()
    }

    /// Adds a chunk of another catalog, with the chunks it follows from; none if the chain is too long.
    pub(crate) fn adopt(&mut self, from: &Catalog, index: usize) -> Result<Option<usize>, Error> {
        let mut chain = vec![index];
        chain.extend(std::iter::successors(from.chunks[index].form.base(), |index| from.chunks[*index].form.base()));
        let mut base = None;
        for index in chain.into_iter().rev() {
            let chunk = from.chunks[index];
            let adopted = match self.find(chunk.blake3) {
                Some(known) => known,
                None if base.is_some_and(|base: usize| self.depths[base] == DEPTH_MAX) => return Ok(None),
                None => self.copy(from, chunk, base)?,
            };
            base = Some(adopted);
        }
        Ok(base)
    }

    fn copy(&mut self, from: &Catalog, chunk: Chunk, base: Option<usize>) -> Result<usize, Error> {
        let form = base.map_or(chunk.form, |base| chunk.form.based_on(base));
        let form = match form.place() {
            Some(Place(pack, offset, length)) => form.moved(Place(self.pack(from.packs[pack]), offset, length)),
            None => form,
        };
        self.push(Chunk { form, ..chunk })
    }

    /// Returns the index of a pack in the list, which is added if necessary.
    fn pack(&mut self, pack: Pack) -> usize {
        let Draft { catalog, pack_places, .. } = self;
        *pack_places.entry(pack.blake3).or_insert_with(|| {
            catalog.packs.push(pack);
            catalog.packs.len() - 1
        })
    }

    fn push(&mut self, chunk: Chunk) -> Result<usize, Error> {
        let index = self.catalog.chunks.len();
        if index as u64 >= CHUNKS_MAX {
            return Err(Error::Limit { what: "chunks of a checkpoint", value: index as u64 + 1, max: CHUNKS_MAX });
        }
        self.depths.push(chunk.form.base().map_or(0, |base| self.depths[base] + 1));
        self.catalog.chunks.push(chunk);
        self.by_hash.insert(chunk.blake3, index);
        Ok(index)
    }

    /// Reports whether another chunk may follow from this one.
    pub(crate) fn may_lead(&self, index: usize) -> bool {
        self.depths[index] < DEPTH_MAX
    }

    /// Adds a bf16 chunk that follows from its master.
    pub(crate) fn add_rounded(&mut self, content: Digest, master: usize, nearest_even: bool) -> Result<usize, Error> {
        let bytes = self.catalog.chunks[master].bytes / 2;
        self.push(Chunk { blake3: content, bytes, form: Form::Rounded { master, nearest_even } })
    }

    /// Adds a chunk of this many raw bytes to the open pack; also returns the pack if that fills it.
    pub(crate) fn add(
        &mut self,
        vault: &Vault,
        (content, bytes): (Digest, u64),
        coded: &Coded,
        base: Option<Base>,
    ) -> Result<(usize, Option<Closed>), Error> {
        let (pack, open) = self.open.get_or_insert_with(|| (self.catalog.packs.len(), OpenPack::new()));
        if *pack == self.catalog.packs.len() {
            // The hash is known only when the pack is closed.
            self.catalog.packs.push(Pack { blake3: Digest::of(b""), bytes: 0, key: None });
        }
        let (offset, is_full) = open.add(vault, &coded.bytes);
        let place = Place(*pack, offset, coded.bytes.len() as u64);
        let form = match (coded.way, base) {
            (Way::Difference, Some(Base { index, age })) => Form::Difference { place, base: index, age },
            (Way::Raw, _) => Form::Raw(place),
            _ => Form::Coded(place),
        };
        let index = self.push(Chunk { blake3: content, bytes, form })?;
        Ok((index, if is_full { self.close(vault) } else { None }))
    }

    /// Closes the open pack, if there is one.
    pub(crate) fn close(&mut self, vault: &Vault) -> Option<Closed> {
        let (place, open) = self.open.take()?;
        let closed = open.close(vault);
        self.catalog.packs[place] = closed.pack;
        self.pack_places.insert(closed.pack.blake3, place);
        Some(closed)
    }
}
