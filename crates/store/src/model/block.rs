//! Consecutive samples of one attempt, compressed without loss. They are stored by column, because each
//! column changes little from sample to sample. Numbers, times, steps and tokens are second differences in a
//! variable-length code. Losses are the bits that differ from the loss before (XOR), as byte planes. All of
//! that is compressed by DEFLATE.
//!
//! Layout: a version byte; then, compressed: the count, the four integer columns, a bit per sample that says
//! whether it has a loss, the losses.

use crate::deflate::{deflate, inflate};

const VERSION: u8 = 1;
/// Samples in a block: enough to compress well, and few enough that several blocks share a database page.
pub(super) const BLOCK_POINTS: usize = 128;
/// The most samples in a block of another release.
const POINTS_MAX: usize = 4_096;
/// The most bytes of an encoded integer, at seven bits a byte.
const NUMBER_BYTES_MAX: usize = 10;
/// Integers of a sample, besides its loss.
const COLUMNS: usize = 4;
/// The largest decompressed block.
const RAW_BYTES_MAX: usize = NUMBER_BYTES_MAX + POINTS_MAX * (COLUMNS * NUMBER_BYTES_MAX + 1 + size_of::<f64>());

/// A sample as stored in the database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StoredPoint {
    pub(super) number: i64,
    pub(super) at: i64,
    pub(super) step: i64,
    pub(super) tokens: i64,
    pub(super) loss: Option<f64>,
}

/// Encodes at most [`BLOCK_POINTS`] samples with ascending numbers.
pub(super) fn encode(points: &[StoredPoint]) -> Vec<u8> {
    let mut raw = Vec::new();
    put(&mut raw, u64::try_from(points.len()).expect("u64 holds a usize on Linux"));
    let columns: [fn(&StoredPoint) -> i64; COLUMNS] = [|p| p.number, |p| p.at, |p| p.step, |p| p.tokens];
    for column in columns {
        let (mut last, mut change) = (0_i64, 0_i64);
        for value in points.iter().map(column) {
            let next = value.wrapping_sub(last);
            put(&mut raw, zigzag(next.wrapping_sub(change)));
            (last, change) = (value, next);
        }
    }
    let mut has_loss = vec![0_u8; points.len().div_ceil(8)];
    for (index, _) in points.iter().enumerate().filter(|(_, point)| point.loss.is_some()) {
        has_loss[index / 8] |= 1 << (index % 8);
    }
    raw.extend(has_loss);
    let mut last = 0;
    let losses = points.iter().filter_map(|point| point.loss);
    let differences: Vec<[u8; 8]> = losses
        .map(|loss| {
            let bits = loss.to_bits();
            (bits ^ std::mem::replace(&mut last, bits)).to_be_bytes()
        })
        .collect();
    for place in 0..size_of::<f64>() {
        raw.extend(differences.iter().map(|bytes| bytes[place]));
    }
    deflate(vec![VERSION], &raw)
}

/// Returns the samples of a block in ascending order, or `None` if the block is damaged.
pub(super) fn decode(body: &[u8]) -> Option<Vec<StoredPoint>> {
    let packed = body.strip_prefix(&[VERSION])?;
    let raw = inflate(packed, u64::try_from(RAW_BYTES_MAX).ok()?)?;
    let mut rest = raw.as_slice();
    let count = usize::try_from(take(&mut rest)?).ok().filter(|count| *count <= POINTS_MAX)?;
    let mut column = || {
        let (mut last, mut change) = (0_i64, 0_i64);
        let next = |_| {
            change = change.wrapping_add(unzigzag(take(&mut rest)?));
            last = last.wrapping_add(change);
            Some(last)
        };
        (0..count).map(next).collect::<Option<Vec<i64>>>()
    };
    let [numbers, times, steps, tokens] = [column()?, column()?, column()?, column()?];
    let (has_loss, bytes) = rest.split_at_checked(count.div_ceil(8))?;
    let has_loss = |index: usize| has_loss[index / 8] & (1 << (index % 8)) != 0;
    let losses = (0..count).filter(|index| has_loss(*index)).count();
    if bytes.len() != losses * size_of::<f64>() || !numbers.is_sorted_by(|one, next| one < next) {
        return None;
    }
    let mut bits = 0;
    let mut loss = 0..losses;
    let point = |index: usize| {
        let loss = has_loss(index).then(|| loss.next()).flatten().map(|at| {
            let bytes: [u8; 8] = std::array::from_fn(|place| bytes[place * losses + at]);
            bits ^= u64::from_be_bytes(bytes);
            f64::from_bits(bits)
        });
        let (number, at, step, tokens) = (numbers[index], times[index], steps[index], tokens[index]);
        StoredPoint { number, at, step, tokens, loss }
    };
    Some((0..count).map(point).collect())
}

