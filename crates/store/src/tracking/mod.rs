//! What experiment tracking keeps: a database of its own beside the journal, so that no experiment delays a decision.
//!
//! [`Service`] owns the file and its one writer, [`Handle`] hands changes to it. Changes that wait at the same time are
//! committed together, with one fsync, and each is acknowledged after it. Reads run beside the writer and see only what is
//! durable. The history of a metric is kept in packed parts of up to 64 points; its latest value is a row of its own, so that
//! searches read no history. Artifacts are files or objects named by their contents ([`ArtifactStore`]).
//!
//! Keeps A-7 (a writer whose fsync failed writes nothing more), A-9, A-10 and A-14.

mod artifact_reader;
mod artifact_store;
mod artifacts;
mod blobs;
mod checkpoint_versions;
mod copy;
mod entries;
mod experiments;
mod failure;
mod inputs;
mod job_runs;
mod logged_models;
mod metrics;
mod mlflow_database;
mod model_versions;
mod points;
mod registered_models;
mod remotes;
#[cfg(test)]
mod remotes_tests;
mod runs;
mod search;
mod service;
#[cfg(test)]
mod tests;
mod webhooks;

use rusqlite::{Connection, Transaction};

pub use artifact_reader::ArtifactReader;
pub use artifact_store::ArtifactStore;
pub use artifacts::{ArtifactEntry, StoredArtifact};
pub use blobs::{Blobs, Digest, Upload};
pub use checkpoint_versions::PinRow;
pub use copy::{ARTIFACTS_FOLDER, TRACKING_FOLDER, copy_tracking, is_of_tracking};
pub use experiments::NewExperiment;
pub use failure::Failure;
pub use job_runs::{JobReport, JobRun};
pub use logged_models::{NewLoggedModel, OrderByMetric, SearchLoggedModels};
pub use metrics::{Logged, MetricBatch};
pub use mlflow_database::{MlflowInput, MlflowRun, read_mlflow_database};
pub use model_versions::NewModelVersion;
pub use remotes::Remotes;
pub use runs::{NewRun, RunChange};
pub use search::{Page, Search};
pub use service::{Handle, Options, Service};
pub use webhooks::{Delivery, WebhookChange};

/// The database at one instant.
#[derive(Debug)]
pub struct Reading<'a>(&'a Connection);

/// The database within a change. What it reads includes the change so far.
#[derive(Debug)]
pub struct Writing<'a>(&'a Transaction<'a>);

impl<'a> Writing<'a> {
    /// Reads within the change.
    pub fn reading(&self) -> Reading<'a> {
        Reading(self.0)
    }
}
