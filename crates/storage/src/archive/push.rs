//! From a store to the archive: packs first, the catalog last.
//!
//! A push that was cut off leaves packs that nothing names. The next one makes the same packs again, since coding is
//! deterministic, and puts only those that aren't there: it goes on where it was.

use std::collections::BTreeMap;
use std::fs::File;

use gangline_base::{Bytes, Step};
use gangline_coding::{derive_bf16, derives_bf16};
use serde::Serialize;

use super::Error;
use super::catalog::{CATALOG_BYTES_MAX, Form, Item, Shard, Tensor, catalog_key, pack_key};
use super::draft::{Base, Closed, Draft};
use super::encode::{Coded, Encoder, Way};
use super::fetch::Fetcher;
use super::known::Known;
use super::remote::Link;
use super::source::{Origin, Source};
use crate::{DataType, Digest, Flaw};

/// Elements by which a bf16 tensor finds the fp32 tensor that it may be a copy of.
const MASTER_SAMPLE: usize = 64;

/// What a push did. Bytes are of tensors, headers and the manifest, before coding unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// The checkpoint.
    pub step: Step,
    /// Whether the archive had it already.
    pub was_archived: bool,
    /// All its bytes.
    pub bytes: Bytes,
    /// Bytes that the archive had already and that are only referred to.
    pub deduplicated: Bytes,
    /// Bytes of bf16 copies that follow from their fp32 masters and aren't stored.
    pub derived: Bytes,
    /// Bytes stored as differences to an earlier checkpoint.
    pub differences: Bytes,
    /// Bytes coded on their own.
    pub coded: Bytes,
    /// Bytes stored as they are.
    pub raw: Bytes,
    /// Bytes put into the archive, coded, catalog included.
    pub put: Bytes,
    /// Packs put.
    pub packs_put: usize,
    /// Packs that a push before had put, read back and found good.
    pub packs_resumed: usize,
}

/// A push on its way.
struct Push<'a> {
    link: &'a Link,
    known: &'a Known,
    draft: Draft,
    masters: BTreeMap<(Vec<usize>, Vec<u8>), (Origin, Item)>,
    done: Pushed,
}

/// Puts a checkpoint into the archive.
pub(crate) fn push(link: &Link, source: &Source) -> Result<Pushed, Error> {
    let step = source.manifest.step;
    let known = Known::around(link, step)?;
    let done = Pushed { step: Step(step), ..Pushed::default() };
    if is_archived(&known, source) {
        return Ok(Pushed { was_archived: true, ..done });
    }
    let mut push = Push { link, known: &known, draft: Draft::new(step), masters: BTreeMap::new(), done };
    push.checkpoint(source)?;
    push.close()?;
    push.publish()?;
    Ok(push.done)
}

/// Whether the archive has this very checkpoint, and all its packs are there.
fn is_archived(known: &Known, source: &Source) -> bool {
    let is_it = |catalog: &&super::catalog::Catalog| {
        catalog.step == source.manifest.step && catalog.manifest.blake3 == source.manifest_origin.hash
    };
    let is_there = |pack: &super::catalog::Pack| known.has_pack(&pack.blake3, pack.bytes);
    known.catalogs.iter().find(is_it).is_some_and(|catalog| catalog.packs.iter().all(is_there))
}

