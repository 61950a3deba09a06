//! Metrics: what the ranks of a job measured, by name.

use gangline_base::Measured;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use crate::Time;

/// The metrics of a job (measured).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricList {
    /// The job.
    pub job: String,
    /// One entry for each metric of each rank, by attempt, node, rank and name.
    pub metrics: Vec<Metric>,
    /// Number of further metrics, beyond the most that are listed.
    pub left_out: u64,
    /// Number of files of which it can't be known what they held: they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged_files: u64,
}

/// The last value of a metric of a job, as its rank with the lowest number reported it (measured).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LastValue {
    /// Its name.
    pub metric: String,
    /// The rank.
    pub rank: u32,
    /// The value.
    #[schema(schema_with = number_or_text)]
    pub last: Measured,
    /// The step that it was reported with, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When it was reported.
    pub at: Time,
}

impl LastValue {
    /// Reports whether the job's program named the metric: it is neither one of Gangline's nor the loss or the tokens, which
    /// a job's progress has.
    #[must_use]
    pub fn is_programs(&self) -> bool {
        !["loss", "tokens"].contains(&self.metric.as_str()) && !self.metric.starts_with("gangline.")
    }
}

/// Who measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MetricSource {
    /// The job's attempt.
    pub attempt: Option<u32>,
    /// The node.
    pub node: Option<String>,
    /// The global rank; none for what a node measured.
    pub rank: Option<u32>,
    /// The device's index on its node; none if it isn't of a device.
    pub device: Option<u32>,
}

/// All values of a metric as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Metric {
    /// Its name.
    pub metric: String,
    /// Who measured it.
    pub source: MetricSource,
    /// All its values.
    pub values: MetricValues,
    /// Number of values that can't be shown because they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged: u64,
}

/// Curves of metrics of a job (measured).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricCurves {
    /// The job.
    pub job: String,
    /// The curves, by attempt, node, rank and name.
    pub curves: Vec<MetricCurve>,
    /// Number of further curves, beyond the most that are answered.
    pub left_out: u64,
    /// Number of files of which it can't be known what they held: they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged_files: u64,
}

/// The metrics of a node and its devices (measured).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeMetricList {
    /// The node.
    pub node: String,
    /// One entry for each metric, by device and name.
    pub metrics: Vec<Metric>,
    /// Number of further metrics, beyond the most that are listed.
    pub left_out: u64,
    /// Number of files of which it can't be known what they held: they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged_files: u64,
}

/// Curves of metrics of a node and its devices (measured).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeMetricCurves {
    /// The node.
    pub node: String,
    /// The curves, by device and name.
    pub curves: Vec<MetricCurve>,
    /// Number of further curves, beyond the most that are answered.
    pub left_out: u64,
    /// Number of files of which it can't be known what they held: they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged_files: u64,
}

/// One metric of one source over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricCurve {
    /// Its name.
    pub metric: String,
    /// Who measured it.
    pub source: MetricSource,
    /// What the points were made from: point, minute or hour. Finer values may be older than they are kept.
    pub resolution: String,
    /// The points in time.
    pub points: Vec<MetricValues>,
    /// Number of values that can't be shown because they are damaged on disk.
    #[serde(default, skip_serializing_if = "is_none")]
    pub damaged: u64,
}

/// The values of a stretch of time; of one moment if `count` and `not_finite` add up to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricValues {
    /// When it begins, to the millisecond.
    pub at: Time,
    /// When the last value was measured.
    pub last_at: Time,
    /// The smallest step, if the values belong to steps.
    pub first_step: Option<u64>,
    /// The largest step.
    pub last_step: Option<u64>,
    /// Number of finite values.
    pub count: u64,
    /// Number of values that are NaN or infinite. They are not in `min`, `max` and `mean`.
    pub not_finite: u64,
    /// The last value: a number, or "NaN", "Infinity" or "-Infinity".
    #[schema(schema_with = number_or_text)]
    pub last: Measured,
    /// The smallest value.
    pub min: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
}

/// How a value is written: as a number, or as a text where JSON has no number for it.
fn number_or_text() -> RefOr<Schema> {
    let kinds = [Type::Number, Type::String].map(|kind| ObjectBuilder::new().schema_type(kind));
    kinds.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
}

fn is_none(count: &u64) -> bool {
    *count == 0
}
