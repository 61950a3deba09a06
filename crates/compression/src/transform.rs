//! The transform of elements before they are split into planes: a rotation of floats, or the difference to a
//! base.
//!
//! * [`Transform::Plain`] rotates a float left by one bit: the exponent then fills the highest byte (of bf16
//!   and f32), and the sign, which is noise, joins the mantissa. Integers stay as they are.
//! * [`Transform::Difference`] maps element and base to integers in the order of their floats, so that
//!   neighbouring floats are neighbouring integers even across zero (Lindstrom and Isenburg 2006), subtracts
//!   with wrap-around, and moves the sign into the lowest bit (zig-zag), so that small differences of either
//!   sign have zeros in their upper planes.
//! * [`Transform::Xor`] is the bitwise difference, rotated as a float is. Gorilla (Pelkonen et al. 2015) and
//!   BitX (arXiv 2505.06252) use it. Trained weights are smaller as ordered differences; Adam's first moment,
//!   which decays too fast for differences but keeps each element's scale, is smaller this way.

use crate::Element;
use crate::planes::{join_bytes, join16, join32, split_bytes, split16, split32, words16, words32, write16, write32};

/// The transform of a block's elements before they were split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transform {
    /// Floats are rotated; no base.
    Plain,
    /// The difference of ordered integers to the base.
    Difference,
    /// The exclusive or with the base.
    Xor,
}

impl Transform {
    /// All transforms, in the order of their codes on disk.
    pub(crate) const ALL: [Transform; 3] = [Transform::Plain, Transform::Difference, Transform::Xor];

    /// Returns its code on disk.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Transform::Plain => 0,
            Transform::Difference => 1,
            Transform::Xor => 2,
        }
    }

    /// Returns the transform with this code, if there is one.
    pub(crate) fn of(code: u8) -> Option<Transform> {
        Transform::ALL.get(usize::from(code)).copied()
    }

    /// Reports whether decoding needs the base.
    #[must_use]
    pub const fn needs_base(self) -> bool {
        !matches!(self, Transform::Plain)
    }

    /// Reports whether it applies to such elements: those of 1 and 8 bytes have no differences.
    pub(crate) const fn fits(self, element: Element) -> bool {
        matches!((self, element.size()), (Transform::Plain, _) | (_, 2 | 4))
    }
}

/// Returns a mask of the lowest bits of a word.
const fn mask(bits: u32) -> u32 {
    u32::MAX >> (32 - bits)
}

fn rotated<const BITS: u32>(word: u32) -> u32 {
    ((word << 1) | (word >> (BITS - 1))) & mask(BITS)
}

fn unrotated<const BITS: u32>(word: u32) -> u32 {
    (word >> 1) | ((word << (BITS - 1)) & mask(BITS))
}

/// Returns a float's rank among all floats, the most negative first.
fn ordered<const BITS: u32>(word: u32) -> u32 {
    let flip = 0_u32.wrapping_sub(word >> (BITS - 1)) | (1 << (BITS - 1));
    (word ^ flip) & mask(BITS)
}

fn unordered<const BITS: u32>(place: u32) -> u32 {
    let flip = (place >> (BITS - 1)).wrapping_sub(1) | (1 << (BITS - 1));
    (place ^ flip) & mask(BITS)
}

fn zigzag<const BITS: u32>(word: u32, base: u32) -> u32 {
    let difference = word.wrapping_sub(base) & mask(BITS);
    ((difference << 1) ^ 0_u32.wrapping_sub(difference >> (BITS - 1))) & mask(BITS)
}

fn unzigzag<const BITS: u32>(code: u32, base: u32) -> u32 {
    let difference = (code >> 1) ^ 0_u32.wrapping_sub(code & 1);
    base.wrapping_add(difference) & mask(BITS)
}

/// Splits a block into planes, lowest first, each with one byte per element. A plain transform ignores the
/// base.
pub(crate) fn split(element: Element, transform: Transform, (raw, base): (&[u8], &[u8]), planes: &mut [Vec<u8>]) {
    let pairs16 = || words16(raw).zip(words16(base));
    let pairs32 = || words32(raw).zip(words32(base));
    match (transform, element.size(), element.is_float()) {
        (Transform::Plain, 2, true) => split16(words16(raw).map(rotated::<16>), planes),
        (Transform::Plain, 4, true) => split32(words32(raw).map(rotated::<32>), planes),
        (Transform::Difference, 2, true) => {
            split16(pairs16().map(|(word, base)| zigzag::<16>(ordered::<16>(word), ordered::<16>(base))), planes);
        }
        (Transform::Difference, 4, true) => {
            split32(pairs32().map(|(word, base)| zigzag::<32>(ordered::<32>(word), ordered::<32>(base))), planes);
        }
        (Transform::Difference, 2, false) => split16(pairs16().map(|(word, base)| zigzag::<16>(word, base)), planes),
        (Transform::Difference, 4, false) => split32(pairs32().map(|(word, base)| zigzag::<32>(word, base)), planes),
        (Transform::Xor, 2, _) => split16(pairs16().map(|(word, base)| rotated::<16>(word ^ base)), planes),
        (Transform::Xor, 4, _) => split32(pairs32().map(|(word, base)| rotated::<32>(word ^ base)), planes),
        _ => split_bytes(raw, planes),
    }
}

