//! What ranks measured, on its way to the series store: a request of its own beside the report, so that many metrics never
//! delay a report.
//!
//! The supervisor posts a [`MetricReport`] to [`METRICS_PATH`] with the attempt's token, about once a second if there is
//! something. Rows of a rank are numbered; those below [`MetricAnswer::stored`] are durable and aren't sent again.

use serde::{Deserialize, Serialize};

use gangline_base::Measured;

use super::UnixNanos;

/// Where metrics are posted.
pub const METRICS_PATH: &str = "/api/v1/supervisors/metrics";
/// The version of these types; both sides send it.
pub const METRICS_VERSION: u32 = 1;
/// The most batches of one report.
pub const BATCHES_PER_REPORT_MAX: usize = 1_024;

/// Metrics of a node's ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricReport {
    /// [`METRICS_VERSION`].
    pub version: u32,
    /// The job's number.
    pub job: u64,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch from the spec.
    pub epoch: u64,
    /// The node's name.
    pub node: String,
    /// One batch for each rank that has something.
    pub batches: Vec<MetricBatch>,
}

/// Consecutive rows of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricBatch {
    /// The global rank.
    pub rank: u32,
    /// The number of the first row; numbers start at 0 in each attempt.
    pub first: u64,
    /// Names of metrics.
    pub names: Vec<String>,
    /// The rows.
    pub rows: Vec<MetricRow>,
}

/// What a rank said at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRow {
    /// When the supervisor received it.
    pub at: UnixNanos,
    /// The step, if it belongs to one.
    pub step: Option<u64>,
    /// Values, each with the index of its name.
    pub values: Vec<(u32, Measured)>,
}

/// The answer to a [`MetricReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricAnswer {
    /// [`METRICS_VERSION`].
    pub version: u32,
    /// For each batch, the number of the rank's first row that isn't stored.
    pub stored: Vec<u64>,
}
