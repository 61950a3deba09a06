//! How often a job is interrupted.

use crate::units::Seconds;

/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// A rate is per so many days of a node.
const NODE_DAYS: f64 = 1_000.0;
/// Accelerators of the nodes that published rates count.
const NODE: f64 = 8.0;
/// Nodes below which the published job of that size was interrupted much more often than one over the nodes says.
const FEW_NODES: f64 = 256.0;

/// Interruptions of a job in each thousand days of an eight-accelerator node, those that stop the whole gang.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureRate {
    /// So many.
    pub per_thousand_node_days: f64,
    /// Where it was counted.
    pub source: &'static str,
}

impl FailureRate {
    /// Meta's RSC-1, 16,384 A100, eleven months (arXiv:2410.21680, section 3).
    pub const RSC_1: FailureRate =
        FailureRate { per_thousand_node_days: 6.5, source: "Meta RSC-1, A100 (arXiv:2410.21680)" };
    /// Meta's RSC-2, 8,192 A100 (the same).
    pub const RSC_2: FailureRate =
        FailureRate { per_thousand_node_days: 2.34, source: "Meta RSC-2, A100 (arXiv:2410.21680)" };
    /// Llama 3 405B: 419 unexpected interruptions in 54 days of 2,048 nodes of H100 (arXiv:2407.21783, table 5): 419 / (54 x 2,048).
    pub const LLAMA_3: FailureRate =
        FailureRate { per_thousand_node_days: 3.79, source: "Llama 3 405B, H100 (arXiv:2407.21783, table 5)" };

    /// Mean time to a failure of a job: M = 1,000 days / (nodes x rate), with nodes = accelerators / 8.
    ///
    /// Failures of nodes are taken to be independent (arXiv:2410.21680, section 4).
    #[must_use]
    pub fn mean_time(&self, accelerators: u32) -> Seconds {
        let nodes = f64::from(accelerators.max(1)) / NODE;
        Seconds::new(NODE_DAYS * DAY / (nodes * self.per_thousand_node_days))
    }

    /// Whether a job is so small that one over the nodes is known to flatter: jobs of 1,024 accelerators on RSC-1 were interrupted
    /// every 7.9 hours, where 28.8 were to be expected (arXiv:2410.21680, figure 7); what breaks small jobs is mostly software.
    #[must_use]
    pub fn is_optimistic(accelerators: u32) -> bool {
        f64::from(accelerators) / NODE < FEW_NODES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(rate: FailureRate, accelerators: u32) -> f64 {
        rate.mean_time(accelerators).get() / 3_600.0
    }

    #[test]
    fn the_published_mean_times_come_out_of_the_published_rates() {
        assert!((hours(FailureRate::RSC_1, 16_384) / 1.8 - 1.0).abs() < 0.05);
        assert!((hours(FailureRate::RSC_1, 131_072) / 0.23 - 1.0).abs() < 0.05);
        assert!((hours(FailureRate::LLAMA_3, 16_384) / (54.0 * 24.0 / 419.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_small_job_is_told_that_the_rate_flatters_it() {
        assert!((hours(FailureRate::RSC_1, 1_024) - 28.8).abs() < 0.1, "measured: 7.9");
        assert!(FailureRate::is_optimistic(1_024) && !FailureRate::is_optimistic(16_384));
    }
}
