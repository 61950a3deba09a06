//! What one group commit holds: entries, read-model rows, and what is to happen once they are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{Bytes, JobId, Timestamp};
use gangline_execution::protocol::SupervisorSpec;
use gangline_orchestration::Entry;

use super::Error;
use crate::codec::{ClosedAttempt, encode_entry};
use crate::db;
use crate::model::{KeptAnswer, Removal, Repair, RequestKey, SampleRow, SweepRecord};

/// Requests taken into one group commit at most.
pub(super) const REQUESTS_PER_BATCH_MAX: usize = 512;
/// A batch whose entries have reached this many bytes takes no more requests; what one request adds fits easily into the
/// rest of what the journal takes at once.
const BYTES_MAX: usize = 16 << 20;

/// Called with the outcome of the commit.
pub(super) type Deferred = Box<dyn FnOnce(Result<(), &Error>) + Send>;

/// One group commit in the making.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<db::Entry>,
    bytes: usize,
    pub(super) answers: Vec<Deferred>,
    /// Gangs to be started.
    pub(super) launches: Vec<Vec<SupervisorSpec>>,
    /// Read-model rows may not wait any longer: the service starts or stops.
    pub(super) must_commit: bool,
}

impl Batch {
    /// Adds an entry.
    pub(super) fn push(&mut self, at: Timestamp, entry: &Entry) {
        self.push_body(at, encode_entry(entry));
    }

    /// Adds what an attempt came to.
    pub(super) fn push_closed(&mut self, at: Timestamp, closed: &ClosedAttempt) {
        closed.encode().into_iter().for_each(|body| self.push_body(at, body));
    }

    fn push_body(&mut self, at: Timestamp, body: Vec<u8>) {
        self.bytes += body.len();
        self.entries.push(db::Entry { at, body });
    }

    /// What its entries take.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }

    /// Whether it is to be committed before more is taken in.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }
}

/// Read-model rows that wait for the next commit. A report's rows may wait a little: repeating it brings them back.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) jobs: BTreeSet<JobId>,
    /// Of sweeps that have just come.
    pub(super) sweeps: Vec<Arc<SweepRecord>>,
    pub(super) samples: Vec<SampleRow>,
    pub(super) ledger: Vec<(String, LedgerEntry)>,
    /// For each job, attempt and node: the first sample that isn't durable yet, so mustn't be acknowledged.
    pub(super) unsaved: BTreeMap<(JobId, u32, usize), u64>,
    /// Answers to changes that came with a key.
    pub(super) answers: Vec<(RequestKey, KeptAnswer)>,
    /// What a damaged journal doesn't know any more.
    pub(super) repairs: Vec<Repair>,
    /// What is old.
    pub(super) removals: Vec<Removal>,
}

impl Rows {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.sweeps.is_empty()
            && self.samples.is_empty()
            && self.ledger.is_empty()
            && self.answers.is_empty()
            && self.repairs.is_empty()
            && self.removals.is_empty()
    }

    /// Adds samples of one share, in order.
    pub(super) fn add_samples(&mut self, samples: Vec<SampleRow>) {
        if let Some(first) = samples.first() {
            let share = (JobId(first.job), first.attempt, first.node_rank);
            self.unsaved.entry(share).or_insert(first.number);
        }
        self.samples.extend(samples);
    }
}
