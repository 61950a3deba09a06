//! A store's checkpoint as the source of a push: a manifest, and shards with a header and tensors in file
//! order, all read in chunks and checked against the manifest's hashes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gangline_base::{Step, Timestamp};
use gangline_compression::Element;

use super::catalog::CHUNK_ELEMENTS;
use crate::lineage::Lineage;
use crate::manifest::{Manifest, TensorRecord, read_manifest};
use crate::shard::{self, Placed};
use crate::{DataType, Digest, Error, Flaw, layout};
use gangline_objects::modified;

/// A checkpoint to archive.
pub(crate) struct Source {
    pub(crate) manifest: Manifest,
    /// When it was committed, from its manifest or else from the manifest's file.
    pub(crate) saved_at: Timestamp,
    /// The manifest's bytes.
    pub(crate) manifest_origin: Origin,
    /// Its shards, by rank.
    pub(crate) shards: Vec<ShardOrigin>,
}

/// A shard's header and its tensors, with their locations in the file.
pub(crate) struct ShardOrigin {
    pub(crate) header: Origin,
    /// The tensors, in file order.
    pub(crate) tensors: Vec<(String, Origin)>,
}

/// A range of a file that becomes one item of the archive.
#[derive(Clone)]
pub(crate) struct Origin {
    path: PathBuf,
    start: u64,
    pub(crate) bytes: u64,
    pub(crate) hash: Digest,
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<usize>,
}

impl Source {
    /// Reads and checks the manifest and the shard headers of the checkpoint of `step` in `root`.
    pub(crate) fn open(root: &Path, step: Step) -> Result<Source, Error> {
        let folder = root.join(layout::checkpoint_folder(step.0));
        if !folder.is_dir() {
            return Err(Error::NotFound { step });
        }
        let path = folder.join(layout::MANIFEST);
        let manifest = read_manifest(&path, step.0)?;
        let failed = |source| Error::reading(&path, source);
        let written_at = modified(&std::fs::metadata(&path).map_err(failed)?);
        let saved_at = manifest.lineage.as_ref().map_or(written_at, Lineage::saved_at);
        let text = std::fs::read(&path).map_err(failed)?;
        let manifest_origin = Origin::of_bytes(&path, text.len() as u64, Digest::of(&text));
        let shards = manifest.files().map(|(name, record)| {
            let path = folder.join(name);
            let shard = shard::Shard::open(&path, record)?;
            let mut placed: Vec<Placed<'_>> = (0..shard.len()).map(|index| shard.place(index)).collect();
            placed.sort_by_key(|tensor| (tensor.start, tensor.bytes));
            let tensors: Vec<(String, Origin)> = placed.into_iter().map(|tensor| origin(&path, tensor)).collect();
            let header = record.bytes - tensors.iter().map(|(_, origin)| origin.bytes).sum::<u64>();
            Ok(ShardOrigin { header: Origin::of_bytes(&path, header, record.header_blake3), tensors })
        });
        let shards = shards.collect::<Result<_, Error>>()?;
        Ok(Source { manifest, saved_at, manifest_origin, shards })
    }
}

fn origin(path: &Path, Placed { record, start, bytes }: Placed<'_>) -> (String, Origin) {
    let TensorRecord { name, data_type, shape, blake3, .. } = record;
    let (path, shape) = (path.to_owned(), shape.clone());
    (name.clone(), Origin { path, start, bytes: bytes as u64, hash: *blake3, data_type: *data_type, shape })
}

/// Returns the coder's element type for a data type.
pub(crate) fn element_of(data_type: DataType) -> Element {
    match data_type {
        DataType::Bf16 => Element::Bf16,
        DataType::F16 => Element::F16,
        // A complex number is two floats.
        DataType::F32 | DataType::C64 => Element::F32,
        DataType::F64 => Element::F64,
        DataType::I16 | DataType::U16 => Element::Word16,
        DataType::I32 | DataType::U32 => Element::Word32,
        DataType::I64 | DataType::U64 => Element::Word64,
        DataType::F8E4m3 | DataType::F8E5m2 | DataType::F8E8m0 | DataType::F8E4m3Fnuz | DataType::F8E5m2Fnuz => {
            Element::Word8
        }
        DataType::F6E2m3 | DataType::F6E3m2 | DataType::F4 => Element::Word8,
        DataType::I8 | DataType::U8 | DataType::Bool => Element::Word8,
    }
}

impl Origin {
    /// Returns the origin of the first bytes of a file.
    fn of_bytes(path: &Path, bytes: u64, hash: Digest) -> Origin {
        Origin { path: path.to_owned(), start: 0, bytes, hash, data_type: DataType::U8, shape: Vec::new() }
    }

    /// Returns the coder's element type.
    pub(crate) fn element(&self) -> Element {
        element_of(self.data_type)
    }

    /// Returns the elements in a row; 0 where there are no rows.
    pub(crate) fn columns(&self) -> usize {
        if self.shape.len() > 1 { self.shape.last().copied().unwrap_or(0) } else { 0 }
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.bytes.div_ceil(self.chunk_bytes())
    }

    fn chunk_bytes(&self) -> u64 {
        CHUNK_ELEMENTS * self.data_type.size() as u64
    }

    pub(crate) fn open(&self) -> Result<File, Error> {
        crate::manifest::open_present(&self.path)
    }

    /// Reads the `number`th chunk.
    pub(crate) fn read(&self, file: &File, number: u64) -> Result<Vec<u8>, Error> {
        self.read_part(file, number * self.chunk_bytes(), self.chunk_bytes())
    }

    /// Reads up to `bytes_max` bytes, from an offset on.
    pub(crate) fn read_part(&self, file: &File, from: u64, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let length = self.bytes.saturating_sub(from).min(bytes_max);
        let mut bytes = vec![0; usize::try_from(length).expect("64-bit Linux only")];
        match file.read_exact_at(&mut bytes, self.start + from) {
            Ok(()) => Ok(bytes),
            Err(source) => Err(Error::reading(&self.path, source)),
        }
    }

    /// Returns the error for bytes that aren't what was saved.
    pub(crate) fn mismatch(&self, name: Option<&str>) -> Error {
        Error::Corrupt { path: self.path.clone(), tensor: name.map(str::to_owned), flaw: Flaw::Hash }
    }
}
