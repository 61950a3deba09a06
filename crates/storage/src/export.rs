//! Exports the tensors of a checkpoint for other tools: a folder of whole tensors, in safetensors files of a
//! chosen size, with an index of the files, as Hugging Face's libraries write and read them ("Sharded
//! checkpoints" and "Safetensors" in their documentation).
//!
//! Only the segments being read are held in memory: each is written to the file at once, whatever the
//! tensor's sharding at the save. Keeps A-6 (the index, or the only file, comes last, and a file gets its
//! name only after every byte in it was verified) and A-10 (memory doesn't depend on the model).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use gangline_compression::{Rounding, derive_bf16};
use serde::Serialize;

use crate::disk::{Disk, WriteAt};
use crate::memory::PAGE;
use crate::region::Region;
use crate::shard::encode_header;
use crate::tensor::name_fault;
use crate::{Bytes, DataType, DiskHook, Error, Snapshot, Step, TensorInfo, layout};

/// Prefix of the tensors that the Python package saves for its own use. They are never exported.
pub const RESERVED_PREFIX: &str = "__gangline__.";
/// The default limit of tensor bytes in a file: Hugging Face's own 5 GB.
pub const SHARD_BYTES_DEFAULT: Bytes = Bytes(5_000_000_000);
/// The metadata entry that transformers requires: the file's names are PyTorch's.
const FORMAT: (&str, &str) = ("format", "pt");
/// The index's name, which transformers looks for.
const INDEX: &str = "model.safetensors.index.json";

/// Options of an export.
#[derive(Clone)]
pub struct ExportOptions {
    /// Exports only tensors whose names begin with this prefix, and removes it: `model.` exports
    /// `model.head.weight` as `head.weight`.
    pub prefix: String,
    /// The most bytes of tensors in a file; a larger tensor has a file of its own.
    pub shard_bytes_max: Bytes,
    /// The precision of exported fp32 tensors.
    pub precision: Precision,
    /// A hook that is called before each change to the disk, for tests that fail or kill the writer there.
    pub disk_hook: Option<DiskHook>,
}

/// The precision of exported fp32 tensors; tensors of other types stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Unchanged.
    #[default]
    AsSaved,
    /// Rounded to bf16: to the nearest, ties to even, as PyTorch does it. This is lossy.
    Bf16,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions {
            prefix: String::new(),
            shard_bytes_max: SHARD_BYTES_DEFAULT,
            precision: Precision::default(),
            disk_hook: None,
        }
    }
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The checkpoint.
    pub step: Step,
    /// The files of tensors, in order.
    pub files: Vec<String>,
    /// The number of tensors in them.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: Bytes,
    /// The number of the checkpoint's tensors that were not selected.
    pub left_out: usize,
}

/// The index of an export of several files.
#[derive(Serialize)]
struct Index<'a> {
    metadata: Total,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Total {
    total_size: u64,
}

/// A tensor to export.
#[derive(Clone, Copy)]
struct Leaving<'a> {
    /// Its exported name.
    name: &'a str,
    /// Its description in the checkpoint.
    tensor: &'a TensorInfo,
    /// Its exported element type.
    data_type: DataType,
    /// Its exported bytes.
    bytes: u64,
}

impl<'a> Leaving<'a> {
    fn of(tensor: &'a TensorInfo, name: &'a str, precision: Precision) -> Leaving<'a> {
        let Bytes(bytes) = tensor.bytes;
        match (tensor.data_type, precision) {
            (DataType::F32, Precision::Bf16) => Leaving { name, tensor, data_type: DataType::Bf16, bytes: bytes / 2 },
            (data_type, _) => Leaving { name, tensor, data_type, bytes },
        }
    }

    /// Writes whole elements to a file in which the tensor begins at `start`. The elements begin `to` bytes
    /// after the saved tensor's first byte.
    fn write(&self, start: u64, to: usize, run: &[u8], write: WriteAt<'_>) -> Result<(), Error> {
        if self.data_type == self.tensor.data_type {
            return write(start + to as u64, run);
        }
        let mut rounded = Vec::with_capacity(run.len() / 2);
        derive_bf16(run, Rounding::NearestEven, &mut rounded);
        write(start + to as u64 / 2, &rounded)
    }
}

