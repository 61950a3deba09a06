//! The reading port for jobs, sweeps, answers and the journal's records.

use std::collections::BTreeSet;

use gangline_base::{JobId, SweepId, Timestamp};

use crate::codec::{CapacityChanged, IncidentMet, RequestsMade, StorageMeasured};
use crate::db::{Error, Record, Sequence};
use crate::model::{Booked, JobRecord, Kept, KeptAnswer, Listing, RequestKey, Standing, Usage, Wanted};

/// Reads durable state.
///
/// An implementation must promise:
/// - A query sees one durable state, that of its beginning: never a part of a batch, and everything that was
///   committed before it began.
/// - Queries run beside the writer and beside each other, and neither wait for a commit nor delay one.
/// - A query works on a store whose writer is poisoned.
/// - A damaged row is told from a missing one: [`Error::Row`] where one row is asked for; lists go on around
///   it and name it.
pub trait Queries {
    /// Returns a job's record with its bookings.
    ///
    /// # Errors
    /// [`Error::Row`], or the failure to read, as for all methods.
    fn job(&self, id: JobId) -> Result<Option<(JobRecord, Vec<Booked>)>, Error>;

    /// Returns the bookings of a job by attempt and node, also if its record has been removed.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn bookings(&self, job: JobId) -> Result<Vec<Booked>, Error>;

    /// Passes every booking that overlaps a period to `each`, by job.
    ///
    /// # Errors
    /// As [`Queries::job`]; `each` has been called for a part of the bookings then.
    fn usage(&self, period: (Timestamp, Timestamp), each: &mut dyn FnMut(Usage)) -> Result<(), Error>;

    /// Returns what nodes offered in a period, by node and time: the changes in it, and each node's last one before.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn capacities(&self, period: (Timestamp, Timestamp)) -> Result<Vec<(Timestamp, CapacityChanged)>, Error>;

    /// Returns the same of some nodes.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn capacities_of(
        &self,
        nodes: &BTreeSet<&str>,
        period: (Timestamp, Timestamp),
    ) -> Result<Vec<(Timestamp, CapacityChanged)>, Error>;

    /// Passes the measurements of stored data that matter to a period to `each`, by folder and time: those in it, and each
    /// folder's last one before.
    fn storage(
        &self,
        period: (Timestamp, Timestamp),
        each: &mut dyn FnMut(Timestamp, StorageMeasured),
    ) -> Result<(), Error>;
    /// Returns all measurements of one folder, by time.
    fn storage_in(&self, folder: &str) -> Result<Vec<(Timestamp, StorageMeasured)>, Error>;

    /// Returns the last measurement of each archive of checkpoints.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn archives(&self) -> Result<Vec<(Timestamp, StorageMeasured)>, Error>;

    /// Returns the addresses of the archives that were ever charged to a job.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn archives_of(&self, job: JobId) -> Result<Vec<String>, Error>;

    /// Passes what attempts asked of object storage in a period, at least in part, to `each`, by their ends.
    ///
    /// # Errors
    /// As [`Queries::job`]; `each` has been called for a part of them then.
    fn requests(&self, period: (Timestamp, Timestamp), each: &mut dyn FnMut(RequestsMade)) -> Result<(), Error>;

    /// Returns what a job's attempts asked of object storage.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn requests_of(&self, job: JobId) -> Result<Vec<RequestsMade>, Error>;

    /// Passes the incidents of a period to `each`, by time.
    ///
    /// # Errors
    /// As [`Queries::requests`].
    fn incidents(
        &self,
        period: (Timestamp, Timestamp),
        each: &mut dyn FnMut(Timestamp, IncidentMet),
    ) -> Result<(), Error>;

    /// Returns a job's incidents, by time.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn incidents_of(&self, job: JobId) -> Result<Vec<(Timestamp, IncidentMet)>, Error>;

    /// Returns at most `count` wanted jobs before `before`, newest first. Where few are wanted, it may return none
    /// although there are more beyond ([`Listing::has_more`]).
    ///
    /// # Errors
    /// As [`Queries::job`]; [`Error::Damaged`] if a part of the store can't be read: see
    /// [`Queries::jobs_singly`].
    fn jobs(&self, wanted: &Wanted, before: Option<JobId>, count: u32) -> Result<Listing, Error>;

    /// Returns the same, looked up one by one, so that an unreadable part of the store hides only its own rows.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn jobs_singly(&self, wanted: &Wanted, before: JobId, count: u32) -> Result<Listing, Error>;

    /// Returns at most `count` of these jobs that have this standing, in their order; jobs without a record are
    /// left out.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn these_jobs(&self, standing: Standing, ids: &[JobId], count: u32) -> Result<Listing, Error>;

    /// Returns the records of the expected jobs, whether or not their rows count as live. Damaged and missing
    /// rows are left out.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn live_jobs(&self, expected: &BTreeSet<JobId>) -> Result<Vec<JobRecord>, Error>;

    /// Returns the last job with a row.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn last_job(&self) -> Result<Option<JobId>, Error>;

    /// Returns the next job with a row after this one, including damaged rows.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn next_job(&self, after: JobId) -> Result<Option<JobId>, Error>;

    /// Reports whether the job has a row and has ended.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn is_over(&self, job: JobId) -> Result<bool, Error>;

    /// Returns the facts about a job that retention decides on.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn kept(&self, job: JobId) -> Result<Option<Kept>, Error>;

    /// Returns the time up to which retention has seen time pass, if it was ever noted.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn retention_clock(&self) -> Result<Option<Timestamp>, Error>;

    /// Returns the intact records of a sweep's jobs by id, and the damaged jobs; both empty if there is no such
    /// sweep.
    ///
    /// # Errors
    /// As [`Queries::job`]; [`Error::Row`] if no job of the sweep is intact.
    fn sweep_jobs(&self, id: SweepId) -> Result<(Vec<JobRecord>, Vec<JobId>), Error>;

    /// Returns the answer that is stored under an idempotency key.
    ///
    /// # Errors
    /// As [`Queries::job`].
    fn answer(&self, key: &RequestKey) -> Result<Option<KeptAnswer>, Error>;

    /// Passes every user and key with a stored answer to `each`.
    ///
    /// # Errors
    /// As [`Queries::job`]; `each` has been called for a part of the keys then.
    fn answer_keys(&self, each: &mut dyn FnMut(&str, &str)) -> Result<(), Error>;

    /// Returns up to `count_max` records after `after`, in order, each verified against the one before.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the records can't be verified, [`Error::History`] where their archive is
    /// damaged, and the failure to read.
    fn records(&self, after: Sequence, count_max: u32) -> Result<Vec<Record>, Error>;
}
