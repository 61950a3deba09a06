//! How many spare nodes there should be: as many as are lost while one is being repaired, nearly always.
//!
//! Losses are taken for a Poisson process, as is usual for spare parts (base-stock with a service level: Sherbrooke,
//! "Optimal Inventory Modeling of Systems", 2004): with `rate x nodes x repair` losses expected until a lost node is back,
//! the pool is the smallest that covers them with the wanted confidence. The rate is a Gamma-Poisson estimate, whose prior is
//! worth one loss at Meta's RSC-1, 6.5 a 1,000 node-days (Kokolis et al., HPCA 2025): a new cluster starts from theirs, and
//! after some hundred node-days its own history is what counts. Only sums, products and quotients: the same everywhere.

use std::time::Duration;

/// The most spares that are kept of one lane.
pub const SPARES_MAX: u32 = 1_024;
/// The most losses that are expected at once: beyond, their probabilities leave the range of a number.
const EXPECTED_MAX: f64 = 500.0;
/// Terms of a Poisson distribution that are summed: with so few expected, the others are none.
const TERMS_MAX: u32 = 2_048;
/// The losses that the prior is worth.
const PRIOR_LOSSES: f64 = 1.0;
/// The node-days in which RSC-1 had so many: 1,000 / 6.5.
const PRIOR_NODE_DAYS: f64 = 1_000.0 / 6.5;
const DAY: Duration = Duration::from_hours(24);

/// A pool sized by what fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareSizing {
    /// How often the spares are to be enough, in thousandths.
    pub confidence_milli: u32,
    /// How long a lost node takes to be back.
    pub repair: Duration,
}

/// Nodes that were lost, and how long nodes were there to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossRecord {
    /// Nodes that were lost without having been drained.
    pub losses: u32,
    /// The times that nodes were there, added up.
    pub node_time: Duration,
}

impl LossRecord {
    /// What is known by the end of a time in which so many nodes were there.
    pub(crate) fn after(self, time: Duration, nodes: u32) -> LossRecord {
        LossRecord { node_time: self.node_time.saturating_add(time.saturating_mul(nodes)), ..self }
    }

    /// Losses expected of so many nodes within a time.
    pub(crate) fn expected(self, nodes: u32, within: Duration) -> f64 {
        let losses = PRIOR_LOSSES + f64::from(self.losses);
        let days = PRIOR_NODE_DAYS + self.node_time.div_duration_f64(DAY);
        losses / days * f64::from(nodes) * within.div_duration_f64(DAY)
    }
}

impl SpareSizing {
    /// The pool for so many nodes with this history.
    pub(crate) fn pool_for(self, record: LossRecord, nodes: u32) -> u32 {
        enough_for(record.expected(nodes, self.repair), self.confidence_milli).min(SPARES_MAX)
    }
}

/// The smallest `count` with P(Poisson(`expected`) <= `count`) at least `confidence_milli` thousandths. The sum of all the
/// terms stands for the exponential, which machines round differently.
pub(crate) fn enough_for(expected: f64, confidence_milli: u32) -> u32 {
    let terms = || {
        let next =
            |(count, term): &(u32, f64)| Some((count + 1, term * expected.min(EXPECTED_MAX) / f64::from(count + 1)));
        let terms = usize::try_from(TERMS_MAX).expect("a usize holds 32 bits");
        std::iter::successors(Some((0, 1.0)), next).take(terms)
    };
    let wanted = terms().map(|(_, term)| term).sum::<f64>() * f64::from(confidence_milli) / 1_000.0;
    let mut covered = 0.0;
    let mut reaching = terms().filter(|(_, term)| {
        covered += term;
        covered >= wanted
    });
    reaching.next().map_or(SPARES_MAX, |(count, _)| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(Poisson(expected) <= count), by logarithms.
    fn direct(expected: f64, count: u32) -> f64 {
        let ln_factorial = |n: u32| (1..=n).map(|k| f64::from(k).ln()).sum::<f64>();
        (0..=count).map(|k| (f64::from(k) * expected.ln() - expected - ln_factorial(k)).exp()).sum()
    }

    #[test]
    fn the_pool_is_the_smallest_that_is_enough_often_enough() {
        for expected in [0.001, 0.05, 0.2, 1.0, 3.3, 6.5, 25.0, 60.0, 200.0] {
            for confidence in [500, 900, 950, 990, 999] {
                let count = enough_for(expected, confidence);
                let wanted = f64::from(confidence) / 1_000.0;
                assert!(direct(expected, count) >= wanted - 1e-9, "{count} are too few for {expected} at {confidence}");
                let is_minimal = count == 0 || direct(expected, count - 1) < wanted + 1e-9;
                assert!(is_minimal, "{count} are too many for {expected} at {confidence}");
            }
        }
    }

    #[test]
    fn nothing_expected_needs_no_spare_and_too_much_is_bounded() {
        assert_eq!(enough_for(0.0, 999), 0);
        let sizing = SpareSizing { confidence_milli: 999, repair: Duration::from_hours(24 * 365) };
        let many = LossRecord { losses: u32::MAX, node_time: Duration::ZERO };
        assert!((500..=SPARES_MAX).contains(&sizing.pool_for(many, u32::MAX)));
    }

    #[test]
    fn a_new_cluster_starts_from_the_published_rate_and_learns_its_own() {
        let (none, day) = (LossRecord::default(), DAY);
        assert!((none.expected(1_000, day) - 6.5).abs() < 1e-9);
        let quiet = none.after(DAY * 1_000, 100);
        assert!(quiet.expected(1_000, day) < 0.01, "one loss in 100,154 node-days");
        let bad = LossRecord { losses: 99, ..none.after(DAY * 10, 100) };
        assert!((bad.expected(1_000, day) - 100.0 / 1_153.846 * 1_000.0).abs() < 0.01);
        let sizing = SpareSizing { confidence_milli: 950, repair: day };
        assert_eq!([none, quiet, bad].map(|record| sizing.pool_for(record, 1_000)), [11, 0, 102]);
    }
}
