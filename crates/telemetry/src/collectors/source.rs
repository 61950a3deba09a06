//! Where samples come from.

use std::io;
use std::path::PathBuf;

use super::metric::Metric;

/// The most samples of one read of a source.
pub(super) const SAMPLES_MAX: usize = 4_096;

/// Something that can be read again and again.
pub trait Source {
    /// Its name, for people: `host`, `NVML`.
    fn name(&self) -> &'static str;

    /// Reads it. What this machine doesn't have is left out.
    ///
    /// # Errors
    /// [`SourceError`] if nothing of it can be read.
    fn read(&mut self) -> Result<Vec<Sample>, SourceError>;
}

/// Why a source can't be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// This machine has no such thing.
    #[error("{0}")]
    NotHere(String),
    /// A file can't be read.
    #[error("read {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A driver or an exporter answers with an error.
    #[error("ask {whom}: {said}")]
    Refused {
        /// Who was asked.
        whom: String,
        /// The answer.
        said: String,
    },
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A value that stands for itself, in the metric's unit.
    Gauge(f64),
    /// A count since some start; times `scale` it is in the metric's unit.
    Counter {
        /// The count.
        count: u64,
        /// What one of it is.
        scale: f64,
    },
}

/// What a source says of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric.
    pub metric: &'static Metric,
    /// Which of several, such as a disk or a network interface.
    pub part: Option<String>,
    /// The accelerator's index on its node.
    pub device: Option<u32>,
    /// The value.
    pub value: Value,
}

impl Sample {
    /// Returns a sample of a gauge of the node.
    pub(super) fn gauge(metric: &'static Metric, value: f64) -> Sample {
        Sample { metric, part: None, device: None, value: Value::Gauge(value) }
    }

    /// Returns a sample of a counter of the node.
    pub(super) fn counter(metric: &'static Metric, count: u64, scale: f64) -> Sample {
        Sample { metric, part: None, device: None, value: Value::Counter { count, scale } }
    }

    pub(super) fn of_part(self, part: &str) -> Sample {
        Sample { part: Some(part.to_owned()), ..self }
    }

    pub(super) fn of_device(self, device: u32) -> Sample {
        Sample { device: Some(device), ..self }
    }
}
