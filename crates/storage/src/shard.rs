//! Shard files: plain safetensors (8-byte little-endian header length, JSON header, data). They are read and
//! written by our own code so that hostile files meet a named limit or error, never a panic or an allocation
//! larger than the file (A-10). Headers that we write are padded with spaces, which the format allows, so
//! that the data starts at a page boundary, as direct I/O requires.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::past_the_cache;
use crate::manifest::{ShardRecord, TensorRecord, open_present};
use crate::memory::PAGE;
use crate::region::WholeRecord;
use crate::tensor::byte_count;
use crate::{DataType, Digest, Error, Flaw, TensorView};

/// The member of a header that isn't a tensor.
pub(crate) const METADATA: &str = "__metadata__";
/// The largest header read or written; safetensors' own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of a header besides its tensors: braces, the metadata's own names, and the padding.
const HEADER_FRAME_BYTES: u64 = 256 + PAGE as u64;
/// Bytes of a tensor's declaration besides its name and shape, with two offsets of 20 digits.
const DECLARATION_BYTES: usize = r#""":{"dtype":"F8_E8M0","shape":[],"data_offsets":[,]},"#.len() + 2 * 20;
/// Bytes of a part's place besides its name and offsets.
const PLACE_BYTES: usize = r#"\"\":{\"saved_offsets\":[]},"#.len();
/// Bytes of the header's length field.
const LENGTH_BYTES: u64 = 8;

/// A tensor's declaration in a safetensors header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Declaration {
    #[serde(rename = "dtype")]
    data_type: DataType,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// A member of a safetensors header.
#[derive(Serialize)]
#[serde(untagged)]
enum Member {
    Tensor(Declaration),
    Metadata(BTreeMap<&'static str, String>),
}

/// The metadata entry in which PyTorch's distributed checkpoints record where the file's tensors lie in the
/// whole ones.
const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// A tensor of a shard to write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<usize>,
    pub(crate) part_of: Option<WholeRecord>,
    /// Its range in the data, which begins after the header.
    pub(crate) range: Range<usize>,
}

/// Splits tensors, in their order, into files whose headers keep to safetensors' limit: one file if all fit.
pub(crate) fn fit_headers<'a, 'b>(tensors: &'b [&'a TensorView<'a>]) -> Vec<&'b [&'a TensorView<'a>]> {
    let mut groups = Vec::new();
    let (mut from, mut bytes) = (0, HEADER_FRAME_BYTES);
    for (at, tensor) in tensors.iter().enumerate() {
        let more = declaration_bytes(tensor);
        if bytes + more > HEADER_BYTES_MAX && at > from {
            groups.push(&tensors[from..at]);
            (from, bytes) = (at, HEADER_FRAME_BYTES);
        }
        bytes += more;
    }
    groups.push(&tensors[from..]);
    groups
}

/// Returns the most bytes that a tensor takes in a header: its declaration, and its place if it is a part.
fn declaration_bytes(tensor: &TensorView<'_>) -> u64 {
    let escapes = tensor.name.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    let numbers =
        |numbers: &[usize]| numbers.iter().map(|number| number.checked_ilog10().unwrap_or(0) as usize + 2).sum();
    let shape: usize = numbers(tensor.shape);
    let declared = tensor.name.len() + escapes + shape + DECLARATION_BYTES;
    // A place is JSON in a JSON string: characters that are escaped in a name are escaped twice.
    let place = |whole: crate::PartOf<'_>| {
        let offsets: usize = numbers(whole.offsets);
        tensor.name.len() + 3 * escapes + offsets + PLACE_BYTES
    };
    (declared + tensor.part_of.map_or(0, place)) as u64
}

