//! The points of a job's training curve, as they are in reports.

use serde::{Deserialize, Serialize};

use gangline_base::MetricValue;

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
    /// Value of [`SupervisorSpec::metric`], if it was reported with this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<SampleMetric>,
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
