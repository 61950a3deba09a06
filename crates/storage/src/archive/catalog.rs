//! The catalog of an archived checkpoint: what it is made of and where each piece lies. The catalog is put last, so what has
//! none doesn't exist.
//!
//! A checkpoint is its manifest, and for each shard the header and the tensors in the order of the file. Each of these is an
//! [`Item`], cut into chunks of [`CHUNK_ELEMENTS`]; a chunk lies in a pack, as it is or coded, or follows from another chunk.
//! A catalog lists all chunks that it takes to rebuild the checkpoint, bases too, so that what a pack is needed for can be
//! told from catalogs alone. A chunk comes after what it follows from: there are no cycles.
//!
//! Catalogs are not trusted: every count, length, offset, index and depth is checked before anything is read or
//! made room for. On disk it is a JSON object sealed with a checksum, as a manifest is.

use std::collections::{BTreeMap, BTreeSet};

use gangline_coding::Rounding;
use serde::{Deserialize, Serialize};

use super::Error;
use super::milestone::Milestone;
use super::remote::Object;
use super::vault::{KeyId, TAG_BYTES};
use crate::lineage::{Line, Lineage, Moment};
use crate::manifest::{PARTS_MAX, seal, unseal};
use crate::tensor::name_fault;
use crate::{DataType, Digest, Flaw, METADATA_BYTES_MAX, NoteTypes, WORLD_SIZE_MAX, note};

/// What a catalog says it is.
const MAGIC: &str = "gangline-archive-catalog";
/// The format version written, and the newest one read.
const VERSION: u32 = 2;
/// The version of those that are whole checkpoints: programs that don't know milestones read them.
const VERSION_WHOLE: u32 = 1;
/// Elements of a chunk; the last of an item may have fewer. In tests, small tensors have several.
pub(crate) const CHUNK_ELEMENTS: u64 = if cfg!(test) { 2 << 10 } else { 4 << 20 };
/// The most bytes of a chunk: so many elements of the widest.
pub(crate) const CHUNK_BYTES_MAX: u64 = 32 << 20;
/// The most bytes of a coded chunk: what isn't shorter is stored as it is.
const CODED_BYTES_MAX: u64 = CHUNK_BYTES_MAX;
/// A pack is closed when it has so many bytes; in tests, a few tensors fill several.
pub(crate) const PACK_BYTES: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
/// The most bytes of a pack.
pub(crate) const PACK_BYTES_MAX: u64 = PACK_BYTES as u64 + CODED_BYTES_MAX + TAG_BYTES as u64;
/// The longest way from a chunk to one that follows from no other.
pub(crate) const DEPTH_MAX: usize = 8;
/// The most bytes of a catalog.
pub(crate) const CATALOG_BYTES_MAX: u64 = 512 << 20;

/// The catalog of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Catalog {
    pub(crate) magic: String,
    pub(crate) version: u32,
    pub(crate) step: u64,
    /// When the store committed it, in nanoseconds since the Unix epoch.
    pub(crate) saved_at: u64,
    /// Bytes of its shards.
    pub(crate) bytes: u64,
    pub(crate) content_blake3: Digest,
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata_types: NoteTypes,
    /// As its manifest has it, so that the newest is found without reading manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lineage: Option<Lineage>,
    pub(crate) packs: Vec<Pack>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) manifest: Item,
    /// By rank.
    pub(crate) shards: Vec<Shard>,
    /// What is left of the checkpoint, if that isn't all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) milestone: Option<Milestone>,
}

/// A pack, named by the BLAKE3 hash of its bytes, or in an encrypted archive by a keyed hash of what they were before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Pack {
    pub(crate) blake3: Digest,
    pub(crate) bytes: u64,
    /// What it is encrypted with. Its chunks have a tag each then, which their lengths don't count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<KeyId>,
}

/// A piece of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// Of its raw bytes; in an encrypted archive a keyed hash of that.
    pub(crate) blake3: Digest,
    /// Raw bytes.
    pub(crate) bytes: u64,
    pub(crate) form: Form,
}

/// How a chunk is stored. Other chunks are named by their place in the catalog's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// As it is.
    Raw(Place),
    /// Coded on its own.
    Coded(Place),
    /// Coded as the difference to another chunk, the `age`th since that one was stored.
    Difference { place: Place, base: usize, age: u32 },
    /// Not at all: the bf16 copy of an fp32 chunk.
    Rounded { master: usize, nearest_even: bool },
}

