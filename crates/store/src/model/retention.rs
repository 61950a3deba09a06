//! Removes data from the read models, and notes in a job's record what was removed. Each removal checks in
//! its own transaction that its job has ended, so no data of a live job is removed, whatever was read before.

use std::collections::BTreeSet;
use std::ops::Range;

use gangline_base::{JobId, Pin, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::parts::StateRecord;
use super::record::JobRecord;
use super::store::{from_sql, read_record, to_sql, unless_damaged, write_job};
use crate::codec::PinV1;

/// The most notes on a job's removed logs; each pass may add one, with its rule.
const NOTES_MAX: usize = 8;
/// The key under which the retention clock's time is stored.
const CLOCK_KEY: &str = "retention_unix_nanos";

/// The data that was removed of an ended job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedRecord {
    /// In ascending order of `through`.
    #[serde(default)]
    logs: Vec<RemovedLogs>,
    /// When all checkpoints but the newest good one were removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints_at: Option<Timestamp>,
}

/// A note on removed files of attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedLogs {
    /// The last attempt whose files, like those of all before it, were removed.
    pub through: u32,
    pub at: Timestamp,
    /// The rule, as a text that follows "because".
    pub because: String,
}

impl RemovedRecord {
    pub(super) fn is_nothing(&self) -> bool {
        *self == RemovedRecord::default()
    }

    /// Returns when and why an attempt's files were removed.
    pub fn logs_of(&self, attempt: u32) -> Option<&RemovedLogs> {
        self.logs.iter().find(|logs| logs.through >= attempt)
    }

    /// Returns the last attempt whose files are removed; 0 if there is none.
    pub fn logs_through(&self) -> u32 {
        self.logs.last().map_or(0, |logs| logs.through)
    }
}

/// Data to be removed from the read models, or a note to be written before other data is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Notes that the files of a job's attempts up to `through` are removed. Written before the removal.
    Logs {
        /// The job.
        job: JobId,
        /// The last attempt.
        through: u32,
        /// The rule, as a text that follows "because".
        because: String,
    },
    /// Notes that a job's checkpoints but the newest good one are removed. Written before the removal.
    Checkpoints {
        /// The job.
        job: JobId,
        /// The rule, as a text that follows "because".
        because: String,
    },
    /// Removes the records of one job, or of all jobs of a sweep. The ledger keeps their cost.
    Jobs {
        /// The jobs' ids.
        jobs: Range<JobId>,
    },
    /// Stores the retention clock's time.
    Clock {
        /// The time.
        at: Timestamp,
    },
}

/// Carries out a removal, unless one of its jobs hasn't ended.
pub(crate) fn remove(transaction: &Transaction<'_>, now: Timestamp, removal: &Removal) -> rusqlite::Result<()> {
    match removal {
        Removal::Logs { job, through, because } => change_ended(transaction, *job, |record| {
            record.note_removed_logs(now, *through, because.clone());
        }),
        Removal::Checkpoints { job, because } => change_ended(transaction, *job, |record| {
            record.note_removed_checkpoints(now, because);
        }),
        Removal::Jobs { jobs } => remove_jobs(transaction, jobs),
        Removal::Clock { at } => {
            let sql = "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)";
            transaction.execute(sql, params![CLOCK_KEY, to_sql(at.unix_nanos())]).map(drop)
        }
    }
}

/// Returns the stored time of the retention clock.
pub(crate) fn read_clock(transaction: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    let found = transaction.query_row(sql, [CLOCK_KEY], |row| row.get(0)).optional()?;
    Ok(found.map(|nanos| Timestamp::from_unix_nanos(from_sql(nanos))))
}

/// Reports whether a job has a row and has ended.
pub(crate) fn is_over(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<bool> {
    let sql = "SELECT is_live FROM jobs WHERE job = ?1";
    let found: Option<i64> =
        transaction.prepare_cached(sql)?.query_row([to_sql(job.0)], |row| row.get(0)).optional()?;
    Ok(found == Some(0))
}

fn change_ended(
    transaction: &Transaction<'_>,
    job: JobId,
    change: impl FnOnce(&mut JobRecord),
) -> rusqlite::Result<()> {
    match unless_damaged(read_record(transaction, job))?.flatten() {
        Some(mut record) if record.state.is_final() => {
            change(&mut record);
            write_job(transaction, &record)
        }
        _ => {
            warn!(%job, "what is left of a job stays: it hasn't ended, or its record can't be read");
            Ok(())
        }
    }
}

/// Removes all of the jobs, or none if one is live or is the newest of all: the newest row shows which ids
/// were given out.
fn remove_jobs(transaction: &Transaction<'_>, jobs: &Range<JobId>) -> rusqlite::Result<()> {
    let range = [to_sql(jobs.start.0), to_sql(jobs.end.0)];
    let sql = "SELECT EXISTS (SELECT 1 FROM jobs WHERE job >= ?1 AND job < ?2
               AND (is_live <> 0 OR job = (SELECT max(job) FROM jobs)))";
    if transaction.query_row(sql, range, |row| row.get(0))? {
        return Ok(());
    }
    transaction.execute("DELETE FROM jobs WHERE job >= ?1 AND job < ?2", range)?;
    // A sweep's id is that of its first job.
    transaction.execute("DELETE FROM sweeps WHERE sweep >= ?1 AND sweep < ?2", range)?;
    note_removed(transaction, to_sql(jobs.start.0), to_sql(jobs.end.0) - 1)
}

