//! Shard files: plain safetensors (8-byte little-endian header length, JSON header, data), written and read by hand so
//! that hostile files meet a named limit or error, never a panic or an allocation larger than the file. Headers that
//! we write are padded with spaces, which the format allows, so that the data starts at a page: direct I/O asks for that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::manifest::{ShardRecord, TensorRecord, open_present};
use crate::slab::PAGE;
use crate::tensor::byte_count;
use crate::{DataType, Digest, Error, Flaw, Tensor, TensorView};

/// The largest header read or written; safetensors' own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;
/// How much is read at once while hashing.
const READ_BYTES: usize = 1 << 20;

/// A tensor as a safetensors header declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Declaration {
    #[serde(rename = "dtype")]
    data_type: DataType,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// A tensor of a shard that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<usize>,
    /// Where it lies in the data, which begins after the header.
    pub(crate) range: Range<usize>,
}

/// The header of a shard with these tensors in this order, and where each lies.
pub(crate) fn lay_out(tensors: &[&TensorView<'_>]) -> Result<(Vec<u8>, Vec<Declared>), Error> {
    let mut next = 0;
    let mut declarations = BTreeMap::new();
    let mut declared = Vec::with_capacity(tensors.len());
    for TensorView { name, data_type, shape, data } in tensors {
        let range = next..next + data.len();
        next = range.end;
        let data_offsets = (range.start as u64, range.end as u64);
        declarations.insert(*name, Declaration { data_type: *data_type, shape: shape.to_vec(), data_offsets });
        declared.push(Declared { name: (*name).to_owned(), data_type: *data_type, shape: shape.to_vec(), range });
    }
    let mut json = serde_json::to_vec(&declarations).expect("declarations have string keys and plain values");
    let prefix = size_of::<u64>();
    json.resize((prefix + json.len()).next_multiple_of(PAGE) - prefix, b' ');
    let length = json.len() as u64;
    if length > HEADER_BYTES_MAX {
        return Err(Error::Limit { what: "bytes of shard header", value: length, max: HEADER_BYTES_MAX });
    }
    let mut header = length.to_le_bytes().to_vec();
    header.append(&mut json);
    Ok((header, declared))
}

/// A shard whose header has been checked against its record.
#[derive(Debug)]
pub(crate) struct Shard<'a> {
    file: File,
    path: &'a Path,
    /// Each tensor's record and its place in the file.
    tensors: Vec<(&'a TensorRecord, u64, u64)>,
}

impl<'a> Shard<'a> {
    /// Opens a shard; its length, header and declarations must be those of `record`.
    pub(crate) fn open(path: &'a Path, record: &'a ShardRecord) -> Result<Self, Error> {
        let mut file = open_present(path)?;
        let found = file.metadata().map_err(|source| Error::io("read", path, source))?.len();
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
        Ok(Shard { file, path, tensors })
    }

    /// The records of its tensors, in the order of the file.
    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Each tensor's record, where it begins in the file, and its bytes; in the order of the file.
    pub(crate) fn places(&self) -> &[(&'a TensorRecord, u64, u64)] {
        &self.tensors
    }

    /// Reads the `index`th tensor and checks its hash.
    pub(crate) fn read(&mut self, index: usize) -> Result<Tensor, Error> {
        let (record, start, length) = self.tensors[index];
        let length = usize::try_from(length).expect("64-bit Linux only");
        let mut data = vec![0; length];
        self.seek(start)?;
        self.file.read_exact(&mut data).map_err(|source| Error::io("read", self.path, source))?;
        if Digest::of(&data) != record.blake3 {
            return Err(self.mismatch(record));
        }
        Ok(Tensor { name: record.name.clone(), data_type: record.data_type, shape: record.shape.clone(), data })
    }

    /// Checks the `index`th tensor's hash without holding it.
    pub(crate) fn check(&mut self, index: usize) -> Result<(), Error> {
        let (record, start, mut left) = self.tensors[index];
        self.seek(start)?;
        let mut buffer = vec![0; READ_BYTES];
        let mut hasher = blake3::Hasher::new();
        while left > 0 {
            let part = usize::try_from(left).map_or(READ_BYTES, |left| left.min(READ_BYTES));
            self.file.read_exact(&mut buffer[..part]).map_err(|source| Error::io("read", self.path, source))?;
            hasher.update(&buffer[..part]);
            left -= part as u64;
        }
        if Digest::from(hasher.finalize()) == record.blake3 { Ok(()) } else { Err(self.mismatch(record)) }
    }

    fn seek(&mut self, start: u64) -> Result<(), Error> {
        self.file.seek(SeekFrom::Start(start)).map(drop).map_err(|source| Error::io("read", self.path, source))
    }

    fn mismatch(&self, record: &TensorRecord) -> Error {
        Error::Corrupt { path: self.path.to_owned(), tensor: Some(record.name.clone()), flaw: Flaw::Hash }
    }
}

/// Reads the length and the JSON of a header, bounded by the limit and by the file.
fn read_header(file: &mut impl Read, path: &Path, file_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut prefix = [0; 8];
    let malformed = |what| Error::corrupt(path, Flaw::Malformed { what });
    if file_bytes < LENGTH_BYTES {
        return Err(malformed("it is too short for a header"));
    }
    file.read_exact(&mut prefix).map_err(|source| Error::io("read", path, source))?;
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_BYTES_MAX {
        return Err(malformed("its header is longer than 100 MB"));
    }
    if length > file_bytes - LENGTH_BYTES {
        return Err(malformed("its header is longer than the file"));
    }
    let mut header = prefix.to_vec();
    file.take(length).read_to_end(&mut header).map_err(|source| Error::io("read", path, source))?;
    if header.len() as u64 != LENGTH_BYTES + length {
        return Err(malformed("it ends within its header"));
    }
    Ok(header)
}

/// Where each tensor of `record` lies in a file with this header; or the rule that the header breaks. The tensors must
/// fill the file from the header's end without gap or overlap.
fn place<'a>(
    header: &[u8],
    file_bytes: u64,
    record: &'a ShardRecord,
) -> Result<Vec<(&'a TensorRecord, u64, u64)>, &'static str> {
    let json = &header[8..];
    let mut values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|_| "its header is not a JSON object")?;
    values.remove("__metadata__");
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
    placed.sort_by_key(|(_, start, length)| (*start, *length));
    let mut next = 0_u64;
    for (_, start, length) in &placed {
        if *start != next {
            return Err("its tensors overlap or leave a gap");
        }
        next = start.checked_add(*length).ok_or("a tensor lies beyond the file")?;
    }
    if next != file_bytes - data_start {
        return Err("its tensors don't fill the file");
    }
    Ok(placed.into_iter().map(|(tensor, start, length)| (tensor, data_start + start, length)).collect())
}

#[cfg(test)]
mod tests;
