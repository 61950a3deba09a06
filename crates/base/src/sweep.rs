//! Sweeps: one submission that creates one job for each point of a grid, and the rules that these jobs share.
//!
//! Early stopping is asynchronous successive halving (ASHA: Li et al., "A System for Massively Parallel
//! Hyperparameter Tuning", MLSys 2020): rungs lie at `min_steps * reduction^k`, and about one in `reduction`
//! of the jobs that reach a rung continues.

use std::cmp::Ordering;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::spec::stored_text;
use crate::{Bytes, JobSpec, Step};

/// A validated sweep. Its memory use is proportional to the submission: points are computed from the grid,
/// never stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepSpec {
    /// What all its jobs have in common; the sweep has this job's name.
    pub job: Arc<JobSpec>,
    /// The parameters of each job, in the order of job ids.
    pub grid: Grid,
    /// The rules its jobs share.
    pub rules: SweepRules,
}

/// The points of a sweep: parameters with their values, each as the user wrote it or as it was drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    parameters: Vec<(String, Vec<String>)>,
    /// Whether a point has the values at one place of all lists; otherwise every combination is a point, and the last
    /// parameter changes fastest.
    is_list: bool,
}

/// The rules that a sweep's jobs share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepRules {
    /// The most of its jobs that hold devices at once; none for no limit.
    pub max_parallel: Option<NonZeroU32>,
    /// The rule that stops jobs early; none if no job is stopped early.
    pub early_stop: Option<EarlyStop>,
}

/// Asynchronous successive halving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyStop {
    /// The metric's name, as the ranks report it.
    pub metric: String,
    /// Which values are better.
    pub goal: Goal,
    /// The step of the first rung.
    pub min_steps: NonZeroU64,
    /// At each rung one in this many jobs continues, and each rung's step is this many times the previous
    /// one.
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
    /// The paper's experiments use 4; most tools use 3.
    pub const DEFAULT: Reduction = Reduction(3);

    /// Builds a factor, if `value` is at least two.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value >= 2 { Some(Reduction(value)) } else { None }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl EarlyStop {
    /// Returns the step of a rung, counted from 0; none if that exceeds the largest step.
    #[must_use]
    pub fn rung_step(&self, rung: u32) -> Option<Step> {
        let factor = u64::from(self.reduction.get()).checked_pow(rung)?;
        self.min_steps.get().checked_mul(factor).map(Step)
    }

    /// Returns the highest rung that a job at this step has reached; none before the first.
    #[must_use]
    pub fn rung_at(&self, step: Step) -> Option<u32> {
        // Steps are below 2^64 and the reduction at least two, so there are at most 64 rungs.
        let is_reached = |rung: &u32| self.rung_step(*rung).is_some_and(|at| at <= step);
        (0..u64::BITS).take_while(is_reached).last()
    }
}

/// The longest part of a job's name that comes from one parameter, in characters.
const NAME_PART_CHARS_MAX: usize = 40;
/// The longest name of a point, in characters.
const NAME_CHARS_MAX: usize = 160;
/// The stored size of a sweep's rules and field names, at most.
const RULES_BYTES: u64 = 256;

impl Grid {
    /// Builds the grid of these parameters.
    #[must_use]
    pub fn new(parameters: Vec<(String, Vec<String>)>) -> Grid {
        Grid { parameters, is_list: false }
    }

    /// Builds points that are listed one by one: each parameter has a value for each. None if one has more than
    /// another.
    #[must_use]
    pub fn list(parameters: Vec<(String, Vec<String>)>) -> Option<Grid> {
        let count = parameters.first().map_or(0, |(_, values)| values.len());
        parameters.iter().all(|(_, values)| values.len() == count).then_some(Grid { parameters, is_list: true })
    }

