//! Imports a model that another program saved: each of its safetensors files becomes a shard, copied block by
//! block, hashed meanwhile, and read back before the import succeeds.
//!
//! The folder is built under a temporary name and renamed last, through the store's own `Disk`.
//! Memory doesn't depend on the model: a block and a header for each file in progress.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;

use crate::check::check_folder;
use crate::disk::Disk;
use crate::error::within;
use crate::foreign::{ForeignFile, ForeignTensor, open_model};
use crate::manifest::{Manifest, ShardRecord, TensorRecord, seal};
use crate::memory::{Memory, PAGE};
use crate::shard::encode_header;
use crate::tensor::name_fault;
use crate::threads::try_on_threads;
use crate::{Bytes, Digest, Error, Flaw, Step, Store, TENSORS_MAX, WORLD_SIZE_MAX, layout};

/// Bytes that are copied at once.
const BLOCK_BYTES: usize = 4 << 20;
/// Files that are copied in parallel.
const FILES_AT_ONCE: usize = 4;
/// The writer tag of an import: older than every attempt of a trainer.
const WRITER: u64 = 0;

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The checkpoint.
    pub step: Step,
    /// The number of the model's files, each of which is now a shard.
    pub files: usize,
    /// The number of its tensors.
    pub tensors: usize,
    /// The total size of its shards.
    pub bytes: Bytes,
    /// Hash over the step and every tensor.
    pub content_hash: Digest,
}

impl Store {
    /// Imports a model from a folder with `model.safetensors.index.json`, a folder with one safetensors file,
    /// or a file. `prefix` is added to the names. Also works on a store that was opened for reading.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the file, the tensor and the rule of the format that it breaks;
    /// [`Error::InvalidTensor`] and [`Error::Limit`] for tensors that the store can't keep;
    /// [`Error::Occupied`] if the store has a checkpoint of this step; [`Error::NoSpace`], [`Error::Io`],
    /// [`Error::Poisoned`]. The store is then unchanged.
    pub fn import(&self, model: &Path, step: Step, prefix: &str) -> Result<Imported, Error> {
        let files = open_model(model)?;
        check_names(&files, prefix)?;
        let (disk, root) = (self.disk(), self.path());
        disk.check_poison()?;
        let (aside, name) = (layout::imported_folder(step.0), layout::checkpoint_folder(step.0));
        if root.join(&name).exists() {
            return Err(Error::Occupied { path: root.join(&name) });
        }
        disk.create_root(root)?;
        let manifest = disk.publish_folder(root, (&aside, &name), |aside| build(disk, aside, step, &files, prefix))?;
        Ok(Imported {
            step,
            files: files.len(),
            tensors: files.iter().map(|file| file.tensors.len()).sum(),
            bytes: Bytes(manifest.bytes),
            content_hash: manifest.content_blake3,
        })
    }
}

/// Checks that the store can keep the tensors under their new names, and that the names are unique.
fn check_names(files: &[ForeignFile], prefix: &str) -> Result<(), Error> {
    within("files", files.len(), usize::try_from(WORLD_SIZE_MAX).expect("64-bit Linux only"))?;
    within("tensors", files.iter().map(|file| file.tensors.len()).sum(), TENSORS_MAX)?;
    let mut names = BTreeSet::new();
    for (file, tensor) in files.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor))) {
        if let Some(why) = name_fault(&format!("{prefix}{}", tensor.name)) {
            return Err(Error::InvalidTensor { tensor: tensor.name.clone(), why });
        }
        if !names.insert(&tensor.name) {
            let flaw = Flaw::Malformed { what: "another file has a tensor of this name" };
            return Err(Error::Corrupt { path: file.path.clone(), tensor: Some(tensor.name.clone()), flaw });
        }
    }
    Ok(())
}

/// Writes shards and manifest, and reads them back.
fn build(disk: &Disk, aside: &Path, step: Step, files: &[ForeignFile], prefix: &str) -> Result<Manifest, Error> {
    let shards = write_shards(disk, aside, files, prefix)?;
    disk.publish(aside, layout::MANIFEST, &seal(&Manifest::over(step, WRITER, shards, <_>::default(), None)))?;
    let (manifest, report) = check_folder(aside, step.0)?;
    if let Some(problem) = report.problems.into_iter().next() {
        return Err(Error::Corrupt { path: problem.file, tensor: problem.tensor, flaw: problem.flaw });
    }
    Ok(manifest.expect("a manifest that can't be read is a problem"))
}

/// Copies all files, several in parallel; begins no more after one has failed.
fn write_shards(disk: &Disk, aside: &Path, files: &[ForeignFile], prefix: &str) -> Result<Vec<ShardRecord>, Error> {
    let world_size = u32::try_from(files.len()).expect("their number has been checked");
    let write = |(rank, file): (u32, &ForeignFile)| write_shard(disk, aside, (rank, world_size), file, prefix);
    try_on_threads(FILES_AT_ONCE, (0..).zip(files).collect(), write)
}

fn write_shard(
    disk: &Disk,
    aside: &Path,
    (rank, world_size): (u32, u32),
    file: &ForeignFile,
    prefix: &str,
) -> Result<ShardRecord, Error> {
    let mut order: Vec<&ForeignTensor> = file.tensors.iter().collect();
    // Wide elements come first, so that every tensor is aligned to its elements; among equally wide ones,
    // whole pages come first, so that they are page-aligned.
    order.sort_by_key(|tensor| {
        (Reverse(tensor.data_type.alignment()), !tensor.bytes.is_multiple_of(PAGE as u64), &tensor.name)
    });
    let names: Vec<String> = order.iter().map(|tensor| format!("{prefix}{}", tensor.name)).collect();
    let entries = order.iter().zip(&names).map(|(tensor, name)| {
        let ForeignTensor { data_type, shape, bytes, .. } = tensor;
        (name.as_str(), *data_type, shape.as_slice(), *bytes)
    });
    let header = encode_header(entries, None)?;
    let mut tensors = Vec::with_capacity(order.len());
    let source = file.data()?;
    let bytes = header.len() as u64 + order.iter().map(|tensor| tensor.bytes).sum::<u64>();
    disk.publish_placed(aside, &layout::shard_file(rank, world_size), bytes, |write| {
        write(0, &header)?;
        let mut next = header.len() as u64;
        let mut block = Memory::own(BLOCK_BYTES).map_err(|error| Error::io("make room to read", &file.path, error))?;
        for (tensor, name) in order.iter().zip(names) {
            let blake3 = copy(&source, &file.path, tensor, &mut block, |at, bytes| write(next + at, bytes))?;
            next += tensor.bytes;
            let ForeignTensor { data_type, shape, .. } = tensor;
            tensors.push(TensorRecord { name, data_type: *data_type, shape: shape.clone(), blake3, part_of: None });
        }
        Ok(())
    })?;
    Ok(ShardRecord { rank, bytes, header_blake3: Digest::of(&header), tensors })
}

/// Copies a tensor's bytes, and returns their hash.
fn copy(
    source: &File,
    path: &Path,
    tensor: &ForeignTensor,
    block: &mut Memory,
    write: impl Fn(u64, &[u8]) -> Result<(), Error>,
) -> Result<Digest, Error> {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < tensor.bytes {
        let length = usize::try_from(tensor.bytes - at).expect("64-bit Linux only").min(BLOCK_BYTES);
        let block = &mut block.bytes_mut()[..length];
        source.read_exact_at(block, tensor.start + at).map_err(|error| Error::reading(path, error))?;
        hasher.update(block);
        write(at, block)?;
        at += length as u64;
    }
    Ok(hasher.finalize().into())
}
