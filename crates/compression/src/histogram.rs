//! Byte counts, and estimates of an entropy coder's output size from them (Shannon 1948).

/// Of each stride of this many bytes, a sample reads the first [`SAMPLE_RUN`].
const SAMPLE_STRIDE: usize = 8_192;
/// Bytes read in each stride.
const SAMPLE_RUN: usize = 512;

/// Counts of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    pub(crate) counts: [u32; 256],
}

impl Histogram {
    pub(crate) const EMPTY: Histogram = Histogram { counts: [0; 256] };

    /// Counts all bytes. Four tables take turns, so that equal bytes in a row don't wait for each other.
    pub(crate) fn of(bytes: &[u8]) -> Histogram {
        let mut tables = [[0_u32; 256]; 4];
        let (fours, rest) = bytes.as_chunks::<4>();
        for four in fours {
            for (table, byte) in tables.iter_mut().zip(four) {
                table[usize::from(*byte)] += 1;
            }
        }
        rest.iter().for_each(|byte| tables[0][usize::from(*byte)] += 1);
        let mut counts = [0; 256];
        for (symbol, count) in counts.iter_mut().enumerate() {
            *count = tables.iter().map(|table| table[symbol]).sum();
        }
        Histogram { counts }
    }

    /// Counts one sixteenth of the bytes, in evenly spread runs.
    pub(crate) fn sampled(bytes: &[u8]) -> Histogram {
        let mut sample = Histogram::EMPTY;
        for stride in bytes.chunks(SAMPLE_STRIDE) {
            stride.iter().take(SAMPLE_RUN).for_each(|byte| sample.counts[usize::from(*byte)] += 1);
        }
        sample
    }

    pub(crate) fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
    }

    pub(crate) fn total(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Returns the number of different bytes.
    pub(crate) fn symbols(&self) -> usize {
        self.counts.iter().filter(|count| **count > 0).count()
    }

    /// Returns the bits that an ideal coder of single bytes needs for all of them.
    pub(crate) fn bits(&self) -> f64 {
        let information = |count: u32| f64::from(count) * f64::from(count.max(1)).log2();
        information(self.total()) - self.counts.iter().map(|count| information(*count)).sum::<f64>()
    }

    /// Returns the bits per byte, corrected for a small sample (Miller 1955): a sample of noise looks less
    /// than random.
    pub(crate) fn bits_per_byte(&self) -> f64 {
        let total = f64::from(self.total().max(1));
        let symbols = f64::from(u32::try_from(self.symbols()).expect("at most 256"));
        let bias = (symbols - 1.0).max(0.0) * std::f64::consts::LOG2_E / (2.0 * total);
        (self.bits() / total + bias).min(8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_for_every_length() {
        for length in 0..20_u8 {
            let bytes: Vec<u8> = (0..length).map(|i| i % 3).collect();
            let histogram = Histogram::of(&bytes);
            assert_eq!(histogram.total(), u32::from(length));
            assert_eq!(histogram.counts[1], u32::from((length + 1) / 3));
        }
    }

    #[test]
    fn entropy_is_that_of_known_distributions() {
        let check = |bytes: &[u8], bits: f64| assert!((Histogram::of(bytes).bits() - bits).abs() < 1e-9, "{bits}");
        check(&[], 0.0);
        check(&[7; 100], 0.0);
        check(&[1, 2, 1, 2], 4.0);
        check(&[0, 1, 2, 3, 4, 5, 6, 7], 24.0);
        let uniform: Vec<u8> = (0..=255).collect();
        check(&uniform, 2048.0);
    }

    #[test]
    fn a_sample_of_noise_is_not_taken_for_something_else() {
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[6]
        })
        .take(1 << 18)
        .collect();
        let bits = Histogram::sampled(&noise).bits_per_byte();
        assert!((7.99..=8.0).contains(&bits), "{bits}");
    }
}