    /// Reports whether its points are listed one by one.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    /// Returns the grid that has exactly these points in this order; none if there isn't one.
    #[must_use]
    pub fn from_points(points: &[Vec<(String, String)>]) -> Option<Grid> {
        let first = points.first().map(Vec::as_slice).unwrap_or_default();
        let mut parameters: Vec<(String, Vec<String>)> =
            first.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
        for point in points {
            for ((_, values), (_, value)) in parameters.iter_mut().zip(point) {
                if !values.contains(value) {
                    values.push(value.clone());
                }
            }
        }
        let grid = Grid::new(parameters);
        let is_point = |(index, point): (usize, &Vec<(String, String)>)| {
            let own = grid.point(index).unwrap_or_default();
            own.into_iter().eq(point.iter().map(|(name, value)| (name.as_str(), value.as_str())))
        };
        (grid.points() == points.len() && points.iter().enumerate().all(is_point)).then_some(grid)
    }

    /// Returns the parameters with their values.
    #[must_use]
    pub fn parameters(&self) -> &[(String, Vec<String>)] {
        &self.parameters
    }

    /// Returns the number of points; 0 without parameters.
    #[must_use]
    pub fn points(&self) -> usize {
        let product = |points: usize, (_, values): &(String, Vec<String>)| points.saturating_mul(values.len());
        match self.parameters.first() {
            None => 0,
            Some((_, values)) if self.is_list => values.len(),
            Some(_) => self.parameters.iter().fold(1, product),
        }
    }

    /// Returns each parameter with its value at a point, counted from 0.
    #[must_use]
    pub fn point(&self, index: usize) -> Option<Vec<(&str, &str)>> {
        if index >= self.points() {
            return None;
        }
        if self.is_list {
            return self
                .parameters
                .iter()
                .map(|(name, values)| Some((name.as_str(), values.get(index)?.as_str())))
                .collect();
        }
        let mut rest = index;
        let mut point = Vec::with_capacity(self.parameters.len());
        for (name, values) in self.parameters.iter().rev() {
            point.push((name.as_str(), values[rest % values.len()].as_str()));
            rest /= values.len();
        }
        point.reverse();
        Some(point)
    }

    /// Formats a point's parameters for people: `LR=3e-4,BATCH=8`. Characters other than letters, digits and
    /// `+-._` become `_`, and long labels are cut: the job's environment has the exact values.
    #[must_use]
    pub fn label(&self, index: usize) -> Option<String> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "+-._".contains(c) { c } else { '_' };
        let part = |(name, value): (&str, &str)| -> String {
            let chars = name.chars().map(plain).chain(['=']).chain(value.chars().map(plain));
            chars.take(NAME_PART_CHARS_MAX).collect()
        };
        let mut label = String::new();
        for (name, value) in self.point(index)? {
            if label.len() >= NAME_CHARS_MAX {
                break;
            }
            if !label.is_empty() {
                label.push(',');
            }
            label.push_str(&part((name, value)));
        }
        label.truncate(NAME_CHARS_MAX);
        Some(label)
    }

    /// Returns the stored size of its texts.
    #[must_use]
    pub fn stored_bytes(&self) -> Bytes {
        let texts = |(name, values): &(String, Vec<String>)| {
            values.iter().chain([name]).map(|text| stored_text(text).0).sum::<u64>()
        };
        Bytes(self.parameters.iter().map(texts).sum())
    }
}

impl SweepSpec {
    /// Returns the name of a point's job.
    #[must_use]
    pub fn job_name(&self, index: usize) -> Option<String> {
        self.grid.label(index).map(|label| format!("{}/{label}", self.job.name))
    }

