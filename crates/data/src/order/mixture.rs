//! Which source the sample at a position comes from: by weights, spread evenly, as a function of the position. A later
//! stage with other weights changes nothing before it, and no source loses or repeats a sample at the change.
//!
//! Within a stage, the sources are divided one by one: of `n` samples left for the sources from `k` on, source `k` has had
//! `floor(n * weight / weights)`. So each source's count is known without counting, and is less than two samples from its
//! exact share.

/// The most sources of a mixture.
pub const SOURCES_MAX: usize = 1_024;
/// The most stages of a mixture.
const STAGES_MAX: usize = 10_000;
/// The largest sum of weights.
const WEIGHT_SUM_MAX: u64 = 1 << 40;

/// Weights that hold from a position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The first position that they hold for, in samples.
    pub from: u64,
    /// How often each source is drawn from, relative to the others.
    pub weights: Vec<u64>,
}

/// Where a sample comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The source's number.
    pub source: usize,
    /// How many samples were drawn from it before.
    pub index: u64,
}

/// Why stages make no mixture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixtureError {
    /// There is no stage, or too many.
    #[error("{0} stages of weights are not 1 to {STAGES_MAX}")]
    Stages(usize),
    /// The first stage doesn't begin at 0, or another one before its predecessor.
    #[error("stage {0} of the weights begins at {1}: the first begins at 0, and each later than the one before")]
    Order(usize, u64),
    /// There is no source, or too many.
    #[error("{0} sources are not 1 to {SOURCES_MAX}")]
    Sources(usize),
    /// A stage has another number of weights than there are sources.
    #[error("stage {stage} has {weights} weights for {sources} sources")]
    Weights {
        /// The stage's number.
        stage: usize,
        /// How many weights it has.
        weights: usize,
        /// How many sources there are.
        sources: usize,
    },
    /// All weights of a stage are 0, or they are too large.
    #[error("the weights of stage {0} add up to 0 or to more than {WEIGHT_SUM_MAX}")]
    Sum(usize),
}

/// The sources in turn.
#[derive(Clone, Debug)]
pub struct Mixture {
    stages: Vec<Begun>,
}

/// A stage, and what was drawn from each source before it.
#[derive(Clone, Debug)]
struct Begun {
    stage: Stage,
    sum: u64,
    before: Vec<u64>,
}

impl Mixture {
    /// A mixture of `sources` sources.
    ///
    /// # Errors
    /// When a stage doesn't fit the sources or its predecessor.
    pub fn new(sources: usize, stages: &[Stage]) -> Result<Mixture, MixtureError> {
        if !(1..=SOURCES_MAX).contains(&sources) {
            return Err(MixtureError::Sources(sources));
        }
        if !(1..=STAGES_MAX).contains(&stages.len()) {
            return Err(MixtureError::Stages(stages.len()));
        }
        let mut mixture = Mixture { stages: Vec::with_capacity(stages.len()) };
        for (number, stage) in stages.iter().enumerate() {
            let weights = stage.weights.len();
            if weights != sources {
                return Err(MixtureError::Weights { stage: number, weights, sources });
            }
            let least = mixture.stages.last().map_or(0, |before| before.stage.from.saturating_add(1));
            if stage.from < least || (number == 0 && stage.from != 0) {
                return Err(MixtureError::Order(number, stage.from));
            }
            let sum = stage.weights.iter().try_fold(0_u64, |sum, weight| sum.checked_add(*weight));
            let sum = sum.filter(|sum| (1..=WEIGHT_SUM_MAX).contains(sum)).ok_or(MixtureError::Sum(number))?;
            let before = if number == 0 { vec![0; sources] } else { mixture.drawn(stage.from) };
            mixture.stages.push(Begun { stage: stage.clone(), sum, before });
        }
        Ok(mixture)
    }

    /// One source alone.
    #[must_use]
    pub fn single() -> Mixture {
        let stage = Stage { from: 0, weights: vec![1] };
        Mixture { stages: vec![Begun { stage, sum: 1, before: vec![0] }] }
    }

    /// Where the sample at a position comes from.
    #[must_use]
    pub fn place(&self, position: u64) -> Place {
        let begun = self.begun(position);
        let (mut left, mut sum) = (position - begun.stage.from, begun.sum);
        let mut found = None;
        for (source, weight) in begun.stage.weights.iter().copied().enumerate().filter(|(_, weight)| *weight > 0) {
            let drawn = share(left, weight, sum);
            found = Some(Place { source, index: begun.before[source] + drawn });
            if share(left + 1, weight, sum) > drawn {
                break;
            }
            (left, sum) = (left - drawn, sum - weight);
        }
        found.expect("a stage has a weight above 0, and the last of them takes what is left")
    }

