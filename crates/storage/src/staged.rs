//! A rank's part of a save, copied to host memory as the file that it will be: header, tensors, and zeros up to a page.
//!
//! The copy is all that the trainer waits for. Hashing it comes afterwards, beside the writing, on other threads.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::copying::copy_past_caches;
use crate::digest::{SEGMENT_BYTES, SegmentHash, hash_segment, join_segments};
use crate::manifest::{ShardRecord, TensorRecord};
use crate::memory::{Memory, PAGE};
use crate::shard::{self, Declared};
use crate::slab::{Slab, Slabs};
use crate::tensor::byte_count;
use crate::threads::on_threads;
use crate::{Digest, Error, TensorView};

/// Threads that copy or hash one save at most: each does some GB/s, which is as much as a disk takes in, and a few of them as
/// much as memory gives.
const THREADS_MAX: usize = 4;
/// Less is copied or hashed by one thread: that takes milliseconds.
const DONE_ALONE_BYTES: usize = 8 << 20;

/// A shard in memory.
#[derive(Debug)]
pub(crate) struct Staged {
    slab: Slab,
    header_bytes: usize,
    tensors: Vec<Declared>,
    bytes: usize,
}

impl Staged {
    /// Copies these tensors, in this order.
    pub(crate) fn copy(tensors: &[&TensorView<'_>], slabs: &Arc<Slabs>) -> Result<Staged, Error> {
        let (header, declared) = shard::lay_out(tensors)?;
        let bytes = header.len() + tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>();
        let mut slab = slabs.take(bytes.next_multiple_of(PAGE))?;
        let (head, mut rest) = slab.split_at_mut(header.len());
        head.copy_from_slice(&header);
        let mut pieces = Vec::new();
        for tensor in tensors {
            let (place, after) = rest.split_at_mut(tensor.data.len());
            pieces.extend(place.chunks_mut(SEGMENT_BYTES).zip(tensor.data.chunks(SEGMENT_BYTES)));
            rest = after;
        }
        on_threads(threads_for(bytes), pieces, || |(place, data): (&mut [u8], &[u8])| copy_past_caches(place, data));
        rest.fill(0);
        Ok(Staged { slab, header_bytes: header.len(), tensors: declared, bytes })
    }

    /// What another process copied: the header, and these tensors one after the other. None if that can't be.
    pub(crate) fn found(memory: Memory, header_bytes: usize, tensors: Vec<Declared>) -> Option<Staged> {
        let data_bytes = tensors.iter().try_fold(0, |end, tensor| {
            let is_next = tensor.range.start == end && tensor.range.end >= end;
            let bytes = byte_count(tensor.data_type, &tensor.shape);
            (is_next && bytes == Some(tensor.range.len() as u64)).then_some(tensor.range.end)
        })?;
        let bytes = header_bytes.checked_add(data_bytes)?;
        let length = bytes.checked_next_multiple_of(PAGE).filter(|length| *length <= memory.bytes().len())?;
        Some(Staged { slab: Slabs::new(None).slab(memory, length), header_bytes, tensors, bytes })
    }

    /// The file in memory that it is, if others can find it.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.slab.file()
    }

    /// Bytes of its header.
    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Its tensors in order.
    pub(crate) fn tensors(&self) -> &[Declared] {
        &self.tensors
    }

    /// The file and zeros up to a page.
    pub(crate) fn image(&self) -> &[u8] {
        &self.slab
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Names all its bytes, by hashing them.
    pub(crate) fn record(&self, rank: u32) -> ShardRecord {
        let digests = self.hash();
        let records = self.tensors.iter().zip(digests).map(|(tensor, blake3)| TensorRecord {
            name: tensor.name.clone(),
            data_type: tensor.data_type,
            shape: tensor.shape.clone(),
            blake3,
            part_of: tensor.part_of.clone(),
        });
        let header_blake3 = Digest::of(&self.slab[..self.header_bytes]);
        ShardRecord { rank, bytes: self.bytes(), header_blake3, tensors: records.collect() }
    }

    /// The digest of each tensor: segments on a few threads.
    fn hash(&self) -> Vec<Digest> {
        let data = &self.slab[self.header_bytes..self.bytes];
        let segments_of = |tensor: &Declared| {
            let Range { start, end } = tensor.range;
            let segments = (0..(end - start).max(1)).step_by(SEGMENT_BYTES);
            segments.map(move |at| (at, end - start, start + at..end.min(start + at + SEGMENT_BYTES)))
        };
        let segments: Vec<(usize, usize, Range<usize>)> = self.tensors.iter().flat_map(segments_of).collect();
        let mut hashes: Vec<SegmentHash> = on_threads(threads_for(data.len()), segments, || {
            |(at, total, range): (usize, usize, Range<usize>)| hash_segment(&data[range], at, total)
        });
        let join = |tensor: &Declared| {
            let total = tensor.range.len();
            let own: Vec<SegmentHash> = hashes.drain(..total.max(1).div_ceil(SEGMENT_BYTES)).collect();
            join_segments(&own, total)
        };
        self.tensors.iter().map(join).collect()
    }
}

/// Threads to copy or hash so many bytes with.
pub(crate) fn threads_for(bytes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if bytes < DONE_ALONE_BYTES { 1 } else { cores.min(THREADS_MAX) }
}
