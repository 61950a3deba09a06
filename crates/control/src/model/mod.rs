//! Read models: what the API shows of jobs, kept beside the journal.
//!
//! A [`JobRecord`] follows from the engine's events and decisions and from the supervisors' cumulative reports. Records
//! are changed only by the service's one thread and stored in the transaction of the entries they follow from.

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
mod record;
mod recovery;
mod remake;
mod report;
mod retention;
mod series;
mod store;
mod sweep;
mod view;

pub(crate) use answers::{ANSWERS_MAX, KeptAnswer, RequestKey, keep_answers, read_answer, read_keys};
pub(crate) use audit::{answers_from, blocks_from, samples_from};
use booking::book_attempt;
pub(crate) use bound::bound;
pub(crate) use curve::blocks_of_rows;
#[cfg(test)]
pub(crate) use ledger::read_ledger;
pub(crate) use ledger::{LedgerRow, stored_ledger, write_ledger};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use record::AttemptRecord;
pub(crate) use record::{JobRecord, ShareRecord, StragglerRecord};
pub(crate) use remake::{Made, Remade, Remake};
pub(crate) use report::{SampleRow, cause_as_fault, outcome_as_end};
pub(crate) use retention::{
    Kept, Loss, Removal, SAMPLES_PER_REMOVAL_MAX, is_over, is_removed, next_curve, next_job, next_unpacked, read_clock,
    read_kept, read_losses, remove, sample_edges, sampled_attempts,
};
pub(crate) use series::read_series;
pub(crate) use store::{
    JOBS_PER_PAGE_MAX, Listing, Repair, known_jobs, last_job, live_jobs, read_job, read_jobs, read_jobs_singly,
    read_stored, read_sweep, read_sweep_jobs, repair, unless_damaged, write_job, write_sample, write_sweep,
};
pub(crate) use sweep::{SweepRecord, sweep_to_wire};
#[cfg(test)]
pub(crate) use view::Booked;
pub(crate) use view::{Texts, checkpoint_folder, history_to_wire, to_wire};