    /// How many samples were drawn from each source before a position.
    #[must_use]
    pub fn drawn(&self, position: u64) -> Vec<u64> {
        let begun = self.begun(position);
        let (mut left, mut sum) = (position - begun.stage.from, begun.sum);
        let mut drawn = begun.before.clone();
        for (count, weight) in drawn.iter_mut().zip(&begun.stage.weights).filter(|(_, weight)| **weight > 0) {
            let more = share(left, *weight, sum);
            *count += more;
            (left, sum) = (left - more, sum - weight);
        }
        drawn
    }

    /// The stages that begin before a position: what its past depends on.
    pub fn past(&self, position: u64) -> impl Iterator<Item = &Stage> {
        self.stages.iter().map(|begun| &begun.stage).take_while(move |stage| stage.from < position)
    }

    fn begun(&self, position: u64) -> &Begun {
        let after = self.stages.partition_point(|begun| begun.stage.from <= position);
        &self.stages[after - 1]
    }
}

/// `count * weight / sum`, rounded down.
fn share(count: u64, weight: u64, sum: u64) -> u64 {
    let share = u128::from(count) * u128::from(weight) / u128::from(sum);
    u64::try_from(share).expect("a weight is at most the sum")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixture(stages: &[(u64, &[u64])]) -> Mixture {
        let stages: Vec<Stage> =
            stages.iter().map(|(from, weights)| Stage { from: *from, weights: weights.to_vec() }).collect();
        Mixture::new(stages[0].weights.len(), &stages).unwrap()
    }

    /// Each source's samples come in order without a gap, and each count stays near its share.
    #[test]
    fn no_source_loses_or_repeats_a_sample_and_shares_are_kept() {
        for weights in [&[1][..], &[1, 1], &[7, 2, 1], &[1, 0, 3], &[1; 20], &[999_999, 1, 5, 0], &[3, 5, 7, 11, 13]] {
            let mixture = mixture(&[(0, weights)]);
            let sum: u64 = weights.iter().sum();
            let mut drawn = vec![0; weights.len()];
            for position in 0..5_000 {
                let place = mixture.place(position);
                assert_eq!(place.index, drawn[place.source], "{weights:?} at {position}");
                drawn[place.source] += 1;
                assert_eq!(mixture.drawn(position + 1), drawn);
                for (count, weight) in drawn.iter().zip(weights) {
                    let exact = (position + 1) as f64 * *weight as f64 / sum as f64;
                    assert!((*count as f64 - exact).abs() < 2.0, "{weights:?} at {position}: {drawn:?}");
                }
            }
        }
    }

    #[test]
    fn a_later_stage_changes_nothing_before_it_and_skips_nothing() {
        for from in [1, 2, 10, 333, 1_000] {
            let before = mixture(&[(0, &[3, 2, 1])]);
            let after = mixture(&[(0, &[3, 2, 1]), (from, &[1, 0, 9]), (from + 7, &[0, 1, 1])]);
            assert!((0..from).all(|position| before.place(position) == after.place(position)));
            let mut drawn = [0; 3];
            for position in 0..2_000 {
                let place = after.place(position);
                assert_eq!(place.index, drawn[place.source], "at {position}, changed at {from}");
                drawn[place.source] += 1;
            }
            assert_eq!(after.past(from).count(), 1);
            assert_eq!(after.past(from + 1).count(), 2);
        }
    }

    #[test]
    fn far_positions_are_reached_at_once() {
        let mixture = mixture(&[(0, &[1 << 39, 1]), (u64::MAX / 2, &[1, 1])]);
        let place = mixture.place(u64::MAX - 1);
        assert_eq!(place.index, mixture.drawn(u64::MAX - 1)[place.source]);
    }

    #[test]
    fn stages_that_make_no_mixture_are_refused() {
        let check = |sources: usize, stages: &[(u64, &[u64])], expected: MixtureError| {
            let stages: Vec<Stage> =
                stages.iter().map(|(from, weights)| Stage { from: *from, weights: weights.to_vec() }).collect();
            assert_eq!(Mixture::new(sources, &stages).unwrap_err(), expected);
        };
        check(0, &[(0, &[])], MixtureError::Sources(0));
        check(1, &[], MixtureError::Stages(0));
        check(2, &[(0, &[1])], MixtureError::Weights { stage: 0, weights: 1, sources: 2 });
        check(2, &[(0, &[0, 0])], MixtureError::Sum(0));
        check(2, &[(0, &[u64::MAX, 1])], MixtureError::Sum(0));
        check(1, &[(1, &[1])], MixtureError::Order(0, 1));
        check(1, &[(0, &[1]), (5, &[1]), (5, &[1])], MixtureError::Order(2, 5));
    }
}
