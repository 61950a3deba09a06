//! Errors of predictions, by source and in all.

use std::collections::{BTreeMap, BTreeSet};

/// What came out for a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Judgement {
    /// The row's id.
    pub(super) row: String,
    /// Rows of one source stand together.
    pub(super) source: String,
    /// What it is reported with: dense, moe, ...; nothing if it was refused.
    pub(super) group: &'static str,
    /// What was predicted beside what was measured, or why not.
    pub(super) outcome: Result<Pair, String>,
}

/// A prediction and the measurement, in one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pair {
    /// By planning.
    pub(super) predicted: f64,
    /// By the source.
    pub(super) measured: f64,
}

impl Pair {
    /// (predicted - measured) / measured, in percent.
    pub(super) fn error(self) -> f64 {
        (self.predicted / self.measured - 1.0) * 100.0
    }
}

/// Errors of many rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Statistics {
    /// Rows judged.
    pub(super) taken: usize,
    /// Why others weren't, and how many.
    pub(super) refused: BTreeMap<String, usize>,
    /// Size of the error that half of the rows stay below, in percent.
    pub(super) median: f64,
    /// That three quarters stay below.
    pub(super) p75: f64,
    /// That nine of ten stay below.
    pub(super) p90: f64,
    /// The row with the greatest error, and that error with its sign.
    pub(super) worst: Option<(String, f64)>,
}

impl Statistics {
    /// Of so many rows.
    pub(super) fn of<'a>(judgements: impl IntoIterator<Item = &'a Judgement>) -> Self {
        let mut statistics = Statistics::default();
        let mut errors: Vec<(f64, &str)> = Vec::new();
        for judgement in judgements {
            match &judgement.outcome {
                Ok(pair) => errors.push((pair.error(), &judgement.row)),
                Err(reason) => *statistics.refused.entry(reason.clone()).or_default() += 1,
            }
        }
        errors.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        let sizes: Vec<f64> = errors.iter().map(|(error, _)| error.abs()).collect();
        statistics.taken = errors.len();
        statistics.median = quantile(&sizes, 0.5);
        statistics.p75 = quantile(&sizes, 0.75);
        statistics.p90 = quantile(&sizes, 0.9);
        statistics.worst = errors.last().map(|(error, row)| ((*row).to_owned(), *error));
        statistics
    }

    /// Median, p75 and p90.
    pub(super) fn quantiles(&self) -> String {
        format!("median {:.1} %, p75 {:.1} %, p90 {:.1} %", self.median, self.p75, self.p90)
    }

    /// One line: rows, rows not taken and why, median, p75, p90, worst row.
    pub(super) fn line(&self, name: &str) -> String {
        let refused: usize = self.refused.values().sum();
        let mut line = format!("{name:<28} rows {:>4}  not taken {refused:>3}", self.taken);
        if let Some((row, error)) = &self.worst {
            line += &format!("  median {:>5.1} %  p75 {:>5.1} %  p90 {:>5.1} %", self.median, self.p75, self.p90);
            line += &format!("  worst {row} {error:+.1} %");
        }
        for (reason, count) in &self.refused {
            line += &format!("  [{count} x {reason}]");
        }
        line
    }
}

/// The quantile of sorted values, between neighbours in proportion; 0 of none.
pub(super) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * gangline_planning::units::real(last as u64);
    let below = sorted.iter().enumerate().take_while(|(index, _)| gangline_planning::units::real(*index as u64) <= at);
    let (index, low) = below.last().map_or((0, 0.0), |(index, low)| (index, *low));
    let high = sorted.get(index + 1).copied().unwrap_or(low);
    low + (high - low) * (at - gangline_planning::units::real(index as u64))
}

/// Greatest errors that are accepted, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bars {
    pub(super) median: f64,
    pub(super) p75: f64,
    pub(super) p90: f64,
}

impl Bars {
    /// Whether errors stay within.
    pub(super) fn hold(&self, statistics: &Statistics) -> bool {
        statistics.median <= self.median && statistics.p75 <= self.p75 && statistics.p90 <= self.p90
    }
}

impl std::fmt::Display for Bars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} / {} / {} %", self.median, self.p75, self.p90)
    }
}

/// The groups that judgements are of.
pub(super) fn groups(judgements: &[Judgement]) -> BTreeSet<&'static str> {
    judgements.iter().map(|judgement| judgement.group).filter(|group| !group.is_empty()).collect()
}

/// Prints a line for each source, and one for each group of rows that are reported together.
pub(super) fn print_sources(judgements: &[Judgement]) {
    print_by(judgements, "", |judgement| Some(&judgement.source));
    print_by(judgements, "all ", |judgement| (!judgement.group.is_empty()).then_some(judgement.group));
}

fn print_by<'a>(judgements: &'a [Judgement], before: &str, name: impl Fn(&'a Judgement) -> Option<&'a str>) {
    let mut parts: BTreeMap<&str, Vec<&Judgement>> = BTreeMap::new();
    for judgement in judgements {
        if let Some(name) = name(judgement) {
            parts.entry(name).or_default().push(judgement);
        }
    }
    for (name, judgements) in parts {
        println!("{}", Statistics::of(judgements).line(&format!("{before}{name}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(row: &str, predicted: f64) -> Judgement {
        Judgement {
            row: row.into(),
            source: "s".into(),
            group: "dense",
            outcome: Ok(Pair { predicted, measured: 100.0 }),
        }
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0], 0.9), 3.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.75), 4.0);
    }

    #[test]
    fn statistics_count_rows_errors_and_reasons() {
        let refused = Judgement { outcome: Err("no layout".into()), ..judged("d", 0.0) };
        let statistics = Statistics::of(&[judged("a", 110.0), judged("b", 70.0), judged("c", 99.0), refused]);
        assert_eq!((statistics.taken, statistics.refused["no layout"]), (3, 1));
        assert!((statistics.median - 10.0).abs() < 1e-9, "{statistics:?}");
        assert_eq!(statistics.worst.as_ref().unwrap().0, "b");
        let line = statistics.line("overall");
        assert!(line.contains("worst b -30.0 %") && line.contains("[1 x no layout]"), "{line}");
    }
}
