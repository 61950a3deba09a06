//! The order of Megatron-Core's `GPTDataset` (0.16, <https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py>),
//! for those who go on with one of its runs.
//!
//! It shuffles the documents of all passes together, reads them as one stream, cuts that into samples, and shuffles the samples. A last
//! pass of which less than four fifths are read is shuffled apart. Each source of a blend is read so ([`Blend`](super::Blend)). All draws come from one generator, numpy's `RandomState`: the
//! Mersenne Twister, of whose numbers `shuffle` masks the lowest bits and leaves out those that are too large
//! (`random_interval` in
//! <https://github.com/numpy/numpy/blob/main/numpy/random/src/distributions/distributions.c>).

use std::ops::Range;

use rand_mt::Mt;

/// The most samples, and documents of all passes: beyond, Megatron-Core draws from other numbers.
pub const MEGATRON_MAX: u64 = u32::MAX as u64 - 2;
/// Less of the last pass than this share of it is shuffled apart.
const SHARE_OF_LAST: f64 = 0.80;

/// The part of each source that is read, and the number of samples that the run takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Megatron {
    /// The share of its documents at which the part begins.
    pub begin: f64,
    /// The share of its documents at which the part ends.
    pub end: f64,
    /// Samples of the whole run: steps times the global batch. One pass if there are none.
    pub samples: Option<u64>,
    /// By how much more each source of a blend is read than its share of these samples, as its share of that. Megatron-Core's
    /// `mid_level_dataset_surplus`, which is 0.005.
    pub surplus: f64,
}

/// The order of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MegatronOrder {
    /// The documents of all passes, in the order in which they make the stream.
    pub documents: Vec<u32>,
    /// The samples of the stream, in the order in which they are read.
    pub samples: Vec<u32>,
}

impl Megatron {
    /// Returns the documents that are read of so many, rounded as Python does.
    #[must_use]
    pub fn documents(self, of: u64) -> Range<u32> {
        let at = |share: f64| at_share(share, of);
        at(self.begin)..at(self.end)
    }
}

impl MegatronOrder {
    /// Returns the order of these documents, which have so many tokens together, for so many samples or one pass; none without a whole
    /// sample, or with too many.
    #[must_use]
    pub fn new(
        of: &Range<u32>,
        tokens: u64,
        samples: Option<u64>,
        sequence_length: u32,
        seed: u32,
    ) -> Option<MegatronOrder> {
        let length = u64::from(sequence_length);
        let samples_of = |passes: u64| (passes * tokens).saturating_sub(1) / length;
        // Enough tokens for the samples and the label behind the last.
        let wanted = samples.map_or(Some(1), |samples| samples.checked_mul(length)?.checked_add(1))?;
        let passes = wanted.div_ceil(tokens.max(1)).max(1);
        let documents = passes.checked_mul(of.len() as u64)?;
        tokens.checked_mul(passes)?;
        let all = samples_of(passes);
        if all == 0 || all > MEGATRON_MAX || documents > MEGATRON_MAX {
            return None;
        }
        let before_last = samples_of(passes - 1);
        let is_apart = passes > 1 && {
            let of_last = samples.unwrap_or(0).saturating_sub(before_last);
            of_last < share(samples_of(1))
        };
        let mut random = Mt::new(seed);
        let together = if is_apart { passes - 1 } else { passes };
        let repeated = |passes: u64| -> Vec<u32> { (0..passes).flat_map(|_| of.clone()).collect() };
        let mut documents = repeated(together);
        shuffle(&mut documents, &mut random);
        if is_apart {
            let mut last = repeated(1);
            shuffle(&mut last, &mut random);
            documents.append(&mut last);
        }
        let small = |count: u64| u32::try_from(count).expect("it was compared with the limit");
        let cut = if is_apart { before_last } else { all };
        let mut samples: Vec<u32> = (0..small(cut)).collect();
        shuffle(&mut samples, &mut random);
        if cut < all {
            let mut rest: Vec<u32> = (small(cut)..small(all)).collect();
            shuffle(&mut rest, &mut random);
            samples.append(&mut rest);
        }
        Some(MegatronOrder { documents, samples })
    }
}

/// Returns Megatron-Core's share of a pass, which it rounds down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "as Python's int"
)]
fn share(samples: u64) -> u64 {
    (SHARE_OF_LAST * samples as f64) as u64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "as Python's round"
)]
fn at_share(share: f64, documents: u64) -> u32 {
    (share * documents as f64).round_ties_even() as u32
}

/// Shuffles as numpy's `RandomState.shuffle` does.
fn shuffle(numbers: &mut [u32], random: &mut Mt) {
    for at in (1..numbers.len()).rev() {
        let most = u32::try_from(at).expect("there are fewer than the limit");
        let mask = u32::MAX >> most.leading_zeros();
        let drawn = loop {
            let drawn = random.next_u32() & mask;
            if drawn <= most {
                break drawn;
            }
        };
        numbers.swap(at, drawn as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(end: u32, tokens: u64, sequence_length: u32, samples: Option<u64>) -> Option<MegatronOrder> {
        MegatronOrder::new(&(0..end), tokens, samples, sequence_length, 1234)
    }

    /// As numpy 2.4 shuffles ranges of 10 and of 17 numbers, one after the other, with RandomState(1234).
    #[test]
    fn numbers_are_shuffled_as_numpy_does() {
        let mut random = Mt::new(1234);
        let mut shuffled = |count| {
            let mut numbers: Vec<u32> = (0..count).collect();
            shuffle(&mut numbers, &mut random);
            numbers
        };
        assert_eq!(shuffled(10), [7, 2, 9, 1, 0, 8, 4, 5, 6, 3]);
        assert_eq!(shuffled(17), [7, 13, 2, 3, 1, 16, 5, 4, 0, 8, 6, 15, 12, 11, 14, 10, 9]);
    }

    #[test]
    fn a_last_pass_of_which_little_is_read_is_shuffled_apart() {
        // A pass has 100 tokens and 9 samples of 11; four fifths of these are 7.
        let of = |samples| order(4, 100, 11, samples).unwrap();
        let one = of(None);
        assert_eq!((one.documents.len(), one.samples.len()), (4, 9));
        assert_eq!(of(Some(9)), one, "9 samples need one pass");
        let is_apart = |order: &MegatronOrder| {
            let mut first = order.documents[..4].to_vec();
            first.sort_unstable();
            first == [0, 1, 2, 3] && order.samples[..9].iter().all(|sample| *sample < 9)
        };
        let (little, much) = (of(Some(12)), of(Some(16)));
        assert_eq!((little.documents.len(), little.samples.len()), (8, 18));
        assert!(is_apart(&little) && !is_apart(&much), "{little:?} {much:?}");
        let mut all = much.samples.clone();
        all.sort_unstable();
        assert_eq!(all, (0..18).collect::<Vec<_>>());
    }

    #[test]
    fn what_gives_no_sample_or_too_many_has_no_order() {
        assert_eq!(order(1, 11, 11, None), None, "there is no label for the last token");
        assert!(order(1, 12, 11, None).is_some());
        assert_eq!(order(1, 12, 11, Some(u64::MAX)), None);
        assert_eq!(order(1, 12, 1, Some(1 << 33)), None);
        assert_eq!(order(0, 0, 11, Some(5)), None);
    }
}
