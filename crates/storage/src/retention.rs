//! Rules that decide which checkpoints a store or an archive keeps; a checkpoint stays if any rule keeps it.
//! The names are those of orbax's preservation policies. The newest of the current line is always kept.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};

use gangline_base::{Step, Timestamp};
use serde::Serialize;

/// Nanoseconds in an hour.
const HOUR: u64 = 3_600_000_000_000;

/// The name by which a trainer says the loss of the step after which it saves. If that is NaN or infinite, the checkpoint is no
/// place to go back to, and retention doesn't count it as one.
pub const LOSS_NOTE: &str = "gangline.loss";

/// Reports whether a checkpoint was saved while the loss was NaN or infinite.
pub(crate) fn is_diverged(metadata: &BTreeMap<String, String>) -> bool {
    let loss = metadata.get(LOSS_NOTE).and_then(|loss| loss.parse::<f64>().ok());
    loss.is_some_and(|loss| !loss.is_finite())
}

/// A reason to keep a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It is among the newest, this many. Those that were saved while the loss was NaN or infinite
    /// ([`LOSS_NOTE`](crate::LOSS_NOTE)) are counted by themselves.
    Last(u32),
    /// It is the first in its interval of this many steps, counted from step 0.
    EverySteps(NonZeroU64),
    /// It is the first in its interval of this many hours, counted from the Unix epoch.
    EveryHours(NonZeroU32),
    /// It is among the best by a number in its metadata. Checkpoints without the number are ignored; among
    /// equals the newer is better.
    Best {
        /// The number's name in the metadata.
        metric: String,
        /// How many to keep.
        count: u32,
        /// Whether a larger number is better; for a loss it isn't.
        is_more_better: bool,
    },
    /// Its step is listed here.
    Pinned(BTreeSet<Step>),
    /// It is abandoned: the current line doesn't go back to it. Only [`Rule::Pinned`] also applies to such a
    /// checkpoint.
    Abandoned,
    /// It is the first in its interval of this many steps, counted from step 0. If no other rule keeps it,
    /// only these tensors are kept, as a milestone.
    Milestones {
        /// The length of the interval in steps.
        every: NonZeroU64,
        /// Tensor names; `*` matches any part of a name.
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
    /// [`Rule::Abandoned`].
    Abandoned,
    /// [`Rule::Milestones`].
    Milestone,
}

/// A checkpoint as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) step: Step,
    pub(crate) saved_at: Timestamp,
    pub(crate) metadata: &'a BTreeMap<String, String>,
    /// Whether training can resume from it; false for a milestone.
    pub(crate) is_whole: bool,
    /// Whether it is on the line of the current branch.
    pub(crate) is_on_line: bool,
}

/// Returns the checkpoints to keep, with the reasons. `all` is in the order of the saves. Existing milestones
/// count only for [`Rule::Milestones`] and [`Rule::Pinned`].
pub(crate) fn kept(rules: &[Rule], all: &[Candidate<'_>]) -> BTreeMap<Step, Vec<Reason>> {
    let of = |is_wanted: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<Candidate<'_>> {
        all.iter().filter(|one| is_wanted(one)).copied().collect()
    };
    let (line, whole) = (of(&|one| one.is_on_line), of(&|one| one.is_on_line && one.is_whole));
    let mut kept: BTreeMap<Step, Vec<Reason>> =
        whole.last().map(|newest| (newest.step, vec![Reason::Newest])).into_iter().collect();
    for rule in rules {
        let (reason, steps) = match rule {
            Rule::Pinned(_) | Rule::Abandoned => rule.kept(all),
            Rule::Milestones { .. } => rule.kept(&line),
            _ => rule.kept(&whole),
        };
        for step in steps {
            kept.entry(step).or_default().push(reason);
        }
    }
    kept
}