impl Snapshot {
    /// Writes tensors of the checkpoint, each whole, to a folder as Hugging Face's libraries expect them:
    /// `model.safetensors`, or `model-00001-of-0000N.safetensors` and so on with an index. Every byte is
    /// checked. The folder is created; an existing one must be empty. Takes about 100 MiB of memory, whatever
    /// the size of the model.
    ///
    /// # Errors
    /// [`Error::Occupied`]; [`Error::NothingSelected`]; [`Error::InvalidTensor`] for a name that equals the
    /// prefix; [`Error::Corrupt`] naming the tensor that isn't what was saved; [`Error::NoSpace`],
    /// [`Error::Io`]. Files that were written are then removed.
    pub fn export(&self, folder: &Path, options: &ExportOptions) -> Result<Exported, Error> {
        let leaving = select(&self.info().tensors, options)?;
        let shards = pack(&leaving, options.shard_bytes_max);
        let files: Vec<String> = (1..=shards.len()).map(|number| file_name(number, shards.len())).collect();
        let was_there = is_there_and_empty(folder)?;
        let disk = Disk::new(options.disk_hook.clone());
        disk.create_root(folder)?;
        let written = self.write_shards(&disk, folder, files.iter().zip(&shards).collect());
        if written.is_err() && disk.check_poison().is_ok() {
            // The export's own error is reported.
            let _ = if was_there { empty(&disk, folder, &files) } else { disk.remove_folder(folder) };
        }
        written?;
        let left_out = self.info().tensors.len() - leaving.len();
        Ok(Exported { step: self.info().step, tensors: leaving.len(), bytes: total(&leaving), files, left_out })
    }

    fn write_shards(&self, disk: &Disk, folder: &Path, shards: Vec<(&String, &Vec<Leaving<'_>>)>) -> Result<(), Error> {
        for (file, tensors) in &shards {
            self.write_shard(disk, folder, file, tensors)?;
        }
        if shards.len() == 1 {
            return Ok(());
        }
        let bytes = shards.iter().map(|(_, tensors)| total(tensors).0).sum();
        let places =
            shards.iter().flat_map(|(file, tensors)| tensors.iter().map(|tensor| (tensor.name, file.as_str())));
        let index = Index { metadata: Total { total_size: bytes }, weight_map: places.collect() };
        let text = serde_json::to_vec_pretty(&index).expect("an index has string keys and plain values");
        disk.publish(folder, INDEX, &text)
    }

    fn write_shard(&self, disk: &Disk, folder: &Path, file: &str, tensors: &[Leaving<'_>]) -> Result<(), Error> {
        let (header, starts, end) = lay_out(tensors)?;
        let boxes: Vec<(&str, Region)> =
            tensors.iter().map(|Leaving { tensor, .. }| (&*tensor.name, Region::whole(&tensor.shape))).collect();
        disk.publish_placed(folder, file, end, |write| {
            write(0, &header)?;
            let failure = OnceLock::new();
            let read = self.scatter(&boxes, |of, overlap, at, bytes| {
                if failure.get().is_some() {
                    return;
                }
                let write_run = |to, run: &[u8]| tensors[of].write(starts[of], to, run, write);
                if let Err(error) = overlap.each_run(at, bytes, write_run) {
                    // Only the first failure is kept: the others are of the same disk.
                    let _ = failure.set(error);
                }
            });
            failure.into_inner().map_or(read, Err)
        })
    }
}

/// Reports whether the folder exists; an existing one must be empty.
fn is_there_and_empty(folder: &Path) -> Result<bool, Error> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(true),
            Some(_) => Err(Error::Occupied { path: folder.to_owned() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("list", folder, error)),
    }
}

/// Removes the files of this export from a folder that was empty.
fn empty(disk: &Disk, folder: &Path, files: &[String]) -> Result<(), Error> {
    let names = files.iter().map(String::as_str).chain([INDEX]);
    names.flat_map(|name| [folder.join(name), layout::aside(folder, name)]).try_for_each(|path| disk.remove_file(&path))
}

/// Returns the selected tensors, by their exported names.
fn select<'a>(tensors: &'a [TensorInfo], options: &ExportOptions) -> Result<Vec<Leaving<'a>>, Error> {
    let ExportOptions { prefix, precision, .. } = options;
    let is_ours = |tensor: &&TensorInfo| !tensor.name.starts_with(RESERVED_PREFIX);
    let renamed =
        |tensor: &'a TensorInfo| Some(Leaving::of(tensor, tensor.name.strip_prefix(prefix.as_str())?, *precision));
    let leaving: Vec<Leaving<'a>> = tensors.iter().filter(is_ours).filter_map(renamed).collect();
    if leaving.is_empty() {
        return Err(Error::NothingSelected { prefix: prefix.clone() });
    }
    match leaving.iter().find_map(|Leaving { name, tensor, .. }| Some((tensor, name_fault(name)?))) {
        Some((tensor, why)) => Err(Error::InvalidTensor { tensor: tensor.name.clone(), why }),
        None => Ok(leaving),
    }
}

