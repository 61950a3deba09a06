//! Boxes of tensors: the box a rank holds, the box a reader wants, and the bytes that two boxes share.
//!
//! Data, tensor and expert parallelism shard a tensor in many ways; every part is a box: an offset and a
//! length in each dimension. A reader asks for a box as well, and gets it from the parts that overlap it.
//! Resharding needs nothing else (ByteCheckpoint, Wan et al., NSDI'25, calls it a parallelism-free
//! representation).

use std::convert::Infallible;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::DataType;

/// The deepest nesting of cuts that is examined when parts are checked.
const CUTS_MAX: usize = 64;

/// A box of a tensor, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) offsets: Vec<usize>,
    pub(crate) shape: Vec<usize>,
}

/// The record of a part's whole tensor in a manifest or index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WholeRecord {
    pub(crate) shape: Vec<usize>,
    pub(crate) offsets: Vec<usize>,
}

impl Region {
    /// Returns the box that covers a whole tensor.
    pub(crate) fn whole(shape: &[usize]) -> Region {
        Region { offsets: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// Returns the number of elements; none if it overflows.
    fn volume(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, length| product.checked_mul(*length))
    }

    /// Reports whether the box lies within a tensor of this shape.
    pub(crate) fn is_within(&self, shape: &[usize]) -> bool {
        let fits = |((offset, length), whole): ((&usize, &usize), &usize)| {
            offset.checked_add(*length).is_some_and(|end| end <= *whole)
        };
        self.offsets.len() == shape.len()
            && self.shape.len() == shape.len()
            && self.offsets.iter().zip(&self.shape).zip(shape).all(fits)
    }

    fn end(&self, dimension: usize) -> usize {
        self.offsets[dimension] + self.shape[dimension]
    }
}

/// Reports whether boxes within a tensor of this shape fill it, each element once.
///
/// The boxes must result from recursive cuts across one dimension, as in every sharding. An arrangement that
/// doesn't, such as a pinwheel, is refused.
pub(crate) fn fill(shape: &[usize], parts: &[Region]) -> bool {
    let volume = Region::whole(shape).volume();
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.volume()?));
    let is_inside = parts.iter().all(|part| part.is_within(shape));
    volume.is_some() && sum == volume && is_inside && are_apart(&mut parts.iter().collect::<Vec<_>>(), CUTS_MAX)
}

/// Reports whether no two of the boxes share an element.
fn are_apart(parts: &mut [&Region], cuts: usize) -> bool {
    if parts.len() < 2 {
        return true;
    }
    for dimension in 0..parts[0].shape.len() {
        parts.sort_by_key(|part| (part.offsets[dimension], part.end(dimension)));
        let mut end = 0;
        let mut starts = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            if part.offsets[dimension] >= end {
                starts.push(at);
            }
            end = end.max(part.end(dimension));
        }
        starts.push(parts.len());
        if starts.len() > 2 {
            return cuts > 0 && starts.windows(2).all(|group| are_apart(&mut parts[group[0]..group[1]], cuts - 1));
        }
    }
    false
}

/// The bytes that two boxes of a tensor share, as runs that are contiguous in both. Runs are in the order of
/// the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// For each dimension outside a run: the count, and the stride in bytes in source and destination.
    outer: Vec<(usize, usize, usize)>,
    /// The offset of the first run in source and destination.
    first: (usize, usize),
    /// The bytes of a run.
    run: usize,
}

impl Overlap {
    /// Returns the overlap of two boxes of whole bytes
    /// ([`is_of_whole_bytes`](crate::tensor::is_of_whole_bytes)) of a tensor of this type; none if they share
    /// no element.
    pub(crate) fn of(data_type: DataType, source: &Region, destination: &Region) -> Option<Overlap> {
        let together = data_type.together();
        if together == 1 {
            return Overlap::between(source, destination, data_type.size());
        }
        // A group of packed elements counts as one element.
        let packed = |region: &Region| {
            let mut region = region.clone();
            let last = region.shape.len().checked_sub(1)?;
            region.offsets[last] /= together;
            region.shape[last] /= together;
            Some(region)
        };
        if source == destination {
            let flat = Region::whole(&[source.volume()? / together]);
            return Overlap::between(&flat, &flat, data_type.size());
        }
        Overlap::between(&packed(source)?, &packed(destination)?, data_type.size())
    }

