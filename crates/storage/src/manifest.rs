//! The disk types: the manifest, which is committed last, and the index with which a rank tells rank 0
//! that its shard is durable. Both are one JSON object whose last member is a checksum over all bytes before
//! it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use gangline_base::{Bytes, Step, Timestamp};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::FramedHasher;
use crate::error::within;
use crate::lineage::{Branch, Lineage};
use crate::note::{self, NoteTypes};
use crate::region::{Region, WholeRecord, fill};
use crate::tensor::{byte_count, is_of_whole_bytes, name_fault};
use crate::{DIMENSIONS_MAX, DataType, Digest, Error, Flaw, TENSORS_MAX, layout};

/// The magic of a manifest.
pub(crate) const MANIFEST_MAGIC: &str = "gangline-checkpoint";
/// The magic of an index.
pub(crate) const INDEX_MAGIC: &str = "gangline-shard-index";
/// The newest format version that is read. Files are written in the oldest version that can express them.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The version of checkpoints without sharded tensors, which older programs can read.
const WITHOUT_PARTS: u32 = 1;
/// The version of checkpoints with sharded tensors and one file per rank.
pub(crate) const ONE_FILE_A_RANK: u32 = 2;
/// The most ranks in a gang.
pub const WORLD_SIZE_MAX: u32 = 65_536;
/// The most tensors and parts of tensors in a checkpoint, over all ranks.
pub(crate) const PARTS_MAX: usize = 8_000_000;
/// The most shard files in a checkpoint: one per rank, and more for ranks whose tensors exceed the header of
/// one.
pub(crate) const FILES_MAX: usize = WORLD_SIZE_MAX as usize;
/// The largest manifest or index written or read; each tensor takes about 230 bytes.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 2 << 30;

/// The record of a tensor in a manifest or index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorRecord {
    pub(crate) name: String,
    #[serde(rename = "dtype")]
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<usize>,
    pub(crate) blake3: Digest,
    /// The whole tensor, if this is a part of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part_of: Option<WholeRecord>,
}

impl TensorRecord {
    /// Returns the tensor's box in the whole tensor.
    pub(crate) fn region(&self) -> Region {
        match &self.part_of {
            None => Region::whole(&self.shape),
            Some(whole) => Region { offsets: whole.offsets.clone(), shape: self.shape.clone() },
        }
    }

    /// Returns its first element in the whole tensor, if this is a part.
    fn offsets(&self) -> Option<&[usize]> {
        self.part_of.as_ref().map(|whole| whole.offsets.as_slice())
    }

    /// Returns the whole tensor's shape.
    fn whole_shape(&self) -> &[usize] {
        self.part_of.as_ref().map_or(&self.shape, |whole| &whole.shape)
    }
}

/// The record of a shard in a manifest or index. The hashes of its header and of its tensors cover every byte
/// of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRecord {
    pub(crate) rank: u32,
    pub(crate) bytes: u64,
    pub(crate) header_blake3: Digest,
    pub(crate) tensors: Vec<TensorRecord>,
}

impl ShardRecord {
    /// Reports whether the file is large enough for its tensors, and no tensor's size overflows.
    fn can_hold_its_tensors(&self) -> bool {
        let mut sizes = self.tensors.iter().filter_map(|tensor| byte_count(tensor.data_type, &tensor.shape));
        sizes.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes)).is_some_and(|sum| sum <= self.bytes)
    }
}

/// The manifest of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) magic: String,
    pub(crate) version: u32,
    pub(crate) step: u64,
    pub(crate) writer: u64,
    pub(crate) world_size: u32,
    pub(crate) bytes: u64,
    pub(crate) content_blake3: Digest,
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata_types: NoteTypes,
    /// None for checkpoints saved before branches existed. Not part of the content hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lineage: Option<Lineage>,
    pub(crate) shards: Vec<ShardRecord>,
}

