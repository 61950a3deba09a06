//! Pushes a checkpoint from a store into the archive: packs first, the catalog last.
//!
//! An interrupted push leaves packs that no catalog names. The next push makes the same packs again, since
//! coding is deterministic, and puts only those that are missing: so it continues where the other stopped.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroUsize;

use gangline_base::{Bytes, Step};
use gangline_compression::{derive_bf16, derives_bf16};
use serde::Serialize;

use super::Error;
use super::access::{Access, Change};
use super::catalog::{Catalog, Form, Item, Shard, Tensor, pack_key};
use super::draft::{Base, Draft};
use super::encode::{Coded, Encoder, Way};
use super::fetch::Fetcher;
use super::known::{Known, Like, list_packs};
use super::pack::{self, Closed};
use super::source::{Origin, Source};
use crate::{DataType, Digest};

/// The number of elements by which a bf16 tensor is matched to its possible fp32 master.
const MASTER_SAMPLE: usize = 64;

/// The most chunks that are coded in parallel: each takes the memory of five, 16 MiB each for fp32.
const THREADS_MAX: usize = 8;

/// The result of a push. Bytes are of tensors, headers and the manifest, before coding unless stated
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// The checkpoint.
    pub step: Step,
    /// Whether the archive already had it.
    pub was_archived: bool,
    /// The total bytes.
    pub bytes: Bytes,
    /// Bytes that the archive already had and that are only referred to.
    pub deduplicated: Bytes,
    /// Bytes of bf16 copies that follow from their fp32 masters and aren't stored.
    pub derived: Bytes,
    /// Bytes stored as differences to an earlier checkpoint.
    pub differences: Bytes,
    /// Bytes coded on their own.
    pub coded: Bytes,
    /// Bytes stored raw.
    pub raw: Bytes,
    /// Bytes put into the archive, after coding, including the catalog.
    pub put: Bytes,
    /// Packs put.
    pub packs_put: usize,
    /// Packs that an earlier push had put, and that were read back and found good.
    pub packs_resumed: usize,
}

/// A chunk to be coded.
#[derive(Clone, Copy)]
struct Todo {
    /// Its index among the item's chunks.
    place: usize,
    content: Digest,
    base: Option<Base>,
}

/// A push in progress.
struct Push<'a> {
    threads: usize,
    change: &'a Change<'a>,
    known: &'a Known,
    draft: Draft,
    masters: BTreeMap<(Vec<usize>, Vec<u8>), (Origin, Item)>,
    done: Pushed,
}

/// Puts a checkpoint into the archive.
pub(crate) fn push(change: &Change<'_>, source: &Source, threads: NonZeroUsize) -> Result<Pushed, Error> {
    let step = source.manifest.step;
    let known = Known::around(&change.access, step)?;
    let done = Pushed { step: Step(step), ..Pushed::default() };
    if is_archived(&change.access, &known, source) {
        return Ok(Pushed { was_archived: true, ..done });
    }
    let threads = threads.get().min(THREADS_MAX);
    let mut push = Push { threads, change, known: &known, draft: Draft::new(step), masters: BTreeMap::new(), done };
    push.checkpoint(source)?;
    push.close()?;
    push.publish()?;
    Ok(push.done)
}

/// Reports whether the archive has this very checkpoint and all its packs.
fn is_archived(access: &Access<'_>, known: &Known, source: &Source) -> bool {
    let manifest = access.vault.name(source.manifest_origin.hash);
    let is_it = |catalog: &&Catalog| {
        catalog.step == source.manifest.step && catalog.milestone.is_none() && catalog.manifest.blake3 == manifest
    };
    known.catalogs.iter().find(is_it).is_some_and(|catalog| catalog.packs.iter().all(|pack| known.has_pack(pack)))
}