/// Where bytes lie: the pack's place in the catalog's list, offset and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place(pub(crate) usize, pub(crate) u64, pub(crate) u64);

/// Bytes that were one thing in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) blake3: Digest,
    pub(crate) bytes: u64,
    /// Its pieces in order, by their places in the catalog's list.
    pub(crate) chunks: Vec<usize>,
}

/// A shard: the header, then the tensors in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(crate) header: Item,
    pub(crate) tensors: Vec<Tensor>,
}

/// A tensor of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    #[serde(rename = "dtype")]
    pub(crate) data_type: DataType,
    pub(crate) item: Item,
}

impl Pack {
    /// What lies after each of its chunks.
    pub(crate) fn tag_bytes(&self) -> u64 {
        if self.key.is_some() { TAG_BYTES as u64 } else { 0 }
    }

    /// Whether it is there, whole, as far as a listing tells.
    pub(crate) fn check(&self, listed: Option<&Object>) -> Result<(), Error> {
        let flaw = match listed {
            None => Flaw::Missing,
            Some(object) if object.bytes == self.bytes => return Ok(()),
            Some(object) => Flaw::Length { expected: self.bytes, found: object.bytes },
        };
        Err(Error::corrupt(pack_key(&self.blake3), flaw))
    }
}

impl Shard {
    /// Its items in the order of the file.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        std::iter::once(&self.header).chain(self.tensors.iter().map(|tensor| &tensor.item))
    }
}

impl Form {
    /// Where its bytes lie, if it has any.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Form::Raw(place) | Form::Coded(place) | Form::Difference { place, .. } => Some(*place),
            Form::Rounded { .. } => None,
        }
    }

    /// The same with the bytes elsewhere.
    pub(crate) fn moved(self, to: Place) -> Form {
        match self {
            Form::Raw(_) => Form::Raw(to),
            Form::Coded(_) => Form::Coded(to),
            Form::Difference { base, age, .. } => Form::Difference { place: to, base, age },
            Form::Rounded { .. } => self,
        }
    }

    /// The chunk it follows from.
    pub(crate) fn base(&self) -> Option<usize> {
        match self {
            Form::Raw(_) | Form::Coded(_) => None,
            Form::Difference { base, .. } => Some(*base),
            Form::Rounded { master, .. } => Some(*master),
        }
    }

    /// The same with another chunk to follow from.
    pub(crate) fn based_on(self, to: usize) -> Form {
        match self {
            Form::Raw(_) | Form::Coded(_) => self,
            Form::Difference { place, age, .. } => Form::Difference { place, base: to, age },
            Form::Rounded { nearest_even, .. } => Form::Rounded { master: to, nearest_even },
        }
    }

    /// How a copy is rounded.
    pub(crate) fn rounding(nearest_even: bool) -> Rounding {
        if nearest_even { Rounding::NearestEven } else { Rounding::Truncation }
    }
}

/// The object that a pack is.
pub(crate) fn pack_key(pack: &Digest) -> String {
    format!("packs/{pack}")
}

/// The object that the catalog of a step is.
pub(crate) fn catalog_key(step: u64) -> String {
    format!("catalogs/{}.json", crate::layout::checkpoint_folder(step))
}

/// The step whose catalog an object is; none for a stranger.
pub(crate) fn step_of_key(key: &str) -> Option<u64> {
    crate::layout::step_of(key.strip_prefix("catalogs/")?.strip_suffix(".json")?)
}

impl Catalog {
    /// One that lists nothing yet.
    pub(crate) fn empty(step: u64) -> Catalog {
        let nothing = Digest::of(b"");
        Catalog {
            magic: MAGIC.to_owned(),
            version: VERSION_WHOLE,
            step,
            saved_at: 0,
            bytes: 0,
            content_blake3: nothing,
            metadata: BTreeMap::new(),
            metadata_types: NoteTypes::new(),
            packs: Vec::new(),
            chunks: Vec::new(),
            manifest: Item { blake3: nothing, bytes: 0, chunks: Vec::new() },
            shards: Vec::new(),
            lineage: None,
            milestone: None,
        }
    }

    /// The same, saying the oldest version that has what it has.
    pub(crate) fn of_its_version(self) -> Catalog {
        Catalog { version: if self.milestone.is_some() { VERSION } else { VERSION_WHOLE }, ..self }
    }

    /// As bytes.
    pub(crate) fn write(&self) -> Vec<u8> {
        seal(self)
    }

