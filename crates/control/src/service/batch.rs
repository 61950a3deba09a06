//! One group commit: entries, read-model rows, and the answers and launches that follow once they are
//! durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{Bytes, JobId, Principal, Timestamp};
use gangline_execution::protocol::SupervisorSpec;
use gangline_orchestration::Entry;

use super::Error;
use crate::delivery::Delivery;
use gangline_store::codec::{ClosedAttempt, Noted, encode_entry, encode_event};
use gangline_store::db;
use gangline_store::model::{KeptAnswer, Removal, Repair, RequestKey, SweepRecord};

/// The most requests in one group commit.
pub(super) const REQUESTS_PER_BATCH_MAX: usize = 512;
/// Once a batch's entries reach this size, it takes no more requests. One request's entries fit into what
/// remains of the journal's limit for a commit.
const BYTES_MAX: usize = 16 << 20;

/// A callback that receives the outcome of the commit.
pub(super) type Deferred = Box<dyn FnOnce(Result<(), &Error>) + Send>;

/// A group commit that is being gathered.
#[derive(Default)]
pub(super) struct Batch {
    /// On whose authority the next events happen: that of the request that is being handled, or the service's.
    pub(super) by: Principal,
    pub(super) entries: Vec<db::Entry>,
    bytes: usize,
    pub(super) answers: Vec<Deferred>,
    /// Gangs to start after the commit.
    pub(super) launches: Vec<Vec<SupervisorSpec>>,
    /// Notices to send after the commit.
    pub(super) notices: Vec<Delivery>,
    /// Jobs that have ended with this commit.
    pub(super) ended: Vec<JobId>,
    /// Read-model rows may not wait any longer, because the service starts or stops.
    pub(super) must_commit: bool,
}

impl Batch {
    /// Adds a journal entry.
    pub(super) fn push(&mut self, at: Timestamp, entry: &Entry) {
        let body = match entry {
            Entry::Event(event) => encode_event(event, &self.by),
            Entry::Decision(_) => encode_entry(entry),
        };
        self.push_body(at, body);
    }

    /// Adds the journal records of a closed attempt.
    pub(super) fn push_closed(&mut self, at: Timestamp, closed: &ClosedAttempt) {
        closed.encode().into_iter().for_each(|body| self.push_body(at, body));
    }

    /// Adds the journal record of a note for bills.
    pub(super) fn push_noted(&mut self, at: Timestamp, noted: &Noted) {
        self.push_body(at, noted.encode());
    }

    fn push_body(&mut self, at: Timestamp, body: Vec<u8>) {
        self.bytes += body.len();
        self.entries.push(db::Entry { at, body });
    }

    /// Returns the size of the batch's entries.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes(u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }

    /// Reports whether the batch must be committed before it takes more requests.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }
}

/// Read-model rows that wait for the next commit. Rows of reports may wait a little, since a repeated report
/// restores them.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) jobs: BTreeSet<JobId>,
    /// Sweeps submitted since the last commit.
    pub(super) sweeps: Vec<Arc<SweepRecord>>,
    pub(super) ledger: Vec<(String, LedgerEntry)>,
    /// Notes for bills.
    pub(super) noted: Vec<(Timestamp, Noted)>,
    /// The number of the first sample of each share that isn't durable yet and so must not be acknowledged,
    /// by job, attempt and node.
    pub(super) unsaved: BTreeMap<(JobId, u32, usize), u64>,
    /// Answers to changes that came with an idempotency key.
    pub(super) answers: Vec<(RequestKey, KeptAnswer)>,
    /// Corrections to read models that are ahead of a damaged journal.
    pub(super) repairs: Vec<Repair>,
    /// Old rows to remove.
    pub(super) removals: Vec<Removal>,
}

impl Rows {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.sweeps.is_empty()
            && self.ledger.is_empty()
            && self.noted.is_empty()
            && self.answers.is_empty()
            && self.repairs.is_empty()
            && self.removals.is_empty()
    }

    /// Notes that the record of a share's samples from this number on isn't durable yet.
    pub(super) fn hold_back(&mut self, share: (JobId, u32, usize), first: u64) {
        self.unsaved.entry(share).or_insert(first);
    }
}
