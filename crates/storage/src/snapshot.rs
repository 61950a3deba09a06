//! An open checkpoint: reads any box of any tensor from the parts that hold it, and verifies the bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gangline_base::Step;

use crate::manifest::{Manifest, ShardRecord, open_present, read_manifest};
use crate::marks::Marks;
use crate::present::Present;
use crate::reading::{Origin, Piece, read_pieces};
use crate::region::{Overlap, Region};
use crate::shard::Shard;
use crate::tensor::{byte_count, is_of_whole_bytes};
use crate::verification::Verification;
use crate::{CheckpointInfo, DataType, Error, Flaw, Tensor, TensorInfo, layout};

/// A checkpoint whose manifest has been read. Its tensors are read and checked on request.
#[derive(Debug)]
pub struct Snapshot {
    folder: PathBuf,
    present: Present,
    manifest: Arc<Manifest>,
    info: CheckpointInfo,
}

/// When the bytes read are compared with the hashes of what was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Before the read returns: the bytes returned are those that were saved.
    Always,
    /// Like `Always`, but skips the hash for a tensor that this machine has read and found good since boot,
    /// if the file's device, inode, length and times are unchanged. The folder, which belongs to this user
    /// alone, holds the records of that. Damage that changes none of these attributes (bit rot, for example)
    /// goes undetected.
    First(PathBuf),
    /// After the read, by reading the same files again in the background. Until its [`Verification`] has
    /// ended well, the bytes returned may be wrong.
    Later,
}

/// A box of a tensor to read, and the memory it is read into.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The type of its elements; must be the type that was saved.
    pub data_type: DataType,
    /// The first element of the box in the whole tensor, one index for each dimension.
    pub offsets: &'a [usize],
    /// The lengths of the box, in elements, one for each dimension.
    pub shape: &'a [usize],
    /// Receives the box's elements, little-endian, in row-major order; must have exactly their length.
    pub data: &'a mut [u8],
}

/// A part that has to be read, and the boxes that need it.
struct Source {
    piece: Piece,
    overlaps: Vec<(usize, Overlap)>,
}

/// The parts and files to read.
struct Plan<'a> {
    files: Files<'a>,
    sources: Vec<Source>,
}

/// Shard files, each with its index in the manifest and its record.
struct Files<'a>(Vec<(PathBuf, usize, &'a ShardRecord)>);

impl Files<'_> {
    fn open(&self) -> Result<Vec<Shard<'_>>, Error> {
        self.0.iter().map(|(path, _, record)| Shard::open(path, record)).collect()
    }
}

/// The range of a box's memory that a source's bytes go to; the box is given by its index.
type Run = (Range<usize>, usize);

/// Memory to read into: of the boxes that several parts share, and of the parts that fill a contiguous range
/// of one box.
type Rooms<'a> = (Vec<Option<Mutex<&'a mut [u8]>>>, Vec<Option<&'a mut [u8]>>);

impl Snapshot {
    /// Opens the checkpoint of a step in a store's folder.
    pub(crate) fn open(root: &Path, step: Step) -> Result<Snapshot, Error> {
        let folder = root.join(layout::checkpoint_folder(step.0));
        let present = Present::find(&folder, step)?;
        Snapshot::open_present(folder, &present, step).map_err(|error| present.explain(error))
    }

    fn open_present(folder: PathBuf, present: &Present, step: Step) -> Result<Snapshot, Error> {
        let manifest = read_manifest(&folder.join(layout::MANIFEST), step.0)?;
        // Callers allocate memory by the manifest's sizes, so these must not exceed the files'.
        for (name, shard) in manifest.files() {
            let path = folder.join(name);
            let file = open_present(&path)?.metadata().map_err(|source| Error::reading(&path, source))?;
            if file.len() != shard.bytes {
                return Err(Error::corrupt(&path, Flaw::Length { expected: shard.bytes, found: file.len() }));
            }
        }
        let info = manifest.info();
        Ok(Snapshot { folder, present: present.clone(), manifest: Arc::new(manifest), info })
    }

    /// Returns the content of the manifest.
    #[must_use]
    pub fn info(&self) -> &CheckpointInfo {
        &self.info
    }

