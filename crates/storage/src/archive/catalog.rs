//! The catalog of an archived checkpoint: lists its content and where each piece lies. The catalog is put
//! last, so a checkpoint without one doesn't exist.
//!
//! A checkpoint is its manifest, and for each shard the header and the tensors in file order. Each of these
//! is an [`Item`], cut into chunks of [`CHUNK_ELEMENTS`]; a chunk lies in a pack, raw or coded, or follows
//! from another chunk. A catalog lists all chunks needed to rebuild the checkpoint, bases too, so that
//! catalogs alone show why a pack is needed. A chunk comes after the chunk it follows from: there are no
//! cycles.
//!
//! Catalogs are not trusted: every count, length, offset, index and depth is checked before anything
//! is read or allocated. On disk a catalog is a JSON object sealed with a checksum, like a manifest.

use std::collections::{BTreeMap, BTreeSet};

use gangline_compression::Rounding;
use gangline_objects::Object;
use serde::{Deserialize, Serialize};

use super::Error;
use super::milestone::Milestone;
use super::vault::{KeyId, TAG_BYTES};
use crate::lineage::{Line, Lineage, Moment};
use crate::manifest::{PARTS_MAX, seal, unseal};
use crate::tensor::name_fault;
use crate::{DataType, Digest, Flaw, METADATA_BYTES_MAX, NoteTypes, WORLD_SIZE_MAX, note};

/// The magic of a catalog.
const MAGIC: &str = "gangline-archive-catalog";
/// The format version written, and the newest one read.
const VERSION: u32 = 2;
/// The version of catalogs of whole checkpoints, which programs without milestones can read.
const VERSION_WHOLE: u32 = 1;
/// Elements of a chunk; the last chunk of an item may have fewer. In tests, small tensors have several.
pub(crate) const CHUNK_ELEMENTS: u64 = if cfg!(test) { 2 << 10 } else { 4 << 20 };
/// The most bytes of a chunk: [`CHUNK_ELEMENTS`] of the widest type.
pub(crate) const CHUNK_BYTES_MAX: u64 = 32 << 20;
/// The most bytes of a coded chunk: a chunk that coding doesn't shorten is stored raw.
const CODED_BYTES_MAX: u64 = CHUNK_BYTES_MAX;
/// A pack is closed once it has this many bytes; in tests, a few tensors fill several.
pub(crate) const PACK_BYTES: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
/// The most bytes of a pack.
pub(crate) const PACK_BYTES_MAX: u64 = PACK_BYTES as u64 + CODED_BYTES_MAX + TAG_BYTES as u64;
/// The longest chain from a chunk to one that follows from no other.
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
    /// The total size of its shards.
    pub(crate) bytes: u64,
    pub(crate) content_blake3: Digest,
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata_types: NoteTypes,
    /// The lineage of the manifest, so that the newest checkpoint is found without reading manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lineage: Option<Lineage>,
    pub(crate) packs: Vec<Pack>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) manifest: Item,
    /// Its shards, by rank.
    pub(crate) shards: Vec<Shard>,
    /// Set if only a part of the checkpoint is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) milestone: Option<Milestone>,
}

/// A pack, named by the BLAKE3 hash of its bytes, or in an encrypted archive by a keyed hash of its plain
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Pack {
    pub(crate) blake3: Digest,
    pub(crate) bytes: u64,
    /// The data key that encrypts it. Each of its chunks is then followed by a tag, which the chunk's length
    /// doesn't include.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<KeyId>,
}

/// A piece of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// The hash of its raw bytes; in an encrypted archive a keyed hash of that.
    pub(crate) blake3: Digest,
    /// The length of its raw bytes.
    pub(crate) bytes: u64,
    pub(crate) form: Form,
}

/// How a chunk is stored. Other chunks are given by their index in the catalog's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// Raw.
    Raw(Place),
    /// Coded on its own.
    Coded(Place),
    /// Coded as the difference to another chunk; it is the `age`th such difference since that chunk was
    /// stored.
    Difference { place: Place, base: usize, age: u32 },
    /// Not stored: the bf16 copy of an fp32 chunk.
    Rounded { master: usize, nearest_even: bool },
}

/// A location: the pack's index in the catalog's list, the offset in the pack, and the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place(pub(crate) usize, pub(crate) u64, pub(crate) u64);

