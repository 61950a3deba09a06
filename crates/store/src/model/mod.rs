//! Read models: the data from which the API answers questions about jobs, stored beside the journal.
//!
//! A [`JobRecord`] is derived from the engine's events and decisions and from the supervisors' cumulative
//! reports. Only the service's thread changes records; it stores them in the same transaction as the journal
//! entries that changed them.

mod agreement;
mod answers;
mod attempts;
mod audit;
mod block;
mod booking;
mod bound;
mod closing;
mod curve;
mod last_words;
mod ledger;
mod packed;
mod parts;
mod record;
mod remake;
mod report;
mod resume;
mod retention;
mod series;
mod store;
mod sweep;

pub use answers::{ANSWERS_MAX, keep_answers, read_answer, read_keys};
pub use answers::{KeptAnswer, Refused, RequestKey};
pub use audit::{answers_from, blocks_from, samples_from};
use booking::book_attempt;
pub use bound::{bound, cut};
pub use curve::blocks_of_rows;
pub use ledger::{Booked, LedgerRow, read_ledger, stored_ledger, write_ledger};
pub use parts::{CheckpointsRecord, GangRecord, ProgressRecord, StateRecord};
pub use record::{AttemptRecord, JobRecord, ShareRecord, StragglerRecord};
pub use remake::{Made, Remade, Remake};
pub use report::{SampleRow, cause_as_fault, outcome_as_end};
pub use retention::{
    Kept, Loss, Removal, SAMPLES_PER_REMOVAL_MAX, is_over, is_removed, next_curve, next_job, next_unpacked, read_clock,
    read_kept, read_losses, remove, sample_edges, sampled_attempts,
};
pub use series::{Series, SeriesPoint, read_series};
pub use store::JOBS_PER_PAGE_MAX;
pub use store::{
    Listing, Repair, known_jobs, last_job, live_jobs, read_job, read_jobs, read_jobs_singly, read_stored, read_sweep,
    read_sweep_jobs, repair, unless_damaged, write_job, write_sample, write_sweep,
};
pub use sweep::{BudgetRecord, EarlyStopRecord, MetricRecord, SweepRecord};