impl Push<'_> {
    fn checkpoint(&mut self, source: &Source) -> Result<(), Error> {
        let all = source.shards.iter().zip(0..).flat_map(|(shard, rank): (_, usize)| {
            shard.tensors.iter().zip(0..).map(move |((name, origin), place): (_, usize)| (rank, place, name, origin))
        });
        // Masters come before the copies that may follow from them.
        let (copies, others): (Vec<_>, Vec<_>) = all.partition(|(.., origin)| origin.data_type == DataType::Bf16);
        let mut items = BTreeMap::new();
        for (rank, place, name, origin) in others.into_iter().chain(copies) {
            let item = self.item(Some(name), origin)?;
            items.insert((rank, place), item);
        }
        let mut items = items.into_values();
        for shard in &source.shards {
            let header = self.item(None, &shard.header)?;
            let tensors = shard.tensors.iter().zip(&mut items).map(|((name, origin), item)| Tensor {
                name: name.clone(),
                data_type: origin.data_type,
                item,
            });
            let tensors = tensors.collect();
            self.draft.catalog.shards.push(Shard { header, tensors });
        }
        self.draft.catalog.manifest = self.item(None, &source.manifest_origin)?;
        let catalog = &mut self.draft.catalog;
        catalog.saved_at = source.saved_at.unix_nanos();
        catalog.bytes = source.manifest.bytes;
        catalog.content_blake3 = source.manifest.content_blake3;
        catalog.metadata = source.manifest.metadata.clone();
        Ok(())
    }

    /// Refers to an item that is there already, or stores it.
    fn item(&mut self, name: Option<&str>, origin: &Origin) -> Result<Item, Error> {
        self.done.bytes = self.done.bytes + Bytes(origin.bytes);
        let chunks = match self.adopt_item(origin)? {
            Some(chunks) => {
                self.done.deduplicated = self.done.deduplicated + Bytes(origin.bytes);
                chunks
            }
            None => self.store(name, origin)?,
        };
        let item = Item { blake3: origin.hash, bytes: origin.bytes, chunks };
        if origin.data_type == DataType::F32 {
            self.remember_master(origin, &item)?;
        }
        Ok(item)
    }

    fn adopt_item(&mut self, origin: &Origin) -> Result<Option<Vec<usize>>, Error> {
        let Some((catalog, chunks)) = self.known.item(origin.hash) else { return Ok(None) };
        let mut adopted = Vec::with_capacity(chunks.len());
        for index in chunks {
            match self.draft.adopt(catalog, *index)? {
                Some(index) => adopted.push(index),
                None => return Ok(None),
            }
        }
        Ok(Some(adopted))
    }

    /// Stores an item chunk by chunk.
    fn store(&mut self, name: Option<&str>, origin: &Origin) -> Result<Vec<usize>, Error> {
        let file = origin.open()?;
        let master = self.find_master(origin, &file)?;
        let mut encoder = Encoder::new(origin.element(), origin.columns());
        let mut hasher = blake3::Hasher::new();
        let mut chunks = Vec::new();
        for number in 0..origin.chunks() {
            let raw = origin.read(&file, number)?;
            hasher.update(&raw);
            let content = Digest::of(&raw);
            let index = match self.refer(content, raw.len() as u64)? {
                Some(index) => index,
                None => match self.derive(master.as_ref(), &raw, number)? {
                    Some(index) => index,
                    None => {
                        let place = usize::try_from(number).expect("64-bit Linux only");
                        let base = name.and_then(|name| self.base(name, origin, place).transpose()).transpose()?;
                        self.encode(&mut encoder, (content, raw), base)?
                    }
                },
            };
            chunks.push(index);
        }
        if Digest::from(hasher.finalize()) == origin.hash { Ok(chunks) } else { Err(origin.mismatch(name).into()) }
    }

    /// A chunk of this content that is there already.
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

    /// What the chunk may be coded against, as a place in the nearest catalog, with its bytes. One that is damaged is done
    /// without.
    fn base(&mut self, name: &str, origin: &Origin, number: usize) -> Result<Option<(Base, Vec<u8>)>, Error> {
        let is_like = |tensor: &Tensor| tensor.data_type == origin.data_type && tensor.item.bytes == origin.bytes;
        let Some((index, age)) = self.known.base(name, is_like, number) else { return Ok(None) };
        let catalog = &self.known.catalogs[0];
        if self.draft.find(catalog.chunks[index].blake3).is_some_and(|found| !self.draft.may_lead(found)) {
            return Ok(None);
        }
        match Fetcher::new(self.link, catalog).chunk(index) {
            Err(Error::Corrupt { .. }) => Ok(None),
            raw => Ok(Some((Base { index, age }, raw?))),
        }
    }

    fn encode(
        &mut self,
        encoder: &mut Encoder,
        (content, raw): (Digest, Vec<u8>),
        base: Option<(Base, Vec<u8>)>,
    ) -> Result<usize, Error> {
        let bytes = raw.len() as u64;
        let coded: Coded = encoder.encode(raw, base.as_ref().map(|(_, raw)| raw.as_slice()));
        let sum = match coded.way {
            Way::Raw => &mut self.done.raw,
            Way::Alone => &mut self.done.coded,
            Way::Difference => &mut self.done.differences,
        };
        *sum = *sum + Bytes(bytes);
        // Only what is needed is referred to.
        let base = match (coded.way, base) {
            (Way::Difference, Some((Base { index, age }, _))) => {
                let adopted = self.draft.adopt(&self.known.catalogs[0], index)?;
                Some(Base { index: adopted.expect("what follows from nothing can be adopted"), age })
            }
            _ => None,
        };
        let (index, closed) = self.draft.add((content, bytes), &coded, base)?;
        closed.map_or(Ok(()), |closed| self.put(&closed))?;
        Ok(index)
    }

    /// Notes by which first elements an fp32 tensor's bf16 copy would be known.
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

    /// The fp32 tensor that this one may be the bf16 copy of.
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
        let is_it = Digest::of(&raw) == self.draft.catalog.chunks[index].blake3;
        match derives_bf16(&raw, copy) {
            Some(rounding) if is_it && self.draft.may_lead(index) => {
                self.done.derived = self.done.derived + Bytes(copy.len() as u64);
                let nearest_even = rounding == Form::rounding(true);
                Ok(Some(self.draft.add_rounded(Digest::of(copy), index, nearest_even)?))
            }
            _ => Ok(None),
        }
    }

    /// Puts a pack, unless a push before did and it is good.
    fn put(&mut self, Closed { pack, bytes }: &Closed) -> Result<(), Error> {
        let key = pack_key(&pack.blake3);
        if self.known.has_pack(&pack.blake3, pack.bytes) {
            match self.link.get(&key, 0..pack.bytes) {
                Ok(there) if there == *bytes => {
                    self.done.packs_resumed += 1;
                    return Ok(());
                }
                Ok(_) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.link.put(&key, bytes)?;
        self.done.packs_put += 1;
        self.done.put = self.done.put + Bytes(pack.bytes);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.draft.close().map_or(Ok(()), |closed| self.put(&closed))
    }

    /// Makes the checkpoint visible, once the remote lists every pack of it whole.
    fn publish(&mut self) -> Result<(), Error> {
        let listed: BTreeMap<String, u64> =
            self.link.list("packs/")?.into_iter().map(|object| (object.key, object.bytes)).collect();
        for pack in &self.draft.catalog.packs {
            let key = pack_key(&pack.blake3);
            match listed.get(&key) {
                Some(bytes) if *bytes == pack.bytes => {}
                Some(bytes) => {
                    return Err(Error::corrupt(key, Flaw::Length { expected: pack.bytes, found: *bytes }));
                }
                None => return Err(Error::corrupt(key, Flaw::Missing)),
            }
        }
        let text = self.draft.catalog.write();
        if text.len() as u64 > CATALOG_BYTES_MAX {
            let (value, max) = (text.len() as u64, CATALOG_BYTES_MAX);
            return Err(crate::Error::Limit { what: "bytes of a catalog", value, max }.into());
        }
        self.link.put(&catalog_key(self.draft.catalog.step), &text)?;
        self.done.put = self.done.put + Bytes(text.len() as u64);
        Ok(())
    }
}
