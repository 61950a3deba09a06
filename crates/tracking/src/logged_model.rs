//! Logged models: what a run put out that can be loaded again.

use crate::{Entry, ExperimentId, Point, UnixMillis};

/// How far the upload of a logged model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedModelStatus {
    /// Its files are on their way.
    Pending,
    /// It can be loaded.
    Ready,
    /// Its upload failed.
    UploadFailed,
}

/// A metric that was measured with a logged model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelMetric {
    /// The metric's key.
    pub key: String,
    /// The value.
    pub point: Point,
    /// The run that measured it.
    pub run: String,
    /// The name of the dataset that it was measured on.
    pub dataset_name: Option<String>,
    /// That dataset's digest.
    pub dataset_digest: Option<String>,
}

/// A version of a registered model that was made of a logged model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The registered model.
    pub name: String,
    /// The number of the version.
    pub version: u32,
}

/// A model as a run logged it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedModel {
    /// Its id, `m-` and 32 hexadecimal digits.
    pub id: String,
    /// Its experiment.
    pub experiment: ExperimentId,
    /// Its name; several may have the same.
    pub name: String,
    /// What kind of model it is.
    pub model_type: Option<String>,
    /// The run that put it out.
    pub source_run: Option<String>,
    /// Where its files lie, as a URI.
    pub artifact_uri: String,
    /// How far its upload is.
    pub status: LoggedModelStatus,
    /// When it was made.
    pub created: UnixMillis,
    /// When it last changed.
    pub updated: UnixMillis,
    /// Its tags, by key.
    pub tags: Vec<Entry>,
    /// Its parameters, by key.
    pub params: Vec<Entry>,
    /// What was measured with it: of each run, key and dataset the latest value.
    pub metrics: Vec<ModelMetric>,
    /// The versions of registered models that were made of it.
    pub registrations: Vec<Registration>,
}

impl LoggedModelStatus {
    const ALL: [LoggedModelStatus; 3] =
        [LoggedModelStatus::Pending, LoggedModelStatus::Ready, LoggedModelStatus::UploadFailed];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            LoggedModelStatus::Pending => "LOGGED_MODEL_PENDING",
            LoggedModelStatus::Ready => "LOGGED_MODEL_READY",
            LoggedModelStatus::UploadFailed => "LOGGED_MODEL_UPLOAD_FAILED",
        }
    }

    /// Its number on the wire, by which it is stored too.
    pub fn number(self) -> u8 {
        match self {
            LoggedModelStatus::Pending => 1,
            LoggedModelStatus::Ready => 2,
            LoggedModelStatus::UploadFailed => 3,
        }
    }

    /// Reads a status by its name or its number on the wire.
    pub fn parse(text: &str) -> Option<LoggedModelStatus> {
        LoggedModelStatus::ALL.into_iter().find(|status| status.name() == text || text.parse() == Ok(status.number()))
    }
}
