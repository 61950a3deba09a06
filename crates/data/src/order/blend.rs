//! The order in which Megatron-Core's `BlendedDataset` (0.16,
//! <https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/blended_dataset.py>) takes samples of several sources: each
//! one from the source that is furthest behind its share, the first of those that are equally far. What comes depends on all
//! that came, so it is a table.

use super::Place;

/// Up to so many numbers are added in eight sums, as numpy does
/// (<https://github.com/numpy/numpy/blob/main/numpy/_core/src/umath/loops_utils.h.src>); more are halved first.
const SUMMED_TOGETHER: usize = 128;
const SUMS: usize = 8;

/// Which source each sample is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blend {
    sources: Vec<u16>,
    /// How many samples of its source came before.
    indices: Vec<u32>,
    drawn: Vec<u64>,
}

impl Blend {
    /// The order of so many samples, by weights that add up to one.
    #[must_use]
    pub fn of_weights(weights: &[f64], samples: u64) -> Blend {
        let mut blend = Blend::with_room(weights.len(), samples);
        while blend.samples() < samples {
            blend.draw(weights, |_| true);
        }
        blend
    }

    /// The order of all samples of sources that have so many each.
    #[must_use]
    pub fn of_all(counts: &[u64]) -> Blend {
        let sum: u64 = counts.iter().sum();
        let weights: Vec<f64> = counts.iter().map(|count| float(*count) / float(sum)).collect();
        let mut blend = Blend::with_room(counts.len(), sum);
        while blend.samples() < sum {
            let left: Vec<bool> = blend.drawn.iter().zip(counts).map(|(drawn, count)| drawn < count).collect();
            blend.draw(&weights, |source| left[source]);
        }
        blend
    }

    fn with_room(sources: usize, samples: u64) -> Blend {
        let room = usize::try_from(samples).expect("64 bits");
        Blend { sources: Vec::with_capacity(room), indices: Vec::with_capacity(room), drawn: vec![0; sources] }
    }

    /// Takes the next sample from a source that has some left.
    fn draw(&mut self, weights: &[f64], has_more: impl Fn(usize) -> bool) {
        let before = float(self.samples()).max(1.0);
        let mut furthest: Option<(usize, f64)> = None;
        for (source, weight) in weights.iter().enumerate().filter(|(source, _)| has_more(*source)) {
            let behind = weight * before - float(self.drawn[source]);
            if furthest.is_none_or(|(_, most)| behind > most) {
                furthest = Some((source, behind));
            }
        }
        let (source, _) = furthest.expect("a source has more");
        self.sources.push(u16::try_from(source).expect("there are fewer than the limit"));
        self.indices.push(u32::try_from(self.drawn[source]).expect("there are fewer than the limit"));
        self.drawn[source] += 1;
    }

    /// Samples of the order.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.sources.len() as u64
    }

    /// Samples of a source in the order.
    #[must_use]
    pub fn drawn(&self, source: usize) -> u64 {
        self.drawn[source]
    }

    /// Where the sample at a position comes from.
    ///
    /// # Panics
    /// Behind the last sample.
    #[must_use]
    pub fn place(&self, position: u64) -> Place {
        let at = usize::try_from(position).expect("64 bits");
        Place { source: self.sources[at].into(), index: self.indices[at].into() }
    }
}

/// Returns the weights divided by their sum, as numpy adds them.
#[must_use]
pub fn normalized(weights: &[f64]) -> Vec<f64> {
    let sum = sum(weights);
    weights.iter().map(|weight| weight / sum).collect()
}

/// Returns how many of a blend's samples are of a source with this normalised weight, and for how many it is read.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as Python's ceil")]
pub fn share_of(samples: u64, weight: f64, surplus: f64) -> (u64, u64) {
    let target = (float(samples) * weight).ceil();
    (target as u64, (target * (1.0 + surplus)).ceil() as u64)
}

fn sum(numbers: &[f64]) -> f64 {
    let count = numbers.len();
    if count < SUMS {
        return numbers.iter().sum();
    }
    if count > SUMMED_TOGETHER {
        let half = count / 2 - count / 2 % SUMS;
        return sum(&numbers[..half]) + sum(&numbers[half..]);
    }
    let (eights, rest) = numbers.as_chunks::<SUMS>();
    let mut sums = eights[0];
    for eight in &eights[1..] {
        sums.iter_mut().zip(eight).for_each(|(sum, number)| *sum += number);
    }
    let pairs: Vec<f64> = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    let together = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
    rest.iter().fold(together, |sum, number| sum + number)
}

#[expect(clippy::cast_precision_loss, reason = "as Megatron-Core counts")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each source's samples come in their order, and none is further from its share than the number of sources.
    #[test]
    fn samples_come_in_proportion_and_each_once() {
        for weights in [vec![1.0], vec![0.3, 0.7], vec![0.5, 0.25, 0.25], vec![0.01; 100]] {
            let blend = Blend::of_weights(&weights, 1_000);
            let mut drawn = vec![0; weights.len()];
            for position in 0..1_000 {
                let place = blend.place(position);
                assert_eq!(place.index, drawn[place.source]);
                drawn[place.source] += 1;
                let behind = weights[place.source] * position as f64 - drawn[place.source] as f64;
                assert!(behind.abs() <= weights.len() as f64, "{weights:?} at {position}");
            }
            assert!((0..weights.len()).all(|source| blend.drawn(source) == drawn[source]));
        }
    }

    #[test]
    fn all_samples_of_all_sources_come_once() {
        for counts in [vec![1], vec![5, 1, 100], vec![0, 3], vec![7; 9]] {
            let blend = Blend::of_all(&counts);
            assert_eq!(blend.samples(), counts.iter().sum::<u64>());
            assert!((0..counts.len()).all(|source| blend.drawn(source) == counts[source]), "{counts:?}");
        }
    }

    /// As numpy 2.4 adds 1, 1/2, 1/3 and so on; one after the other, the last four would have other ends.
    #[test]
    fn numbers_are_added_as_numpy_does() {
        let added = |count: u32| sum(&(1..=count).map(|number| 1.0 / f64::from(number)).collect::<Vec<_>>());
        for (count, expected) in SUMS_OF_NUMPY {
            assert_eq!(added(count).to_bits(), expected.to_bits(), "{count}: {}", added(count));
        }
    }

    const SUMS_OF_NUMPY: [(u32, f64); 5] = [
        (7, 2.592_857_142_857_142_5),
        (30, 3.994_987_130_920_391),
        (128, 5.433_147_092_589_173),
        (300, 6.282_663_880_299_504),
        (1_000, 7.485_470_860_550_345),
    ];
}
