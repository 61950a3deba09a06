//! The workload of a simulation: jobs with their true durations, as a plain value. It is built from a trace
//! or from a control plane's own journal.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{JobId, Timestamp};

/// A job's index in [`Workload::jobs`], which is the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobIndex(pub u32);

impl JobIndex {
    /// Returns the index as a `usize`.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A text that many jobs share (a user, a queue, a model), as an index into [`Workload::labels`]. The first
/// label is the empty text, which means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u32);

/// A job of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// The trace line it came from, counted from 1.
    pub line: u32,
    /// When it is submitted, relative to the trace's start.
    pub submitted: Timestamp,
    /// How long it would run undisturbed on the devices it requests. Only clairvoyant policies may know.
    pub duration: Duration,
    /// The accelerators it requests, all at once.
    pub gpus: u32,
    /// The user who submitted it.
    pub user: Label,
    /// The queue or virtual cluster it was submitted to.
    pub queue: Label,
    /// The model it trains.
    pub model: Label,
    /// The time limit its user typed, if known.
    pub limit: Option<Duration>,
}

/// Jobs in order of submission, and their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The jobs; [`JobIndex`] indexes them.
    pub jobs: Vec<TraceJob>,
    /// The texts of the labels.
    pub labels: Vec<String>,
    /// Malformed rows that were left out because the caller asked for that.
    pub skipped: u64,
    /// Jobs of a control plane's past that are left out because they never ran, so that nobody knows how long they would.
    pub never_ran: Vec<JobId>,
}

impl Workload {
    /// Returns the text of a label.
    #[must_use]
    pub fn label(&self, label: Label) -> &str {
        self.labels.get(label.0 as usize).map_or("", String::as_str)
    }

    /// Returns all jobs by index.
    pub(crate) fn indices(&self) -> impl Iterator<Item = JobIndex> + use<> {
        (0..u32::try_from(self.jobs.len()).expect("a workload has at most JOBS_MAX jobs")).map(JobIndex)
    }
}

/// Assigns each distinct text a label.
#[derive(Debug)]
pub(crate) struct Labels {
    by_text: BTreeMap<String, Label>,
    texts: Vec<String>,
}

impl Labels {
    pub(crate) fn new() -> Self {
        Labels { by_text: BTreeMap::from([(String::new(), Label(0))]), texts: vec![String::new()] }
    }

    pub(crate) fn of(&mut self, text: &str) -> Label {
        if let Some(label) = self.by_text.get(text) {
            return *label;
        }
        let label = Label(u32::try_from(self.texts.len()).expect("there are no more labels than fields of a trace"));
        self.by_text.insert(text.to_owned(), label);
        self.texts.push(text.to_owned());
        label
    }

    pub(crate) fn into_texts(self) -> Vec<String> {
        self.texts
    }
}
