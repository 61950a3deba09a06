//! BLAKE3 digests of a tensor's bytes, of a file, and of a checkpoint's content.
//!
//! BLAKE3 is a tree (its specification, section 2.1), so the segments of a long input can be hashed on any
//! threads in any order and joined afterwards, with the same digest.

use std::fmt;
use std::str::FromStr;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A BLAKE3 digest, printed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        blake3::hash(bytes).into()
    }

    /// Returns the digest's 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Bytes of a segment: a power of two, so that segments are subtrees; hashing one takes a few milliseconds.
pub(crate) const SEGMENT_BYTES: usize = 8 << 20;

/// A segment's chaining value, from which the input's digest is joined.
pub(crate) type SegmentHash = ChainingValue;

/// Hashes one segment: the bytes at `at`, a multiple of [`SEGMENT_BYTES`], of an input of `total` bytes.
pub(crate) fn hash_segment(bytes: &[u8], at: usize, total: usize) -> SegmentHash {
    let mut hasher = SegmentHasher::new(at, total);
    hasher.update(bytes);
    hasher.finish()
}

/// Hashes one segment block by block, so that each block can be hashed while it is in the processor's cache.
pub(crate) struct SegmentHasher {
    hasher: blake3::Hasher,
    /// Whether the segment is its whole input.
    is_whole: bool,
}

impl SegmentHasher {
    /// Returns a hasher of the segment at `at`, a multiple of [`SEGMENT_BYTES`], of an input of `total`
    /// bytes.
    pub(crate) fn new(at: usize, total: usize) -> SegmentHasher {
        let mut hasher = blake3::Hasher::new();
        let is_whole = total <= SEGMENT_BYTES;
        if !is_whole {
            hasher.set_input_offset(at as u64);
        }
        SegmentHasher { hasher, is_whole }
    }

    /// Adds the next bytes of the segment.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Returns the segment's chaining value.
    pub(crate) fn finish(&self) -> SegmentHash {
        if self.is_whole { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() }
    }
}

/// Joins the hashes of all segments, in order, into the digest of an input of `total` bytes.
pub(crate) fn join_segments(segments: &[SegmentHash], total: usize) -> Digest {
    if let [whole] = segments {
        return Digest(*whole);
    }
    let (left, right) = halves(segments, total);
    merge_subtrees_root(&left, &right, Mode::Hash).into()
}

fn subtree(segments: &[SegmentHash], bytes: usize) -> SegmentHash {
    if let [alone] = segments {
        return *alone;
    }
    let (left, right) = halves(segments, bytes);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

fn halves(segments: &[SegmentHash], bytes: usize) -> (SegmentHash, SegmentHash) {
    let left = usize::try_from(left_subtree_len(bytes as u64)).expect("less than `bytes`");
    let (first, rest) = segments.split_at(left / SEGMENT_BYTES);
    (subtree(first, left), subtree(rest, bytes - left))
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Digest(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from_bytes(self.0).to_hex().fmt(f)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Digest {
    type Err = blake3::HexError;

    /// Reads 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Digest, blake3::HexError> {
        blake3::Hash::from_hex(text).map(Digest::from)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A hasher whose input is framed, so that no two different sequences of fields give the same bytes.
pub(crate) struct FramedHasher(blake3::Hasher);

impl FramedHasher {
    /// Returns a hasher for one purpose; digests of different purposes never collide.
    pub(crate) fn new(purpose: &str) -> Self {
        FramedHasher(blake3::Hasher::new_derive_key(purpose))
    }

    /// Adds a field of any length.
    pub(crate) fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Returns the digest of all fields.
    pub(crate) fn finish(&self) -> Digest {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_give_the_digest_of_the_whole() {
        let bytes: Vec<u8> =
            (0..3 * SEGMENT_BYTES + 5_000).map(|at| u8::try_from(at % 253).expect("below 253")).collect();
        let sizes =
            [0, 1, 1_024, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES, bytes.len() - 4_999, bytes.len()];
        for size in sizes {
            let input = &bytes[..size];
            let mut segments: Vec<SegmentHash> = Vec::new();
            for at in (0..size.max(1)).step_by(SEGMENT_BYTES) {
                let segment = &input[at..size.min(at + SEGMENT_BYTES)];
                segments.push(hash_segment(segment, at, size));
                let mut by_blocks = SegmentHasher::new(at, size);
                segment.chunks(300_007).for_each(|block| by_blocks.update(block));
                assert_eq!(Some(&by_blocks.finish()), segments.last(), "{size} bytes in blocks");
            }
            assert_eq!(join_segments(&segments, size), Digest::of(input), "{size} bytes");
        }
    }
}
