//! SQLite's side of the ports: changes as statements of one transaction, queries as read transactions.

use std::collections::BTreeSet;

use gangline_base::{JobId, SweepId, Timestamp};
use rusqlite::Transaction;
use tracing::warn;

use crate::codec::{CapacityChanged, IncidentMet, Noted, RequestsMade, StorageMeasured};
use crate::db::{self, CommitInfo, Error, Journal, Reader, Record, Sequence};
use crate::model::{
    Booked, JobRecord, Kept, KeptAnswer, Listing, RequestKey, Slice, Standing, Usage, Wanted, account, answers, audit,
    capacity, incidents, ledger, requests, retention, storage, store,
};
use crate::ports::{self, Batch, Changes, Queries};

impl Changes<'_> {
    /// Writes the changes that belong to the records up to `last`.
    fn write(&self, transaction: &Transaction<'_>, last: Sequence) -> rusqlite::Result<()> {
        self.repairs.iter().try_for_each(|damage| store::repair(transaction, damage))?;
        self.sweeps.iter().try_for_each(|sweep| store::write_sweep(transaction, sweep))?;
        self.jobs.iter().try_for_each(|job| store::write_job(transaction, job))?;
        self.ledger.iter().try_for_each(|(queue, entry)| ledger::write_ledger(transaction, queue, entry))?;
        self.noted.iter().try_for_each(|(at, noted)| write_noted(transaction, *at, noted))?;
        answers::keep_answers(transaction, self.answers, self.at, last)?;
        self.removals.iter().try_for_each(|removal| retention::remove(transaction, self.at, removal))
    }
}

/// Writes a note into its table.
pub(crate) fn write_noted(transaction: &Transaction<'_>, at: Timestamp, noted: &Noted) -> rusqlite::Result<()> {
    match noted {
        Noted::Capacity(changed) => capacity::write_capacity(transaction, at, changed),
        Noted::Storage(measured) => storage::write_storage(transaction, at, measured),
        Noted::Requests(made) => requests::write_requests(transaction, made),
        Noted::Incident(incident) => incidents::write_incident(transaction, at, incident),
    }
}

impl Journal {
    /// Appends the records and changes the read models, as [`ports::Journal::commit`] promises.
    ///
    /// # Errors
    /// Those of [`ports::Journal::commit`].
    pub fn commit(&mut self, batch: Batch<'_>) -> Result<CommitInfo, Error> {
        let Batch { records, given_out, changes } = batch;
        let last = Sequence(self.last().0 + u64::try_from(records.len()).unwrap_or(u64::MAX));
        self.commit_writing(records, given_out, &mut |transaction| changes.write(transaction, last))
    }
}

impl ports::Journal for Journal {
    fn last(&self) -> Sequence {
        Journal::last(self)
    }

    fn poison(&self) -> Option<&str> {
        Journal::poison(self)
    }

    fn commit(&mut self, batch: Batch<'_>) -> Result<CommitInfo, Error> {
        Journal::commit(self, batch)
    }

    fn write_snapshot(&mut self, body: &[u8]) -> Result<(), Error> {
        Journal::write_snapshot(self, body)
    }
}

impl Queries for Reader {
    fn job(&self, id: JobId) -> Result<Option<(JobRecord, Vec<Booked>)>, Error> {
        self.read(|transaction| store::read_job(transaction, id))
    }

    fn bookings(&self, job: JobId) -> Result<Vec<Booked>, Error> {
        self.read(|transaction| ledger::read_ledger(transaction, job))
    }

    fn usage(&self, period: (Timestamp, Timestamp), each: &mut dyn FnMut(Usage)) -> Result<(), Error> {
        self.read(|transaction| account::read_usage(transaction, period, each))
    }

    fn capacities(&self, period: (Timestamp, Timestamp)) -> Result<Vec<(Timestamp, CapacityChanged)>, Error> {
        self.read(|transaction| capacity::read_capacities(transaction, period))
    }

