//! A keyed bijection of `0..count` that needs no memory: a Feistel network over the next power of two, walked until the
//! value is in range (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).

use super::mix::{finalize, mix};

/// Rounds of the network. Six already pass the tests below; two more cost 3 ns.
const ROUNDS: usize = 8;

/// A permutation of `0..count`, chosen by a key.
#[derive(Clone, Debug)]
pub(crate) struct Bijection {
    count: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Bijection {
    /// The permutation of `0..count` that `key` chooses.
    pub(crate) fn new(count: u64, key: u64) -> Bijection {
        assert!(count > 0, "a permutation of nothing has no values");
        let bits = (u64::BITS - (count - 1).leading_zeros()).max(2);
        let low_bits = bits / 2;
        let mut keys = [0; ROUNDS];
        for (number, slot) in (0..).zip(&mut keys) {
            *slot = mix(&[key, number]);
        }
        Bijection { count, low_bits, low_mask: ones(low_bits), high_mask: ones(bits - low_bits), keys }
    }

    /// Where `index` goes. Ends: the network is a permutation of a finite set, so the walk comes back into `0..count`,
    /// where it began; the set is less than twice as large (four values, for tiny counts).
    pub(crate) fn apply(&self, index: u64) -> u64 {
        assert!(index < self.count, "{index} is not below {}", self.count);
        let mut value = self.network(index);
        while value >= self.count {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let (mut low, mut high) = (value & self.low_mask, value >> self.low_bits);
        for pair in self.keys.as_chunks::<2>().0 {
            low ^= finalize(high ^ pair[0]) & self.low_mask;
            high ^= finalize(low ^ pair[1]) & self.high_mask;
        }
        (high << self.low_bits) | low
    }
}

/// A mask of this many bits.
fn ones(bits: u32) -> u64 {
    u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_permuted_by_every_key() {
        for count in (1..=300).chain([511, 512, 513, 4_095, 4_096, 4_097, 65_537]) {
            for key in 0..(if count > 300 { 3 } else { 24 }) {
                let bijection = Bijection::new(count, key);
                let mut seen = vec![false; usize::try_from(count).unwrap()];
                for index in 0..count {
                    let place = usize::try_from(bijection.apply(index)).unwrap();
                    assert!(!std::mem::replace(&mut seen[place], true), "{count} {key}: {place} twice");
                }
            }
        }
    }

    #[test]
    fn the_largest_counts_stay_in_range() {
        for count in [u64::MAX, u64::MAX - 1, (1 << 63) + 1, 1 << 63, (1 << 62) + 5] {
            let bijection = Bijection::new(count, 7);
            for index in [0, 1, count / 2, count - 1] {
                assert!(bijection.apply(index) < count);
            }
        }
    }

    /// Chi-squared over where each index goes, 20 values and 2,000 keys: 19 degrees of freedom, whose 99.9999 % quantile
    /// is 61; and the same over pairs of neighbours (differences 1 to 19: 18 degrees, 59).
    #[test]
    fn keys_spread_an_index_and_its_neighbour_evenly() {
        const COUNT: usize = 20;
        let chi = |counts: &[u32]| {
            let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
            counts.iter().map(|count| (f64::from(*count) - mean).powi(2) / mean).sum::<f64>()
        };
        for index in 0..COUNT as u64 {
            let (mut places, mut apart) = ([0; COUNT], [0; COUNT]);
            for key in 0..2_000 {
                let bijection = Bijection::new(COUNT as u64, key);
                let place = usize::try_from(bijection.apply(index)).unwrap();
                let next = usize::try_from(bijection.apply((index + 1) % COUNT as u64)).unwrap();
                places[place] += 1;
                apart[(next + COUNT - place) % COUNT] += 1;
            }
            assert!(chi(&places) < 61.0, "index {index} goes to {places:?}");
            assert!(apart[0] == 0 && chi(&apart[1..]) < 59.0, "index {index}: its neighbour is {apart:?} away");
        }
    }
}