impl Rule {
    fn kept(&self, all: &[Candidate<'_>]) -> (Reason, Vec<Step>) {
        let first_by = |stretch: &dyn Fn(&Candidate<'_>) -> u64| {
            // In reverse order, so that `collect` keeps the first of each interval.
            let firsts: BTreeMap<u64, Step> = all.iter().rev().map(|one| (stretch(one), one.step)).collect();
            firsts.into_values().collect()
        };
        let those = |is_one: &dyn Fn(&Candidate<'_>) -> bool| {
            all.iter().filter(|one| is_one(one)).map(|one| one.step).collect()
        };
        match self {
            Rule::Last(count) => {
                let (diverged, others): (Vec<&Candidate<'_>>, Vec<_>) =
                    all.iter().rev().partition(|one| is_diverged(one.metadata));
                let newest = [diverged, others].map(|ones| ones.into_iter().take(*count as usize));
                (Reason::Last, newest.into_iter().flatten().map(|one| one.step).collect())
            }
            Rule::Milestones { every, .. } => (Reason::Milestone, first_by(&|one| one.step.0 / *every)),
            Rule::EverySteps(steps) => (Reason::EverySteps, first_by(&|one| one.step.0 / *steps)),
            Rule::EveryHours(hours) => {
                let stretch = u64::from(hours.get()).saturating_mul(HOUR);
                (Reason::EveryHours, first_by(&|one| one.saved_at.unix_nanos() / stretch))
            }
            Rule::Best { metric, count, is_more_better } => {
                (Reason::Best, best(all, metric, *is_more_better).take(*count as usize).collect())
            }
            Rule::Pinned(steps) => (Reason::Pinned, those(&|one| steps.contains(&one.step))),
            Rule::Abandoned => (Reason::Abandoned, those(&|one| !one.is_on_line)),
        }
    }
}

/// Returns those that have the number, best first.
fn best(all: &[Candidate<'_>], metric: &str, is_more_better: bool) -> impl Iterator<Item = Step> + use<> {
    let value = |one: &Candidate<'_>| one.metadata.get(metric)?.parse().ok().filter(|value: &f64| !value.is_nan());
    let mut valued: Vec<(f64, usize, Step)> =
        all.iter().zip(0..).filter_map(|(one, at)| Some((value(one)?, at, one.step))).collect();
    valued.sort_by(|a, b| {
        let by_value = if is_more_better { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) };
        by_value.then(b.1.cmp(&a.1))
    });
    valued.into_iter().map(|(.., step)| step)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Notes = BTreeMap<String, String>;

    /// Returns checkpoints of steps 10, 20, ... saved every half hour, with a loss that is best in the
    /// middle.
    fn notes(count: u64) -> Vec<Notes> {
        let loss = |number: u64| number.abs_diff(count / 2).to_string();
        (1..=count).map(|number| BTreeMap::from([("loss".to_owned(), loss(number))])).collect()
    }

    fn run(notes: &[Notes]) -> Vec<Candidate<'_>> {
        let one = |(metadata, number): (_, u64)| Candidate {
            step: Step(10 * number),
            saved_at: Timestamp::from_unix_nanos(number * HOUR / 2),
            metadata,
            is_whole: true,
            is_on_line: true,
        };
        notes.iter().zip(1..).map(one).collect()
    }

    fn check(rules: &[Rule], all: &[Candidate<'_>], expected: &[u64]) {
        let kept: Vec<u64> = kept(rules, all).into_keys().map(|step| step.0).collect();
        assert_eq!(kept, expected, "{rules:?}");
    }

    #[test]
    fn what_is_on_another_branch_is_kept_by_the_rule_for_that_or_by_name() {
        let notes = notes(4);
        let mut all = run(&notes);
        all[3].is_on_line = false;
        all[1].is_on_line = false;
        check(&[Rule::Last(9)], &all, &[10, 30]);
        check(&[Rule::Last(1), Rule::Pinned([Step(40)].into())], &all, &[30, 40]);
        check(&[Rule::Abandoned], &all, &[20, 30, 40]);
    }

    #[test]
    fn each_rule_keeps_what_it_says_and_the_newest_always_stays() {
        let notes = notes(10);
        let all = run(&notes);
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
    fn what_was_saved_with_a_loss_that_is_no_number_displaces_nothing_else() {
        let mut notes = notes(8);
        for (notes, loss) in notes.iter_mut().skip(4).zip(["nan", "inf", "-inf", "nan"]) {
            notes.insert(crate::LOSS_NOTE.to_owned(), loss.to_owned());
        }
        notes[3].insert(crate::LOSS_NOTE.to_owned(), "2.5".to_owned());
        check(&[Rule::Last(2)], &run(&notes), &[30, 40, 70, 80]);
        check(&[Rule::Last(1)], &run(&notes[..5]), &[40, 50]);
    }

    #[test]
    fn what_is_no_number_is_never_the_best() {
        let mut notes = notes(3);
        notes[0].insert("loss".to_owned(), "NaN".to_owned());
        notes[1].insert("loss".to_owned(), "low".to_owned());
        notes[2].clear();
        let all = run(&notes);
        let rule = Rule::Best { metric: "loss".to_owned(), count: 3, is_more_better: false };
        assert_eq!(rule.kept(&all).1, []);
    }
}