/// Maps small integers of either sign to small unsigned ones.
fn zigzag(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// Appends seven bits a byte, the lowest first; all bytes but the last have the eighth bit set.
fn put(raw: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        raw.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    raw.push(value.to_le_bytes()[0]);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for place in 0..NUMBER_BYTES_MAX {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    fn points(count: i64) -> Vec<StoredPoint> {
        let point = |number: i64| {
            let jitter = number.wrapping_mul(0x9e37_79b9).rem_euclid(1_000_000);
            let noise = f32::from(u16::try_from(jitter % 60_000).expect("it fits")) / 1e6;
            let loss = f64::from(2.5 - noise);
            let at = 1_800_000_000_000_000_000 + number * 100_000_000 + jitter;
            StoredPoint { number, at, step: number * 10, tokens: number * 655_360, loss: Some(loss) }
        };
        (0..count).map(point).collect()
    }

    #[test]
    fn a_curve_takes_less_than_eight_bytes_a_sample() {
        let points = points(128);
        let body = encode(&points);
        assert!(body.len() < 8 * points.len(), "{} bytes for {} samples", body.len(), points.len());
        assert_eq!(decode(&body), Some(points));
    }

    fn bits(points: &[StoredPoint]) -> Vec<([i64; 4], Option<u64>)> {
        let bits = |p: &StoredPoint| ([p.number, p.at, p.step, p.tokens], p.loss.map(f64::to_bits));
        points.iter().map(bits).collect()
    }

    #[test]
    fn any_samples_come_back_bit_by_bit_and_no_bytes_panic() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for count in 0..400 {
            let mut any = || {
                let value = random.next_u64().cast_signed();
                value >> (random.next_u32() % 64)
            };
            let mut points: Vec<StoredPoint> = (0..count % 130)
                .map(|_| {
                    let loss = Some(f64::from_bits(any().cast_unsigned())).filter(|_| any() % 3 != 0);
                    StoredPoint { number: any(), at: any(), step: any(), tokens: any(), loss }
                })
                .collect();
            points.sort_by_key(|point| point.number);
            points.dedup_by_key(|point| point.number);
            let body = encode(&points);
            assert_eq!(bits(&decode(&body).expect("it is a block")), bits(&points), "{count}");
            let mut raw = inflate(&body[1..], u64::MAX).expect("it is packed");
            let at = usize::try_from(random.next_u32()).expect("it fits") % raw.len();
            raw[at] ^= 1 << (random.next_u32() % 8);
            assert!(decode(&deflate(vec![VERSION], &raw)).is_none_or(|points| points.len() <= POINTS_MAX));
        }
    }

    #[test]
    fn a_block_that_is_cut_longer_than_it_says_or_of_a_newer_release_is_none() {
        let body = encode(&points(20));
        assert!((0..body.len()).all(|length| decode(&body[..length]).is_none()));
        assert_eq!(decode(&[&[VERSION + 1], &body[1..]].concat()), None);
        let raw = inflate(&body[1..], 10_000).expect("it is packed");
        assert_eq!(decode(&deflate(vec![VERSION], &[&raw[..], b"x"].concat())), None);
        let mut twice = points(2);
        twice[1].number = twice[0].number;
        assert_eq!(decode(&encode(&twice)), None, "a number stands for one sample");
    }
}