/// Splits tensors into files in their order: a file is full when the next tensor doesn't fit.
fn pack<'a>(tensors: &[Leaving<'a>], bytes_max: Bytes) -> Vec<Vec<Leaving<'a>>> {
    let mut shards: Vec<Vec<Leaving<'a>>> = Vec::new();
    let mut room = 0;
    for leaving in tensors {
        let bytes = leaving.bytes;
        match shards.last_mut() {
            Some(shard) if bytes <= room => shard.push(*leaving),
            _ => {
                room = bytes_max.0.max(bytes);
                shards.push(vec![*leaving]);
            }
        }
        room -= bytes;
    }
    shards
}

fn total(tensors: &[Leaving<'_>]) -> Bytes {
    Bytes(tensors.iter().map(|tensor| tensor.bytes).sum())
}

/// Returns a file's name, as transformers expects it.
fn file_name(number: usize, count: usize) -> String {
    if count == 1 { "model.safetensors".to_owned() } else { format!("model-{number:05}-of-{count:05}.safetensors") }
}

/// Returns the header of a file, the offset of each tensor, and the end of the last. Wide elements come
/// first, so that every tensor is aligned to its elements. Among equally wide ones, tensors of whole pages
/// come first, so that they are page-aligned.
fn lay_out(tensors: &[Leaving<'_>]) -> Result<(Vec<u8>, Vec<u64>, u64), Error> {
    let rank = |index: &usize| {
        let Leaving { data_type, bytes, .. } = tensors[*index];
        (Reverse(data_type.alignment()), !bytes.is_multiple_of(PAGE as u64))
    };
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(rank);
    let entries = order.iter().map(|index| {
        let Leaving { name, tensor, data_type, bytes } = tensors[*index];
        (name, data_type, tensor.shape.as_slice(), bytes)
    });
    let header = encode_header(entries, Some((FORMAT.0, FORMAT.1.to_owned())))?;
    let mut starts = vec![0; tensors.len()];
    let mut next = header.len() as u64;
    for index in order {
        starts[index] = next;
        next += tensors[index].bytes;
    }
    Ok((header, starts, next))
}

impl std::fmt::Debug for ExportOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportOptions")
            .field("prefix", &self.prefix)
            .field("shard_bytes_max", &self.shard_bytes_max)
            .field("precision", &self.precision)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, bytes: u64) -> TensorInfo {
        let shape = vec![usize::try_from(bytes).expect("small")];
        let hash = crate::Digest::of(b"");
        TensorInfo {
            name: name.to_owned(),
            data_type: DataType::U8,
            shape,
            bytes: Bytes(bytes),
            hash,
            parts: 1,
            cut: None,
        }
    }

    fn packed(sizes: &[u64], bytes_max: u64) -> Vec<Vec<u64>> {
        let tensors: Vec<TensorInfo> = sizes.iter().map(|bytes| info("t", *bytes)).collect();
        let leaving: Vec<Leaving<'_>> =
            tensors.iter().map(|tensor| Leaving::of(tensor, "t", Precision::AsSaved)).collect();
        let sizes_of = |shard: Vec<Leaving<'_>>| shard.iter().map(|tensor| tensor.bytes).collect();
        pack(&leaving, Bytes(bytes_max)).into_iter().map(sizes_of).collect()
    }

    #[test]
    fn a_file_takes_what_fits_and_a_larger_tensor_has_its_own() {
        assert_eq!(packed(&[3, 3, 3, 3], 6), [[3, 3], [3, 3]]);
        assert_eq!(packed(&[3, 9, 3, 0, 3], 6), [vec![3], vec![9], vec![3, 0, 3]]);
        assert_eq!(packed(&[0, 0], 0), [[0, 0]]);
        assert_eq!(packed(&[1, 2, 3], u64::MAX), [[1, 2, 3]]);
    }

    #[test]
    fn a_prefix_selects_and_goes_and_what_python_keeps_for_itself_stays() {
        let tensors = ["__gangline__.values", "model.", "model.a", "model.model.b", "optimizer.a"].map(|n| info(n, 1));
        let names = |prefix: &str| -> Result<Vec<&str>, String> {
            let options = ExportOptions { prefix: prefix.to_owned(), ..ExportOptions::default() };
            let leaving = select(&tensors, &options).map_err(|error| error.to_string())?;
            Ok(leaving.iter().map(|tensor| tensor.name).collect())
        };
        assert_eq!(names("model.model."), Ok(vec!["b"]));
        assert_eq!(names("").map(|all| all.len()), Ok(4));
        assert!(names("model.").is_err_and(|why| why.contains("empty")));
        assert!(names("modul.").is_err_and(|why| why.contains("modul.")));
        assert!(names("__gangline__.").is_err());
    }
}
