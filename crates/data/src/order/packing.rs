//! Which documents share a sample: best fit, decreasing. Documents are taken by length, the longest first, and each goes where
//! it leaves the least room; one that is longer than a sample is cut into samples and a rest. This truncates no document that
//! fits, and leaves less room empty than filling samples in order (Ding et al., "Fewer Truncations Improve Language Modeling",
//! 2024, arxiv.org/abs/2404.10830).
//!
//! A window of neighbouring documents is packed by itself, so a sample is a function of the lengths of its window's documents
//! alone. Keeps; a change of what is packed where is a new [`PACKING_VERSION`].

use std::collections::BTreeMap;

/// The version of packing that positions refer to.
pub const PACKING_VERSION: u32 = 1;
/// Documents that are packed together.
pub const WINDOW_DOCUMENTS: usize = 4_096;

/// A part of a document in a sample: its tokens are inputs, and those behind each of them labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The first token, counted from the window's first.
    pub start: u64,
    /// How many inputs; the labels end one token behind them.
    pub tokens: u32,
}

/// The samples of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    chunks: Vec<Chunk>,
    /// Chunks up to the end of each sample.
    ends: Vec<usize>,
}

impl Packed {
    /// Samples of the window.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.ends.len()
    }

    /// The chunks of a sample, in the order in which they lie.
    ///
    /// # Panics
    /// If there is no such sample.
    #[must_use]
    pub fn sample(&self, number: usize) -> &[Chunk] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.chunks[start..self.ends[number]]
    }
}

/// Packs documents of these lengths into samples of at most `room` inputs each. A document's last token is a label only, so
/// one of fewer than two tokens is in no sample; every other token but each document's first is a label once.
///
/// # Panics
/// Without room.
#[must_use]
pub fn pack(lengths: &[u64], room: u32) -> Packed {
    assert!(room > 0, "a sample has tokens");
    let mut chunks = chunks(lengths, room);
    // Ties by place: the sort is stable.
    chunks.sort_by_key(|chunk| std::cmp::Reverse(chunk.tokens));
    let mut samples: Vec<Vec<Chunk>> = Vec::new();
    // Samples by the room that they have left.
    let mut open: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for chunk in chunks {
        let fits = open.range_mut(chunk.tokens..).next();
        let (left, number) = match fits {
            Some((left, numbers)) => (*left, numbers.pop().expect("a room without samples is removed")),
            None => {
                samples.push(Vec::new());
                (room, samples.len() - 1)
            }
        };
        if open.get(&left).is_some_and(Vec::is_empty) {
            open.remove(&left);
        }
        samples[number].push(chunk);
        if left > chunk.tokens {
            open.entry(left - chunk.tokens).or_default().push(number);
        }
    }
    for sample in &mut samples {
        sample.sort_by_key(|chunk| chunk.start);
    }
    // Neighbours stay neighbours: samples come in the order of their first documents.
    samples.sort_by_key(|sample| sample[0].start);
    let mut packed = Packed::default();
    for sample in samples {
        packed.chunks.extend(sample);
        packed.ends.push(packed.chunks.len());
    }
    packed
}

fn chunks(lengths: &[u64], room: u32) -> Vec<Chunk> {
    let (mut chunks, mut begin) = (Vec::with_capacity(lengths.len()), 0);
    for length in lengths {
        let (mut start, end) = (begin, begin + length.saturating_sub(1));
        while start < end {
            let tokens = u32::try_from(end - start).unwrap_or(room).min(room);
            chunks.push(Chunk { start, tokens });
            start += u64::from(tokens);
        }
        begin += length;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::mix::mix;

    fn lengths(seed: u64, count: u64, most: u64) -> Vec<u64> {
        (0..count).map(|number| mix(&[seed, number]) % (most + 1)).collect()
    }

    /// Proves A-1.
    #[test]
    fn every_token_but_a_documents_first_is_a_label_once_and_no_document_that_fits_is_cut() {
        for seed in 0..200 {
            let room = 1 + u32::try_from(mix(&[seed]) % 40).unwrap();
            let lengths = lengths(seed, seed % 90, 70);
            let packed = pack(&lengths, room);
            assert_eq!(packed, pack(&lengths, room));
            let mut labels = Vec::new();
            for number in 0..packed.samples() {
                let chunks = packed.sample(number);
                assert!(chunks.iter().map(|chunk| chunk.tokens).sum::<u32>() <= room && !chunks.is_empty());
                labels.extend(chunks.iter().flat_map(|chunk| chunk.start + 1..=chunk.start + u64::from(chunk.tokens)));
                assert!(chunks.is_sorted_by_key(|chunk| chunk.start));
            }
            labels.sort_unstable();
            let (mut expected, mut begin) = (Vec::new(), 0);
            for length in &lengths {
                expected.extend((begin..begin + length).skip(1));
                let first = packed.chunks.iter().find(|chunk| chunk.start == begin);
                let whole = length.saturating_sub(1).min(u64::from(room));
                assert!(*length < 2 || first.is_some_and(|chunk| u64::from(chunk.tokens) == whole));
                begin += length;
            }
            assert_eq!(labels, expected, "seed {seed}");
        }
    }

    #[test]
    fn samples_are_fuller_than_if_they_were_filled_in_order() {
        let (mut best, mut in_order) = (0, 0);
        for seed in 0..20 {
            let lengths = lengths(seed, 4_096, 2_000);
            best += pack(&lengths, 2_048).samples();
            let mut left = 0;
            for chunk in chunks(&lengths, 2_048) {
                if chunk.tokens > left {
                    (left, in_order) = (2_048, in_order + 1);
                }
                left -= chunk.tokens;
            }
        }
        let tokens: u64 =
            (0..20).flat_map(|seed| lengths(seed, 4_096, 2_000)).map(|length| length.saturating_sub(1)).sum();
        let least = usize::try_from(tokens.div_ceil(2_048)).unwrap();
        assert!(best * 100 < least * 101, "{best} samples, where {least} would do");
        assert!(in_order * 100 > least * 120, "in order it takes {in_order}");
    }

    /// Stored positions mean the same for ever: what this version gives for a few documents.
    #[test]
    fn the_packing_of_version_1_is_what_it_was() {
        let packed = pack(&[4, 9, 1, 3, 0, 6, 2, 23, 5], 8);
        let samples: Vec<Vec<(u64, u32)>> = (0..packed.samples())
            .map(|number| packed.sample(number).iter().map(|chunk| (chunk.start, chunk.tokens)).collect())
            .collect();
        assert_eq!(samples, SAMPLES_OF_VERSION_1.map(<[_]>::to_vec));
        assert_eq!(PACKING_VERSION, 1, "a new version has figures of its own here");
    }

    const SAMPLES_OF_VERSION_1: [&[(u64, u32)]; 6] =
        [&[(0, 3), (17, 5)], &[(4, 8)], &[(14, 2), (41, 6)], &[(23, 1), (48, 4)], &[(25, 8)], &[(33, 8)]];
}
