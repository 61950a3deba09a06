//! Compaction: rewrites packs of which little is still needed. The needed chunks go into new packs, the
//! catalogs are published again, and then nothing names the old packs (A-6: at every instant every catalog's
//! packs exist).
//!
//! Catalogs are rewritten one after the other: the new packs first, then the catalog. Chunks that an earlier
//! catalog has moved, or that also lie elsewhere, are only referred to. So a compaction that was interrupted
//! is continued by the next one, which makes the same packs again. Moved chunks are decoded and checked
//! first: a damaged chunk isn't carried into a pack that looks sound.
//!
//! The plan is made from catalogs alone, so a dry run reports the result to the byte.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::Bytes;
use gangline_objects::Object;

use super::Error;
use super::access::Change;
use super::catalog::{Catalog, Form, PACK_BYTES, Pack, Place, pack_key};
use super::fetch::Fetcher;
use super::known::list_packs;
use super::pack::{self, OpenPack, PACK_MAGIC};
use crate::Digest;

/// A pack is rewritten if less than one part in this many is needed.
const SPARSE_PARTS: u64 = 2;

/// Identifies a stored chunk: the hash of its raw bytes, their length, and the base of a difference.
type Identity = (Digest, u64, Option<Digest>);

/// The location of a chunk after compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// In an existing pack, at an offset.
    There(Pack, u64),
    /// In a new pack: the index of the rewrite, the pack's index in it, and the offset.
    New(usize, usize, u64),
}

/// The plan of a compaction.
pub(crate) struct Plan {
    /// The rewrites, by the catalog's index in the list that the plan is for.
    rewrites: Vec<Rewrite>,
    /// The packs that are no longer needed afterwards.
    pub(crate) sparse: BTreeSet<Pack>,
    /// The total size of the new packs.
    pub(crate) written: Bytes,
}

/// The rewrite of one catalog.
struct Rewrite {
    catalog: usize,
    /// For each new pack, its chunks by their indices in the catalog.
    packs: Vec<Vec<usize>>,
    targets: BTreeMap<usize, Target>,
}

impl Plan {
    /// Plans the compaction of these catalogs, all of which stay; in a new pack each chunk takes `tag_bytes`
    /// more.
    pub(crate) fn of(catalogs: &[&Catalog], tag_bytes: u64) -> Plan {
        let sparse = sparse(catalogs);
        let mut places: BTreeMap<Identity, Target> = BTreeMap::new();
        for (catalog, index, Place(pack, offset, _)) in stored(catalogs) {
            let pack = catalog.packs[pack];
            if !sparse.contains(&pack) {
                places.entry(identity(catalog, index)).or_insert(Target::There(pack, offset));
            }
        }
        let (mut rewrites, mut written) = (Vec::new(), 0);
        for (number, catalog) in catalogs.iter().enumerate() {
            if !catalog.packs.iter().any(|pack| sparse.contains(pack)) {
                continue;
            }
            let (rewrite, bytes) = Rewrite::of((number, rewrites.len()), catalog, (&sparse, tag_bytes), &mut places);
            written += bytes;
            rewrites.push(rewrite);
        }
        Plan { rewrites, sparse, written: Bytes(written) }
    }

    /// Executes the plan.
    pub(crate) fn execute(&self, change: &Change<'_>, catalogs: &[&Catalog]) -> Result<(), Error> {
        if self.rewrites.is_empty() {
            return Ok(());
        }
        let listed = list_packs(change.access.link)?;
        let mut made: Vec<Vec<Pack>> = Vec::new();
        for rewrite in &self.rewrites {
            let catalog = catalogs[rewrite.catalog];
            made.push(rewrite.put_packs(change, catalog, &listed)?);
            let listed = list_packs(change.access.link)?;
            let mut put = made.last().into_iter().flatten();
            put.try_for_each(|pack| pack.check(listed.get(&pack_key(&pack.blake3))))?;
            change.publish(&checked(rewrite.catalog(catalog, &made))?)?;
        }
        Ok(())
    }
}

/// Returns the catalog if its own reader accepts it: an invalid catalog never replaces a sound one.
fn checked(catalog: Catalog) -> Result<Catalog, Error> {
    Catalog::read(catalog.step, &catalog.write())
}

