//! One column of numbers as bytes: a constant, pco's coding of many, or the numbers themselves where they are few.
//!
//! pco (<https://github.com/pcodec/pcodec>) finds out by itself whether numbers are best coded as differences, as multiples
//! or as they are, and is exact for every f64, NaN's payload included. `cargo xtask bench telemetry` compares it with
//! Gorilla's coding and with deflate.

use pco::standalone::{simple_compress, simple_decompress};
use pco::{ChunkConfig, data_types::Number};

/// The forms; the first byte of a column.
const CONSTANT: u8 = 0;
const CODED: u8 = 1;
const PLAIN: u8 = 2;
/// Columns that are shorter than this aren't worth pco's header.
const CODED_FROM: usize = 8;
/// pco's effort, of 12; its default is 8.
const LEVEL: usize = 6;

/// A number of eight bytes.
pub(super) trait Word: Number + Copy {
    fn to_word(self) -> [u8; 8];
    fn from_word(word: [u8; 8]) -> Self;
}

impl Word for i64 {
    fn to_word(self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn from_word(word: [u8; 8]) -> Self {
        i64::from_le_bytes(word)
    }
}

impl Word for f64 {
    fn to_word(self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn from_word(word: [u8; 8]) -> Self {
        f64::from_le_bytes(word)
    }
}

pub(super) fn encode<T: Word>(numbers: &[T]) -> Vec<u8> {
    let first = numbers.first().map(|number| number.to_word());
    if let Some(first) = first.filter(|first| numbers.iter().all(|number| number.to_word() == *first)) {
        return [&[CONSTANT][..], &first].concat();
    }
    let plain_bytes = 8 * numbers.len();
    if numbers.len() >= CODED_FROM {
        let config = ChunkConfig::default().with_compression_level(LEVEL);
        if let Ok(coded) = simple_compress(numbers, &config)
            && coded.len() < plain_bytes
        {
            return [&[CODED][..], &coded].concat();
        }
    }
    let mut bytes = vec![PLAIN];
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_word()));
    bytes
}

/// Returns the numbers of a column of `count`, or none if it isn't one.
pub(super) fn decode<T: Word>(bytes: &[u8], count: usize) -> Option<Vec<T>> {
    let (form, body) = bytes.split_first()?;
    let numbers: Vec<T> = match *form {
        CONSTANT => vec![T::from_word(body.try_into().ok()?); count],
        CODED => simple_decompress(body).ok()?,
        PLAIN => body.as_chunks::<8>().0.iter().map(|word| T::from_word(*word)).collect(),
        _ => return None,
    };
    (numbers.len() == count).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_bit_by_bit() {
        let strange = [f64::NAN, -f64::NAN, f64::from_bits(0x7ff8_dead_beef_0001), f64::INFINITY, f64::NEG_INFINITY];
        let strange = strange.into_iter().chain([0.0, -0.0, f64::MIN_POSITIVE, f64::MAX, 1e-310, 2.5]);
        let strange: Vec<f64> = strange.cycle().take(500).collect();
        for count in [0, 1, 2, 7, 8, 9, 100, 500] {
            let numbers = &strange[..count];
            let back: Vec<f64> = decode(&encode(numbers), count).expect("a column");
            let bits = |numbers: &[f64]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&back), bits(numbers), "{count}");
        }
        let integers = [i64::MIN, -1, 0, 1, i64::MAX, 1_800_000_000_000];
        assert_eq!(decode(&encode(&integers), 6), Some(integers.to_vec()));
    }

    #[test]
    fn a_constant_takes_nine_bytes_and_other_bytes_are_none() {
        assert_eq!(encode(&[f64::NAN; 4_096]).len(), 9);
        assert_eq!(decode::<i64>(&encode(&[1_i64, 2]), 3), None, "another count");
        assert_eq!(decode::<i64>(&[], 0), None);
        assert_eq!(decode::<i64>(&[9, 1], 1), None);
    }
}