/// Returns the header of a shard with these tensors in this order, and the range of each.
pub(crate) fn lay_out(tensors: &[&TensorView<'_>]) -> Result<(Vec<u8>, Vec<Declared>), Error> {
    let mut next = 0;
    let mut declared = Vec::with_capacity(tensors.len());
    for TensorView { name, data_type, shape, data, part_of } in tensors {
        let range = next..next + data.len();
        next = range.end;
        let part_of = part_of.map(|whole| WholeRecord { shape: whole.shape.to_vec(), offsets: whole.offsets.to_vec() });
        declared.push(Declared {
            name: (*name).to_owned(),
            data_type: *data_type,
            shape: shape.to_vec(),
            part_of,
            range,
        });
    }
    let metadata = sharding_info(tensors).map(|info| (SHARDING_INFO, info));
    let entries = tensors.iter().map(|tensor| (tensor.name, tensor.data_type, tensor.shape, tensor.data.len() as u64));
    Ok((encode_header(entries, metadata)?, declared))
}

/// Returns the header of a file with these tensors, one after the other, and an optional entry of metadata;
/// padded to a page. Each tensor is its name, type, shape and bytes.
pub(crate) fn encode_header<'a>(
    tensors: impl Iterator<Item = (&'a str, DataType, &'a [usize], u64)>,
    metadata: Option<(&'static str, String)>,
) -> Result<Vec<u8>, Error> {
    let mut members = BTreeMap::new();
    let mut next = 0;
    for (name, data_type, shape, bytes) in tensors {
        let data_offsets = (next, next + bytes);
        next = data_offsets.1;
        members.insert(name, Member::Tensor(Declaration { data_type, shape: shape.to_vec(), data_offsets }));
    }
    if let Some(entry) = metadata {
        members.insert(METADATA, Member::Metadata(BTreeMap::from([entry])));
    }
    let mut json = serde_json::to_vec(&members).expect("members have string keys and plain values");
    let prefix = size_of::<u64>();
    json.resize((prefix + json.len()).next_multiple_of(PAGE) - prefix, b' ');
    let length = json.len() as u64;
    if length > HEADER_BYTES_MAX {
        return Err(Error::Limit { what: "bytes of shard header", value: length, max: HEADER_BYTES_MAX });
    }
    let mut header = length.to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// Returns the metadata that PyTorch's `HuggingFaceStorageReader` (torch.distributed.checkpoint) needs for
/// sharded tensors: the offset of each tensor of the file in its whole, as JSON in a string. None if the file
/// holds no parts.
fn sharding_info(tensors: &[&TensorView<'_>]) -> Option<String> {
    #[derive(Serialize)]
    struct Place {
        saved_offsets: Vec<usize>,
    }
    tensors.iter().any(|tensor| tensor.part_of.is_some()).then(|| {
        let offsets = |tensor: &TensorView<'_>| {
            tensor.part_of.map_or_else(|| vec![0; tensor.shape.len()], |whole| whole.offsets.to_vec())
        };
        let places = tensors.iter().map(|tensor| (tensor.name, Place { saved_offsets: offsets(tensor) }));
        let places: BTreeMap<&str, Place> = places.collect();
        serde_json::to_string(&places).expect("places have string keys and plain values")
    })
}

/// A shard whose header has been checked against its record.
#[derive(Debug)]
pub(crate) struct Shard<'a> {
    file: File,
    /// The same file opened for direct I/O; none if the file system doesn't support it.
    direct: Option<File>,
    path: &'a Path,
    /// Its tensors, in the order of the record.
    tensors: Vec<Placed<'a>>,
}

/// A tensor of a shard and its place in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) record: &'a TensorRecord,
    /// The offset of its first byte.
    pub(crate) start: u64,
    pub(crate) bytes: usize,
}

impl<'a> Shard<'a> {
    /// Opens a shard. Its length, header and declarations must match `record`.
    pub(crate) fn open(path: &'a Path, record: &'a ShardRecord) -> Result<Self, Error> {
        let mut file = open_present(path)?;
        let found = file.metadata().map_err(|source| Error::reading(path, source))?.len();
        if found != record.bytes {
            return Err(Error::corrupt(path, Flaw::Length { expected: record.bytes, found }));
        }
        let header = read_header(&mut file, path, found)?;
        if Digest::of(&header) != record.header_blake3 {
            return Err(Error::corrupt(path, Flaw::Hash));
        }
        let tensors = match place(&header, found, record) {
            Ok(tensors) => tensors,
            Err(what) => return Err(Error::corrupt(path, Flaw::Malformed { what })),
        };
        let direct = past_the_cache(File::options().read(true).clone()).open(path).ok();
        Ok(Shard { file, direct, path, tensors })
    }

