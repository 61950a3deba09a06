//! Fitting the table of constants to runs: a deterministic search, one constant at a time.
//!
//! What is minimised is the mean size of the logarithm of predicted by measured time, large ones damped, where a source of n runs
//! weighs n^0.4 (neither rows nor sources alone decide), plus a price for leaving the priors. Constants that dense runs on well-known
//! accelerators depend on are fitted on those; the rest on the others, with the first held.

use std::collections::BTreeMap;

use gangline_planning::time::constants::{Constant, Constants, TABLE};
use gangline_planning::time::estimate_with;

use super::rows::Run;

/// The group on which most constants are fitted.
pub(super) const DENSE: &str = "dense";
/// Factors that are tried, coarse to fine.
const STEPS: [f64; 4] = [0.25, 0.1, 0.04, 0.015];
/// Rounds over all constants with one factor, at most.
const ROUNDS_MAX: usize = 6;
/// Moves of one constant in one round, at most.
const MOVES_MAX: usize = 12;
/// A round that gains less than this part ends its factor.
const GAIN_LEAST: f64 = 1e-4;
/// Errors above this logarithm count a tenth.
const DAMPED: f64 = 0.5;
/// Price of one spread from a prior, of the mean error.
const PRIOR_PRICE: f64 = 2e-3;
/// Power of a source's rows that its weight is.
const SOURCE_WEIGHT: f64 = 0.4;

/// The constants that fit these runs best.
pub(super) fn fit(runs: &[&Run]) -> Constants {
    let (dense, others): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.group == DENSE);
    let all: Vec<Constant> = TABLE.iter().filter(|entry| entry.spread.is_some()).map(|entry| entry.constant).collect();
    let priors = Constants::priors();
    let objective = Objective::new(&dense);
    let (touched, untouched): (Vec<Constant>, Vec<Constant>) =
        all.into_iter().partition(|constant| objective.depends_on(*constant));
    let dense = objective.search(priors, &touched);
    Objective::new(&others).search(dense, &untouched)
}

/// What is minimised.
struct Objective<'a> {
    /// Runs with their weights, which add up to 1.
    runs: Vec<(&'a Run, f64)>,
}

impl<'a> Objective<'a> {
    fn new(runs: &[&'a Run]) -> Self {
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        runs.iter().for_each(|run| *counts.entry(&run.source).or_default() += 1.0);
        let weight = |run: &Run| counts[run.source.as_str()].powf(SOURCE_WEIGHT - 1.0);
        let all: f64 = runs.iter().map(|run| weight(run)).sum();
        Objective { runs: runs.iter().map(|run| (*run, weight(run) / all)).collect() }
    }

    /// Whether any run's prediction depends on a constant.
    fn depends_on(&self, constant: Constant) -> bool {
        let priors = Constants::priors();
        let (least, greatest) = TABLE[constant as usize].bounds;
        let (low, high) = (priors.with(constant, least), priors.with(constant, greatest));
        self.runs.iter().any(|(run, _)| predicted(&low, run).to_bits() != predicted(&high, run).to_bits())
    }

    fn value(&self, constants: &Constants) -> f64 {
        let errors =
            self.runs.iter().map(|(run, weight)| weight * damped(predicted(constants, run) / run.measured.get()));
        let spreads = TABLE.iter().filter_map(|entry| {
            let away = (constants.get(entry.constant).max(1e-12) / entry.prior.max(1e-12)).ln() / entry.spread?;
            Some(away * away)
        });
        errors.sum::<f64>() + PRIOR_PRICE * spreads.sum::<f64>()
    }

    fn search(&self, from: Constants, constants: &[Constant]) -> Constants {
        let mut best = (self.value(&from), from);
        for step in STEPS {
            for _ in 0..ROUNDS_MAX {
                let before = best.0;
                for constant in constants {
                    best = self.improved(self.improved(best, *constant, 1.0 + step), *constant, 1.0 / (1.0 + step));
                }
                if before - best.0 < GAIN_LEAST * before {
                    break;
                }
            }
        }
        best.1
    }

    /// The same with one constant multiplied as often as it helps.
    fn improved(&self, from: (f64, Constants), constant: Constant, factor: f64) -> (f64, Constants) {
        let mut best = from;
        for _ in 0..MOVES_MAX {
            let tried = best.1.with(constant, best.1.get(constant) * factor);
            let value = self.value(&tried);
            if value >= best.0 {
                break;
            }
            best = (value, tried);
        }
        best
    }
}

fn predicted(constants: &Constants, run: &Run) -> f64 {
    estimate_with(constants, &run.workload, &run.layout, &run.cluster).total().get()
}

/// The size of a ratio's logarithm; what is above a bound counts a tenth.
fn damped(ratio: f64) -> f64 {
    let size = ratio.ln().abs();
    size.min(DAMPED + size / 10.0)
}