/// The index of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardIndex {
    pub(crate) magic: String,
    pub(crate) version: u32,
    pub(crate) step: u64,
    pub(crate) writer: u64,
    pub(crate) world_size: u32,
    /// Over the metadata and the names, types and shapes of the replicated tensors: equal on ranks that save
    /// the same state.
    pub(crate) plan_blake3: Digest,
    /// How many times in a row this step was requested, this time included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<u32>,
    /// Digests of the replicated tensors and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alike: Option<String>,
    pub(crate) shard: ShardRecord,
    /// The rank's further files, if its tensors exceed the header of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more: Vec<ShardRecord>,
}

impl ShardIndex {
    /// Returns all files of the rank.
    pub(crate) fn files(&self) -> impl Iterator<Item = &ShardRecord> {
        std::iter::once(&self.shard).chain(&self.more)
    }
}

/// The description of a complete checkpoint, from its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointInfo {
    /// The step after which the state was saved.
    pub step: Step,
    /// The tag of the writer that saved it.
    pub writer: u64,
    /// The number of ranks that wrote it.
    pub world_size: u32,
    /// The total size of its shards.
    pub bytes: Bytes,
    /// Hash over the step and every tensor, independent of files, paths and time. For tensors saved whole it
    /// is also independent of the ranks; sharded tensors are hashed part by part, so the same state with
    /// another sharding has another hash.
    pub content_hash: Digest,
    /// Metadata that the trainer saved with the tensors. Not part of the content hash.
    pub metadata: BTreeMap<String, String>,
    /// The types of the metadata values that are not text.
    pub metadata_types: NoteTypes,
    /// When it was committed; none for checkpoints from before this was recorded.
    pub saved_at: Option<Timestamp>,
    /// The run that saved it ([`Options::run`](field@crate::Options::run)).
    pub run: Option<String>,
    /// The branch that it belongs to.
    pub branch: Branch,
    /// The step of the previous save on its line, if any.
    pub parent: Option<Step>,
    /// Its tensors, by name.
    pub tensors: Vec<TensorInfo>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// The dimensions of the whole tensor.
    pub shape: Vec<usize>,
    /// The bytes of the whole tensor.
    pub bytes: Bytes,
    /// The BLAKE3 hash of its bytes; for a sharded tensor, of the descriptions and hashes of its parts.
    pub hash: Digest,
    /// The number of parts in which it was saved.
    pub parts: usize,
    /// A digest of the sharding, if it is sharded: hashes of two tensors are comparable only if these are
    /// equal.
    #[serde(skip)]
    pub(crate) cut: Option<Digest>,
}

impl Manifest {
    /// Returns the manifest of these shards, which are in the order of their ranks.
    pub(crate) fn over(
        step: Step,
        writer: u64,
        shards: Vec<ShardRecord>,
        (metadata, metadata_types): (BTreeMap<String, String>, NoteTypes),
        lineage: Option<Lineage>,
    ) -> Manifest {
        let ranks = shards.last().map_or(0, |last| last.rank + 1);
        let mut manifest = Manifest {
            magic: MANIFEST_MAGIC.to_owned(),
            version: version_of(&shards),
            step: step.0,
            writer,
            world_size: ranks,
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            content_blake3: Digest::of(b""),
            metadata,
            metadata_types,
            lineage,
            shards,
        };
        manifest.content_blake3 = content_hash(step.0, &manifest.tensors());
        manifest
    }

    /// Returns its shard files by name, in their order.
    pub(crate) fn files(&self) -> impl Iterator<Item = (String, &ShardRecord)> {
        self.shards.iter().enumerate().map(|(at, shard)| (self.file_name(at), shard))
    }

    /// Returns the name of the file at an index.
    pub(crate) fn file_name(&self, at: usize) -> String {
        let number = |files: usize| u32::try_from(files).expect("files are checked to be few");
        layout::shard_file(number(at), number(self.shards.len()))
    }

    /// Reports whether each rank has at least one file, in the order of the ranks.
    fn has_files_of_all_ranks(&self) -> bool {
        let mut ranks = self.shards.chunk_by(|a, b| a.rank == b.rank).map(|files| files[0].rank);
        ranks.by_ref().eq(0..self.world_size)
    }

