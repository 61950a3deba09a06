//! The read models' SQL.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gangline_base::{JobId, SweepId};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::answers::forget_answers;
use super::ledger::read_ledger;
use super::packed::{pack, unpack};
use super::record::JobRecord;
use super::report::SampleRow;
use super::sweep::SweepRecord;
use super::view::Booked;
use crate::db::{Sequence, check_row, damaged, damaged_row, row_sum};

/// Jobs in one listing at most.
pub(crate) const JOBS_PER_PAGE_MAX: u32 = 500;
/// Samples of an attempt that are all kept.
const DENSE_SAMPLES: u64 = 16_384;

/// Beyond the first samples of an attempt one in so many is kept: each time the attempt gets twice as long, half as many. So a
/// month-long run keeps some hundred thousand samples, and a curve of any part of it has points enough.
pub(super) const fn stride(number: u64) -> u64 {
    if number < DENSE_SAMPLES { 1 } else { 2 << (number.ilog2() - DENSE_SAMPLES.ilog2()) }
}

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
    let is_live = !record.state.is_final();
    let doc = if is_live { doc.into_bytes() } else { pack(doc) };
    if !is_live {
        // A row that only shrinks leaves its page to itself for ever; one that is taken out first goes to a page that others are on.
        transaction.prepare_cached("DELETE FROM jobs WHERE job = ?1")?.execute([to_sql(record.id.0)])?;
    }
    let sum = row_sum(&[&record.id.0.to_le_bytes(), &[u8::from(is_live)], &doc]);
    // The column is for text, which may have any bytes.
    let sql = "INSERT OR REPLACE INTO jobs (job, is_live, doc, sum) VALUES (?1, ?2, CAST(?3 AS TEXT), ?4)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(record.id.0), is_live, doc, sum])?;
    Ok(())
}

/// Writes what the jobs of a sweep share.
pub(crate) fn write_sweep(transaction: &Transaction<'_>, sweep: &SweepRecord) -> rusqlite::Result<()> {
    let doc = serde_json::to_string(sweep).expect("a record has string keys only");
    let sum = row_sum(&[&sweep.id.0.0.to_le_bytes(), doc.as_bytes()]);
    let sql = "INSERT OR REPLACE INTO sweeps (sweep, doc, sum) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(sweep.id.0.0), doc, sum])?;
    Ok(())
}

/// Stores a sample unless it is there, or is one of those that aren't kept ([`stride`]).
pub(crate) fn write_sample(transaction: &Transaction<'_>, row: &SampleRow) -> rusqlite::Result<()> {
    if !row.number.is_multiple_of(stride(row.number)) {
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

fn document<T: DeserializeOwned>(doc: &[u8], what: impl FnOnce() -> String) -> rusqlite::Result<T> {
    unpack(doc).and_then(|doc| serde_json::from_slice(&doc).ok()).ok_or_else(|| damaged(what()))
}

/// Columns of a row of `jobs`, which [`Records::read`] reads.
const JOB_COLUMNS: &str = "job, is_live, doc, sum";

fn job_of(row: &Row<'_>) -> rusqlite::Result<JobId> {
    row.get(0).map(|job| JobId(from_sql(job)))
}

/// Reads records, each with what it shares with the other jobs of its sweep: that is read once for all of them.
#[derive(Default)]
struct Records {
    sweeps: BTreeMap<SweepId, Option<Arc<SweepRecord>>>,
}

impl Records {
    /// The record in a row of [`JOB_COLUMNS`], if it is what was written.
    fn read(&mut self, transaction: &Transaction<'_>, row: &Row<'_>) -> rusqlite::Result<JobRecord> {
        let id = job_of(row)?;
        let what = || format!("the record of {id}");
        let is_live: u8 = row.get(1).map_err(|_| damaged(what()))?;
        let doc = row.get_ref(2)?.as_bytes()?;
        check_row(row.get_ref(3)?, &[&id.0.to_le_bytes(), &[is_live], doc], what)?;
        let mut record: JobRecord = document(doc, what)?;
        if let Some(id) = record.sweep.as_ref().map(|point| point.id) {
            record.shared = self.shared(transaction, id)?;
        }
        Ok(record)
    }

    fn shared(&mut self, transaction: &Transaction<'_>, id: SweepId) -> rusqlite::Result<Option<Arc<SweepRecord>>> {
        if let Some(known) = self.sweeps.get(&id) {
            return Ok(known.clone());
        }
        let what = || format!("what the jobs of {id} share");
        let mut statement = transaction.prepare_cached("SELECT doc, sum FROM sweeps WHERE sweep = ?1")?;
        let read = |row: &Row<'_>| {
            let doc = row.get_ref(0)?.as_bytes()?;
            check_row(row.get_ref(1)?, &[&id.0.0.to_le_bytes(), doc], what)?;
            document(doc, what)
        };
        let shared = statement.query_row([to_sql(id.0.0)], read).optional()?.map(Arc::new);
        self.sweeps.insert(id, shared.clone());
        Ok(shared)
    }
}

/// The last job there is a record of.
pub(crate) fn last_job(transaction: &Transaction<'_>) -> rusqlite::Result<Option<JobId>> {
    let last: Option<i64> = transaction.query_row("SELECT max(job) FROM jobs", [], |row| row.get(0))?;
    Ok(last.map(|job| JobId(from_sql(job))))
}

/// Every job that hasn't ended, but for those whose row is damaged.
pub(crate) fn live_jobs(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<JobRecord>> {
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE is_live = 1 ORDER BY job");
    let mut statement = transaction.prepare(&sql)?;
    let (mut records, mut live) = (Records::default(), Vec::new());
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        live.extend(unless_damaged(records.read(transaction, row))?);
    }
    Ok(live)
}

/// One job and its ledger rows.
pub(crate) fn read_job(
    transaction: &Transaction<'_>,
    job: JobId,
) -> rusqlite::Result<Option<(JobRecord, Vec<Booked>)>> {
    let mut statement = transaction.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job = ?1"))?;
    let record = statement.query_row([to_sql(job.0)], |row| Records::default().read(transaction, row)).optional()?;
    record.map(|record| Ok((record, read_ledger(transaction, job)?))).transpose()
}

/// What a query found; none if it ended with a damaged row, which is logged.
pub(crate) fn unless_damaged<T>(found: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) => match damaged_row(&error) {
            Some(row) => {
                warn!("{row}");
                Ok(None)
            }
            None => Err(error),
        },
    }
}