/// A contiguous part of the checkpoint: the manifest, a header or a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) blake3: Digest,
    pub(crate) bytes: u64,
    /// Its chunks in order, by their indices in the catalog's list.
    pub(crate) chunks: Vec<usize>,
}

/// A shard: the header, then the tensors in file order.
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
    /// Returns the bytes of the tag after each of its chunks.
    pub(crate) fn tag_bytes(&self) -> u64 {
        if self.key.is_some() { TAG_BYTES as u64 } else { 0 }
    }

    /// Checks against a listing that the pack exists with its full length.
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
    /// Returns its items in file order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        std::iter::once(&self.header).chain(self.tensors.iter().map(|tensor| &tensor.item))
    }
}

impl Form {
    /// Returns the location of its bytes, if it has any.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Form::Raw(place) | Form::Coded(place) | Form::Difference { place, .. } => Some(*place),
            Form::Rounded { .. } => None,
        }
    }

    /// Returns the same form with the bytes at another location.
    pub(crate) fn moved(self, to: Place) -> Form {
        match self {
            Form::Raw(_) => Form::Raw(to),
            Form::Coded(_) => Form::Coded(to),
            Form::Difference { base, age, .. } => Form::Difference { place: to, base, age },
            Form::Rounded { .. } => self,
        }
    }

    /// Returns the index of the chunk it follows from.
    pub(crate) fn base(&self) -> Option<usize> {
        match self {
            Form::Raw(_) | Form::Coded(_) => None,
            Form::Difference { base, .. } => Some(*base),
            Form::Rounded { master, .. } => Some(*master),
        }
    }

    /// Returns the same form with another base.
    pub(crate) fn based_on(self, to: usize) -> Form {
        match self {
            Form::Raw(_) | Form::Coded(_) => self,
            Form::Difference { place, age, .. } => Form::Difference { place, base: to, age },
            Form::Rounded { nearest_even, .. } => Form::Rounded { master: to, nearest_even },
        }
    }

    /// Returns the rounding of a bf16 copy.
    pub(crate) fn rounding(nearest_even: bool) -> Rounding {
        if nearest_even { Rounding::NearestEven } else { Rounding::Truncation }
    }
}

/// Returns the object name of a pack.
pub(crate) fn pack_key(pack: &Digest) -> String {
    format!("packs/{pack}")
}

/// Returns the object name of a step's catalog.
pub(crate) fn catalog_key(step: u64) -> String {
    format!("catalogs/{}.json", crate::layout::checkpoint_folder(step))
}

/// Returns the step of a catalog's object name; none for other objects.
pub(crate) fn step_of_key(key: &str) -> Option<u64> {
    crate::layout::step_of(key.strip_prefix("catalogs/")?.strip_suffix(".json")?)
}

impl Catalog {
    /// Returns an empty catalog.
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

    /// Sets the version to the oldest that can express the catalog.
    pub(crate) fn of_its_version(self) -> Catalog {
        Catalog { version: if self.milestone.is_some() { VERSION } else { VERSION_WHOLE }, ..self }
    }

    /// Serializes the catalog.
    pub(crate) fn write(&self) -> Vec<u8> {
        seal(self)
    }

    /// Parses and checks untrusted bytes.
    pub(crate) fn read(step: u64, text: &[u8]) -> Result<Catalog, Error> {
        let refused = |flaw| Error::corrupt(catalog_key(step), flaw);
        let catalog: Catalog = unseal(text, MAGIC, VERSION).map_err(refused)?;
        match catalog.fault(step) {
            None => Ok(catalog),
            Some(what) => Err(refused(Flaw::Malformed { what })),
        }
    }

    /// Returns its position in the order of saves.
    pub(crate) fn moment(&self) -> Moment {
        Moment { order: self.lineage.as_ref().map_or(0, |lineage| lineage.order), step: self.step }
    }

    /// Returns the branch it was saved on, and the branches that one came from.
    pub(crate) fn line(&self) -> Line {
        self.lineage.as_ref().map(|lineage| lineage.line.clone()).unwrap_or_default()
    }

    /// Returns all its items.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        std::iter::once(&self.manifest).chain(self.shards.iter().flat_map(Shard::items))
    }

    /// Returns the rule or limit of the format that it breaks; none if it is valid.
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

    /// Reports whether the location lies within a listed pack.
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
