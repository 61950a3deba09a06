//! What one group commit holds: entries, read-model rows, and what is to happen once they are durable.

use std::collections::BTreeSet;

use gangline_accounting::LedgerEntry;
use gangline_base::{JobId, Timestamp};
use gangline_execution::protocol::SupervisorSpec;
use gangline_orchestration::Entry;

use super::Error;
use crate::model::SampleRow;

/// Called with the outcome of the commit.
pub(super) type Deferred = Box<dyn FnOnce(Result<(), &Error>) + Send>;

/// One group commit in the making.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<(Timestamp, Entry)>,
    pub(super) answers: Vec<Deferred>,
    pub(super) launches: Vec<SupervisorSpec>,
    /// Something must be durable before the answers, journal entries or not.
    pub(super) must_commit: bool,
}

/// Read-model rows that wait for the next commit. A report's rows may wait a little: repeating it brings them back.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) samples: Vec<SampleRow>,
    pub(super) ledger: Vec<(String, LedgerEntry)>,
    /// Records of jobs that a damaged journal doesn't know any more.
    pub(super) forgotten: Vec<JobId>,
}

impl Rows {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.samples.is_empty() && self.ledger.is_empty() && self.forgotten.is_empty()
    }
}