impl Push<'_> {
    /// Returns the id of content with this hash.
    fn name(&self, content: Digest) -> Digest {
        self.change.access.vault.name(content)
    }

    fn checkpoint(&mut self, source: &Source) -> Result<(), Error> {
        let all = source.shards.iter().zip(0..).flat_map(|(shard, rank): (_, usize)| {
            shard.tensors.iter().zip(0..).map(move |((name, origin), place): (_, usize)| (rank, place, name, origin))
        });
        // Masters come before the copies that may follow from them.
        let (copies, others): (Vec<_>, Vec<_>) = all.partition(|(.., origin)| origin.data_type == DataType::Bf16);
        let mut items = BTreeMap::new();
        for (rank, place, name, origin) in others.into_iter().chain(copies) {
            let item = self.item((Some(name), rank), origin)?;
            items.insert((rank, place), item);
        }
        let mut items = items.into_values();
        for (shard, rank) in source.shards.iter().zip(0..) {
            let header = self.item((None, rank), &shard.header)?;
            let tensors = shard.tensors.iter().zip(&mut items).map(|((name, origin), item)| Tensor {
                name: name.clone(),
                data_type: origin.data_type,
                item,
            });
            let tensors = tensors.collect();
            self.draft.catalog.shards.push(Shard { header, tensors });
        }
        self.draft.catalog.manifest = self.item((None, 0), &source.manifest_origin)?;
        let catalog = &mut self.draft.catalog;
        catalog.saved_at = source.saved_at.unix_nanos();
        catalog.bytes = source.manifest.bytes;
        catalog.content_blake3 = source.manifest.content_blake3;
        catalog.metadata = source.manifest.metadata.clone();
        catalog.metadata_types.clone_from(&source.manifest.metadata_types);
        catalog.lineage.clone_from(&source.manifest.lineage);
        Ok(())
    }

    /// Refers to an item that the archive already has, or stores it.
    fn item(&mut self, (name, rank): (Option<&str>, usize), origin: &Origin) -> Result<Item, Error> {
        self.done.bytes = self.done.bytes + Bytes(origin.bytes);
        let chunks = match self.adopt_item(origin)? {
            Some(chunks) => {
                self.done.deduplicated = self.done.deduplicated + Bytes(origin.bytes);
                chunks
            }
            None => self.store((name, rank), origin)?,
        };
        let item = Item { blake3: self.name(origin.hash), bytes: origin.bytes, chunks };
        if origin.data_type == DataType::F32 {
            self.remember_master(origin, &item)?;
        }
        Ok(item)
    }

    fn adopt_item(&mut self, origin: &Origin) -> Result<Option<Vec<usize>>, Error> {
        let Some((catalog, chunks)) = self.known.item(self.name(origin.hash)) else { return Ok(None) };
        let mut adopted = Vec::with_capacity(chunks.len());
        for index in chunks {
            match self.draft.adopt(catalog, *index)? {
                Some(index) => adopted.push(index),
                None => return Ok(None),
            }
        }
        Ok(Some(adopted))
    }

    /// Stores an item, several chunks in parallel.
    fn store(&mut self, (name, rank): (Option<&str>, usize), origin: &Origin) -> Result<Vec<usize>, Error> {
        let file = origin.open()?;
        let master = self.find_master(origin, &file)?;
        let encoder = || Encoder::new(origin.element(), origin.columns());
        let mut encoders: Vec<Encoder> = std::iter::repeat_with(encoder).take(self.threads).collect();
        let mut hasher = blake3::Hasher::new();
        let (mut chunks, mut left) = (Vec::new(), Vec::new());
        for number in 0..origin.chunks() {
            self.change.lease.keep()?;
            let raw = origin.read(&file, number)?;
            hasher.update(&raw);
            let content = self.name(Digest::of(&raw));
            let index = match self.refer(content, raw.len() as u64)? {
                None => self.derive(master.as_ref(), &raw, number)?,
                index => index,
            };
            if index.is_none() {
                let base = name.and_then(|name| self.base((name, rank), (origin, number), raw.len() as u64));
                left.push((raw, Todo { place: chunks.len(), content, base }));
            }
            chunks.push(index);
            if left.len() == encoders.len() || number + 1 == origin.chunks() {
                self.encode(&mut encoders, std::mem::take(&mut left), &mut chunks)?;
            }
        }
        if Digest::from(hasher.finalize()) != origin.hash {
            return Err(origin.mismatch(name).into());
        }
        Ok(chunks.into_iter().map(|index| index.expect("every chunk is referred to, derived or encoded")).collect())
    }

    /// Returns an existing chunk with this content.
    fn refer(&mut self, content: Digest, bytes: u64) -> Result<Option<usize>, Error> {
        let index = match (self.draft.find(content), self.known.chunk(content)) {
            (Some(index), _) => Some(index),
            (None, Some((catalog, index))) => self.draft.adopt(catalog, index)?,
            (None, None) => None,
        };
        if index.is_some() {
            self.done.deduplicated = self.done.deduplicated + Bytes(bytes);
        }
        Ok(index)
    }

    /// Returns the chunk of the nearest catalog that this chunk may be coded against.
    fn base(&self, (name, rank): (&str, usize), (origin, number): (&Origin, u64), chunk_bytes: u64) -> Option<Base> {
        let number = usize::try_from(number).expect("64-bit Linux only");
        let like = Like { rank, data_type: origin.data_type, bytes: origin.bytes, chunk_bytes };
        let (index, age) = self.known.base(name, number, &like)?;
        let found = self.draft.find(self.known.catalogs[0].chunks[index].blake3);
        found.is_none_or(|found| self.draft.may_lead(found)).then_some(Base { index, age })
    }

    fn encode(
        &mut self,
        encoders: &mut [Encoder],
        left: Vec<(Vec<u8>, Todo)>,
        chunks: &mut [Option<usize>],
    ) -> Result<(), Error> {
        let known = self.known;
        let access = &self.change.access;
        let todo: Vec<(Todo, u64)> = left.iter().map(|(raw, todo)| (*todo, raw.len() as u64)).collect();
        // A damaged base is not used.
        let coded = Encoder::encode_all(encoders, left, |todo| match todo.base {
            None => Ok(None),
            Some(base) => match Fetcher::new(access, &known.catalogs[0]).chunk(base.index) {
                Err(Error::Corrupt { .. }) => Ok(None),
                raw => raw.map(Some),
            },
        })?;
        for ((Todo { place, content, base }, bytes), coded) in todo.into_iter().zip(coded) {
            // Equal chunks are stored once.
            chunks[place] = match self.draft.find(content) {
                None => Some(self.add((content, bytes), &coded, base)?),
                index => index,
            };
        }
        Ok(())
    }

    fn add(&mut self, (content, bytes): (Digest, u64), coded: &Coded, base: Option<Base>) -> Result<usize, Error> {
        let sum = match coded.way {
            Way::Raw => &mut self.done.raw,
            Way::Alone => &mut self.done.coded,
            Way::Difference => &mut self.done.differences,
        };
        *sum = *sum + Bytes(bytes);
        // Only bases that were used are referred to.
        let base = match (coded.way, base) {
            (Way::Difference, Some(Base { index, age })) => {
                let adopted = self.draft.adopt(&self.known.catalogs[0], index)?;
                Some(Base { index: adopted.expect("what follows from nothing can be adopted"), age })
            }
            _ => None,
        };
        let (index, closed) = self.draft.add(&self.change.access.vault, (content, bytes), coded, base)?;
        closed.map_or(Ok(()), |closed| self.put(&closed))?;
        Ok(index)
    }

    /// Indexes an fp32 tensor by the first elements of its possible bf16 copy.
    fn remember_master(&mut self, origin: &Origin, item: &Item) -> Result<(), Error> {
        let sample = origin.read_part(&origin.open()?, 0, 4 * MASTER_SAMPLE as u64)?;
        for nearest_even in [true, false] {
            let mut copy = Vec::new();
            derive_bf16(&sample, Form::rounding(nearest_even), &mut copy);
            let key = (origin.shape.clone(), copy);
            self.masters.entry(key).or_insert_with(|| (origin.clone(), item.clone()));
        }
        Ok(())
    }

    /// Returns the fp32 tensor of which this one may be the bf16 copy.
    fn find_master(&self, origin: &Origin, file: &File) -> Result<Option<(Origin, Item, File)>, Error> {
        if origin.data_type != DataType::Bf16 {
            return Ok(None);
        }
        let sample = origin.read_part(file, 0, 2 * MASTER_SAMPLE as u64)?;
        let Some((master, item)) = self.masters.get(&(origin.shape.clone(), sample)) else { return Ok(None) };
        Ok(Some((master.clone(), item.clone(), master.open()?)))
    }

    /// Refers to the master's chunk if this one follows from it bit for bit.
    fn derive(
        &mut self,
        master: Option<&(Origin, Item, File)>,
        copy: &[u8],
        number: u64,
    ) -> Result<Option<usize>, Error> {
        let Some((origin, item, file)) = master else { return Ok(None) };
        let raw = origin.read(file, number)?;
        let index = item.chunks[usize::try_from(number).expect("64-bit Linux only")];
        let is_it = self.name(Digest::of(&raw)) == self.draft.catalog.chunks[index].blake3;
        match derives_bf16(&raw, copy) {
            Some(rounding) if is_it && self.draft.may_lead(index) => {
                self.done.derived = self.done.derived + Bytes(copy.len() as u64);
                let nearest_even = rounding == Form::rounding(true);
                Ok(Some(self.draft.add_rounded(self.name(Digest::of(copy)), index, nearest_even)?))
            }
            _ => Ok(None),
        }
    }

    /// Puts a pack, unless an earlier push has put it and it is good.
    fn put(&mut self, closed: &Closed) -> Result<(), Error> {
        if pack::put(self.change, &self.known.packs, closed)? {
            self.done.packs_put += 1;
            self.done.put = self.done.put + Bytes(closed.pack.bytes);
        } else {
            self.done.packs_resumed += 1;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.draft.close(&self.change.access.vault).map_or(Ok(()), |closed| self.put(&closed))
    }

    /// Publishes the catalog, once the remote lists every pack with its full length.
    fn publish(&mut self) -> Result<(), Error> {
        let listed = list_packs(self.change.access.link)?;
        let mut packs = self.draft.catalog.packs.iter();
        packs.try_for_each(|pack| pack.check(listed.get(&pack_key(&pack.blake3))))?;
        let bytes = self.change.publish(&self.draft.catalog)?;
        self.done.put = self.done.put + Bytes(bytes);
        Ok(())
    }
}