    /// Returns the overlap of two boxes with elements of `element` bytes; none if they share no element.
    pub(crate) fn between(source: &Region, destination: &Region, element: usize) -> Option<Overlap> {
        let dimensions = source.shape.len();
        let (mut outer, mut first) = (Vec::with_capacity(dimensions), (0, 0));
        let mut strides = (element, element);
        let (mut run, mut is_contiguous) = (element, true);
        for dimension in (0..dimensions).rev() {
            let start = source.offsets[dimension].max(destination.offsets[dimension]);
            let length = source.end(dimension).min(destination.end(dimension)).checked_sub(start)?;
            if length == 0 {
                return None;
            }
            first.0 += (start - source.offsets[dimension]) * strides.0;
            first.1 += (start - destination.offsets[dimension]) * strides.1;
            if is_contiguous {
                run *= length;
                is_contiguous = length == source.shape[dimension] && length == destination.shape[dimension];
            } else {
                outer.push((length, strides.0, strides.1));
            }
            strides = (strides.0 * source.shape[dimension], strides.1 * destination.shape[dimension]);
        }
        outer.reverse();
        Some(Overlap { outer, first, run })
    }

    /// Returns the range of the destination that the source's bytes fill, if all of them are one run there.
    pub(crate) fn whole_run(&self, source_bytes: usize) -> Option<Range<usize>> {
        let is_whole = self.outer.is_empty() && self.first.0 == 0 && self.run == source_bytes;
        is_whole.then(|| self.first.1..self.first.1 + self.run)
    }

    /// Copies the overlap's bytes of a source slice, which begins at offset `at`, to the destination.
    pub(crate) fn copy(&self, at: usize, source: &[u8], destination: &mut [u8]) {
        let Ok(()) = self.each_run(at, source, |to, bytes| {
            destination[to..to + bytes.len()].copy_from_slice(bytes);
            Ok::<(), Infallible>(())
        });
    }

    /// Visits the overlap's bytes of a source slice, which begins at offset `at`, run by run: the offset of
    /// the run in the destination, and its bytes. Stops at the first error.
    pub(crate) fn each_run<E>(
        &self,
        at: usize,
        source: &[u8],
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = at + source.len();
        let runs = self.outer.iter().map(|(count, ..)| count).product();
        let mut run = first_that(runs, |run| self.place(run).0 + self.run > at);
        while run < runs {
            let (from, to) = self.place(run);
            let (start, stop) = (from.max(at), (from + self.run).min(end));
            if start >= stop {
                break;
            }
            visit(to + start - from, &source[start - at..stop - at])?;
            run += 1;
        }
        Ok(())
    }

    /// Returns the offset of a run in source and destination.
    fn place(&self, run: usize) -> (usize, usize) {
        let (mut rest, mut place) = (run, self.first);
        for (count, source, destination) in self.outer.iter().rev() {
            let index = rest % count;
            rest /= count;
            place = (place.0 + index * source, place.1 + index * destination);
        }
        place
    }
}