    /// Reads boxes of tensors, whatever the sharding at the save. Only the parts that overlap the boxes are
    /// read, several at once, and every byte of those is checked.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for a tensor that doesn't exist, or a box that isn't within it;
    /// [`Error::Corrupt`] naming the file and tensor that isn't what was saved; [`Error::Io`]. After an
    /// error, the contents of `wanted` are unspecified.
    pub fn read_into(&self, wanted: &mut [Wanted<'_>]) -> Result<(), Error> {
        self.read_verifying(wanted, &Verify::Always).map(drop)
    }

    /// Reads boxes as [`Snapshot::read_into`] does, with a choice of when bytes are checked.
    /// [`Verify::Later`] returns the check that runs in the background.
    ///
    /// # Errors
    /// As [`Snapshot::read_into`].
    pub fn read_verifying(&self, wanted: &mut [Wanted<'_>], verify: &Verify) -> Result<Option<Verification>, Error> {
        let mut boxes = Vec::with_capacity(wanted.len());
        for wanted in &*wanted {
            boxes.push((wanted.name, self.check(wanted)?));
        }
        let Plan { files, sources } = self.plan(&boxes);
        let shards = files.open()?;
        let mut pieces: Vec<Piece> = sources.iter().map(|source| source.piece).collect();
        let mut marks = match verify {
            Verify::First(folder) => Some(Marks::look(folder, &shards)),
            Verify::Always | Verify::Later => None,
        };
        for piece in &mut pieces {
            let is_known = marks.as_ref().is_some_and(|marks| marks.has(*piece));
            piece.is_checked = *verify != Verify::Later && !is_known;
        }
        let (shared, rooms) = share_out(wanted, &shards, &sources);
        let outcomes = read_pieces(&shards, &pieces, Origin::CacheFirst, rooms, |piece, at, bytes| {
            for (of, overlap) in &sources[piece].overlaps {
                let room = shared[*of].as_ref().expect("who has no room of its own shares one");
                overlap.copy(at, bytes, &mut room.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        if let Some(marks) = &mut marks {
            marks.note(&shards, &pieces);
        }
        if *verify != Verify::Later || pieces.is_empty() {
            return Ok(None);
        }
        drop(shards);
        let files: Vec<(PathBuf, usize)> = files.0.into_iter().map(|(path, at, _)| (path, at)).collect();
        Verification::start(Arc::clone(&self.manifest), files, pieces).map(Some)
    }

    /// Reads the parts that overlap boxes of tensors, several blocks at a time on several threads, and passes
    /// each block on as it arrives: the box's index, its overlap with the part, the block's offset in the
    /// part, and the bytes. The blocks are verified only once this has returned without an error: then every
    /// byte of those parts is as it was saved.
    pub(crate) fn scatter(
        &self,
        boxes: &[(&str, Region)],
        deliver: impl Fn(usize, &Overlap, usize, &[u8]) + Sync,
    ) -> Result<(), Error> {
        let Plan { files, sources } = self.plan(boxes);
        let shards = files.open().map_err(|error| self.present.explain(error))?;
        let pieces: Vec<Piece> = sources.iter().map(|source| source.piece).collect();
        let outcomes = read_pieces(&shards, &pieces, Origin::CacheFirst, Vec::new(), |piece, at, bytes| {
            for (of, overlap) in &sources[piece].overlaps {
                deliver(*of, overlap, at, bytes);
            }
        });
        outcomes.into_iter().collect::<Result<(), Error>>().map_err(|error| self.present.explain(error))
    }

    /// Returns the parts that overlap the boxes, and the files that hold these parts.
    fn plan(&self, boxes: &[(&str, Region)]) -> Plan<'_> {
        let mut order: Vec<usize> = (0..boxes.len()).collect();
        order.sort_by_key(|index| boxes[*index].0);
        let (mut files, mut sources) = (Vec::new(), Vec::new());
        for (at, record) in self.manifest.shards.iter().enumerate() {
            let found = sources_in(record, boxes, &order, files.len());
            if !found.is_empty() {
                sources.extend(found);
                files.push((self.path_of(at), at, record));
            }
        }
        Plan { files: Files(files), sources }
    }

    /// Reads all tensors, and checks every byte.
    pub(crate) fn read_all(&self) -> Result<Vec<Tensor>, Error> {
        let empty = |tensor: &TensorInfo| Tensor {
            name: tensor.name.clone(),
            data_type: tensor.data_type,
            shape: tensor.shape.clone(),
            data: vec![0; usize::try_from(tensor.bytes.0).expect("64-bit Linux only")],
        };
        let mut tensors: Vec<Tensor> = self.info.tensors.iter().map(empty).collect();
        let starts: Vec<Vec<usize>> = tensors.iter().map(|tensor| vec![0; tensor.shape.len()]).collect();
        let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(tensors.len());
        for (Tensor { name, data_type, shape, data }, offsets) in tensors.iter_mut().zip(&starts) {
            wanted.push(Wanted { name, data_type: *data_type, offsets, shape, data });
        }
        self.read_into(&mut wanted)?;
        Ok(tensors)
    }

    /// Returns the manifest's entry of a tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        let found = self.info.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name));
        found.map(|index| &self.info.tensors[index]).map_err(|_| refused(name, "the checkpoint has no such tensor"))
    }

    /// Returns the files that hold a tensor or parts of it.
    pub(crate) fn shards_with(&self, name: &str) -> Vec<(PathBuf, &ShardRecord)> {
        let has_it = |(_, record): &(usize, &ShardRecord)| record.tensors.iter().any(|tensor| tensor.name == name);
        let shards = self.manifest.shards.iter().enumerate();
        shards.filter(has_it).map(|(at, record)| (self.path_of(at), record)).collect()
    }

    /// Returns all files.
    pub(crate) fn files(&self) -> Vec<(PathBuf, &ShardRecord)> {
        self.manifest.shards.iter().enumerate().map(|(at, record)| (self.path_of(at), record)).collect()
    }

    /// Returns the path of the manifest's file at an index.
    fn path_of(&self, at: usize) -> PathBuf {
        self.folder.join(self.manifest.file_name(at))
    }

    /// Returns the wanted box if the tensor has such a box, and its type and length match.
    fn check(&self, wanted: &Wanted<'_>) -> Result<Region, Error> {
        let refused = |why| refused(wanted.name, why);
        let tensor = self.tensor(wanted.name)?;
        if tensor.data_type != wanted.data_type {
            return Err(refused("it was saved with another element type"));
        }
        let region = Region { offsets: wanted.offsets.to_vec(), shape: wanted.shape.to_vec() };
        if !region.is_within(&tensor.shape) {
            return Err(refused("what is wanted isn't within the shape that was saved"));
        }
        if !is_of_whole_bytes(tensor.data_type, &region, &tensor.shape) {
            return Err(refused("what is wanted begins or ends within a byte"));
        }
        if byte_count(wanted.data_type, wanted.shape) != Some(wanted.data.len() as u64) {
            return Err(refused("its bytes don't fit its type and shape"));
        }
        Ok(region)
    }
}

fn refused(name: &str, why: &'static str) -> Error {
    Error::InvalidTensor { tensor: name.chars().take(64).collect(), why }
}

/// Returns the tensors of a shard that overlap the boxes; `order` is the boxes' order by name.
fn sources_in(record: &ShardRecord, boxes: &[(&str, Region)], order: &[usize], shard: usize) -> Vec<Source> {
    let mut sources = Vec::new();
    for (tensor, part) in record.tensors.iter().enumerate() {
        let first = order.partition_point(|index| boxes[*index].0 < part.name.as_str());
        let of_it = order[first..].iter().take_while(|index| boxes[**index].0 == part.name);
        let source = part.region();
        let overlaps: Vec<_> =
            of_it.filter_map(|index| Some((*index, Overlap::of(part.data_type, &source, &boxes[*index].1)?))).collect();
        if !overlaps.is_empty() {
            sources.push(Source { piece: Piece { shard, tensor, is_checked: true }, overlaps });
        }
    }
    sources
}

/// Splits the memory of the boxes: a part whose bytes fill one contiguous range of one box gets that range,
/// if this holds for all parts of the box.
fn share_out<'a>(wanted: &'a mut [Wanted<'_>], shards: &[Shard<'_>], sources: &[Source]) -> Rooms<'a> {
    let mut runs: Vec<Option<Vec<Run>>> = wanted.iter().map(|_| Some(Vec::new())).collect();
    for (number, source) in sources.iter().enumerate() {
        let bytes = shards[source.piece.shard].place(source.piece.tensor).bytes;
        for (of, overlap) in &source.overlaps {
            let whole = overlap.whole_run(bytes).filter(|_| source.overlaps.len() == 1);
            match (&mut runs[*of], whole) {
                (Some(runs), Some(run)) => runs.push((run, number)),
                (of_box, _) => *of_box = None,
            }
        }
    }
    let mut rooms: Vec<Option<&'a mut [u8]>> = sources.iter().map(|_| None).collect();
    let mut shared = Vec::with_capacity(wanted.len());
    for (wanted, runs) in wanted.iter_mut().zip(runs) {
        let Some(runs) = runs.and_then(in_order) else {
            shared.push(Some(Mutex::new(&mut *wanted.data)));
            continue;
        };
        shared.push(None);
        let (mut rest, mut at) = (&mut *wanted.data, 0);
        for (run, source) in runs {
            let (_, from_there) = rest.split_at_mut(run.start - at);
            let (room, after) = from_there.split_at_mut(run.len());
            rooms[source] = Some(room);
            (rest, at) = (after, run.end);
        }
    }
    (shared, rooms)
}

/// Sorts ranges by their start; none if two of them overlap.
fn in_order(mut runs: Vec<Run>) -> Option<Vec<Run>> {
    runs.sort_by_key(|(run, _)| run.start);
    runs.is_sorted_by(|(one, _), (next, _)| one.end <= next.start).then_some(runs)
}