    fn capacities_of(
        &self,
        nodes: &BTreeSet<&str>,
        period: (Timestamp, Timestamp),
    ) -> Result<Vec<(Timestamp, CapacityChanged)>, Error> {
        self.read(|transaction| capacity::read_capacities_of(transaction, nodes.iter().copied(), period))
    }

    fn storage(
        &self,
        period: (Timestamp, Timestamp),
        each: &mut dyn FnMut(Timestamp, StorageMeasured),
    ) -> Result<(), Error> {
        self.read(|transaction| storage::read_storage(transaction, period, each))
    }

    fn storage_in(&self, folder: &str) -> Result<Vec<(Timestamp, StorageMeasured)>, Error> {
        self.read(|transaction| storage::read_storage_in(transaction, folder))
    }

    fn archives(&self) -> Result<Vec<(Timestamp, StorageMeasured)>, Error> {
        self.read(storage::read_archives)
    }

    fn archives_of(&self, job: JobId) -> Result<Vec<String>, Error> {
        self.read(|transaction| storage::read_archives_of(transaction, job))
    }

    fn requests(&self, period: (Timestamp, Timestamp), each: &mut dyn FnMut(RequestsMade)) -> Result<(), Error> {
        self.read(|transaction| requests::read_requests(transaction, period, each))
    }

    fn requests_of(&self, job: JobId) -> Result<Vec<RequestsMade>, Error> {
        self.read(|transaction| requests::read_requests_of(transaction, job))
    }

    fn incidents(
        &self,
        period: (Timestamp, Timestamp),
        each: &mut dyn FnMut(Timestamp, IncidentMet),
    ) -> Result<(), Error> {
        self.read(|transaction| incidents::read_incidents(transaction, period, each))
    }

    fn incidents_of(&self, job: JobId) -> Result<Vec<(Timestamp, IncidentMet)>, Error> {
        self.read(|transaction| incidents::read_incidents_of(transaction, job))
    }

    fn jobs(&self, wanted: &Wanted, before: Option<JobId>, count: u32) -> Result<Listing, Error> {
        self.read(|transaction| store::read_jobs(transaction, wanted, before, count))
    }

    fn jobs_singly(&self, wanted: &Wanted, before: JobId, count: u32) -> Result<Listing, Error> {
        self.read(|transaction| store::read_jobs_singly(transaction, wanted, before, count))
    }

    fn these_jobs(&self, standing: Standing, ids: &[JobId], count: u32) -> Result<Listing, Error> {
        self.read(|transaction| store::read_these_jobs(transaction, &standing.into(), ids.iter().copied(), count))
    }

    fn live_jobs(&self, expected: &BTreeSet<JobId>) -> Result<Vec<JobRecord>, Error> {
        self.read(|transaction| {
            let mut records = store::live_jobs(transaction)?;
            records.retain(|record| expected.contains(&record.id));
            let live: BTreeSet<JobId> = records.iter().map(|record| record.id).collect();
            for job in expected.difference(&live) {
                let found = store::unless_damaged(store::read_job(transaction, *job))?.flatten();
                records.extend(found.map(|(record, _)| record));
            }
            Ok(records)
        })
    }

    fn last_job(&self) -> Result<Option<JobId>, Error> {
        self.read(store::last_job)
    }

    fn next_job(&self, after: JobId) -> Result<Option<JobId>, Error> {
        self.read(|transaction| retention::next_job(transaction, after))
    }

    fn is_over(&self, job: JobId) -> Result<bool, Error> {
        self.read(|transaction| retention::is_over(transaction, job))
    }

    fn kept(&self, job: JobId) -> Result<Option<Kept>, Error> {
        self.read(|transaction| retention::read_kept(transaction, job))
    }

    fn retention_clock(&self) -> Result<Option<Timestamp>, Error> {
        self.read(retention::read_clock)
    }