/// The records of these jobs, by id, without their ledger rows.
pub(crate) fn read_records(transaction: &Transaction<'_>, jobs: Range<JobId>) -> rusqlite::Result<Vec<JobRecord>> {
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job >= ?1 AND job < ?2 ORDER BY job");
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut records = Records::default();
    let range = [to_sql(jobs.start.0), to_sql(jobs.end.0)];
    statement.query_map(range, |row| records.read(transaction, row))?.collect()
}

/// A part of the list of jobs.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Newest first, each with its ledger rows.
    pub(crate) jobs: Vec<(JobRecord, Vec<Booked>)>,
    /// Jobs of which a row is damaged.
    pub(crate) damaged: Vec<JobId>,
    /// The last job that was looked at.
    pub(crate) last: Option<JobId>,
}

/// Jobs before `before`, newest first; a damaged row hides no other.
pub(crate) fn read_jobs(transaction: &Transaction<'_>, before: Option<JobId>, count: u32) -> rusqlite::Result<Listing> {
    let before = before.map_or(i64::MAX, |job| to_sql(job.0));
    let count = count.min(JOBS_PER_PAGE_MAX);
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job < ?1 ORDER BY job DESC LIMIT ?2");
    let mut statement = transaction.prepare_cached(&sql)?;
    let (mut records, mut listing) = (Records::default(), Listing::default());
    let mut rows = statement.query(params![before, count])?;
    while let Some(row) = rows.next()? {
        let id = job_of(row)?;
        listing.last = Some(id);
        let whole = records.read(transaction, row).and_then(|record| {
            // What was never placed has nothing booked.
            let booked = if record.attempts.is_empty() { Vec::new() } else { read_ledger(transaction, id)? };
            Ok((record, booked))
        });
        match unless_damaged(whole)? {
            Some(job) => listing.jobs.push(job),
            None => listing.damaged.push(id),
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_attempt_keeps_fewer_and_fewer_samples_and_none_is_far_from_the_next() {
        let kept = |until: u64| (0..until).filter(|number| number.is_multiple_of(stride(*number))).count();
        assert_eq!(kept(DENSE_SAMPLES), 16_384);
        assert_eq!(kept(2 * DENSE_SAMPLES), 16_384 + 8_192);
        assert_eq!(kept(64 * DENSE_SAMPLES), 16_384 + 6 * 8_192);
        let numbers: Vec<u64> = (0..1_u64 << 20).filter(|number| number.is_multiple_of(stride(*number))).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] - pair[0] <= stride(pair[1])));
    }
}
