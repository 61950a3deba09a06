//! What a report says of the ranks' progress: samples of the training curves, and silence.

use gangline_base::MetricValue;
use serde::{Deserialize, Serialize};

use super::UnixNanos;

/// A point of the training curves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time at which the supervisor received it.
    pub at: UnixNanos,
    /// The step.
    pub step: u64,
    /// The loss, if reported and finite.
    pub loss: Option<f64>,
    /// Tokens processed by this node's ranks since the attempt started.
    pub tokens: u64,
    /// Value of [`SupervisorSpec::metric`](super::SupervisorSpec::metric), if it was reported with this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<SampleMetric>,
    /// Whether the loss was reported and is NaN or infinite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_diverged: bool,
}

/// The value of a sample's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleMetric {
    /// The value in billionths.
    Nanos(i64),
    /// NaN or infinite.
    Diverged,
}

impl From<MetricValue> for SampleMetric {
    fn from(value: MetricValue) -> Self {
        match value {
            MetricValue::Nanos(nanos) => SampleMetric::Nanos(nanos),
            MetricValue::Diverged => SampleMetric::Diverged,
        }
    }
}

impl From<SampleMetric> for MetricValue {
    fn from(metric: SampleMetric) -> Self {
        match metric {
            SampleMetric::Nanos(nanos) => MetricValue::Nanos(nanos),
            SampleMetric::Diverged => MetricValue::Diverged,
        }
    }
}

/// A rank that shows no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// The global rank.
    pub rank: u32,
    /// Milliseconds since its last step or new phase; with a time-out of the job's, since its last sign of life.
    pub silent_ms: u64,
    /// Milliseconds of silence after which it counts as hung.
    pub limit_ms: u64,
}
