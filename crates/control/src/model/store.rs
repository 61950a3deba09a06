//! The read models' SQL.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gangline_accounting::LedgerEntry;
use gangline_base::{Bucket, JobId, Money, SweepId, Timestamp};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Transaction, params};
use serde::de::DeserializeOwned;

use super::answers::forget_answers;
use super::record::JobRecord;
use super::report::SampleRow;
use super::sweep::SweepRecord;
use super::view::Booked;
use crate::db::Sequence;

/// Jobs in one listing at most.
pub(crate) const JOBS_PER_PAGE_MAX: u32 = 500;
/// Samples of an attempt that are all kept.
const DENSE_SAMPLES_MAX: u64 = 1_000_000;
/// Beyond them one in so many is.
pub(super) const SPARSE_EVERY: u64 = 64;

/// Read-model rows to take out because damaged journal entries, which they followed from, were put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Jobs that were never submitted, as far as the journal knows.
    Forget {
        /// From this one on.
        from: JobId,
    },
    /// Attempts that a job hasn't made, or that aren't over.
    Rewind {
        /// The job.
        job: JobId,
        /// How many attempts were placed.
        placed: u32,
        /// How many of them are over.
        closed: u32,
    },
    /// Answers to changes that were put aside.
    ForgetAnswers {
        /// The last record that counts.
        after: Sequence,
    },
}

/// Takes the rows out. What is live again is booked again when it ends, once.
pub(crate) fn repair(transaction: &Transaction<'_>, damage: &Repair) -> rusqlite::Result<()> {
    match damage {
        Repair::Forget { from } => {
            for table in ["jobs", "ledger", "samples"] {
                transaction.execute(&format!("DELETE FROM {table} WHERE job >= ?1"), [to_sql(from.0)])?;
            }
            // A sweep has the number of its first job.
            transaction.execute("DELETE FROM sweeps WHERE sweep >= ?1", [to_sql(from.0)])?;
        }
        Repair::Rewind { job, placed, closed } => {
            let job = to_sql(job.0);
            transaction.execute("DELETE FROM ledger WHERE job = ?1 AND attempt > ?2", params![job, closed])?;
            transaction.execute("DELETE FROM samples WHERE job = ?1 AND attempt > ?2", params![job, placed])?;
        }
        Repair::ForgetAnswers { after } => forget_answers(transaction, *after)?,
    }
    Ok(())
}

pub(super) fn to_sql(value: u64) -> i64 {
    value.cast_signed()
}

pub(super) fn from_sql(value: i64) -> u64 {
    value.cast_unsigned()
}

/// Writes a job's record over what was there.
pub(crate) fn write_job(transaction: &Transaction<'_>, record: &JobRecord) -> rusqlite::Result<()> {
    let doc = serde_json::to_string(record).expect("a record has string keys only");
    let sql = "INSERT OR REPLACE INTO jobs (job, is_live, doc) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(record.id.0), !record.state.is_final(), doc])?;
    Ok(())
}

/// Writes what the jobs of a sweep share.
pub(crate) fn write_sweep(transaction: &Transaction<'_>, sweep: &SweepRecord) -> rusqlite::Result<()> {
    let doc = serde_json::to_string(sweep).expect("a record has string keys only");
    let sql = "INSERT OR REPLACE INTO sweeps (sweep, doc) VALUES (?1, ?2)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(sweep.id.0.0), doc])?;
    Ok(())
}

/// Books an entry. A second booking of the same share fails the transaction.
pub(crate) fn write_ledger(transaction: &Transaction<'_>, queue: &str, entry: &LedgerEntry) -> rusqlite::Result<()> {
    let allocation = &entry.allocation;
    let nanos = |bucket| i64::try_from(entry.buckets[bucket].nanos()).unwrap_or(i64::MAX);
    let sql = "INSERT INTO ledger VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)";
    transaction.prepare_cached(sql)?.execute(params![
        to_sql(allocation.job.0),
        allocation.attempt.0,
        allocation.node.as_str(),
        queue,
        allocation.devices,
        to_sql(allocation.from.unix_nanos()),
        to_sql(allocation.to.unix_nanos()),
        allocation.price.nano_dollars(),
        entry.cost.nano_dollars(),
        nanos(Bucket::Compute),
        nanos(Bucket::DataStall),
        nanos(Bucket::CheckpointStall),
        nanos(Bucket::Communication),
        nanos(Bucket::StragglerWait),
        nanos(Bucket::Restart),
        nanos(Bucket::LostWork),
        nanos(Bucket::Idle),
    ])?;
    Ok(())
}

/// Stores a sample unless it is there. Of a very long attempt only every [`SPARSE_EVERY`]th is kept.
pub(crate) fn write_sample(transaction: &Transaction<'_>, row: &SampleRow) -> rusqlite::Result<()> {
    if row.number >= DENSE_SAMPLES_MAX && !row.number.is_multiple_of(SPARSE_EVERY) {
        return Ok(());
    }
    let sql = "INSERT OR IGNORE INTO samples VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    transaction.prepare_cached(sql)?.execute(params![
        to_sql(row.job),
        row.attempt,
        i64::try_from(row.node_rank).unwrap_or(i64::MAX),
        to_sql(row.number),
        to_sql(row.sample.at),
        to_sql(row.sample.step),
        row.sample.loss,
        to_sql(row.sample.tokens),
    ])?;
    Ok(())
}

