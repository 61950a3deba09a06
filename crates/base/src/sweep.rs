//! A sweep: one submission, one job for each point of a grid, and the rules that the jobs share.
//!
//! Early stopping is asynchronous successive halving (ASHA: Li et al., "A System for Massively Parallel Hyperparameter
//! Tuning", MLSys 2020): rungs lie at `min_steps * reduction^k`, and of the jobs that reach a rung about one in
//! `reduction` goes on.

use std::cmp::Ordering;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::{JobSpec, Step};

/// A validated sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepSpec {
    /// What all its jobs have in common; its name is the sweep's.
    pub job: Arc<JobSpec>,
    /// What each job has of its own, in the order of their ids.
    pub points: Vec<SweepPoint>,
    /// What they share.
    pub rules: SweepRules,
}

/// A point of the grid: each parameter with its value, both as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPoint(pub Vec<(String, String)>);

/// The rules that a sweep's jobs share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepRules {
    /// The most of its jobs that hold devices at once; none: as many as there is room for.
    pub max_parallel: Option<NonZeroU32>,
    /// Which jobs are stopped before their end; none: none.
    pub early_stop: Option<EarlyStop>,
}

/// Asynchronous successive halving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyStop {
    /// The metric, as the ranks report it.
    pub metric: String,
    /// Which values are better.
    pub goal: Goal,
    /// The step of the first rung.
    pub min_steps: NonZeroU64,
    /// Of the jobs at a rung one in this many goes on, and the next rung is this many times as far.
    pub reduction: Reduction,
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Lower ones.
    Minimize,
    /// Higher ones.
    Maximize,
}

/// The reduction factor of successive halving: at least two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction(u32);

impl Reduction {
    /// The default of the paper's experiments is 4, that of most tools 3.
    pub const DEFAULT: Reduction = Reduction(3);

    /// A factor, if it is at least two.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value >= 2 { Some(Reduction(value)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl EarlyStop {
    /// The step of a rung, from 0; none beyond what a step can be.
    #[must_use]
    pub fn rung_step(&self, rung: u32) -> Option<Step> {
        let factor = u64::from(self.reduction.get()).checked_pow(rung)?;
        self.min_steps.get().checked_mul(factor).map(Step)
    }

    /// The highest rung that a job has reached with this step; none before the first.
    #[must_use]
    pub fn rung_at(&self, step: Step) -> Option<u32> {
        // Steps are below 2^64 and the reduction at least two, so there are at most 64 rungs.
        let is_reached = |rung: &u32| self.rung_step(*rung).is_some_and(|at| at <= step);
        (0..u64::BITS).take_while(is_reached).last()
    }
}

/// The longest part of a job's name that one parameter makes, in characters.
const NAME_PART_CHARS_MAX: usize = 40;
/// The longest name of a point, in characters.
const NAME_CHARS_MAX: usize = 160;

impl SweepPoint {
    /// Its parameters for people: `LR=3e-4,BATCH=8`. What isn't a letter, a digit or one of `+-._` becomes `_`, and what
    /// is long is cut: the job's environment has the values themselves.
    #[must_use]
    pub fn label(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let plain = |text: &str| -> String { text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect() };
        let part = |(name, value): &(String, String)| -> String {
            format!("{}={}", plain(name), plain(value)).chars().take(NAME_PART_CHARS_MAX).collect()
        };
        let parts: Vec<String> = self.0.iter().map(part).collect();
        parts.join(",").chars().take(NAME_CHARS_MAX).collect()
    }
}

impl SweepSpec {
    /// The job of each point: its values are in its environment, over the file's own, and in its name.
    pub fn jobs(&self) -> impl Iterator<Item = JobSpec> {
        self.points.iter().map(|point| {
            let mut job = JobSpec::clone(&self.job);
            job.name = format!("{}/{}", self.job.name, point.label());
            job.program.envs.extend(point.0.iter().cloned());
            job
        })
    }
}

/// Every combination of the parameters' values: the last parameter changes fastest.
#[must_use]
pub fn grid(parameters: &[(String, Vec<String>)]) -> Vec<SweepPoint> {
    let mut points = vec![SweepPoint(Vec::new())];
    for (name, values) in parameters {
        let extended = |point: &SweepPoint, value: &String| {
            let mut point = point.clone();
            point.0.push((name.clone(), value.clone()));
            point
        };
        points = points.iter().flat_map(|point| values.iter().map(move |value| extended(point, value))).collect();
    }
    points
}

/// Billionths in one.
const NANOS: f64 = 1e9;

