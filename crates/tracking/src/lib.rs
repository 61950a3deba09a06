//! Experiment tracking: experiments, runs, metrics, models, and the grammar that they are searched with.
//!
//! Pure. The semantics are those of MLflow 3.17's REST API, whose clients are to work unchanged
//! (<https://mlflow.org/docs/latest/api_reference/rest-api.html>): limits, names, which value of a metric is the latest,
//! how a long curve is sampled, and what a filter means. How requests look on the wire is the server's concern, how the
//! values are kept the store's. Keeps A-10: every name, value and list has a limit.

mod checkpoint_version;
mod experiment;
pub mod filter;
mod input;
pub mod limits;
mod logged_model;
mod metric;
mod refusal;
mod registry;
mod run;
mod webhook;

use gangline_base::Timestamp;

pub use checkpoint_version::{CheckpointVersion, ModelAction, ModelEvent, PRODUCTION, check_promotion};
pub use experiment::{Experiment, ExperimentId, Lifecycle, View};
pub use input::{Dataset, Input};
pub use logged_model::{LoggedModel, LoggedModelStatus, ModelMetric, Registration};
pub use metric::{Metric, Point, sample};
pub use refusal::{Code, Refusal};
pub use registry::{Alias, ModelVersion, RegisteredModel, Stage};
pub use run::{ModelOutput, Run, RunInfo, RunStatus};
pub use webhook::{Webhook, WebhookEvent, check_webhook_name, check_webhook_url};

/// A tag or a parameter: a key, which is unique in what it belongs to, and a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Milliseconds since 1970 in UTC, as clients send them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// Returns the millisecond of a time.
    pub fn of(time: Timestamp) -> UnixMillis {
        UnixMillis(i64::try_from(time.unix_nanos() / 1_000_000).unwrap_or(i64::MAX))
    }
}
