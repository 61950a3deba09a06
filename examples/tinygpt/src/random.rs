//! Random numbers as a function of what they are for: no generator has a state that would need saving.

/// One well-mixed number for a sequence of words (SplitMix64's finalizer, chained).
pub(crate) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, word| {
        let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A number in (0, 1) for a sequence of words.
fn unit(words: &[u64]) -> f64 {
    ((mix(words) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Normally distributed numbers with this standard deviation, for a purpose.
pub(crate) fn normals(seed: u64, purpose: u64, count: usize, deviation: f64) -> Vec<f32> {
    let normal = |index: u64| {
        let radius = (-2.0 * unit(&[seed, purpose, index, 0]).ln()).sqrt();
        narrow(radius * (std::f64::consts::TAU * unit(&[seed, purpose, index, 1])).cos() * deviation)
    };
    (0..count as u64).map(normal).collect()
}

/// The nearest `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest is what is wanted")]
pub(crate) fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_the_mean_and_deviation_asked_for_and_depend_on_seed_and_purpose() {
        let sample = normals(1, 2, 20_000, 0.5);
        let mean = sample.iter().map(|x| f64::from(*x)).sum::<f64>() / 20_000.0;
        let variance = sample.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.02 && (variance - 0.25).abs() < 0.02, "mean {mean}, variance {variance}");
        assert_eq!(sample, normals(1, 2, 20_000, 0.5));
        assert_ne!(sample[..10], normals(2, 2, 10, 0.5)[..]);
        assert_ne!(sample[..10], normals(1, 3, 10, 0.5)[..]);
    }
}