/// Inverts [`split`].
pub(crate) fn join(element: Element, transform: Transform, (planes, base): (&[&[u8]], &[u8]), raw: &mut [u8]) {
    let pairs16 = || join16(planes).zip(words16(base));
    let pairs32 = || join32(planes).zip(words32(base));
    match (transform, element.size(), element.is_float()) {
        (Transform::Plain, 2, true) => write16(join16(planes).map(unrotated::<16>), raw),
        (Transform::Plain, 4, true) => write32(join32(planes).map(unrotated::<32>), raw),
        (Transform::Difference, 2, true) => {
            let words = pairs16().map(|(code, base)| unordered::<16>(unzigzag::<16>(code, ordered::<16>(base))));
            write16(words, raw);
        }
        (Transform::Difference, 4, true) => {
            let words = pairs32().map(|(code, base)| unordered::<32>(unzigzag::<32>(code, ordered::<32>(base))));
            write32(words, raw);
        }
        (Transform::Difference, 2, false) => write16(pairs16().map(|(code, base)| unzigzag::<16>(code, base)), raw),
        (Transform::Difference, 4, false) => write32(pairs32().map(|(code, base)| unzigzag::<32>(code, base)), raw),
        (Transform::Xor, 2, _) => write16(pairs16().map(|(code, base)| unrotated::<16>(code) ^ base), raw),
        (Transform::Xor, 4, _) => write32(pairs32().map(|(code, base)| unrotated::<32>(code) ^ base), raw),
        _ => join_bytes(planes, raw),
    }
}

/// Extracts the exponents of floats of 2 or 4 bytes: the highest plane of a plain split, alone.
pub(crate) fn exponents(element: Element, raw: &[u8], into: &mut Vec<u8>) {
    into.clear();
    let top = |bits: u32| move |word: u32| word.to_le_bytes()[bits as usize / 8 - 1];
    match element.size() {
        2 => into.extend(words16(raw).map(rotated::<16>).map(top(16))),
        _ => into.extend(words32(raw).map(rotated::<32>).map(top(32))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bit patterns of 16 bits, against bases that differ by every power of two and its neighbours.
    #[test]
    fn every_half_word_comes_back_from_every_transform() {
        let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for shift in (0..16).flat_map(|power| [1_u16 << power, (1 << power) - 1, 0xffff - (1 << power)]) {
            let base: Vec<u8> =
                (0..=u16::MAX).flat_map(|word| word.wrapping_mul(3).wrapping_add(shift).to_le_bytes()).collect();
            for element in [Element::Bf16, Element::F16, Element::Word16] {
                for transform in Transform::ALL {
                    assert_comes_back(element, transform, &raw, &base);
                }
            }
        }
    }

    fn assert_comes_back(element: Element, transform: Transform, raw: &[u8], base: &[u8]) {
        let mut planes = vec![vec![0; raw.len() / element.size()]; element.size()];
        split(element, transform, (raw, base), &mut planes);
        let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
        let mut back = vec![0; raw.len()];
        join(element, transform, (&planes, base), &mut back);
        assert_eq!(back, raw, "{element:?} {transform:?}");
    }

    #[test]
    fn wide_words_come_back_from_every_transform() {
        let words: Vec<u32> = (0..32)
            .flat_map(|power| [1 << power, (1_u32 << power) - 1, u32::MAX << power])
            .chain([0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0x8000_0000])
            .collect();
        let pairs: Vec<(u32, u32)> = words.iter().flat_map(|a| words.iter().map(|b| (*a, *b))).collect();
        let raw: Vec<u8> = pairs.iter().flat_map(|(word, _)| word.to_le_bytes()).collect();
        let base: Vec<u8> = pairs.iter().flat_map(|(_, base)| base.to_le_bytes()).collect();
        for element in [Element::F32, Element::Word32, Element::F64, Element::Word64, Element::Word8] {
            for transform in Transform::ALL {
                if transform.fits(element) {
                    assert_comes_back(element, transform, &raw, &base);
                }
            }
        }
    }

    #[test]
    fn neighbouring_floats_differ_by_little_even_across_zero() {
        for (word, base, code) in
            [(1.0_f32, 1.0_f32, 0), (f32::from_bits(1.0_f32.to_bits() + 1), 1.0, 2), (-0.0, 0.0, 1)]
        {
            let mut planes = vec![vec![0; 1]; 4];
            split(Element::F32, Transform::Difference, (&word.to_le_bytes(), &base.to_le_bytes()), &mut planes);
            assert_eq!(planes.concat(), [code, 0, 0, 0], "{word} from {base}");
        }
    }

    #[test]
    fn the_exponent_fills_the_highest_plane() {
        let mut planes = vec![vec![0; 1]; 4];
        split(Element::F32, Transform::Plain, (&(-1.5_f32).to_le_bytes(), &[]), &mut planes);
        assert_eq!(planes.concat(), [1, 0, 0x80, 127]);
        let mut exponents_of = Vec::new();
        exponents(Element::F32, &(-1.5_f32).to_le_bytes(), &mut exponents_of);
        assert_eq!(exponents_of, [127]);
    }
}
