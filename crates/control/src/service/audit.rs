//! Whether all that is stored is what was written: the newest rows at each start, for a bounded time, and everything again and again
//! on a thread of its own, a slice at a time with pauses between, so that no reader keeps the write-ahead log from being copied.
//!
//! What is damaged is told in the log and in the health; `gangline rebuild` makes it again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_base::{Bytes, JobId, Timestamp};
use rusqlite::{ErrorCode, Transaction};
use tracing::{error, info};

use crate::db::{self, Reader, Sequence};
use crate::model::{Listing, answers_from, blocks_from, read_jobs, read_jobs_singly, samples_from};

/// The longest a start looks at rows.
const START_TIME_MAX: Duration = Duration::from_millis(500);
/// A file that is larger isn't looked through as a whole at the start: 32 MiB take a few tens of milliseconds.
const START_FILE_MAX: Bytes = Bytes(32 << 20);
/// The longest a table is compared with its indexes, since that is one read; all its rows are looked at anyway.
const TABLE_TIME_MAX: Duration = Duration::from_secs(20);
/// From the start to the first pass: what restarts again and again isn't slowed down by it.
const FIRST_AFTER: Duration = Duration::from_mins(1);
/// From the beginning of a pass to the next.
const PASS_EVERY: Duration = Duration::from_hours(24);
/// Damaged jobs that the log names.
const NAMED_MAX: usize = 20;
/// Between two slices.
const PAUSE: Duration = Duration::from_millis(50);
/// Jobs, records, samples, packed blocks of them and answers in a slice: some milliseconds' reading each.
const JOBS: u32 = 200;
const RECORDS: u32 = 2_000;
const SAMPLES: u32 = 4_000;
const BLOCKS: u32 = 100;
const ANSWERS: u32 = 1_000;

/// What was found last; shared by the auditing thread and the service.
#[derive(Clone, Debug, Default)]
pub(super) struct Audit {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    found: Found,
    full_at: Option<Timestamp>,
}

/// Damage that a pass has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Jobs of which a row is damaged, here or in the ledger.
    jobs: Vec<JobId>,
    samples: u64,
    answers: u64,
    /// What SQLite says of the file.
    file: Option<String>,
    /// What is wrong with the journal itself.
    journal: Option<String>,
}

impl Found {
    /// In a sentence, with what to do. Anybody may read it, so it names no job.
    pub(super) fn summary(&self) -> Option<String> {
        if let Some(journal) = &self.journal {
            return Some(format!("{journal}: restore a backup, or keep this one until there is a newer"));
        }
        let mut parts = Vec::new();
        let jobs = u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        let counted = [
            (jobs, "of the jobs"),
            (self.samples, "of the samples"),
            (self.answers, "of the answers to requests with a key"),
        ];
        parts.extend(counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        parts.extend(self.file.as_ref().map(|what| format!("the database file ({what})")));
        (!parts.is_empty()).then(|| format!("damaged on disk: {}; run gangline rebuild", parts.join(", ")))
    }
}

impl Audit {
    /// What is damaged, in a sentence, and when all was last looked at.
    pub(super) fn state(&self) -> (Option<String>, Option<Timestamp>) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.found.summary(), state.full_at)
    }

    fn tell(&self, found: Found, full_at: Option<Timestamp>) {
        if let Some(summary) = found.summary() {
            let jobs: Vec<String> = found.jobs.iter().take(NAMED_MAX).map(JobId::to_string).collect();
            error!(summary, ?jobs, "what is stored isn't what was written");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.full_at = full_at.or(state.full_at);
        state.found = found;
    }

    /// Looks at the newest rows, and at the file if it is small.
    pub(super) fn begin(&self, reader: &Reader, last: JobId) {
        let began = Instant::now();
        let mut found = Found::default();
        if reader.size().is_some_and(|size| size <= START_FILE_MAX) {
            found.file = malformed(reader);
        }
        let mut before = JobId(last.0 + 1);
        while began.elapsed() < START_TIME_MAX
            && let Some(next) = look_at_jobs(reader, before, &mut found)
        {
            before = next;
        }
        self.tell(found, None);
    }

    /// The auditing thread, until the other end of `stop` is dropped.
    pub(super) fn run(&self, reader: &Reader, clock: fn() -> Timestamp, stop: &Receiver<()>) {
        let mut pause = FIRST_AFTER;
        while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let began = Instant::now();
            let rest = || stop.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout);
            let Some(found) = pass(reader, &rest) else { return };
            info!(
                seconds = began.elapsed().as_secs(),
                is_sound = found == Found::default(),
                "looked through all that is stored"
            );
            self.tell(found, Some(clock()));
            pause = PASS_EVERY.saturating_sub(began.elapsed());
        }
    }
}

