//! The writing port.

use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{JobId, Timestamp};

use crate::codec::Noted;
use crate::db::{CommitInfo, Entry, Error, Sequence};
use crate::model::{JobRecord, KeptAnswer, Removal, Repair, RequestKey, SweepRecord};

/// Records and read-model changes that become durable together.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The records to append, in order.
    pub records: &'a [Entry],
    /// The highest job id given out so far, in these records or before.
    pub given_out: JobId,
    /// The read-model rows that change with the records.
    pub changes: Changes<'a>,
}

/// Changes of the read models, carried out in the order of the fields.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// The time of the changes, by the control plane's clock.
    pub at: Timestamp,
    /// Rows to remove because the journal no longer has what they follow from.
    pub repairs: &'a [Repair],
    /// Data that the jobs of a sweep share; replaces what is stored.
    pub sweeps: &'a [Arc<SweepRecord>],
    /// Records of jobs; each replaces what is stored.
    pub jobs: &'a [&'a JobRecord],
    /// Bookings, each with the queue of its job. A booking of an attempt on a node is stored once.
    pub ledger: &'a [(String, LedgerEntry)],
    /// What bills are made of beside the ledger, each from its time on.
    pub noted: &'a [(Timestamp, Noted)],
    /// Answers under idempotency keys.
    pub answers: &'a [(RequestKey, KeptAnswer)],
    /// Rows that retention removes.
    pub removals: &'a [Removal],
}

impl Changes<'_> {
    /// Returns no changes.
    #[must_use]
    pub const fn none() -> Self {
        Changes {
            at: Timestamp::from_unix_nanos(0),
            repairs: &[],
            sweeps: &[],
            jobs: &[],
            ledger: &[],
            noted: &[],
            answers: &[],
            removals: &[],
        }
    }
}

/// The journal's one writer. A second writer of the same journal must be refused for as long as the first
/// exists ([`Error::InUse`]).
pub trait Journal {
    /// Returns the number of the last durable record; [`Sequence::ZERO`] if there is none.
    fn last(&self) -> Sequence;

    /// Returns the failure that poisoned the writer, if it is poisoned.
    fn poison(&self) -> Option<&str>;

    /// Appends the records and changes the read models.
    ///
    /// An implementation must promise:
    /// - Atomicity: a reader, and every later start, sees the whole batch or nothing of it.
    /// - Order: records are numbered without gaps from 1, in the order of the batch and of the commits.
    /// - Durability: when this returns, the batch survives a power cut. A batch costs at most one fsync (or one
    ///   synchronous commit of a server).
    /// - Visibility: a reader that begins after this returned sees the batch; one that began earlier goes on to
    ///   see the state of its beginning.
    /// - Limits: a record, a batch and the journal have largest sizes ([`crate::db::Limits`], A-10).
    ///
    /// # Errors
    /// After any error nothing of the batch is visible, and the writer is poisoned because its caller's memory
    /// is ahead of the disk: every later call returns [`Error::Poisoned`]. A batch whose last step failed may
    /// come back at the next start; its sender was told of a failure, not of a refusal.
    fn commit(&mut self, batch: Batch<'_>) -> Result<CommitInfo, Error>;

    /// Saves the writer's state after the last record, so that a start reads only later records. The records
    /// stay in the history.
    ///
    /// # Errors
    /// [`Error::TooLarge`], or the failure to write; the journal goes on without the snapshot.
    fn write_snapshot(&mut self, body: &[u8]) -> Result<(), Error>;
}
