//! Byte planes: the first bytes of all elements, then the second ones, and so on, so that bytes alike lie together.
//!
//! ZipNN (arXiv 2411.05239) calls it byte grouping. Elements pass through as `u32` words on the way, so that
//! [`transform`](crate::transform) can change them; elements of 1 and 8 bytes are split as they are.

/// The most planes of a block: bytes of the widest element.
pub(crate) const PLANES_MAX: usize = 8;

/// Elements of two bytes as words.
pub(crate) fn words16(raw: &[u8]) -> impl Iterator<Item = u32> {
    raw.as_chunks().0.iter().map(|bytes| u32::from(u16::from_le_bytes(*bytes)))
}

/// Elements of four bytes as words.
pub(crate) fn words32(raw: &[u8]) -> impl Iterator<Item = u32> {
    raw.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Splits the lower halves of words into two planes, the lowest byte first.
pub(crate) fn split16(words: impl Iterator<Item = u32>, planes: &mut [Vec<u8>]) {
    let [low, high] = planes else { unreachable!("two bytes have two planes") };
    for ((word, low), high) in words.zip(low).zip(high) {
        [*low, *high, ..] = word.to_le_bytes();
    }
}

/// Splits words into four planes, the lowest byte first.
pub(crate) fn split32(words: impl Iterator<Item = u32>, planes: &mut [Vec<u8>]) {
    let [a, b, c, d] = planes else { unreachable!("four bytes have four planes") };
    for ((((word, a), b), c), d) in words.zip(a).zip(b).zip(c).zip(d) {
        [*a, *b, *c, *d] = word.to_le_bytes();
    }
}

/// Splits elements of any width: `planes[k][i]` becomes byte `k` of element `i`.
pub(crate) fn split_bytes(raw: &[u8], planes: &mut [Vec<u8>]) {
    let size = planes.len();
    for (place, plane) in planes.iter_mut().enumerate() {
        plane.iter_mut().zip(raw.chunks_exact(size)).for_each(|(to, element)| *to = element[place]);
    }
}

/// Words of two planes.
pub(crate) fn join16<'a>(planes: &[&'a [u8]]) -> impl Iterator<Item = u32> + use<'a> {
    let [low, high] = *planes else { unreachable!("two bytes have two planes") };
    low.iter().zip(high).map(|(low, high)| u32::from(u16::from_le_bytes([*low, *high])))
}

/// Words of four planes.
pub(crate) fn join32<'a>(planes: &[&'a [u8]]) -> impl Iterator<Item = u32> + use<'a> {
    let [a, b, c, d] = *planes else { unreachable!("four bytes have four planes") };
    a.iter().zip(b).zip(c).zip(d).map(|(((a, b), c), d)| u32::from_le_bytes([*a, *b, *c, *d]))
}

/// Joins elements of any width.
pub(crate) fn join_bytes(planes: &[&[u8]], raw: &mut [u8]) {
    let size = planes.len();
    for (place, plane) in planes.iter().enumerate() {
        raw.chunks_exact_mut(size).zip(plane.iter()).for_each(|(element, from)| element[place] = *from);
    }
}

/// Writes words as elements of two bytes.
pub(crate) fn write16(words: impl Iterator<Item = u32>, raw: &mut [u8]) {
    for (bytes, word) in raw.as_chunks_mut().0.iter_mut().zip(words) {
        let [low, high, ..] = word.to_le_bytes();
        *bytes = [low, high];
    }
}

/// Writes words as elements of four bytes.
pub(crate) fn write32(words: impl Iterator<Item = u32>, raw: &mut [u8]) {
    raw.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
}