    fn sweep_jobs(&self, id: SweepId) -> Result<(Vec<JobRecord>, Vec<JobId>), Error> {
        self.read(|transaction| store::read_sweep_jobs(transaction, id))
    }

    fn answer(&self, key: &RequestKey) -> Result<Option<KeptAnswer>, Error> {
        self.read(|transaction| answers::read_answer(transaction, &key.user, &key.key))
    }

    fn answer_keys(&self, each: &mut dyn FnMut(&str, &str)) -> Result<(), Error> {
        self.read(|transaction| answers::read_keys(transaction, each))
    }

    fn records(&self, after: Sequence, count_max: u32) -> Result<Vec<Record>, Error> {
        self.history(after, count_max)
    }
}

/// What only this store needs: the audit of its tables.
impl Reader {
    /// Checks `count` accounts of ended jobs after a job's number.
    ///
    /// # Errors
    /// Those of a query, as for the methods below.
    pub fn audit_accounts(&self, after: i64, count: u32) -> Result<Slice<i64>, Error> {
        self.read(|transaction| audit::accounts_from(transaction, after, count))
    }

    /// Checks `count` changes of what nodes offer after a node and a time.
    ///
    /// # Errors
    /// As [`Reader::audit_accounts`].
    pub fn audit_capacities(&self, after: &audit::NotedKey, count: u32) -> Result<Slice<audit::NotedKey>, Error> {
        self.read(|transaction| audit::capacities_from(transaction, after, count))
    }

    /// Checks `count` measurements of stored data after a folder and a time.
    ///
    /// # Errors
    /// As [`Reader::audit_accounts`].
    pub fn audit_storage(&self, after: &audit::NotedKey, count: u32) -> Result<Slice<audit::NotedKey>, Error> {
        self.read(|transaction| audit::storage_from(transaction, after, count))
    }

    /// Checks `count` incidents after a job or a node and a time.
    ///
    /// # Errors
    /// As [`Reader::audit_accounts`].
    pub fn audit_incidents(&self, after: &audit::NotedKey, count: u32) -> Result<Slice<audit::NotedKey>, Error> {
        self.read(|transaction| audit::incidents_from(transaction, after, count))
    }

    /// Checks `count` rows of requests after a key.
    ///
    /// # Errors
    /// As [`Reader::audit_accounts`].
    pub fn audit_requests(&self, after: &audit::RequestsKey, count: u32) -> Result<Slice<audit::RequestsKey>, Error> {
        self.read(|transaction| audit::requests_from(transaction, after, count))
    }

    /// Checks `count` answers after a number.
    ///
    /// # Errors
    /// As [`Reader::audit_accounts`].
    pub fn audit_answers(&self, after: i64, count: u32) -> Result<Slice<i64>, Error> {
        self.read(|transaction| audit::answers_from(transaction, after, count))
    }
}

/// Returns a query's result, or `None` if it met a damaged row, which is logged.
///
/// # Errors
/// The query's error, if it is another.
pub fn unless_row_damaged<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(db::Error::Row(row)) => {
            warn!("{row}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::db::Options;
    use crate::ports::conformance::{Opened, Subject, check};

    struct Sqlite(TempDir);

    impl Subject for Sqlite {
        type Journal = Journal;
        type Reader = Reader;

        fn open(&self) -> Result<Opened<Journal, Reader>, Error> {
            let (journal, recovered) = Journal::open(self.0.path(), Options::default())?;
            let reader = journal.reader();
            let snapshot = recovered.snapshot.map(|snapshot| (snapshot.sequence, snapshot.body));
            Ok(Opened { journal, reader, snapshot, records: recovered.records })
        }
    }

    /// Proves for SQLite, by the promises that every store makes.
    #[test]
    fn sqlite_conforms_to_the_ports() {
        check(|| Sqlite(tempfile::tempdir().expect("the temporary folder is writable")));
    }
}