    /// Returns all tensors and parts of tensors, by name and offset.
    pub(crate) fn tensors(&self) -> Vec<&TensorRecord> {
        let mut tensors: Vec<&TensorRecord> = self.shards.iter().flat_map(|shard| &shard.tensors).collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.offsets().cmp(&b.offsets())));
        tensors
    }

    /// Returns the reason why the manifest contradicts itself, the format's limits or its folder's step; none
    /// if it is valid.
    fn fault(&self, step: u64) -> Option<&'static str> {
        let tensors = self.tensors();
        let is_sound = |tensor: &&TensorRecord| {
            name_fault(&tensor.name).is_none()
                && tensor.shape.len() <= DIMENSIONS_MAX
                && byte_count(tensor.data_type, &tensor.shape).is_some()
                && byte_count(tensor.data_type, tensor.whole_shape()).is_some()
                && is_of_whole_bytes(tensor.data_type, &tensor.region(), tensor.whole_shape())
        };
        if self.step != step {
            Some("it is of another step")
        } else if !(1..=WORLD_SIZE_MAX).contains(&self.world_size) || self.shards.len() > FILES_MAX {
            Some("it has more ranks or files than a checkpoint may")
        } else if !self.has_files_of_all_ranks() {
            Some("its shards don't match its world size, or are out of order")
        } else if self.version < version_of(&self.shards) {
            Some("its format version has no such shards or types")
        } else if !tensors.iter().all(is_sound) || check_parts(&tensors).is_err() {
            Some("its tensors break a limit or a rule")
        } else if self.shards.iter().try_fold(0_u64, |sum, shard| sum.checked_add(shard.bytes)) != Some(self.bytes) {
            Some("its bytes don't add up")
        } else if !self.shards.iter().all(ShardRecord::can_hold_its_tensors) {
            Some("its tensors are larger than the files that hold them")
        } else if content_hash(self.step, &tensors) != self.content_blake3 {
            Some("its content hash doesn't match its tensors")
        } else {
            let notes = note::fault(&self.metadata, &self.metadata_types);
            notes.or_else(|| self.lineage.as_ref().and_then(Lineage::fault))
        }
    }

    pub(crate) fn info(&self) -> CheckpointInfo {
        let tensor = |parts: &[&TensorRecord]| TensorInfo {
            name: parts[0].name.clone(),
            data_type: parts[0].data_type,
            shape: parts[0].whole_shape().to_vec(),
            bytes: Bytes(
                byte_count(parts[0].data_type, parts[0].whole_shape()).expect("a read manifest's sizes are checked"),
            ),
            hash: hash_parts(parts),
            parts: parts.len(),
            cut: cut_of(parts),
        };
        CheckpointInfo {
            step: Step(self.step),
            writer: self.writer,
            world_size: self.world_size,
            bytes: Bytes(self.bytes),
            content_hash: self.content_blake3,
            metadata: self.metadata.clone(),
            metadata_types: self.metadata_types.clone(),
            saved_at: self.lineage.as_ref().map(Lineage::saved_at),
            run: self.lineage.as_ref().map(|lineage| lineage.run.clone()),
            branch: self.lineage.as_ref().map(|lineage| lineage.line.branch).unwrap_or_default(),
            parent: self.lineage.as_ref().and_then(|lineage| lineage.parent).map(Step),
            tensors: self.tensors().chunk_by(|a, b| a.name == b.name).map(tensor).collect(),
        }
    }
}

