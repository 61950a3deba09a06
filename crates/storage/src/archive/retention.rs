//! Which checkpoints an archive keeps, as rules of which any one is enough; the words are those of orbax's preservation
//! policies. The newest is always kept.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};

use gangline_base::Step;
use serde::Serialize;

use super::Archived;

/// Nanoseconds of an hour.
const HOUR: u64 = 3_600_000_000_000;

/// A reason to keep a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It is among so many of the newest.
    Last(u32),
    /// It is the first in its stretch of so many steps, counted from step 0.
    EverySteps(NonZeroU64),
    /// It is the first in its stretch of so many hours, counted from the Unix epoch.
    EveryHours(NonZeroU32),
    /// It is among so many with the best value of a number in their metadata; those without one are not looked at, and among
    /// equals the newer is better.
    Best {
        /// The number's name in the metadata.
        metric: String,
        /// How many.
        count: u32,
        /// Whether more is better; less is for a loss.
        is_more_better: bool,
    },
    /// It was named.
    Pinned(BTreeSet<Step>),
    /// It is the first in its stretch of so many steps, counted from step 0; of one that no other rule keeps only these tensors
    /// are kept, as a milestone.
    Milestones {
        /// So many steps.
        every: NonZeroU64,
        /// Names, of which `*` stands for any part.
        keep: Vec<String>,
    },
}

/// Why a checkpoint is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is the newest.
    Newest,
    /// [`Rule::Last`].
    Last,
    /// [`Rule::EverySteps`].
    EverySteps,
    /// [`Rule::EveryHours`].
    EveryHours,
    /// [`Rule::Best`].
    Best,
    /// [`Rule::Pinned`].
    Pinned,
    /// [`Rule::Milestones`].
    Milestone,
}

/// What is kept of these, which are in the order of their steps, and why. Milestones are no checkpoints to the rules, but for that
/// of milestones and for those that are named.
pub(crate) fn kept(rules: &[Rule], all: &[Archived]) -> BTreeMap<Step, Vec<Reason>> {
    let whole: Vec<Archived> = all.iter().filter(|one| one.milestone.is_none()).cloned().collect();
    let mut kept: BTreeMap<Step, Vec<Reason>> =
        whole.last().map(|newest| (newest.step, vec![Reason::Newest])).into_iter().collect();
    for rule in rules {
        let is_of_all = matches!(rule, Rule::Milestones { .. } | Rule::Pinned(_));
        let (reason, steps) = rule.kept(if is_of_all { all } else { &whole });
        for step in steps {
            kept.entry(step).or_default().push(reason);
        }
    }
    kept
}

impl Rule {
    fn kept(&self, all: &[Archived]) -> (Reason, Vec<Step>) {
        let first_by = |stretch: &dyn Fn(&Archived) -> u64| {
            // The last one that is collected of a stretch replaces the others.
            let firsts: BTreeMap<u64, Step> = all.iter().rev().map(|one| (stretch(one), one.step)).collect();
            firsts.into_values().collect()
        };
        match self {
            Rule::Last(count) => (Reason::Last, all.iter().rev().take(*count as usize).map(|one| one.step).collect()),
            Rule::Milestones { every, .. } => (Reason::Milestone, first_by(&|one| one.step.0 / *every)),
            Rule::EverySteps(steps) => (Reason::EverySteps, first_by(&|one| one.step.0 / *steps)),
            Rule::EveryHours(hours) => {
                let stretch = u64::from(hours.get()).saturating_mul(HOUR);
                (Reason::EveryHours, first_by(&|one| one.saved_at.unix_nanos() / stretch))
            }
            Rule::Best { metric, count, is_more_better } => {
                let value =
                    |one: &Archived| one.metadata.get(metric)?.parse().ok().filter(|value: &f64| !value.is_nan());
                let mut valued: Vec<(f64, Step)> = all.iter().filter_map(|one| Some((value(one)?, one.step))).collect();
                valued.sort_by(|a, b| {
                    let by_value = if *is_more_better { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) };
                    by_value.then(b.1.cmp(&a.1))
                });
                (Reason::Best, valued.into_iter().take(*count as usize).map(|(_, step)| step).collect())
            }
            Rule::Pinned(steps) => {
                (Reason::Pinned, all.iter().map(|one| one.step).filter(|step| steps.contains(step)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::{Bytes, Timestamp};

    use super::*;
    use crate::Digest;

    /// Checkpoints of steps 10, 20, ... saved every half hour, with a loss that is best in the middle.
    fn run(count: u64) -> Vec<Archived> {
        let one = |number: u64| Archived {
            step: Step(10 * number),
            saved_at: Timestamp::from_unix_nanos(number * HOUR / 2),
            bytes: Bytes(1),
            packs: Bytes(1),
            tensors: 1,
            content_hash: Digest::of(b""),
            milestone: None,
            metadata: BTreeMap::from([("loss".to_owned(), number.abs_diff(count / 2).to_string())]),
        };
        (1..=count).map(one).collect()
    }

    fn check(rules: &[Rule], all: &[Archived], expected: &[u64]) {
        let kept: Vec<u64> = kept(rules, all).into_keys().map(|step| step.0).collect();
        assert_eq!(kept, expected, "{rules:?}");
    }

    #[test]
    fn each_rule_keeps_what_it_says_and_the_newest_always_stays() {
        let all = run(10);
        let many = |n| NonZeroU64::new(n).unwrap();
        check(&[], &all, &[100]);
        check(&[Rule::Last(3)], &all, &[80, 90, 100]);
        check(&[Rule::Last(99)], &all, &(1..=10).map(|n| 10 * n).collect::<Vec<_>>());
        check(&[Rule::EverySteps(many(40))], &all, &[10, 40, 80, 100]);
        check(&[Rule::EveryHours(NonZeroU32::new(2).unwrap())], &all, &[10, 40, 80, 100]);
        check(&[Rule::Pinned([Step(30), Step(31)].into())], &all, &[30, 100]);
        let best = |count, is_more_better| Rule::Best { metric: "loss".to_owned(), count, is_more_better };
        check(&[best(2, false)], &all, &[50, 60, 100]);
        check(&[best(1, true)], &all, &[100]);
        check(&[best(1, false), Rule::Pinned([Step(10)].into())], &all, &[10, 50, 100]);
        check(&[], &[], &[]);
    }

    #[test]
    fn what_is_no_number_is_never_the_best() {
        let mut all = run(3);
        all[0].metadata.insert("loss".to_owned(), "NaN".to_owned());
        all[1].metadata.insert("loss".to_owned(), "low".to_owned());
        all[2].metadata.clear();
        let rule = Rule::Best { metric: "loss".to_owned(), count: 3, is_more_better: false };
        assert_eq!(rule.kept(&all).1, []);
    }
}
