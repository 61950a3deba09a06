//! An open checkpoint: any box of any tensor of it, from whichever parts hold it, verified.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gangline_base::Step;

use crate::manifest::{Manifest, ShardRecord, open_present, read_manifest};
use crate::present::Present;
use crate::reading::{Piece, read_pieces};
use crate::region::{Overlap, Region};
use crate::shard::Shard;
use crate::tensor::{byte_count, is_of_whole_bytes};
use crate::{CheckpointInfo, DataType, Error, Flaw, Tensor, TensorInfo, layout};

/// A checkpoint whose manifest has been read. Its tensors are read, and checked, when they are asked for.
#[derive(Debug)]
pub struct Snapshot {
    folder: PathBuf,
    present: Present,
    manifest: Manifest,
    info: CheckpointInfo,
}

/// A box of a tensor that is to be read, and where to.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The type of its elements; it has to be the one that was saved.
    pub data_type: DataType,
    /// Where the box begins in the whole tensor, in elements; one for each dimension.
    pub offsets: &'a [usize],
    /// The lengths of the box, in elements; one for each dimension.
    pub shape: &'a [usize],
    /// Gets the box's elements, little-endian, in row-major order: exactly as many bytes.
    pub data: &'a mut [u8],
}

/// A part that has to be read, and for which of the boxes.
struct Source {
    piece: Piece,
    overlaps: Vec<(usize, Overlap)>,
}

impl Snapshot {
    /// Opens the checkpoint of a step in a store's folder.
    pub(crate) fn open(root: &Path, step: Step) -> Result<Snapshot, Error> {
        let folder = root.join(layout::checkpoint_folder(step.0));
        let present = Present::find(&folder, step)?;
        Snapshot::open_present(folder, &present, step).map_err(|error| present.explain(error))
    }

    fn open_present(folder: PathBuf, present: &Present, step: Step) -> Result<Snapshot, Error> {
        let manifest = read_manifest(&folder.join(layout::MANIFEST), step.0)?;
        // Whoever makes room for the tensors goes by the manifest, so it must not promise more than is there.
        for (name, shard) in manifest.files() {
            let path = folder.join(name);
            let file = open_present(&path)?.metadata().map_err(|source| Error::reading(&path, source))?;
            if file.len() != shard.bytes {
                return Err(Error::corrupt(&path, Flaw::Length { expected: shard.bytes, found: file.len() }));
            }
        }
        let info = manifest.info();
        Ok(Snapshot { folder, present: present.clone(), manifest, info })
    }

    /// What its manifest says.
    #[must_use]
    pub fn info(&self) -> &CheckpointInfo {
        &self.info
    }

    /// Reads boxes of tensors, however the tensors were cut when they were saved. Only the parts that hold some of them are
    /// read, several at once, and of those every byte is checked.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for a tensor that isn't there, or a box that isn't in it; [`Error::Corrupt`] naming the file
    /// and tensor that isn't what was saved; [`Error::Io`]. What `wanted` holds after an error means nothing.
    pub fn read_into(&self, wanted: &mut [Wanted<'_>]) -> Result<(), Error> {
        let mut boxes = Vec::with_capacity(wanted.len());
        let mut rooms = Vec::with_capacity(wanted.len());
        for wanted in wanted.iter_mut() {
            boxes.push((wanted.name, self.check(wanted)?));
            rooms.push(Mutex::new(&mut *wanted.data));
        }
        self.scatter(&boxes, |of, overlap, at, bytes| {
            overlap.copy(at, bytes, &mut rooms[of].lock().unwrap_or_else(PoisonError::into_inner));
        })
    }

    /// Reads the parts that boxes of tensors overlap, a few segments at a time on several threads, and hands each segment on as
    /// it comes: for which box, what that shares with the part, where in the part the segment begins, and its bytes. What was
    /// handed on counts only once this has returned without an error: then every byte of those parts was as it was saved.
    pub(crate) fn scatter(
        &self,
        boxes: &[(&str, Region)],
        deliver: impl Fn(usize, &Overlap, usize, &[u8]) + Sync,
    ) -> Result<(), Error> {
        let mut order: Vec<usize> = (0..boxes.len()).collect();
        order.sort_by_key(|index| boxes[*index].0);
        let mut paths = Vec::new();
        let mut sources = Vec::new();
        for (at, record) in self.manifest.shards.iter().enumerate() {
            let found = sources_in(record, boxes, &order, paths.len());
            if !found.is_empty() {
                sources.extend(found);
                paths.push((self.path_of(at), record));
            }
        }
        let shards = paths.iter().map(|(path, record)| Shard::open(path, record));
        let shards = shards.collect::<Result<Vec<_>, Error>>().map_err(|error| self.present.explain(error))?;
        let pieces: Vec<Piece> = sources.iter().map(|source| source.piece).collect();
        let outcomes = read_pieces(&shards, &pieces, |piece, at, bytes| {
            for (of, overlap) in &sources[piece].overlaps {
                deliver(*of, overlap, at, bytes);
            }
        });
        outcomes.into_iter().collect::<Result<(), Error>>().map_err(|error| self.present.explain(error))
    }

    /// Reads everything, checking every byte.
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

    /// What its manifest says of a tensor.
    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        let found = self.info.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name));
        found.map(|index| &self.info.tensors[index]).map_err(|_| refused(name, "the checkpoint has no such tensor"))
    }

    /// The files that have a tensor or parts of it.
    pub(crate) fn shards_with(&self, name: &str) -> Vec<(PathBuf, &ShardRecord)> {
        let has_it = |(_, record): &(usize, &ShardRecord)| record.tensors.iter().any(|tensor| tensor.name == name);
        let shards = self.manifest.shards.iter().enumerate();
        shards.filter(has_it).map(|(at, record)| (self.path_of(at), record)).collect()
    }

    /// All its files.
    pub(crate) fn files(&self) -> Vec<(PathBuf, &ShardRecord)> {
        self.manifest.shards.iter().enumerate().map(|(at, record)| (self.path_of(at), record)).collect()
    }

    /// The path of one of the manifest's files.
    fn path_of(&self, at: usize) -> PathBuf {
        self.folder.join(self.manifest.file_name(at))
    }

    /// The box that is wanted, if there is such a one.
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

/// The tensors of a shard that hold some of the boxes, whose order by name is `order`.
fn sources_in(record: &ShardRecord, boxes: &[(&str, Region)], order: &[usize], shard: usize) -> Vec<Source> {
    let mut sources = Vec::new();
    for (tensor, part) in record.tensors.iter().enumerate() {
        let first = order.partition_point(|index| boxes[*index].0 < part.name.as_str());
        let of_it = order[first..].iter().take_while(|index| boxes[**index].0 == part.name);
        let source = part.region();
        let overlaps: Vec<_> =
            of_it.filter_map(|index| Some((*index, Overlap::of(part.data_type, &source, &boxes[*index].1)?))).collect();
        if !overlaps.is_empty() {
            sources.push(Source { piece: Piece { shard, tensor }, overlaps });
        }
    }
    sources
}