/// Returns the first of `0..end` for which `is_so` is true, or `end`; `is_so` must stay true once it is.
fn first_that(end: usize, is_so: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = usize::midpoint(low, high);
        if is_so(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offsets: &[usize], shape: &[usize]) -> Region {
        Region { offsets: offsets.to_vec(), shape: shape.to_vec() }
    }

    /// Returns the next pseudorandom number below `end` (Knuth's MMIX constants).
    fn draw(seed: &mut u64, end: usize) -> usize {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33).expect("31 bits") % end
    }

    /// Returns a random box of a tensor of this shape.
    fn drawn(seed: &mut u64, shape: &[usize]) -> Region {
        let offsets: Vec<usize> = shape.iter().map(|length| draw(seed, *length)).collect();
        let lengths = shape.iter().zip(&offsets).map(|(length, offset)| 1 + draw(seed, length - offset)).collect();
        Region { offsets, shape: lengths }
    }

    /// Returns the bytes of a box; each element's bytes count up from the element's index in the whole
    /// tensor.
    fn bytes_of(region: &Region, whole: &[usize], element: usize) -> Vec<u8> {
        let volume = region.volume().expect("small");
        let place_of = |index: usize| {
            let (mut rest, mut stride, mut place) = (index, 1, 0);
            for dimension in (0..whole.len()).rev() {
                place += (region.offsets[dimension] + rest % region.shape[dimension]) * stride;
                rest /= region.shape[dimension];
                stride *= whole[dimension];
            }
            place
        };
        let byte = |value: usize| u8::try_from(value % 251).expect("below 251");
        (0..volume).flat_map(|index| (0..element).map(move |at| byte(place_of(index) * element + at))).collect()
    }

    #[test]
    fn a_box_is_put_together_from_any_parts_in_any_pieces() {
        let mut seed = 7;
        for round in 0..2_000 {
            let whole: Vec<usize> = (0..round % 5).map(|_| 1 + draw(&mut seed, 6)).collect();
            let element = [1, 2, 4][round % 3];
            let (source, destination) = (drawn(&mut seed, &whole), drawn(&mut seed, &whole));
            let (from, expected) = (bytes_of(&source, &whole, element), bytes_of(&destination, &whole, element));
            let mut copied = vec![255; expected.len()];
            if let Some(overlap) = Overlap::between(&source, &destination, element) {
                let piece = 1 + draw(&mut seed, from.len());
                for (at, bytes) in from.chunks(piece).enumerate() {
                    overlap.copy(at * piece, bytes, &mut copied);
                }
            }
            let is_shared = |element_bytes: &[u8]| element_bytes.iter().all(|byte| *byte != 255);
            let shared = copied.chunks(element).filter(|bytes| is_shared(bytes)).count();
            let lengths = (0..whole.len()).map(|at| {
                let start = source.offsets[at].max(destination.offsets[at]);
                source.end(at).min(destination.end(at)).saturating_sub(start)
            });
            assert_eq!(shared, lengths.product::<usize>(), "{source:?} {destination:?}");
            assert!(copied.iter().zip(&expected).all(|(found, wanted)| *found == 255 || found == wanted));
        }
    }

    #[test]
    fn parts_fill_a_tensor_or_are_refused() {
        let rows = [region(&[0, 0], &[3, 4]), region(&[3, 0], &[2, 4])];
        assert!(fill(&[5, 4], &rows));
        assert!(!fill(&[6, 4], &rows), "a gap");
        assert!(!fill(&[5, 4], &[rows[0].clone(), region(&[2, 0], &[2, 4])]), "an overlap as large as the gap");
        assert!(!fill(&[5, 4], &[rows[0].clone(), region(&[3, 0], &[3, 4])]), "beyond the end");
        assert!(!fill(&[5, 4], &[region(&[0], &[20])]), "other dimensions");
        let grid: Vec<Region> = (0..12).map(|at| region(&[at / 4 * 2, at % 4], &[2, 1])).collect();
        assert!(fill(&[6, 4], &grid));
        assert!(fill(&[], &[region(&[], &[])]));
        assert!(!fill(&[], &[region(&[], &[]), region(&[], &[])]), "a scalar twice");
        assert!(fill(&[0, 3], &[region(&[0, 0], &[0, 3])]));
        assert!(!fill(&[usize::MAX, 2], &[region(&[0, 0], &[usize::MAX, 2])]), "more than can be counted");
    }
}
