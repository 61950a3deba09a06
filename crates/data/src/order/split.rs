//! Which samples are held out for validation: by a rule on their numbers, so that data which grows keeps its split.

use std::num::NonZeroU32;

/// The rule: of `one_in` groups of `group` neighbouring samples, the last is held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOut {
    /// One group in so many is held out; at least 2.
    pub one_in: NonZeroU32,
    /// Neighbouring samples that are held out together, so that only the documents at a group's ends are in both parts.
    pub group: NonZeroU32,
}

/// A part of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is trained on.
    Training,
    /// What is held out.
    HeldOut,
}

/// Numbers the samples of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All samples.
    Whole,
    /// One part, by a rule.
    Of(Part, HeldOut),
}

impl Split {
    /// How many of `samples` samples the part has.
    #[must_use]
    pub fn count(self, samples: u64) -> u64 {
        let Split::Of(part, rule) = self else { return samples };
        let (group, round) = rule.sizes();
        let rest = (samples % round).saturating_sub(round - group);
        let held_out = samples / round * group + rest;
        match part {
            Part::Training => samples - held_out,
            Part::HeldOut => held_out,
        }
    }

    /// The number, among all samples, of the part's sample `index`.
    #[must_use]
    pub fn sample(self, index: u64) -> u64 {
        let Split::Of(part, rule) = self else { return index };
        let (group, round) = rule.sizes();
        match part {
            Part::Training => index / (round - group) * round + index % (round - group),
            Part::HeldOut => index / group * round + (round - group) + index % group,
        }
    }
}

impl HeldOut {
    /// Samples of a group, and of all groups of which one is held out.
    fn sizes(self) -> (u64, u64) {
        let group = u64::from(self.group.get());
        // One in one would leave nothing to train on.
        (group, group * u64::from(self.one_in.get().max(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_disjoint_and_are_all_samples_and_growth_moves_none() {
        for (one_in, group) in [(2, 1), (3, 4), (10, 64), (100, 1)] {
            let nonzero = |number| NonZeroU32::new(number).unwrap();
            let rule = HeldOut { one_in: nonzero(one_in), group: nonzero(group) };
            let part = |part, samples| {
                let split = Split::Of(part, rule);
                (0..split.count(samples)).map(move |index| split.sample(index)).collect::<Vec<_>>()
            };
            let mut before = (Vec::new(), Vec::new());
            for samples in 0..1_500 {
                let (training, held_out) = (part(Part::Training, samples), part(Part::HeldOut, samples));
                let mut all = [training.clone(), held_out.clone()].concat();
                all.sort_unstable();
                assert_eq!(all, (0..samples).collect::<Vec<_>>(), "one in {one_in}, groups of {group}");
                assert!(training.starts_with(&before.0) && held_out.starts_with(&before.1));
                before = (training, held_out);
            }
            assert!(!before.1.is_empty());
        }
    }
}