/// Records removed jobs, merging adjacent ranges into one row.
fn note_removed(transaction: &Transaction<'_>, first: i64, last: i64) -> rusqlite::Result<()> {
    let touching = "SELECT min(first), max(last) FROM removed WHERE first <= ?2 + 1 AND last >= ?1 - 1";
    let edges = |row: &Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?));
    let (before, after) = transaction.prepare_cached(touching)?.query_row([first, last], edges)?;
    let joined = [before.map_or(first, |before| before.min(first)), after.map_or(last, |after| after.max(last))];
    transaction.prepare_cached("DELETE FROM removed WHERE first >= ?1 AND last <= ?2")?.execute(joined)?;
    transaction.prepare_cached("INSERT INTO removed (first, last) VALUES (?1, ?2)")?.execute(joined).map(drop)
}

/// Reports whether retention removed a job's rows.
pub(crate) fn is_removed(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM removed WHERE first <= ?1 AND last >= ?1)";
    transaction.prepare_cached(sql)?.query_row([to_sql(job.0)], |row| row.get(0))
}

/// The facts about a job that retention decides on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The job.
    pub id: JobId,
    /// When the submission was committed.
    pub submitted_at: Timestamp,
    /// `None` while the job is live.
    pub ended_at: Option<Timestamp>,
    /// Whether the job ended as failed.
    pub has_failed: bool,
    /// The last attempt's number; 0 if there was none.
    pub attempts: u32,
    /// What retention has removed already.
    pub removed: RemovedRecord,
    /// Data that no policy removes.
    pub pins: BTreeSet<Pin>,
    /// The checkpoint folder, if the job names one.
    pub checkpoints: Option<String>,
    /// All jobs of the sweep, or the job alone.
    pub siblings: Range<JobId>,
}

impl From<JobRecord> for Kept {
    fn from(record: JobRecord) -> Kept {
        let id = record.id;
        let sweep = record.sweep.as_ref().map(|point| point.id.0).filter(|_| record.sweep_jobs() > 0);
        let first = sweep.unwrap_or(id);
        let count = sweep.map_or(1, |_| u64::from(record.sweep_jobs()));
        Kept {
            id,
            submitted_at: record.submitted_at,
            ended_at: record.ended_at.filter(|_| record.state.is_final()),
            has_failed: record.state == StateRecord::Failed,
            attempts: record.last_attempt().map_or(0, |attempt| attempt.number),
            checkpoints: record.program().checkpoint_path.map(str::to_owned),
            removed: record.removed,
            pins: record.pins.into_iter().filter_map(PinV1::pin).collect(),
            siblings: first..JobId(first.0.saturating_add(count)),
        }
    }
}

/// Returns the facts about a job, or `None` if it has no row.
///
/// # Errors
/// The database's errors, including a damaged row.
pub(crate) fn read_kept(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Option<Kept>> {
    read_record(transaction, job).map(|record| record.map(Kept::from))
}

/// Returns the next job with a row after this one, including damaged rows.
pub(crate) fn next_job(transaction: &Transaction<'_>, after: JobId) -> rusqlite::Result<Option<JobId>> {
    next(transaction, "SELECT min(job) FROM jobs WHERE job > ?1", after)
}

fn next(transaction: &Transaction<'_>, sql: &str, after: JobId) -> rusqlite::Result<Option<JobId>> {
    let found: Option<i64> = transaction.prepare_cached(sql)?.query_row([to_sql(after.0)], |row| row.get(0))?;
    Ok(found.map(|job| JobId(from_sql(job))))
}

impl JobRecord {
    /// Adds a line to the history and keeps the reason for the job's end.
    fn note_removed(&mut self, now: Timestamp, text: String) {
        let reason = std::mem::take(&mut self.because);
        self.note(now, text);
        self.because = reason;
    }

    fn note_removed_checkpoints(&mut self, now: Timestamp, because: &str) {
        if self.removed.checkpoints_at.is_none() {
            self.removed.checkpoints_at = Some(now);
            self.note_removed(now, format!("checkpoints older than the newest good one are removed because {because}"));
        }
    }

    fn note_removed_logs(&mut self, now: Timestamp, through: u32, because: String) {
        let before = self.removed.logs_through();
        if through <= before {
            return;
        }
        let which =
            if before + 1 == through { format!("attempt {through}") } else { format!("attempts up to {through}") };
        self.note_removed(now, format!("logs of {which} were removed because {because}"));
        self.removed.logs.push(RemovedLogs { through, at: now, because });
        let excess = self.removed.logs.len().saturating_sub(NOTES_MAX);
        self.removed.logs.drain(..excess);
    }
}