/// Looks through everything; `rest` pauses, and says whether to go on.
pub(super) fn pass(reader: &Reader, rest: &dyn Fn() -> bool) -> Option<Found> {
    let mut found = Found::default();
    compare_indexes(reader, rest, &mut found)?;
    let last = reader.read(|t| t.query_row("SELECT max(job) FROM jobs", [], |row| row.get::<_, Option<i64>>(0)));
    let last = last.ok().flatten().map_or(0, i64::cast_unsigned);
    let mut before = Some(JobId(last + 1));
    while let Some(at) = before {
        before = look_at_jobs(reader, at, &mut found);
        rest().then_some(())?;
    }
    let mut after = Some(Sequence::ZERO);
    while let Some(at) = after {
        after = look_at_records(reader, at, &mut found);
        rest().then_some(())?;
    }
    let mut after = Some([0; 4]);
    while let Some(at) = after {
        let slice = reader.read(|transaction| samples_from(transaction, at, SAMPLES));
        after = slice.as_ref().ok().and_then(|slice| slice.next);
        found.samples += slice.map_or_else(|error| found.note(&error), |slice| slice.damaged);
        rest().then_some(())?;
    }
    let mut after = Some(0);
    while let Some(at) = after {
        let slice = reader.read(|transaction| blocks_from(transaction, at, BLOCKS));
        after = slice.as_ref().ok().and_then(|slice| slice.next);
        found.samples += slice.map_or_else(|error| found.note(&error), |slice| slice.damaged);
        rest().then_some(())?;
    }
    let mut after = Some(0);
    while let Some(at) = after {
        let slice = reader.read(|transaction| answers_from(transaction, at, ANSWERS));
        after = slice.as_ref().ok().and_then(|slice| slice.next);
        found.answers += slice.map_or_else(|error| found.note(&error), |slice| slice.damaged);
        rest().then_some(())?;
    }
    Some(found)
}

impl Found {
    /// A table can't be read any further; none of its rows are counted for that.
    fn note(&mut self, error: &db::Error) -> u64 {
        self.file.get_or_insert_with(|| error.to_string());
        0
    }
}

fn malformed(reader: &Reader) -> Option<String> {
    match reader.read(|transaction| transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))) {
        Ok(verdict) => Some(verdict).filter(|verdict| verdict != "ok"),
        Err(error) => Some(error.to_string()),
    }
}

/// Looks at each table with its indexes, as far as that takes no longer than it may.
fn compare_indexes(reader: &Reader, rest: &dyn Fn() -> bool, found: &mut Found) -> Option<()> {
    let tables = match reader.read(tables) {
        Ok(tables) => tables,
        Err(error) => {
            found.note(&error);
            return Some(());
        }
    };
    for table in tables {
        match reader.read(|transaction| verdict_on(transaction, &table, TABLE_TIME_MAX)) {
            Ok(Some(verdict)) if verdict != "ok" => drop(found.file.get_or_insert(verdict)),
            Ok(Some(_)) => {}
            Ok(None) => info!(table, "a table is too large to be compared with its indexes beside other work"),
            Err(error) => drop(found.note(&error)),
        }
        rest().then_some(())?;
    }
    Some(())
}

fn tables(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    transaction.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

/// What SQLite finds wrong with a table or an index of it, first; none if that takes too long.
fn verdict_on(transaction: &Transaction<'_>, table: &str, within: Duration) -> rusqlite::Result<Option<String>> {
    let interrupt = transaction.get_interrupt_handle();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let sql = format!("PRAGMA integrity_check(\"{table}\")");
        let verdict = transaction.query_row(&sql, [], |row| row.get(0));
        drop(done);
        match verdict {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(None),
            verdict => verdict.map(Some),
        }
    })
}

/// Looks at a slice of the jobs before one, with their ledger; where the next one begins.
fn look_at_jobs(reader: &Reader, before: JobId, found: &mut Found) -> Option<JobId> {
    let slice = reader.read(|transaction| read_jobs(transaction, Some(before), JOBS));
    let slice = match slice {
        Err(db::Error::Damaged { .. }) => reader.read(|transaction| read_jobs_singly(transaction, before, JOBS)),
        slice => slice,
    };
    match slice {
        Ok(Listing { damaged, last, .. }) => {
            found.jobs.extend(damaged);
            last
        }
        Err(error) => {
            found.note(&error);
            None
        }
    }
}

/// Looks at a slice of the journal's chain; its last record.
fn look_at_records(reader: &Reader, after: Sequence, found: &mut Found) -> Option<Sequence> {
    match reader.history(after, RECORDS) {
        Ok(records) => records.last().map(|record| record.sequence),
        Err(error) => {
            found.journal.get_or_insert_with(|| error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_said_with_what_to_do() {
        let check = |found: &Found, expected: Option<&str>| assert_eq!(found.summary().as_deref(), expected);
        check(&Found::default(), None);
        let jobs: Vec<JobId> = (1..=5).map(JobId).collect();
        let rows = "damaged on disk: 5 of the jobs, 2 of the samples; run gangline rebuild";
        check(&Found { jobs, samples: 2, ..Found::default() }, Some(rows));
        let journal = Some("journal is corrupt at record 7".to_owned());
        let told = "journal is corrupt at record 7: restore a backup, or keep this one until there is a newer";
        check(&Found { journal, answers: 1, ..Found::default() }, Some(told));
    }
}
