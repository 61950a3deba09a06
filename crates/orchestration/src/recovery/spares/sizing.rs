//! The size of a spare pool: enough for the nodes lost while one is being repaired, with the configured
//! confidence.
//!
//! Losses are modelled as a Poisson process, as usual for spare parts (base-stock with a service level:
//! Sherbrooke, "Optimal Inventory Modeling of Systems", 2004): with `rate x nodes x repair` losses expected
//! until a lost node is back, the pool is the smallest that covers them with the wanted confidence. The rate
//! is a Gamma-Poisson estimate with a prior of one loss at the rate of Meta's RSC-1, 6.5 per 1,000 node-days
//! (Kokolis et al., HPCA 2025): a new cluster starts with that rate, and after some hundred node-days its own
//! history dominates. Only sums, products and quotients are used: the same result everywhere.

use std::time::Duration;

/// The most spares kept for one flavour.
pub const SPARES_MAX: u32 = 1_024;
/// The highest number of expected losses; beyond it, their probabilities underflow.
const EXPECTED_MAX: f64 = 500.0;
/// The most terms of the Poisson distribution that are summed; at most `EXPECTED_MAX` expected losses
/// make further terms negligible.
const TERMS_MAX: u32 = 2_048;
/// The weight of the prior, in losses.
const PRIOR_LOSSES: f64 = 1.0;
/// The node-days in which RSC-1 had that many losses: 1,000 / 6.5.
const PRIOR_NODE_DAYS: f64 = 1_000.0 / 6.5;
const DAY: Duration = Duration::from_hours(24);

/// Sizing of a pool by the loss rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareSizing {
    /// How often the spares should be enough, in thousandths.
    pub confidence_milli: u32,
    /// How long the repair of a lost node takes.
    pub repair: Duration,
}

/// The number of lost nodes, and the node-time in which they were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossRecord {
    /// Nodes lost without having been drained.
    pub losses: u32,
    /// The total time for which nodes were present.
    pub node_time: Duration,
}

impl LossRecord {
    /// Returns the record after another `time` with `nodes` nodes present.
    pub(crate) fn after(self, time: Duration, nodes: u32) -> LossRecord {
        LossRecord { node_time: self.node_time.saturating_add(time.saturating_mul(nodes)), ..self }
    }

    /// Returns the losses expected among `nodes` nodes within a time.
    pub(crate) fn expected(self, nodes: u32, within: Duration) -> f64 {
        let losses = PRIOR_LOSSES + f64::from(self.losses);
        let days = PRIOR_NODE_DAYS + self.node_time.div_duration_f64(DAY);
        losses / days * f64::from(nodes) * within.div_duration_f64(DAY)
    }
}

impl SpareSizing {
    /// Returns the pool size for this many nodes with this history.
    pub(crate) fn pool_for(self, record: LossRecord, nodes: u32) -> u32 {
        enough_for(record.expected(nodes, self.repair), self.confidence_milli).min(SPARES_MAX)
    }
}

/// Returns the smallest `count` with P(Poisson(`expected`) <= `count`) of at least `confidence_milli`
/// thousandths. The sum of all terms replaces the exponential, which machines round differently.
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

    /// Returns P(Poisson(expected) <= count), computed with logarithms.
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
