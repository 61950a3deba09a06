//! `gangline rebuild`: the read models of jobs, sweeps and ledger made again from the journal, and compared with those that are stored.
//!
//! What can't be made again is kept where it is intact: samples, answers, notes of the moment, and what attempts came to that an earlier
//! release ended. Works on a folder that no control plane holds. Keeps: the journal alone says what happened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gangline_base::{JobId, SweepId};
use gangline_orchestration::{Engine, Limits};
use rusqlite::Transaction;
use serde::Serialize;

use crate::codec::{decode_entry, decode_snapshot, encode_snapshot};
use crate::db::{self, NewSnapshot, Offline, Reader, Sequence, salvage};
use crate::history::Error;
use crate::model::{
    JobRecord, LedgerRow, Made, Remade, Remake, SweepRecord, known_jobs, read_stored, read_sweep, stored_ledger,
    write_job, write_sweep,
};

/// Records read at once.
const PAGE: u32 = 10_000;
/// Differences that are told one by one.
const TOLD_MAX: usize = 100;
/// The largest key of samples' and answers' tables that is looked for.
const NUMBER_MAX: i64 = 1 << 40;
/// Attempts of a job whose curve is looked through sample by sample where it can't be read whole.
const ATTEMPTS_MAX: i64 = 64;

/// What became of the rows of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// They say what the journal says.
    pub same: u64,
    /// They are, or would be, made again.
    pub remade: u64,
    /// The journal doesn't know what they say, and they are intact.
    pub kept: u64,
    /// They are damaged or missing, and the journal doesn't have them.
    pub lost: u64,
}

/// What was found, and done.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Jobs.
    pub jobs: Counts,
    /// Sweeps.
    pub sweeps: Counts,
    /// Rows of the ledger.
    pub bookings: Counts,
    /// Curves of which samples can't be read, and ranges of answers to requests with a key that can't.
    pub lost_samples: u64,
    /// See `lost_samples`.
    pub lost_answers: u64,
    /// Jobs below this one began before the first record that is there: their rows stay as they are.
    pub known_from: Option<JobId>,
    /// What SQLite finds wrong with the file.
    pub malformed: Option<String>,
    /// The first differences, each in a sentence.
    pub differences: Vec<String>,
    /// How many there are.
    pub differences_total: u64,
    /// Where the old database is, if there is a new one.
    pub before: Option<PathBuf>,
}

impl Outcome {
    /// Whether the read models say what the journal says, in a sound file.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.differences_total == 0 && self.malformed.is_none()
    }

    fn tell(&mut self, difference: String) {
        self.differences_total += 1;
        if self.differences.len() < TOLD_MAX {
            self.differences.push(difference);
        }
    }
}

/// Rows to be written.
#[derive(Default)]
struct Rows {
    jobs: Vec<JobRecord>,
    sweeps: Vec<std::sync::Arc<SweepRecord>>,
    ledger: Vec<LedgerRow>,
}

/// Compares the read models of a data folder with its journal and, unless this is only a `check`, makes them again if they differ.
///
/// # Errors
/// An [`Error`]; nothing has been changed then.
pub fn rebuild(data: &Path, is_check: bool) -> Result<Outcome, Error> {
    let offline = Offline::open(&db::journal_folder(data))?;
    let reader = offline.reader();
    let mut outcome = Outcome { malformed: offline.malformed()?, ..Outcome::default() };
    let mut rows = Rows::default();
    let (mut remake, mut after) = begin(&reader)?;
    outcome.known_from = Some(remake.known_from).filter(|first| *first > JobId(1));
    let mut seen = BTreeSet::new();
    loop {
        let records = reader.history(after, PAGE)?;
        let Some(last) = records.last().map(|record| record.sequence) else { break };
        for record in records {
            let at = record.sequence;
            let recorded = decode_entry(&record.body).map_err(|source| Error::Record { at, source })?;
            let made = remake.take_in(record.at, recorded).map_err(|source| Error::Sequence { at, source })?;
            take(&reader, made, &mut rows, &mut outcome, &mut seen)?;
        }
        after = last;
    }
    offline.refuse_lost_tail(after)?;
    let known_from = remake.known_from;
    let (engine, made) = remake.finish();
    take(&reader, made, &mut rows, &mut outcome, &mut seen)?;
    for job in unless_malformed(reader.read(known_jobs))?.unwrap_or_default() {
        if job >= known_from && !seen.contains(&job) {
            outcome.tell(format!("{job} is stored, and the journal doesn't know it"));
        }
    }
    if !is_check && !outcome.is_sound() {
        let body = encode_snapshot(&engine.snapshot());
        let snapshot = NewSnapshot { sequence: after, body: &body };
        let before = offline.renew(snapshot, |transaction| write(transaction, &rows, known_from, &mut outcome))?;
        outcome.before = Some(before);
    }
    Ok(outcome)
}