/// A metric's value. Integral, so that comparing and storing it is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// In billionths; what is beyond ±9.2e9 counts as that.
    Nanos(i64),
    /// Not a number, or infinite: the job has diverged. Worse than any value.
    Diverged,
}

impl MetricValue {
    /// From what a rank reported.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast from f64 stops at the ends of i64, which is what is meant"
    )]
    pub fn from_reported(value: f64) -> Self {
        if value.is_finite() { MetricValue::Nanos((value * NANOS).round() as i64) } else { MetricValue::Diverged }
    }

    /// The number, if it is one; measured, to a billionth.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a metric has fewer than 16 significant digits")]
    pub fn reported(self) -> Option<f64> {
        match self {
            MetricValue::Nanos(nanos) => Some(nanos as f64 / NANOS),
            MetricValue::Diverged => None,
        }
    }
}

impl Goal {
    /// Better values first; a diverged job comes last, whatever the goal.
    #[must_use]
    pub fn compare(self, a: MetricValue, b: MetricValue) -> Ordering {
        match (a, b) {
            (MetricValue::Diverged, MetricValue::Diverged) => Ordering::Equal,
            (MetricValue::Diverged, MetricValue::Nanos(_)) => Ordering::Greater,
            (MetricValue::Nanos(_), MetricValue::Diverged) => Ordering::Less,
            (MetricValue::Nanos(a), MetricValue::Nanos(b)) => match self {
                Goal::Minimize => a.cmp(&b),
                Goal::Maximize => b.cmp(&a),
            },
        }
    }
}

impl fmt::Display for MetricValue {
    /// At most six decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reported() {
            None => f.write_str("not a number"),
            Some(value) => {
                let text = format!("{value:.6}");
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn early_stop(min_steps: u64, reduction: u32) -> EarlyStop {
        EarlyStop {
            metric: "loss".to_owned(),
            goal: Goal::Minimize,
            min_steps: NonZeroU64::new(min_steps).expect("at least one"),
            reduction: Reduction::new(reduction).expect("at least two"),
        }
    }

    #[test]
    fn rungs_are_a_reduction_apart() {
        let rules = early_stop(100, 3);
        let check = |step: u64, rung: Option<u32>| assert_eq!(rules.rung_at(Step(step)), rung, "step {step}");
        check(0, None);
        check(99, None);
        check(100, Some(0));
        check(299, Some(0));
        check(300, Some(1));
        check(900, Some(2));
        assert_eq!(rules.rung_step(2), Some(Step(900)));
        assert_eq!(early_stop(1, 2).rung_at(Step(u64::MAX)), Some(63));
        assert_eq!(early_stop(u64::MAX, 2).rung_at(Step(u64::MAX)), Some(0));
        assert_eq!(Reduction::new(1), None);
    }

    #[test]
    fn a_grid_has_every_combination_once() {
        let parameter = |name: &str, values: &[&str]| {
            (name.to_owned(), values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
        };
        let points = grid(&[parameter("LR", &["1e-4", "3e-4"]), parameter("BATCH", &["8", "16", "32"])]);
        let labels: Vec<String> = points.iter().map(SweepPoint::label).collect();
        let expected = [
            "LR=1e-4,BATCH=8",
            "LR=1e-4,BATCH=16",
            "LR=1e-4,BATCH=32",
            "LR=3e-4,BATCH=8",
            "LR=3e-4,BATCH=16",
            "LR=3e-4,BATCH=32",
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn a_label_is_short_and_harmless() {
        let point = SweepPoint(vec![("DATA".to_owned(), "a b/../c\n".to_owned()), ("X".to_owned(), "y".repeat(500))]);
        assert_eq!(point.label(), format!("DATA=a_b_.._c_,X={}", "y".repeat(38)));
    }

    #[test]
    fn metrics_are_exact_to_a_billionth_and_diverged_ones_are_worst() {
        let check = |value: f64, text: &str| assert_eq!(MetricValue::from_reported(value).to_string(), text);
        check(2.5, "2.5");
        check(-0.000_001, "-0.000001");
        check(3.0, "3");
        check(f64::NAN, "not a number");
        check(f64::NEG_INFINITY, "not a number");
        assert_eq!(MetricValue::from_reported(1e300), MetricValue::Nanos(i64::MAX));
        let (low, high) = (MetricValue::from_reported(1.0), MetricValue::from_reported(2.0));
        assert_eq!(Goal::Minimize.compare(low, high), Ordering::Less);
        assert_eq!(Goal::Maximize.compare(low, high), Ordering::Greater);
        assert_eq!(Goal::Maximize.compare(MetricValue::Diverged, low), Ordering::Greater);
    }
}
