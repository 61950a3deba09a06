//! Read models: the data from which the API answers questions about jobs, stored beside the journal.
//!
//! A [`JobRecord`] is derived from the engine's events and decisions and from the supervisors' cumulative
//! reports. Only the service's thread changes records; it stores them in the same transaction as the journal
//! entries that changed them.

pub(crate) mod account;
mod agreement;
mod allocation;
pub(crate) mod answers;
mod attempts;
pub(crate) mod audit;
mod booking;
pub(crate) mod capacity;
mod closing;
mod cut;
mod dataset_reads;
pub(crate) mod incidents;
mod last_words;
pub(crate) mod ledger;
mod packed;
mod parts;
mod record;
mod remake;
mod report;
pub(crate) mod requests;
mod resume;
pub(crate) mod retention;
pub(crate) mod storage;
pub(crate) mod store;
mod straggler;
mod sweep;
mod wanted;

pub use crate::reported::{
    AllocationRecord, DatasetReadsRecord, DiagnosisRecord, FaultCauseRecord, FaultRecord, FindingRecord, MarksRecord,
    OutcomeRecord, RankRecord, RendezvousRecord, ReportRecord, SavedRecord, ShareStateRecord, SilenceRecord, UnixNanos,
    UsageRecord, WorkRecord,
};
pub use account::{Account, Usage};
pub(crate) use account::{stored_account, write_account};
pub use answers::{ANSWERS_MAX, KeptAnswer, Refused, RequestKey};
pub use audit::Slice;
use booking::book_attempt;
pub use booking::{accrued, accrued_until};
pub(crate) use capacity::stored_capacity;
pub use cut::cut;
pub(crate) use incidents::stored_incident;
pub use ledger::Booked;
pub(crate) use ledger::{LedgerRow, stored_ledger};
pub use parts::{CheckpointsRecord, GangRecord, ProgressRecord, StateRecord};
pub use record::{AttemptRecord, JobRecord, ShareRecord};
pub(crate) use remake::{Made, Remade, Remake};
pub use report::{NewSamples, Reported, SampleRecord};
pub(crate) use requests::stored_requests;
pub(crate) use retention::is_removed;
pub use retention::{Kept, Removal};
pub(crate) use storage::stored_storage;
pub use store::{JOBS_PER_PAGE_MAX, Listing, Repair};
pub(crate) use store::{known_jobs, read_job, read_stored, read_sweep, write_job, write_sweep};
pub use straggler::StragglerRecord;
pub use sweep::{BudgetRecord, EarlyStopRecord, MetricRecord, SweepRecord};
pub use wanted::{Standing, Wanted};
