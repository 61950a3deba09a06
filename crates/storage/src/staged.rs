//! A rank's part of a save in host memory, laid out as the final file: header, tensors, and zeros up to a
//! page.
//!
//! The trainer waits only for the copy. The copy is hashed later, while it is written, on other threads.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::copying::copy_past_caches;
use crate::digest::{SEGMENT_BYTES, SegmentHash, hash_segment, join_segments};
use crate::manifest::{ShardRecord, TensorRecord};
use crate::memory::{Memory, PAGE};
use crate::shard::{self, Declared};
use crate::slab::{Allowance, Slab, Slabs};
use crate::tensor::byte_count;
use crate::threads::on_threads;
use crate::{Digest, Error, TensorView};

/// The most threads that copy or hash one save: each handles several GB/s, as much as a disk takes, and four
/// saturate memory bandwidth.
const THREADS_MAX: usize = 4;
/// Less than this is copied or hashed by one thread: it takes milliseconds.
const DONE_ALONE_BYTES: usize = 8 << 20;

/// A rank's files in memory: one, unless its tensors exceed the header of one.
#[derive(Debug)]
pub(crate) struct Staged {
    slab: Slab,
    files: Vec<StagedFile>,
}

/// A file in memory.
#[derive(Debug)]
struct StagedFile {
    described: Described,
    /// Its offset in the slab, at a page boundary.
    start: usize,
    bytes: usize,
}

/// The header and tensors of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) header_bytes: usize,
    /// Its tensors, in file order.
    pub(crate) tensors: Vec<Declared>,
}

/// The content of a file in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image<'a> {
    /// The file's bytes, and zeros up to a page.
    pub(crate) padded: &'a [u8],
    /// The file's length in bytes.
    pub(crate) bytes: u64,
}

impl StagedFile {
    /// Returns its range in the slab, with the padding up to a page.
    fn padded(&self) -> Range<usize> {
        self.start..self.start + self.bytes.next_multiple_of(PAGE)
    }
}

impl Staged {
    /// Copies these tensors, in this order.
    pub(crate) fn copy(tensors: &[&TensorView<'_>], slabs: &Arc<Slabs>) -> Result<Staged, Error> {
        let groups = shard::fit_headers(tensors);
        let laid_out = groups.iter().map(|group| shard::lay_out(group)).collect::<Result<Vec<_>, Error>>()?;
        let mut files = Vec::with_capacity(groups.len());
        let mut end = 0;
        let mut headers = Vec::with_capacity(groups.len());
        for ((header, tensors), group) in laid_out.into_iter().zip(&groups) {
            let bytes = header.len() + group.iter().map(|tensor| tensor.data.len()).sum::<usize>();
            let file = StagedFile { described: Described { header_bytes: header.len(), tensors }, start: end, bytes };
            end = file.padded().end;
            files.push(file);
            headers.push(header);
        }
        let mut slab = slabs.take(end)?;
        let mut rest = &mut slab[..];
        let mut pieces = Vec::new();
        for ((file, header), group) in files.iter().zip(&headers).zip(&groups) {
            let (mut place, after) = rest.split_at_mut(file.padded().len());
            rest = after;
            for data in std::iter::once(header.as_slice()).chain(group.iter().map(|tensor| tensor.data)) {
                let (to, behind) = place.split_at_mut(data.len());
                pieces.extend(to.chunks_mut(SEGMENT_BYTES).zip(data.chunks(SEGMENT_BYTES)));
                place = behind;
            }
            place.fill(0);
        }
        on_threads(threads_for(end), pieces, || |(place, data): (&mut [u8], &[u8])| copy_past_caches(place, data));
        Ok(Staged { slab, files })
    }

    /// Returns a save that another process copied: for each file the header and the tensors one after the
    /// other, each file at a page boundary. None if the ranges contradict the tensors' types and shapes, or
    /// exceed the memory.
    pub(crate) fn found(memory: Memory, described: impl Iterator<Item = Described>) -> Option<Staged> {
        let (mut files, mut end) = (Vec::new(), 0_usize);
        for described in described {
            let data_bytes = described.tensors.iter().try_fold(0, |end, tensor| {
                let is_next = tensor.range.start == end && tensor.range.end >= end;
                let bytes = byte_count(tensor.data_type, &tensor.shape);
                (is_next && bytes == Some(tensor.range.len() as u64)).then_some(tensor.range.end)
            })?;
            let bytes = described.header_bytes.checked_add(data_bytes)?;
            let length = bytes.checked_next_multiple_of(PAGE)?;
            files.push(StagedFile { described, start: end, bytes });
            end = end.checked_add(length).filter(|end| *end <= memory.bytes().len())?;
        }
        Some(Staged { slab: Slabs::new(None, Allowance::default()).slab(memory, end), files })
    }

    /// Returns the file that holds the copy, if other processes can find it.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.slab.file()
    }

    /// Returns the descriptions of its files, in order.
    pub(crate) fn described(&self) -> impl Iterator<Item = &Described> {
        self.files.iter().map(|file| &file.described)
    }

    /// Returns the contents of its files.
    pub(crate) fn images(&self) -> impl Iterator<Item = Image<'_>> {
        self.files.iter().map(|file| Image { padded: &self.slab[file.padded()], bytes: file.bytes as u64 })
    }

    /// Returns the total length of the files in bytes.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes as u64).sum()
    }

    /// Hashes all bytes, and returns the files' records.
    pub(crate) fn records(&self, rank: u32) -> Vec<ShardRecord> {
        self.files.iter().map(|file| self.record(rank, file)).collect()
    }

    fn record(&self, rank: u32, file: &StagedFile) -> ShardRecord {
        let StagedFile { described: Described { header_bytes, tensors }, bytes, .. } = file;
        let (header, data) = self.slab[file.padded()][..*bytes].split_at(*header_bytes);
        let records = tensors.iter().zip(hash(tensors, data)).map(|(tensor, blake3)| TensorRecord {
            name: tensor.name.clone(),
            data_type: tensor.data_type,
            shape: tensor.shape.clone(),
            blake3,
            part_of: tensor.part_of.clone(),
        });
        let header_blake3 = Digest::of(header);
        ShardRecord { rank, bytes: *bytes as u64, header_blake3, tensors: records.collect() }
    }
}

/// Returns the digest of each tensor; segments are hashed on several threads.
fn hash(tensors: &[Declared], data: &[u8]) -> Vec<Digest> {
    let segments_of = |tensor: &Declared| {
        let Range { start, end } = tensor.range;
        let segments = (0..(end - start).max(1)).step_by(SEGMENT_BYTES);
        segments.map(move |at| (at, end - start, start + at..end.min(start + at + SEGMENT_BYTES)))
    };
    let segments: Vec<(usize, usize, Range<usize>)> = tensors.iter().flat_map(segments_of).collect();
    let hashes: Vec<SegmentHash> = on_threads(threads_for(data.len()), segments, || {
        |(at, total, range): (usize, usize, Range<usize>)| hash_segment(&data[range], at, total)
    });
    let mut rest = hashes.as_slice();
    let join = |tensor: &Declared| {
        let total = tensor.range.len();
        let (own, others) = rest.split_at(total.max(1).div_ceil(SEGMENT_BYTES));
        rest = others;
        join_segments(own, total)
    };
    tensors.iter().map(join).collect()
}

/// Returns the number of threads that copy or hash this many bytes.
pub(crate) fn threads_for(bytes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if bytes < DONE_ALONE_BYTES { 1 } else { cores.min(THREADS_MAX) }
}
