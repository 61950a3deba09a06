//! What ranks and agents measure, sent elsewhere as well.

use std::sync::{Arc, Mutex};

use super::queue::{Queue, Sample};
use super::sender::{Outbox, lock};
use super::{otlp, remote_write};

/// Samples of a request.
const SAMPLES_PER_REQUEST: usize = 5_000;

/// How samples are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    RemoteWrite,
    Otlp,
}

/// Samples that wait.
pub(super) struct Samples {
    pub(super) queue: Arc<Mutex<Queue>>,
    pub(super) format: Format,
    /// Of all series, where the format has a place for them.
    pub(super) labels: Vec<(String, String)>,
}

impl Outbox for Samples {
    type Item = Sample;
    const WHAT: &'static str = "measurements";

    fn take(&mut self) -> Vec<Sample> {
        lock(&self.queue).take(SAMPLES_PER_REQUEST)
    }

    fn encode(&self, samples: &[Sample]) -> (Vec<u8>, &'static [(&'static str, &'static str)]) {
        match self.format {
            Format::RemoteWrite => (remote_write::encode(samples), &remote_write::HEADERS),
            Format::Otlp => (otlp::metrics(samples, &self.labels), &otlp::HEADERS),
        }
    }
}
