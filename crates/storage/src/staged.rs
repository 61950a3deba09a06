//! A rank's part of a save, copied to host memory as the file that it will be: header, tensors, and zeros up to a page.
//!
//! The copy is all that the trainer waits for. Hashing it comes afterwards, beside the writing, on other threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::digest::{SEGMENT_BYTES, SegmentHash, hash_segment, join_segments};
use crate::manifest::{ShardRecord, TensorRecord};
use crate::shard::{self, Declared};
use crate::slab::{PAGE, Slab, Slabs};
use crate::{Digest, Error, TensorView};

/// Threads that hash one save at most: BLAKE3 does some GB/s on each, which is as much as a disk takes in.
const HASHERS_MAX: usize = 4;
/// A save of less is hashed by one thread: that takes milliseconds.
const HASHED_ALONE_BYTES: usize = 8 << 20;

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
        let mut slab = slabs.take(bytes.next_multiple_of(PAGE));
        let (head, mut rest) = slab.split_at_mut(header.len());
        head.copy_from_slice(&header);
        for tensor in tensors {
            let (place, after) = rest.split_at_mut(tensor.data.len());
            place.copy_from_slice(tensor.data);
            rest = after;
        }
        rest.fill(0);
        Ok(Staged { slab, header_bytes: header.len(), tensors: declared, bytes })
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
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if data.len() < HASHED_ALONE_BYTES { 1 } else { cores.min(HASHERS_MAX) };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((at, total, range)) = segments.get(index) else { return done };
                done.push((index, hash_segment(&data[range.clone()], *at, *total)));
            }
        };
        let mut hashes = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut hashes = work();
            for other in others {
                hashes.extend(other.join().expect("hashing doesn't panic"));
            }
            hashes
        });
        hashes.sort_by_key(|(index, _)| *index);
        let mut hashes: Vec<SegmentHash> = hashes.into_iter().map(|(_, hash)| hash).collect();
        let join = |tensor: &Declared| {
            let total = tensor.range.len();
            let own: Vec<SegmentHash> = hashes.drain(..total.max(1).div_ceil(SEGMENT_BYTES)).collect();
            join_segments(&own, total)
        };
        self.tensors.iter().map(join).collect()
    }
}