/// Checks that all records of one name are one whole tensor, or parts that cover one, and that their number
/// is within the limit.
///
/// # Errors
/// [`Error::InvalidTensor`] naming the tensor; [`Error::Limit`].
pub(crate) fn check_parts(sorted: &[&TensorRecord]) -> Result<(), Error> {
    within("tensors and parts of tensors", sorted.len(), PARTS_MAX)?;
    let mut names = 0;
    for parts in sorted.chunk_by(|a, b| a.name == b.name) {
        names += 1;
        let refused = |why| Err(Error::InvalidTensor { tensor: parts[0].name.clone(), why });
        let is_alike =
            |part: &&TensorRecord| part.data_type == parts[0].data_type && part.whole_shape() == parts[0].whole_shape();
        let is_alone = parts.len() == 1 && parts[0].part_of.is_none();
        if !is_alone && parts.iter().any(|part| part.part_of.is_none()) {
            return refused("it is there twice");
        }
        if !parts.iter().all(is_alike) {
            return refused("its parts are of different types, or of wholes of different shapes");
        }
        let regions: Vec<Region> = parts.iter().map(|part| part.region()).collect();
        if !is_alone && !fill(parts[0].whole_shape(), &regions) {
            return refused("its parts don't fill it, each element once");
        }
    }
    within("tensors", names, TENSORS_MAX)
}

/// Returns the hash of a tensor: of its bytes, or of the descriptions of its parts.
fn hash_parts(parts: &[&TensorRecord]) -> Digest {
    if let [TensorRecord { part_of: None, blake3, .. }] = parts {
        return *blake3;
    }
    let mut hasher = FramedHasher::new("gangline tensor in parts 1");
    for part in parts {
        hash_record(&mut hasher, part);
    }
    hasher.finish()
}

/// Returns a digest that distinguishes shardings of a tensor; none if it is whole.
fn cut_of(parts: &[&TensorRecord]) -> Option<Digest> {
    if let [TensorRecord { part_of: None, .. }] = parts {
        return None;
    }
    let mut hasher = FramedHasher::new("gangline tensor's cut 1");
    for Region { offsets, shape } in parts.iter().map(|part| part.region()) {
        offsets.iter().chain(&shape).for_each(|number| hasher.number(*number as u64));
    }
    Some(hasher.finish())
}

/// Adds a tensor, or a part of one, to the hash.
fn hash_record(hasher: &mut FramedHasher, record: &TensorRecord) {
    hash_declaration(hasher, &record.name, record.data_type, &record.shape);
    if let Some(whole) = &record.part_of {
        hash_declaration(hasher, "part of", record.data_type, &whole.shape);
        whole.offsets.iter().for_each(|offset| hasher.number(*offset as u64));
    }
    hasher.field(record.blake3.as_bytes());
}

/// Returns the oldest format version that can express these shards.
pub(crate) fn version_of(shards: &[ShardRecord]) -> u32 {
    let has = |what: fn(&TensorRecord) -> bool| shards.iter().any(|shard| shard.tensors.iter().any(what));
    let has_parts = || has(|tensor| tensor.part_of.is_some());
    let has_several_files = shards.windows(2).any(|pair| pair[0].rank == pair[1].rank);
    if has_several_files || has(|tensor| !tensor.data_type.is_of_version_2()) {
        FORMAT_VERSION
    } else if has_parts() {
        ONE_FILE_A_RANK
    } else {
        WITHOUT_PARTS
    }
}

/// Reads and checks the manifest at `path`, which is in the folder of `step`.
pub(crate) fn read_manifest(path: &Path, step: u64) -> Result<Manifest, Error> {
    let manifest: Manifest = read_sealed(path, MANIFEST_MAGIC)?;
    match manifest.fault(step) {
        None => Ok(manifest),
        Some(what) => Err(Error::corrupt(path, Flaw::Malformed { what })),
    }
}

/// Parses and checks the text of the manifest of `step`.
pub(crate) fn parse_manifest(text: &[u8], step: u64) -> Result<Manifest, Flaw> {
    let manifest: Manifest = unseal(text, MANIFEST_MAGIC, FORMAT_VERSION)?;
    manifest.fault(step).map_or(Ok(manifest), |what| Err(Flaw::Malformed { what }))
}

/// Returns the hash of a checkpoint's content: the step, then each tensor's name, type, shape and hash, by
/// name. Sharded tensors are hashed part by part, so the same state with another sharding has another hash.
pub(crate) fn content_hash(step: u64, sorted: &[&TensorRecord]) -> Digest {
    let mut hasher = FramedHasher::new("gangline checkpoint content 1");
    hasher.number(step);
    hasher.number(sorted.len() as u64);
    for tensor in sorted {
        hash_record(&mut hasher, tensor);
    }
    hasher.finish()
}

