//! SQL of the read models.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_base::{JobId, SweepId};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::account::write_account;
use super::answers::forget_answers;
use super::ledger::{Booked, read_ledger};
use super::packed::{pack, unpack};
use super::record::JobRecord;
use super::sweep::SweepRecord;
use super::wanted::{Standing, Wanted};
use crate::db::{Sequence, check_row, damaged, damaged_row, is_malformed, row_sum};

/// The most jobs in one listing.
pub const JOBS_PER_PAGE_MAX: u32 = 500;
/// The most rows that one listing examines for those it wants.
const ROWS_EXAMINED_MAX: u32 = 5_000;
/// The most ids that one listing looks up singly: ids that were never given out leave gaps.
const IDS_TRIED_MAX: usize = 10_000;
/// Read-model rows to be removed because damaged journal entries from which they follow were put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Jobs whose submission the journal doesn't have.
    Forget {
        /// The first such job.
        from: JobId,
    },
    /// Bookings of attempts that the job hasn't made, or that haven't ended.
    Rewind {
        /// The job.
        job: JobId,
        /// The number of ended attempts.
        closed: u32,
    },
    /// Answers to changes that were put aside.
    ForgetAnswers {
        /// The last valid record.
        after: Sequence,
    },
}

/// Removes the rows. An attempt that is live again is booked when it ends, once.
pub(crate) fn repair(transaction: &Transaction<'_>, damage: &Repair) -> rusqlite::Result<()> {
    match damage {
        Repair::Forget { from } => {
            for table in ["jobs", "accounts", "ledger"] {
                transaction.execute(&format!("DELETE FROM {table} WHERE job >= ?1"), [to_sql(from.0)])?;
            }
            // A sweep's id is that of its first job.
            transaction.execute("DELETE FROM sweeps WHERE sweep >= ?1", [to_sql(from.0)])?;
        }
        Repair::Rewind { job, closed } => {
            let sql = "DELETE FROM ledger WHERE job = ?1 AND attempt > ?2";
            transaction.execute(sql, params![to_sql(job.0), closed])?;
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

/// Writes a job's record, replacing the old one.
pub(crate) fn write_job(transaction: &Transaction<'_>, record: &JobRecord) -> rusqlite::Result<()> {
    let doc = serde_json::to_string(record).expect("a record has string keys only");
    let is_live = !record.state.is_final();
    let doc = if is_live { doc.into_bytes() } else { pack(doc) };
    if !is_live {
        // A row that shrinks in place keeps its page to itself; a row that is deleted first moves to a page
        // with others.
        transaction.prepare_cached("DELETE FROM jobs WHERE job = ?1")?.execute([to_sql(record.id.0)])?;
    }
    let sum = row_sum(&[&record.id.0.to_le_bytes(), &[u8::from(is_live)], &doc]);
    // The column is declared as text, but may hold any bytes.
    let sql = "INSERT OR REPLACE INTO jobs (job, is_live, doc, sum) VALUES (?1, ?2, CAST(?3 AS TEXT), ?4)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(record.id.0), is_live, doc, sum])?;
    if is_live { Ok(()) } else { write_account(transaction, record) }
}

/// Writes the data that a sweep's jobs share.
pub(crate) fn write_sweep(transaction: &Transaction<'_>, sweep: &SweepRecord) -> rusqlite::Result<()> {
    let doc = serde_json::to_string(sweep).expect("a record has string keys only");
    let sum = row_sum(&[&sweep.id.0.0.to_le_bytes(), doc.as_bytes()]);
    let sql = "INSERT OR REPLACE INTO sweeps (sweep, doc, sum) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(sql)?.execute(params![to_sql(sweep.id.0.0), doc, sum])?;
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

/// Returns the record in a row of [`JOB_COLUMNS`], if it is intact.
fn record_of(row: &Row<'_>) -> rusqlite::Result<JobRecord> {
    let id = job_of(row)?;
    let what = || format!("the record of {id}");
    let is_live: u8 = row.get(1).map_err(|_| damaged(what()))?;
    let doc = row.get_ref(2)?.as_bytes().map_err(|_| damaged(what()))?;
    check_row(row.get_ref(3)?, &[&id.0.to_le_bytes(), &[is_live], doc], what)?;
    document(doc, what)
}

/// Reads records with the data that they share with their sweep's other jobs, which is read only once.
#[derive(Default)]
struct Records {
    sweeps: BTreeMap<SweepId, Option<Arc<SweepRecord>>>,
}

impl Records {
    /// Returns the record in a row of [`JOB_COLUMNS`] with its shared data, if both are intact.
    fn read(&mut self, transaction: &Transaction<'_>, row: &Row<'_>) -> rusqlite::Result<JobRecord> {
        let mut record = record_of(row)?;
        if let Some(id) = record.sweep.as_ref().map(|point| point.id) {
            record.shared = self.shared(transaction, id)?;
        }
        Ok(record)
    }

    fn shared(&mut self, transaction: &Transaction<'_>, id: SweepId) -> rusqlite::Result<Option<Arc<SweepRecord>>> {
        if let Some(known) = self.sweeps.get(&id) {
            return Ok(known.clone());
        }
        let shared = read_sweep(transaction, id)?.map(Arc::new);
        self.sweeps.insert(id, shared.clone());
        Ok(shared)
    }
}

/// Returns the data that a sweep's jobs share.
pub(crate) fn read_sweep(transaction: &Transaction<'_>, id: SweepId) -> rusqlite::Result<Option<SweepRecord>> {
    let what = || format!("what the jobs of {id} share");
    let mut statement = transaction.prepare_cached("SELECT doc, sum FROM sweeps WHERE sweep = ?1")?;
    let read = |row: &Row<'_>| {
        let doc = row.get_ref(0)?.as_bytes().map_err(|_| damaged(what()))?;
        check_row(row.get_ref(1)?, &[&id.0.0.to_le_bytes(), doc], what)?;
        document(doc, what)
    };
    statement.query_row([to_sql(id.0.0)], read).optional()
}

/// Returns one job's record, without shared data.
pub(crate) fn read_stored(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Option<JobRecord>> {
    let mut statement = transaction.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job = ?1"))?;
    statement.query_row([to_sql(job.0)], record_of).optional()
}

/// Returns every job that has a row.
pub(crate) fn known_jobs(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<JobId>> {
    transaction.prepare("SELECT job FROM jobs ORDER BY job")?.query_map([], job_of)?.collect()
}

/// Returns the last job with a record.
pub(crate) fn last_job(transaction: &Transaction<'_>) -> rusqlite::Result<Option<JobId>> {
    let last: Option<i64> = transaction.query_row("SELECT max(job) FROM jobs", [], |row| row.get(0))?;
    Ok(last.map(|job| JobId(from_sql(job))))
}

/// Returns every live job, except those with damaged rows.
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

/// Returns one job and its ledger rows.
pub(crate) fn read_job(
    transaction: &Transaction<'_>,
    job: JobId,
) -> rusqlite::Result<Option<(JobRecord, Vec<Booked>)>> {
    let record = read_record(transaction, job)?;
    record
        .map(|record| Ok((read_booked(transaction, &record)?, record)))
        .transpose()
        .map(|found| found.map(|(booked, record)| (record, booked)))
}

/// Returns one job's record.
pub(crate) fn read_record(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Option<JobRecord>> {
    let mut statement = transaction.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job = ?1"))?;
    statement.query_row([to_sql(job.0)], |row| Records::default().read(transaction, row)).optional()
}

/// Returns a query's result, or `None` if a damaged row ended it, which is logged.
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

/// Returns the intact records of a sweep's jobs by id, and the damaged jobs; `None` if there is no such
/// sweep.
pub(crate) fn read_sweep_jobs(
    transaction: &Transaction<'_>,
    id: SweepId,
) -> rusqlite::Result<(Vec<JobRecord>, Vec<JobId>)> {
    let jobs = match unless_damaged(read_sweep(transaction, id))?.flatten() {
        Some(shared) => shared.jobs(),
        // A sweep from before there were rows of sweeps is described in each of its jobs.
        None => unless_damaged(read_record(transaction, id.0))?.flatten().map_or(1, |first| first.sweep_jobs()),
    };
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job >= ?1 AND job < ?2 ORDER BY job");
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query([to_sql(id.0.0), to_sql(id.0.0.saturating_add(u64::from(jobs)))])?;
    let (mut records, mut found, mut lost) = (Records::default(), Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let job = job_of(row)?;
        match unless_damaged(records.read(transaction, row))? {
            Some(record) => found.push(record),
            None => lost.push(job),
        }
    }
    if found.is_empty() && !lost.is_empty() {
        return Err(damaged(format!("the record of {}", id.0)));
    }
    Ok((found, lost))
}

/// A part of the list of jobs.
#[derive(Debug, Default)]
pub struct Listing {
    /// Newest first, each with its ledger rows.
    pub jobs: Vec<(JobRecord, Vec<Booked>)>,
    /// Jobs with a damaged row.
    pub damaged: Vec<JobId>,
    /// The last job that was examined.
    pub last: Option<JobId>,
    /// Whether there may be more jobs beyond it.
    pub has_more: bool,
}

/// Returns the wanted jobs before `before`, newest first; a damaged row hides no other. If few are wanted, a part of
/// the list may have none, with more beyond it. A malformed page fails the query: see [`read_jobs_singly`].
pub(crate) fn read_jobs(
    transaction: &Transaction<'_>,
    wanted: &Wanted,
    before: Option<JobId>,
    count: u32,
) -> rusqlite::Result<Listing> {
    let before = before.map_or(i64::MAX, |job| to_sql(job.0));
    let count = count.min(JOBS_PER_PAGE_MAX);
    let condition = match wanted.standing {
        Standing::Any => "",
        Standing::Live => "is_live = 1 AND",
        Standing::Ended => "is_live = 0 AND",
    };
    let rows_max = if wanted.is_choosy() { ROWS_EXAMINED_MAX } else { count };
    let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE {condition} job < ?1 ORDER BY job DESC LIMIT ?2");
    let mut statement = transaction.prepare_cached(&sql)?;
    let (mut records, mut listing, mut examined) = (Records::default(), Listing::default(), 0);
    let mut rows = statement.query(params![before, rows_max])?;
    while let Some(row) = rows.next()? {
        let id = job_of(row)?;
        examined += 1;
        listing.last = Some(id);
        let record = records.read(transaction, row);
        let is_too_old = record.as_ref().is_ok_and(|record| wanted.is_too_old(record));
        if is_too_old {
            return Ok(listing);
        }
        if record.as_ref().is_ok_and(|record| !wanted.has(record)) {
            continue;
        }
        let whole = record.and_then(|record| Ok((read_booked(transaction, &record)?, record)));
        match unless_damaged(whole)? {
            Some((booked, record)) => listing.jobs.push((record, booked)),
            None => listing.damaged.push(id),
        }
        if listing.len() >= count {
            break;
        }
    }
    listing.has_more = listing.len() >= count || examined >= rows_max;
    Ok(listing)
}

impl Listing {
    fn len(&self) -> u32 {
        u32::try_from(self.jobs.len() + self.damaged.len()).unwrap_or(u32::MAX)
    }
}

/// Returns the same with a seek for each id, so that a malformed page hides only its own rows, which are
/// reported as damaged.
pub(crate) fn read_jobs_singly(
    transaction: &Transaction<'_>,
    wanted: &Wanted,
    before: JobId,
    count: u32,
) -> rusqlite::Result<Listing> {
    let ids = (1..before.0).rev().take(IDS_TRIED_MAX).map(JobId);
    let mut listing = read_these_jobs(transaction, wanted, ids, count)?;
    listing.has_more = listing.last.is_some_and(|last| last.0 > 1);
    Ok(listing)
}

/// Returns those of these jobs that are wanted, in this order, `count` at most; jobs without a record are left out.
pub(crate) fn read_these_jobs(
    transaction: &Transaction<'_>,
    wanted: &Wanted,
    ids: impl Iterator<Item = JobId>,
    count: u32,
) -> rusqlite::Result<Listing> {
    let count = count.min(JOBS_PER_PAGE_MAX);
    let mut listing = Listing::default();
    for id in ids {
        if listing.len() >= count {
            break;
        }
        listing.last = Some(id);
        match read_job(transaction, id) {
            Ok(found) => listing.jobs.extend(found.filter(|(record, _)| wanted.has(record))),
            Err(error) if is_malformed(&error) || damaged_row(&error).is_some() => {
                warn!(%error, "{id} can't be read");
                listing.damaged.push(id);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listing)
}

/// Returns a job's bookings. Fails as damaged if a share of an ended attempt has none.
fn read_booked(transaction: &Transaction<'_>, record: &JobRecord) -> rusqlite::Result<Vec<Booked>> {
    if record.attempts.is_empty() {
        // A job without a placement has no bookings.
        return Ok(Vec::new());
    }
    let booked = read_ledger(transaction, record.id)?;
    let has = |attempt: u32, node: &str| booked.iter().any(|row| row.attempt == attempt && row.node == node);
    let over = record.attempts.iter().filter(|attempt| attempt.ended_at.is_some());
    let mut shares = over.flat_map(|attempt| attempt.shares.iter().map(move |share| (attempt.number, &share.node)));
    if !record.has_lost_bookings() && !shares.all(|(attempt, node)| has(attempt, node)) {
        return Err(damaged(format!("what the ledger has of {}", record.id)));
    }
    Ok(booked)
}