fn document<T: DeserializeOwned>(doc: &str) -> rusqlite::Result<T> {
    serde_json::from_str(doc).map_err(|e| rusqlite::Error::FromSqlConversionFailure(2, Type::Text, Box::new(e)))
}

/// Reads records, each with what it shares with the other jobs of its sweep: that is read once for all of them.
#[derive(Default)]
struct Records {
    sweeps: BTreeMap<SweepId, Option<Arc<SweepRecord>>>,
}

impl Records {
    fn read(&mut self, transaction: &Transaction<'_>, doc: &str) -> rusqlite::Result<JobRecord> {
        let mut record: JobRecord = document(doc)?;
        let Some(id) = record.sweep.as_ref().map(|point| point.id) else { return Ok(record) };
        record.shared = match self.sweeps.get(&id) {
            Some(known) => known.clone(),
            None => {
                let sql = "SELECT doc FROM sweeps WHERE sweep = ?1";
                let doc: Option<String> =
                    transaction.prepare_cached(sql)?.query_row([to_sql(id.0.0)], |row| row.get(0)).optional()?;
                let shared = doc.map(|doc| document(&doc)).transpose()?.map(Arc::new);
                self.sweeps.insert(id, shared.clone());
                shared
            }
        };
        Ok(record)
    }
}

/// The last job there is a record of.
pub(crate) fn last_job(transaction: &Transaction<'_>) -> rusqlite::Result<Option<JobId>> {
    let last: Option<i64> = transaction.query_row("SELECT max(job) FROM jobs", [], |row| row.get(0))?;
    Ok(last.map(|job| JobId(from_sql(job))))
}

/// Every job that hasn't ended.
pub(crate) fn live_jobs(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<JobRecord>> {
    let mut statement = transaction.prepare("SELECT doc FROM jobs WHERE is_live = 1 ORDER BY job")?;
    let docs = statement.query_map([], |row| row.get::<_, String>(0))?;
    let mut records = Records::default();
    docs.map(|doc| records.read(transaction, &doc?)).collect()
}

/// One job and its ledger rows.
pub(crate) fn read_job(
    transaction: &Transaction<'_>,
    job: JobId,
) -> rusqlite::Result<Option<(JobRecord, Vec<Booked>)>> {
    let doc: Option<String> =
        transaction.query_row("SELECT doc FROM jobs WHERE job = ?1", [to_sql(job.0)], |row| row.get(0)).optional()?;
    doc.map(|doc| Ok((Records::default().read(transaction, &doc)?, read_ledger(transaction, job)?))).transpose()
}

/// The records of these jobs, by id, without their ledger rows.
pub(crate) fn read_records(transaction: &Transaction<'_>, jobs: Range<JobId>) -> rusqlite::Result<Vec<JobRecord>> {
    let mut statement = transaction.prepare_cached("SELECT doc FROM jobs WHERE job >= ?1 AND job < ?2 ORDER BY job")?;
    let docs = statement.query_map([to_sql(jobs.start.0), to_sql(jobs.end.0)], |row| row.get::<_, String>(0))?;
    let mut records = Records::default();
    docs.map(|doc| records.read(transaction, &doc?)).collect()
}

/// Jobs before `before`, newest first, with their ledger rows.
pub(crate) fn read_jobs(
    transaction: &Transaction<'_>,
    before: Option<JobId>,
    count: u32,
) -> rusqlite::Result<Vec<(JobRecord, Vec<Booked>)>> {
    let before = before.map_or(i64::MAX, |job| to_sql(job.0));
    let count = count.min(JOBS_PER_PAGE_MAX);
    let mut statement = transaction.prepare("SELECT doc FROM jobs WHERE job < ?1 ORDER BY job DESC LIMIT ?2")?;
    let docs = statement.query_map(params![before, count], |row| row.get::<_, String>(0))?;
    let (mut records, mut jobs) = (Records::default(), Vec::new());
    for doc in docs {
        let record = records.read(transaction, &doc?)?;
        let booked = read_ledger(transaction, record.id)?;
        jobs.push((record, booked));
    }
    Ok(jobs)
}

fn read_ledger(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<Booked>> {
    let sql = "SELECT node, devices, from_unix_nanos, to_unix_nanos, price_nano_dollars_per_hour,
                      compute, data_stall, checkpoint_stall, communication, straggler_wait, restart, lost_work, idle,
                      attempt
               FROM ledger WHERE job = ?1 ORDER BY attempt, node";
    let mut statement = transaction.prepare_cached(sql)?;
    let rows = statement.query_map([to_sql(job.0)], |row| {
        let mut nanos = [0; Bucket::ALL.len()];
        for (index, nano) in nanos.iter_mut().enumerate() {
            *nano = from_sql(row.get(5 + index)?);
        }
        Ok(Booked {
            node: row.get(0)?,
            devices: row.get(1)?,
            from: Timestamp::from_unix_nanos(from_sql(row.get(2)?)),
            to: Timestamp::from_unix_nanos(from_sql(row.get(3)?)),
            price: Money::from_nano_dollars(row.get(4)?),
            nanos,
            attempt: row.get(13)?,
        })
    })?;
    rows.collect()
}