    /// Reads bytes that may lie.
    pub(crate) fn read(step: u64, text: &[u8]) -> Result<Catalog, Error> {
        let refused = |flaw| Error::corrupt(catalog_key(step), flaw);
        let catalog: Catalog = unseal(text, MAGIC, VERSION).map_err(refused)?;
        match catalog.fault(step) {
            None => Ok(catalog),
            Some(what) => Err(refused(Flaw::Malformed { what })),
        }
    }

    /// When it was saved, among all.
    pub(crate) fn moment(&self) -> Moment {
        Moment { order: self.lineage.as_ref().map_or(0, |lineage| lineage.order), step: self.step }
    }

    /// The branch that it was saved on, and those that it came from.
    pub(crate) fn line(&self) -> Line {
        self.lineage.as_ref().map(|lineage| lineage.line.clone()).unwrap_or_default()
    }

    /// All its items.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        std::iter::once(&self.manifest).chain(self.shards.iter().flat_map(Shard::items))
    }

    /// Whether it keeps to the format's rules and limits.
    fn fault(&self, step: u64) -> Option<&'static str> {
        let metadata: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let tensors: usize = self.shards.iter().map(|shard| shard.tensors.len()).sum();
        let packs: BTreeSet<Digest> = self.packs.iter().map(|pack| pack.blake3).collect();
        let mut items = self.items();
        let lacking = self.milestone.as_ref().map_or(0, |milestone| milestone.bytes_lacking);
        let shard_bytes = self.items().skip(1).try_fold(lacking, |sum, item| sum.checked_add(item.bytes));
        if self.step != step {
            Some("it is of another step")
        } else if self.shards.is_empty() || self.shards.len() > WORLD_SIZE_MAX as usize {
            Some("it has no shards, or more than a gang has ranks")
        } else if tensors > PARTS_MAX || metadata > METADATA_BYTES_MAX {
            Some("it has more tensors or metadata than a checkpoint may")
        } else if self.shards.iter().flat_map(|shard| &shard.tensors).any(|tensor| name_fault(&tensor.name).is_some()) {
            Some("a tensor's name breaks a rule")
        } else if packs.len() != self.packs.len() || self.packs.iter().any(|pack| pack.bytes > PACK_BYTES_MAX) {
            Some("a pack is listed twice or larger than one can be")
        } else if shard_bytes != Some(self.bytes) {
            Some("its bytes don't add up")
        } else {
            let notes = note::fault(&self.metadata, &self.metadata_types);
            let fault = notes.or_else(|| self.lineage.as_ref().and_then(Lineage::fault)).or_else(|| self.chunk_fault());
            fault.or_else(|| items.find_map(|item| self.item_fault(item)))
        }
    }

    fn chunk_fault(&self) -> Option<&'static str> {
        let mut depths: Vec<usize> = Vec::with_capacity(self.chunks.len());
        for chunk in &self.chunks {
            if !(1..=CHUNK_BYTES_MAX).contains(&chunk.bytes) {
                return Some("a chunk is empty or larger than one can be");
            }
            if chunk.form.place().is_some_and(|place| !self.holds(place)) {
                return Some("a chunk lies outside its pack");
            }
            let depth = match chunk.form.base() {
                None => 0,
                Some(base) => 1 + *depths.get(base).unwrap_or(&DEPTH_MAX),
            };
            if depth > DEPTH_MAX {
                return Some("a chunk follows from a later one, or over too many others");
            }
            depths.push(depth);
            let needed = match chunk.form {
                Form::Raw(Place(_, _, length)) if length != chunk.bytes => {
                    return Some("a raw chunk has another length");
                }
                Form::Rounded { .. } => 2 * chunk.bytes,
                _ => chunk.bytes,
            };
            if chunk.form.base().is_some_and(|base| self.chunks[base].bytes != needed) {
                return Some("a chunk follows from one of another length");
            }
        }
        None
    }

    /// Whether there is such a place.
    fn holds(&self, Place(pack, offset, length): Place) -> bool {
        let end = |pack: &Pack| offset.checked_add(length)?.checked_add(pack.tag_bytes());
        let is_within = |pack: &Pack| end(pack).is_some_and(|end| end <= pack.bytes);
        length <= CODED_BYTES_MAX && self.packs.get(pack).is_some_and(is_within)
    }

    fn item_fault(&self, item: &Item) -> Option<&'static str> {
        let add = |sum: u64, index: &usize| sum.checked_add(self.chunks.get(*index)?.bytes);
        let bytes = item.chunks.iter().try_fold(0, add);
        (bytes != Some(item.bytes)).then_some("an item's chunks aren't there or don't add up")
    }
}