    /// Builds the specification of a point's job: the point's values are in its name and in its environment,
    /// where they override the job file.
    #[must_use]
    pub fn job(&self, index: usize) -> Option<JobSpec> {
        let mut job = JobSpec { name: self.job_name(index)?, ..JobSpec::clone(&self.job) };
        let values = self.grid.point(index)?.into_iter();
        job.program.envs.extend(values.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Some(job)
    }

    /// Returns the stored size: it depends on what was submitted, not on the number of points.
    #[must_use]
    pub fn stored_bytes(&self) -> Bytes {
        let metric = self.rules.early_stop.as_ref().map_or(Bytes(0), |rules| stored_text(&rules.metric));
        Bytes(self.job.stored_bytes().0 + self.grid.stored_bytes().0 + metric.0 + RULES_BYTES)
    }
}

/// Billionths per unit.
const NANOS: f64 = 1e9;

/// A metric's value, stored as an integer so that comparison and storage are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// In billionths, clamped to ±9.2e9.
    Nanos(i64),
    /// NaN or infinite: the job has diverged. Worse than any number.
    Diverged,
}

impl MetricValue {
    /// Converts a value that a rank reported.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast from f64 stops at the ends of i64, which is what is meant"
    )]
    pub fn from_reported(value: f64) -> Self {
        if value.is_finite() { MetricValue::Nanos((value * NANOS).round() as i64) } else { MetricValue::Diverged }
    }

    /// Returns the number, unless the job diverged; measured, to a billionth.
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
    /// Orders better values first; a diverged job comes last, whatever the goal.
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
    /// Writes at most six decimals.
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

    fn grid(parameters: &[(&str, &[&str])]) -> Grid {
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        Grid::new(parameters.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect())
    }

    #[test]
    fn a_grid_has_every_combination_once() {
        let grid = grid(&[("LR", &["1e-4", "3e-4"]), ("BATCH", &["8", "16", "32"])]);
        let labels: Vec<String> = (0..grid.points()).filter_map(|index| grid.label(index)).collect();
        let expected = [
            "LR=1e-4,BATCH=8",
            "LR=1e-4,BATCH=16",
            "LR=1e-4,BATCH=32",
            "LR=3e-4,BATCH=8",
            "LR=3e-4,BATCH=16",
            "LR=3e-4,BATCH=32",
        ];
        assert_eq!(labels, expected);
        assert_eq!((grid.point(6), grid.label(6)), (None, None));
        assert_eq!((Grid::default().points(), Grid::default().point(0)), (0, None));
        assert_eq!(super::Grid::new(vec![("A".to_owned(), Vec::new())]).points(), 0);
    }

    #[test]
    fn a_grid_is_found_in_its_points_and_in_nothing_else() {
        let grid = grid(&[("A", &["1", "2"]), ("B", &["x", "y", "z"])]);
        let owned = |point: Vec<(&str, &str)>| -> Vec<(String, String)> {
            point.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let points: Vec<_> = (0..6).filter_map(|index| grid.point(index)).map(owned).collect();
        assert_eq!(Grid::from_points(&points), Some(grid));
        assert_eq!(Grid::from_points(&points[..5]), None);
        let mut changed = points.clone();
        changed.swap(0, 1);
        changed[3][0].0 = "C".to_owned();
        assert_eq!(Grid::from_points(&changed), None);
        assert_eq!(Grid::from_points(&[]), Some(Grid::default()));
    }

    #[test]
    fn listed_points_are_the_rows_of_their_parameters() {
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        let parameters = vec![("A".to_owned(), owned(&["1", "2"])), ("B".to_owned(), owned(&["x", "y"]))];
        let list = Grid::list(parameters).expect("as many of each");
        assert_eq!((list.points(), list.point(1), list.point(2)), (2, Some(vec![("A", "2"), ("B", "y")]), None));
        assert_eq!(Grid::list(vec![("A".to_owned(), owned(&["1"])), ("B".to_owned(), Vec::new())]), None);
    }

    #[test]
    fn a_label_is_short_and_harmless() {
        let grid = grid(&[("DATA", &["a b/../c\n"]), ("X", &[&"y".repeat(500)])]);
        assert_eq!(grid.label(0), Some(format!("DATA=a_b_.._c_,X={}", "y".repeat(38))));
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