    /// Returns the number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns the `index`th tensor, in the order of the record.
    pub(crate) fn place(&self, index: usize) -> Placed<'a> {
        self.tensors[index]
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns the file system's metadata of the file.
    pub(crate) fn metadata(&self) -> std::io::Result<Metadata> {
        self.file.metadata()
    }

    /// Returns the file for direct I/O, if that is supported, and for buffered I/O.
    pub(crate) fn files(&self) -> (Option<&File>, &File) {
        (self.direct.as_ref(), &self.file)
    }
}

/// Reads the length and the JSON of a header, limited by the format and by the file's size.
pub(crate) fn read_header(file: &mut impl Read, path: &Path, file_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut prefix = [0; 8];
    let malformed = |what| Error::corrupt(path, Flaw::Malformed { what });
    if file_bytes < LENGTH_BYTES {
        return Err(malformed("it is too short for a header"));
    }
    file.read_exact(&mut prefix).map_err(|source| Error::reading(path, source))?;
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_BYTES_MAX {
        return Err(malformed("its header is longer than 100 MB"));
    }
    if length > file_bytes - LENGTH_BYTES {
        return Err(malformed("its header is longer than the file"));
    }
    let mut header = prefix.to_vec();
    file.take(length).read_to_end(&mut header).map_err(|source| Error::reading(path, source))?;
    if header.len() as u64 != LENGTH_BYTES + length {
        return Err(malformed("it ends within its header"));
    }
    Ok(header)
}

/// Returns the place of each tensor of `record` in a file with this header, or the rule that the header
/// breaks. The tensors must fill the file from the header's end without gap or overlap.
pub(crate) fn place<'a>(
    header: &[u8],
    file_bytes: u64,
    record: &'a ShardRecord,
) -> Result<Vec<Placed<'a>>, &'static str> {
    let json = &header[8..];
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|_| "its header is not a JSON object")?;
    values.remove(METADATA);
    if values.len() != record.tensors.len() {
        return Err("its header declares other tensors than the manifest");
    }
    let data_start = header.len() as u64;
    let mut placed = Vec::with_capacity(record.tensors.len());
    for tensor in &record.tensors {
        let value = values.remove(&tensor.name).ok_or("its header lacks a tensor of the manifest")?;
        let declared: Declaration = serde_json::from_value(value).map_err(|_| "a declaration is malformed")?;
        if declared.data_type != tensor.data_type || declared.shape != tensor.shape {
            return Err("a tensor has another type or shape than in the manifest");
        }
        let (start, end) = declared.data_offsets;
        let length = end.checked_sub(start).ok_or("a tensor ends before it starts")?;
        if byte_count(declared.data_type, &declared.shape) != Some(length) {
            return Err("a tensor's offsets don't fit its type and shape");
        }
        placed.push((tensor, start, length));
    }
    check_filled(placed.iter().map(|(_, start, length)| (*start, *length)).collect(), file_bytes - data_start)?;
    let within = |(record, start, length)| {
        let bytes = usize::try_from(length).expect("64-bit Linux only");
        Placed { record, start: data_start + start, bytes }
    };
    Ok(placed.into_iter().map(within).collect())
}

/// Checks that tensors, given by offset and length, fill the data without gap or overlap.
pub(crate) fn check_filled(mut places: Vec<(u64, u64)>, data_bytes: u64) -> Result<(), &'static str> {
    places.sort_unstable();
    let mut next = 0_u64;
    for (start, length) in places {
        if start != next {
            return Err("its tensors overlap or leave a gap");
        }
        next = start.checked_add(length).ok_or("a tensor lies beyond the file")?;
    }
    if next == data_bytes { Ok(()) } else { Err("its tensors don't fill the file") }
}

#[cfg(test)]
mod tests;