/// From the first record on or, if it isn't there any more, from the oldest state that is.
fn begin(reader: &Reader) -> Result<(Remake, Sequence), Error> {
    let new = || (Remake::new(Engine::new(Limits::default())), Sequence::ZERO);
    let first = match reader.history(Sequence::ZERO, 1) {
        Ok(_) => return Ok(new()),
        Err(error @ db::Error::Corrupt { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    let Some((sequence, body)) = reader.oldest_snapshot()? else { return Err(first.into()) };
    let state = decode_snapshot(&body).map_err(|source| Error::Record { at: sequence, source })?;
    let engine = Engine::restore(Limits::default(), state);
    Ok((Remake::new(engine.map_err(|source| Error::Sequence { at: sequence, source })?), sequence))
}

fn take(
    reader: &Reader,
    made: Vec<Made>,
    rows: &mut Rows,
    outcome: &mut Outcome,
    seen: &mut BTreeSet<JobId>,
) -> Result<(), Error> {
    for made in made {
        match made {
            Made::Job(job) => {
                seen.insert(job.record.id);
                take_ledger(reader, &job, rows, outcome)?;
                take_job(reader, *job, rows, outcome)?;
            }
            Made::Sweep(sweep) => take_sweep(reader, sweep, rows, outcome)?,
        }
    }
    Ok(())
}

fn take_job(reader: &Reader, made: Remade, rows: &mut Rows, outcome: &mut Outcome) -> Result<(), Error> {
    let id = made.record.id;
    let stored = intact(reader.read(|transaction| read_stored(transaction, id)))?;
    let why = match stored {
        Some(Some(stored)) if stored.has_lost() => {
            outcome.jobs.kept += 1;
            rows.jobs.push(stored);
            return Ok(());
        }
        Some(Some(stored)) => match made.difference(&stored) {
            None => {
                outcome.jobs.same += 1;
                rows.jobs.push(stored);
                return Ok(());
            }
            Some(what) => format!("what is stored of {id} isn't what the journal says: {what}"),
        },
        Some(None) => format!("the row of {id} is missing"),
        None => format!("the row of {id} is damaged"),
    };
    outcome.tell(why);
    outcome.jobs.remade += 1;
    if !made.unknown.is_empty() {
        outcome.tell(format!("how far {id} came isn't in the journal: an earlier release ended its attempts"));
    }
    rows.jobs.push(made.record);
    Ok(())
}

fn take_ledger(reader: &Reader, made: &Remade, rows: &mut Rows, outcome: &mut Outcome) -> Result<(), Error> {
    let (id, queue) = (made.record.id, &made.record.queue);
    let booked: Vec<LedgerRow> = made.booked.iter().map(|entry| LedgerRow::of(queue, entry)).collect();
    let stored = unless_malformed(reader.read(|transaction| stored_ledger(transaction, id)))?;
    if stored.is_none() {
        outcome.tell(format!("what the ledger has of {id} can't be read"));
    }
    let (stored, _) = stored.unwrap_or_default();
    for row in &booked {
        let (attempt, node) = row.share();
        let same_share = stored.iter().find(|stored| stored.share() == row.share());
        match same_share {
            Some(stored) if stored == row => outcome.bookings.same += 1,
            found => {
                let what = if found.is_some() { "isn't what the journal says" } else { "is damaged or missing" };
                outcome.tell(format!("what attempt {attempt} of {id} cost on {node} {what}"));
                outcome.bookings.remade += 1;
            }
        }
    }
    for row in stored {
        let (attempt, node) = row.share();
        let is_unknown = u32::try_from(attempt).is_ok_and(|attempt| made.unknown.contains(&attempt));
        if is_unknown {
            outcome.bookings.kept += 1;
            rows.ledger.push(row);
        } else if booked.iter().all(|booked| booked.share() != row.share()) {
            outcome.tell(format!("the ledger has attempt {attempt} of {id} on {node}, and the journal hasn't"));
        }
    }
    let kept: BTreeSet<(i64, String)> = rows
        .ledger
        .iter()
        .rev()
        .map_while(|row| row.of_job(id).map(|(attempt, node)| (attempt, node.to_owned())))
        .collect();
    let unknown = made.record.attempts.iter().filter(|attempt| made.unknown.contains(&attempt.number));
    for (attempt, share) in unknown.flat_map(|attempt| attempt.shares.iter().map(move |share| (attempt.number, share)))
    {
        if !kept.contains(&(i64::from(attempt), share.node.clone())) {
            outcome.bookings.lost += 1;
            let node = &share.node;
            outcome.tell(format!("what attempt {attempt} of {id} cost on {node} is lost: an earlier release ended it"));
        }
    }
    rows.ledger.extend(booked);
    Ok(())
}

fn take_sweep(
    reader: &Reader,
    made: std::sync::Arc<SweepRecord>,
    rows: &mut Rows,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let id: SweepId = made.id;
    let stored = intact(reader.read(|transaction| read_sweep(transaction, id)))?;
    if stored.flatten().is_some_and(|stored| stored == *made) {
        outcome.sweeps.same += 1;
    } else {
        outcome.sweeps.remade += 1;
        outcome.tell(format!("what the jobs of {id} share is damaged or missing"));
    }
    rows.sweeps.push(made);
    Ok(())
}

/// What a query found; none if it met a row or a page that isn't what was written.
fn intact<T>(found: Result<T, db::Error>) -> Result<Option<T>, db::Error> {
    match found {
        Err(db::Error::Row(_)) => Ok(None),
        found => unless_malformed(found),
    }
}

fn unless_malformed<T>(found: Result<T, db::Error>) -> Result<Option<T>, db::Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(db::Error::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fills the new tables; those of samples and answers from the old ones as far as they can be read.
fn write(transaction: &Transaction<'_>, rows: &Rows, known_from: JobId, outcome: &mut Outcome) -> rusqlite::Result<()> {
    let before = i64::try_from(known_from.0).unwrap_or(i64::MAX) - 1;
    for (table, key) in [("jobs", "job"), ("ledger", "job"), ("sweeps", "sweep")] {
        let sql = format!("INSERT INTO main.{table} SELECT * FROM old.{table} WHERE {key} BETWEEN ?1 AND ?2");
        for (from, to) in salvage(transaction, &sql, (0, before))? {
            outcome.jobs.lost += 1;
            outcome
                .tell(format!("rows of {table} from {from} to {to} are lost, and the journal doesn't go back so far"));
        }
    }
    rows.sweeps.iter().try_for_each(|sweep| write_sweep(transaction, sweep))?;
    rows.jobs.iter().try_for_each(|job| write_job(transaction, job))?;
    rows.ledger.iter().try_for_each(|row| row.write(transaction))?;
    let last = rows.jobs.iter().map(|job| job.id.0).max().unwrap_or(0).max(known_from.0);
    let jobs = "INSERT INTO main.samples SELECT * FROM old.samples WHERE job BETWEEN ?1 AND ?2";
    for (from, to) in salvage(transaction, jobs, (0, i64::try_from(last).unwrap_or(i64::MAX)))? {
        outcome.lost_samples += 1;
        for attempt in (1..=ATTEMPTS_MAX).filter(|_| from == to) {
            let sql = format!(
                "INSERT INTO main.samples SELECT * FROM old.samples
                 WHERE job = {from} AND attempt = {attempt} AND node_rank = 0 AND number BETWEEN ?1 AND ?2"
            );
            salvage(transaction, &sql, (0, NUMBER_MAX))?;
        }
    }
    let answers = "INSERT INTO main.answers SELECT * FROM old.answers WHERE number BETWEEN ?1 AND ?2";
    let lost = salvage(transaction, answers, (0, NUMBER_MAX))?;
    outcome.lost_answers = u64::try_from(lost.len()).unwrap_or(u64::MAX);
    Ok(())
}
