//! Checks that stored data is what was written. Each start checks the newest rows for a bounded time. A
//! thread of its own checks everything again and again, in slices with pauses between them, so that no long
//! read keeps SQLite's write-ahead log from being copied into the database.
//!
//! Damage is reported in the log and in the health; `gangline rebuild` repairs the read models.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_base::{Bytes, JobId, Timestamp};
use tracing::{error, info};

use gangline_store::db::{self, Reader, Sequence};
use gangline_store::model::{Listing, Slice, Standing};
use gangline_store::ports::Queries as _;

/// The longest time that a start spends checking rows.
const START_TIME_MAX: Duration = Duration::from_millis(500);
/// The largest file that a start checks as a whole: 32 MiB take a few tens of milliseconds.
const START_FILE_MAX: Bytes = Bytes(32 << 20);
/// The longest time spent comparing a table with its indexes, which is one read. All rows are checked in any
/// case.
const TABLE_TIME_MAX: Duration = Duration::from_secs(20);
/// Time from the start to the first pass, so that repeated restarts aren't slowed down.
const FIRST_AFTER: Duration = Duration::from_mins(1);
/// Time from the start of one pass to the start of the next.
const PASS_EVERY: Duration = Duration::from_hours(24);
/// The most damaged jobs that one log line names.
const NAMED_MAX: usize = 20;
/// Pause between two slices.
const PAUSE: Duration = Duration::from_millis(50);
/// Slice sizes for jobs, journal records, answers, and rows of bills; each takes some milliseconds to read.
const JOBS: u32 = 200;
const RECORDS: u32 = 2_000;
const ANSWERS: u32 = 1_000;
const ACCOUNTS: u32 = 2_000;

/// The latest findings, shared by the auditing thread and the service.
#[derive(Clone, Debug, Default)]
pub(super) struct Audit {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    found: Found,
    full_at: Option<Timestamp>,
}

/// Damage found by a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Jobs with a damaged row, in the job table or in the ledger.
    jobs: Vec<JobId>,
    /// Accounts of jobs, and notes of what nodes offer, of what is stored and of requests.
    bills: u64,
    answers: u64,
    /// SQLite's verdict on the file, if it isn't sound.
    file: Option<String>,
    /// Damage to the journal itself.
    journal: Option<String>,
}

impl Found {
    /// Describes the damage and the remedy in one sentence. Anybody may read it, so it names no job.
    pub(super) fn summary(&self) -> Option<String> {
        if let Some(journal) = &self.journal {
            return Some(format!("{journal}: restore a backup, or keep this one until there is a newer"));
        }
        let mut parts = Vec::new();
        let jobs = u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        let counted = [
            (jobs, "of the jobs"),
            (self.answers, "of the answers to requests with a key"),
            (self.bills, "of the rows that bills are made of"),
        ];
        parts.extend(counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        parts.extend(self.file.as_ref().map(|what| format!("the database file ({what})")));
        (!parts.is_empty()).then(|| format!("damaged on disk: {}; run gangline rebuild", parts.join(", ")))
    }
}

impl Audit {
    /// Returns a sentence about the damage, if any, and the time of the last complete pass.
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

    /// Checks the newest rows, and the whole file if it is small.
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

    /// Runs the auditing thread until the other end of `stop` is dropped.
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

/// Checks everything. `rest` pauses and says whether to go on; returns none if it says to stop.
pub(super) fn pass(reader: &Reader, rest: &dyn Fn() -> bool) -> Option<Found> {
    let mut found = Found::default();
    compare_indexes(reader, rest, &mut found)?;
    let last = reader.last_job().ok().flatten().map_or(0, |job| job.0);
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
    let start = || (String::new(), 0);
    let damaged = found.look_through(rest, 0, |after| reader.audit_answers(*after, ANSWERS))?;
    found.answers += damaged;
    let damaged = found.look_through(rest, 0, |after| reader.audit_accounts(*after, ACCOUNTS))?;
    found.bills += damaged;
    let damaged = found.look_through(rest, start(), |after| reader.audit_capacities(after, ACCOUNTS))?;
    found.bills += damaged;
    let damaged = found.look_through(rest, (0, 0, String::new()), |after| reader.audit_requests(after, ACCOUNTS))?;
    found.bills += damaged;
    let damaged = found.look_through(rest, start(), |after| reader.audit_storage(after, ACCOUNTS))?;
    found.bills += damaged;
    let damaged = found.look_through(rest, start(), |after| reader.audit_incidents(after, ACCOUNTS))?;
    found.bills += damaged;
    Some(found)
}

impl Found {
    /// Checks a table slice by slice, from `first` on, and returns the number of damaged rows; none if `rest` says to stop. A table
    /// that can't be read any further is noted.
    fn look_through<K>(
        &mut self,
        rest: &dyn Fn() -> bool,
        first: K,
        slice_after: impl Fn(&K) -> Result<Slice<K>, db::Error>,
    ) -> Option<u64> {
        let (mut after, mut damaged) = (Some(first), 0);
        while let Some(at) = after {
            match slice_after(&at) {
                Ok(slice) => (after, damaged) = (slice.next, damaged + slice.damaged),
                Err(error) => {
                    self.note(&error);
                    after = None;
                }
            }
            rest().then_some(())?;
        }
        Some(damaged)
    }

    /// Notes that a table can't be read any further.
    fn note(&mut self, error: &db::Error) {
        self.file.get_or_insert_with(|| error.to_string());
    }
}

fn malformed(reader: &Reader) -> Option<String> {
    reader.quick_verdict().unwrap_or_else(|error| Some(error.to_string()))
}

/// Compares each table with its indexes, unless that takes too long.
fn compare_indexes(reader: &Reader, rest: &dyn Fn() -> bool, found: &mut Found) -> Option<()> {
    let tables = match reader.tables() {
        Ok(tables) => tables,
        Err(error) => {
            found.note(&error);
            return Some(());
        }
    };
    for table in tables {
        match reader.verdict_on(&table, TABLE_TIME_MAX) {
            Ok(Some(verdict)) if verdict != "ok" => drop(found.file.get_or_insert(verdict)),
            Ok(Some(_)) => {}
            Ok(None) => info!(table, "a table is too large to be compared with its indexes beside other work"),
            Err(error) => found.note(&error),
        }
        rest().then_some(())?;
    }
    Some(())
}

/// Checks a slice of the jobs before `before`, with their ledger. Returns where the next slice begins.
fn look_at_jobs(reader: &Reader, before: JobId, found: &mut Found) -> Option<JobId> {
    let slice = reader.jobs(&Standing::Any.into(), Some(before), JOBS);
    let slice = match slice {
        Err(db::Error::Damaged { .. }) => reader.jobs_singly(&Standing::Any.into(), before, JOBS),
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

/// Checks a slice of the journal's hash chain and returns its last record.
fn look_at_records(reader: &Reader, after: Sequence, found: &mut Found) -> Option<Sequence> {
    match reader.records(after, RECORDS) {
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
        let rows = "damaged on disk: 5 of the jobs, 2 of the answers to requests with a key; run gangline rebuild";
        check(&Found { jobs, answers: 2, ..Found::default() }, Some(rows));
        let journal = Some("journal is corrupt at record 7".to_owned());
        let told = "journal is corrupt at record 7: restore a backup, or keep this one until there is a newer";
        check(&Found { journal, answers: 1, ..Found::default() }, Some(told));
    }
}