impl Rewrite {
    fn of(
        (number, rewrite): (usize, usize),
        catalog: &Catalog,
        (sparse, tag_bytes): (&BTreeSet<Pack>, u64),
        places: &mut BTreeMap<Identity, Target>,
    ) -> (Rewrite, u64) {
        let (mut packs, mut targets) = (Vec::new(), BTreeMap::new());
        // The open pack's chunks and its length, laid out as in `OpenPack`.
        let (mut open, mut offset, mut written) = (Vec::new(), PACK_MAGIC.len() as u64, 0);
        for (_, index, Place(pack, _, length)) in stored(&[catalog]) {
            if !sparse.contains(&catalog.packs[pack]) {
                continue;
            }
            let target = places.entry(identity(catalog, index)).or_insert_with(|| {
                let target = Target::New(rewrite, packs.len(), offset);
                open.push(index);
                offset += length + tag_bytes;
                target
            });
            targets.insert(index, *target);
            if offset >= PACK_BYTES as u64 {
                written += offset;
                packs.push(std::mem::take(&mut open));
                offset = PACK_MAGIC.len() as u64;
            }
        }
        if !open.is_empty() {
            written += offset;
            packs.push(open);
        }
        (Rewrite { catalog: number, packs, targets }, written)
    }

    fn put_packs(
        &self,
        change: &Change<'_>,
        catalog: &Catalog,
        listed: &BTreeMap<String, Object>,
    ) -> Result<Vec<Pack>, Error> {
        let mut fetcher = Fetcher::new(&change.access, catalog);
        let mut made = Vec::new();
        for chunks in &self.packs {
            let mut open = OpenPack::new();
            for index in chunks {
                change.lease.keep()?;
                open.add(&change.access.vault, &fetcher.coded(*index)?);
            }
            let closed = open.close(&change.access.vault);
            pack::put(change, listed, &closed)?;
            made.push(closed.pack);
        }
        Ok(made)
    }

    /// Returns the catalog with its chunks' new locations.
    fn catalog(&self, catalog: &Catalog, made: &[Vec<Pack>]) -> Catalog {
        let mut anew = Catalog { packs: Vec::new(), ..catalog.clone() };
        let mut places: BTreeMap<Digest, usize> = BTreeMap::new();
        for (index, chunk) in anew.chunks.iter_mut().enumerate() {
            let Some(Place(pack, offset, length)) = chunk.form.place() else { continue };
            let (pack, offset) = match self.targets.get(&index) {
                None => (catalog.packs[pack], offset),
                Some(Target::There(pack, offset)) => (*pack, *offset),
                Some(Target::New(rewrite, pack, offset)) => (made[*rewrite][*pack], *offset),
            };
            let place = *places.entry(pack.blake3).or_insert_with(|| {
                anew.packs.push(pack);
                anew.packs.len() - 1
            });
            chunk.form = chunk.form.moved(Place(place, offset, length));
        }
        anew
    }
}

/// Returns the chunks of catalogs that have bytes, and their locations.
fn stored<'a>(catalogs: &'a [&'a Catalog]) -> impl Iterator<Item = (&'a Catalog, usize, Place)> {
    let of = |catalog: &'a Catalog| {
        let chunks = catalog.chunks.iter().enumerate();
        chunks.filter_map(move |(index, chunk)| Some((catalog, index, chunk.form.place()?)))
    };
    catalogs.iter().flat_map(move |catalog| of(catalog))
}

fn identity(catalog: &Catalog, index: usize) -> Identity {
    let chunk = catalog.chunks[index];
    let base = match chunk.form {
        Form::Difference { base, .. } => Some(catalog.chunks[base].blake3),
        _ => None,
    };
    (chunk.blake3, chunk.form.place().map_or(0, |Place(_, _, length)| length), base)
}

/// Returns the packs of which too little is needed.
fn sparse(catalogs: &[&Catalog]) -> BTreeSet<Pack> {
    let mut needed: BTreeMap<Pack, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for (catalog, _, Place(pack, offset, length)) in stored(catalogs) {
        let pack = catalog.packs[pack];
        needed.entry(pack).or_default().insert((offset, length + pack.tag_bytes()));
    }
    let is_sparse = |pack: &Pack, places: &BTreeSet<(u64, u64)>| {
        places.iter().map(|(_, length)| length).sum::<u64>() < pack.bytes / SPARSE_PARTS
    };
    needed.into_iter().filter(|(pack, places)| is_sparse(pack, places)).map(|(pack, _)| pack).collect()
}