/// Adds a tensor's name, type and shape to the hash.
pub(crate) fn hash_declaration(hasher: &mut FramedHasher, name: &str, data_type: DataType, shape: &[usize]) {
    hasher.field(name.as_bytes());
    hasher.field(data_type.name().as_bytes());
    hasher.number(shape.len() as u64);
    for dimension in shape {
        hasher.number(*dimension as u64);
    }
}

const CHECKSUM_OPEN: &str = ",\"checksum\":\"";
const CHECKSUM_CLOSE: &str = "\"}\n";
const CHECKSUM_DIGITS: usize = 64;

/// Serializes a JSON object with its checksum as the last member.
pub(crate) fn seal<T: Serialize>(body: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(body).expect("disk types have string keys and no failing serializer");
    assert_eq!(text.pop(), Some(b'}'), "disk types are objects");
    seal_text(text)
}

/// Adds the checksum to the text of an object, which lacks the closing brace.
pub(crate) fn seal_text(mut text: Vec<u8>) -> Vec<u8> {
    let checksum = Digest::of(&text).to_string();
    for part in [CHECKSUM_OPEN, &checksum, CHECKSUM_CLOSE] {
        text.extend_from_slice(part.as_bytes());
    }
    text
}

/// Serializes like [`seal`], but refuses text that is larger than the limit for reading.
///
/// # Errors
/// [`Error::Limit`].
pub(crate) fn seal_within<T: Serialize>(body: &T, what: &'static str) -> Result<Vec<u8>, Error> {
    let text = seal(body);
    within(what, text.len(), usize::try_from(MANIFEST_BYTES_MAX).expect("64-bit Linux only"))?;
    Ok(text)
}

/// Reads what [`seal`] wrote: checks the checksum first, then magic and version, then parses the rest.
/// Members that this version doesn't know are ignored, so that a newer program may add some.
pub(crate) fn unseal<T: DeserializeOwned>(text: &[u8], magic: &str, known: u32) -> Result<T, Flaw> {
    #[derive(Deserialize)]
    struct Head {
        magic: String,
        version: u32,
    }
    let malformed = |what| Flaw::Malformed { what };
    let tail = CHECKSUM_OPEN.len() + CHECKSUM_DIGITS + CHECKSUM_CLOSE.len();
    let (body, seal) =
        text.len().checked_sub(tail).map(|at| text.split_at(at)).ok_or(malformed("it has no checksum"))?;
    let digits = seal.strip_prefix(CHECKSUM_OPEN.as_bytes()).and_then(|s| s.strip_suffix(CHECKSUM_CLOSE.as_bytes()));
    let digits = digits.ok_or(malformed("it doesn't end with a checksum"))?;
    if digits != Digest::of(body).to_string().as_bytes() {
        return Err(Flaw::Hash);
    }
    let head: Head = serde_json::from_slice(text).map_err(|_| malformed("it has no magic and version"))?;
    if head.magic != magic {
        return Err(malformed("its magic is another format's"));
    }
    if head.version == 0 || head.version > known {
        return Err(Flaw::Version { found: head.version, known });
    }
    serde_json::from_slice(text).map_err(|_| malformed("a member is missing or of the wrong type"))
}

/// Reads and unseals a file, up to the size limit.
pub(crate) fn read_sealed<T: DeserializeOwned>(path: &Path, magic: &str) -> Result<T, Error> {
    let file = open_present(path)?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text).map_err(|source| Error::reading(path, source))?;
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(Error::corrupt(path, Flaw::Malformed { what: "it is larger than 2 GiB" }));
    }
    unseal(&text, magic, FORMAT_VERSION).map_err(|flaw| Error::corrupt(path, flaw))
}

/// Opens a file that must exist. Doesn't block on a FIFO.
pub(crate) fn open_present(path: &Path) -> Result<File, Error> {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    opened.map(File::from).map_err(io::Error::from).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::corrupt(path, Flaw::Missing),
        _ => Error::io("open", path, source),
    })
}
