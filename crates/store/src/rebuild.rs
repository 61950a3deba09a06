//! `gangline rebuild`: recomputes the read models from the journal and compares them with the stored ones.
//!
//! Data that the journal doesn't hold is kept where it is intact: samples, answers, transient notes, and
//! results of attempts that an earlier release ended. Works on a folder that no control plane holds. Keeps
//! the journal alone says what happened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gangline_base::{JobId, SweepId};
use gangline_orchestration::{Engine, Limits};
use rusqlite::Transaction;
use serde::Serialize;

use crate::codec::{decode_entry, decode_snapshot, encode_snapshot};
use crate::db::{self, Keys, NewSnapshot, Offline, Reader, Sequence, salvage};
use crate::history::Error;
use crate::model::{
    JobRecord, LedgerRow, Made, Remade, Remake, SweepRecord, is_removed, known_jobs, last_job, next_job, read_job,
    read_stored, read_sweep, stored_ledger, write_job, write_sweep,
};

/// Records read at once.
const PAGE: u32 = 10_000;
/// The most differences that are listed one by one.
const TOLD_MAX: usize = 100;
/// The largest answer number that is looked for.
const NUMBER_MAX: i64 = 1 << 40;
/// The smallest range of samples that is given up as a whole when one of them can't be read.
const SAMPLES_GRAIN: i64 = 64;

/// The number of rows of one kind, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows that agree with the journal.
    pub same: u64,
    /// Rows that were recomputed or, in a check, would be.
    pub remade: u64,
    /// Intact rows whose content the journal doesn't know.
    pub kept: u64,
    /// Rows that retention removed (the configuration's `[retention]`); they stay removed.
    pub removed: u64,
    /// Damaged or missing rows that the journal can't restore.
    pub lost: u64,
}

/// The result of a rebuild or a check.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Jobs.
    pub jobs: Counts,
    /// Sweeps.
    pub sweeps: Counts,
    /// Rows of the ledger.
    pub bookings: Counts,
    /// Curves and packed curve blocks with unreadable samples.
    pub lost_samples: u64,
    /// Unreadable ranges of answers to requests with a key.
    pub lost_answers: u64,
    /// Damage to the journal itself, if reading could continue past it.
    pub journal: Option<String>,
    /// If the journal is damaged: jobs below this id stay as stored, because they began before the first
    /// readable state after the damage.
    pub known_from: Option<JobId>,
    /// SQLite's first complaint about the file.
    pub malformed: Option<String>,
    /// The first differences, each in a sentence.
    pub differences: Vec<String>,
    /// The number of all differences.
    pub differences_total: u64,
    /// Path of the old database, if there is a new one.
    pub before: Option<PathBuf>,
}

impl Outcome {
    /// Reports whether the read models agree with the journal and the file is sound.
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

/// Compares the read models of a data folder with its journal and recomputes them if they differ, unless
/// `is_check`.
///
/// # Errors
/// Returns an [`Error`]; nothing has been changed then.
pub fn rebuild(data: &Path, is_check: bool) -> Result<Outcome, Error> {
    let offline = Offline::open(&db::journal_folder(data))?;
    let malformed = offline.malformed()?;
    let mut making = Making::new(offline.reader());
    making.outcome.malformed = malformed;
    let mut broken = None;
    let (engine, last) = loop {
        let state = begin_after(&making.reader, broken)?;
        making.known_from = state.0.known_from;
        match making.follow(state) {
            Err(Error::Journal(error @ (db::Error::Corrupt { at, .. } | db::Error::History { last: at, .. }))) => {
                if making.reader.snapshot_of(at)?.is_none() {
                    return Err(error.into());
                }
                broken = Some(at);
                making = Making::new(making.reader);
                making.outcome.journal = Some(error.to_string());
            }
            done => break done?,
        }
    };
    making.outcome.known_from = broken.map(|_| making.known_from);
    offline.refuse_lost_tail(last)?;
    making.look_for_others()?;
    let mut outcome = making.outcome;
    if !is_check && !outcome.is_sound() {
        let body = encode_snapshot(&engine.snapshot());
        let snapshot = NewSnapshot { sequence: last, body: &body };
        let mut failure = None;
        let filled = offline.renew(snapshot, |transaction| {
            let written = write(transaction, offline.reader(), broken, &mut outcome);
            written.map_err(|error| match error {
                Write::Database(error) => error,
                Write::Journal(error) => {
                    failure = Some(error);
                    // The message shows only the failure itself.
                    rusqlite::Error::InvalidQuery
                }
            })
        });
        outcome.before = Some(failure.map_or(filled.map_err(Error::from), Err)?);
    }
    Ok(outcome)
}

/// Recreates a lost or unreadable journal database from the history archive and the snapshots. Writes the
/// read models of jobs that had ended where the archive ends; the next start writes those of the jobs in its
/// state. Records that only the database had are reported as lost.
///
/// # Errors
/// Returns an [`Error`]; if there is neither archive nor snapshot, nothing has been changed.
pub fn rebuild_from_history(data: &Path) -> Result<Outcome, Error> {
    let (offline, found) = Offline::begin_anew(&db::journal_folder(data))?;
    let (archived, last) = (found.archived, found.last());
    let (engine, _) = Making::of_ended(offline.reader(), None).follow_until(archived)?;
    let body = found.snapshot.map_or_else(|| encode_snapshot(&engine.snapshot()), |(_, body)| body);
    let (mut outcome, mut failure) = (Outcome::default(), None);
    let filled = offline.renew(NewSnapshot { sequence: last, body: &body }, |transaction| {
        let made = Making::of_ended(offline.reader(), Some(transaction)).follow_until(archived);
        made.map(|(_, made)| outcome = made).map_err(|error| {
            failure = Some(error);
            rusqlite::Error::InvalidQuery
        })
    });
    failure.map_or(filled.map(drop).map_err(Error::from), Err)?;
    let Outcome { jobs, sweeps, bookings, .. } = outcome;
    let mut outcome = Outcome { jobs, sweeps, bookings, before: found.before, ..Outcome::default() };
    outcome.tell(format!(
        "the database was lost, and goes on after record {last}; curves and answers to requests with a key are lost"
    ));
    if archived < last {
        outcome.tell(format!(
            "of records {} to {last} only the state after them is left: jobs that ended in them are lost",
            archived.next()
        ));
    }
    if let Err(lost) = offline.refuse_lost_tail(last) {
        outcome.journal = Some(format!("{lost}: {}", lost.hint()));
    }
    Ok(outcome)
}

/// Returns the state before the first record or, if a record can't be read, the oldest stored state that
/// covers it.
fn begin_after(reader: &Reader, broken: Option<Sequence>) -> Result<(Remake, Sequence), Error> {
    let Some((at, body)) = broken.map(|broken| reader.snapshot_of(broken)).transpose()?.flatten() else {
        return Ok((Remake::new(Engine::new(Limits::default())), Sequence::ZERO));
    };
    let state = decode_snapshot(&body).map_err(|source| Error::Record { at, source })?;
    let engine = Engine::restore(Limits::default(), state).map_err(|source| Error::Sequence { at, source })?;
    Ok((Remake::new(engine), at))
}

/// Read models under construction. They are written or compared one at a time, because a long history doesn't
/// fit into memory.
struct Making<'t> {
    reader: Reader,
    into: Option<&'t Transaction<'t>>,
    outcome: Outcome,
    seen: BTreeSet<JobId>,
    known_from: JobId,
    /// Makes only the rows of ended jobs; a start makes those of live ones.
    is_of_ended: bool,
}

/// The reason why rows weren't written.
enum Write {
    Database(rusqlite::Error),
    Journal(Error),
}

impl From<rusqlite::Error> for Write {
    fn from(error: rusqlite::Error) -> Write {
        Write::Database(error)
    }
}

impl From<Error> for Write {
    fn from(error: Error) -> Write {
        Write::Journal(error)
    }
}

impl From<db::Error> for Write {
    fn from(error: db::Error) -> Write {
        Write::Journal(error.into())
    }
}

impl<'t> Making<'t> {
    /// Returns a comparison that writes nothing.
    fn new(reader: Reader) -> Making<'t> {
        Making {
            reader,
            into: None,
            outcome: Outcome::default(),
            seen: BTreeSet::new(),
            known_from: JobId(1),
            is_of_ended: false,
        }
    }

    /// Returns a rebuild of the rows of ended jobs only.
    fn of_ended(reader: Reader, into: Option<&'t Transaction<'t>>) -> Making<'t> {
        Making { into, is_of_ended: true, ..Making::new(reader) }
    }

    /// Applies the records from the first to `until`.
    fn follow_until(mut self, until: Sequence) -> Result<(Engine, Outcome), Error> {
        let (engine, _) = self.follow_to(begin_after(&self.reader, None)?, until)?;
        Ok((engine, self.outcome))
    }

    /// Applies all records after the given state and returns the engine at the last one.
    fn follow(&mut self, state: (Remake, Sequence)) -> Result<(Engine, Sequence), Error> {
        self.follow_to(state, Sequence(u64::MAX))
    }

    fn follow_to(
        &mut self,
        (mut remake, mut after): (Remake, Sequence),
        until: Sequence,
    ) -> Result<(Engine, Sequence), Error> {
        while after < until {
            let count = u32::try_from(until.0 - after.0).unwrap_or(PAGE).min(PAGE);
            let records = self.reader.history(after, count)?;
            let Some(last) = records.last().map(|record| record.sequence) else { break };
            for record in records {
                let at = record.sequence;
                let recorded = decode_entry(&record.body).map_err(|source| Error::Record { at, source })?;
                let made = remake.take_in(record.at, recorded).map_err(|source| Error::Sequence { at, source })?;
                self.take(made)?;
            }
            after = last;
        }
        let (engine, made) = remake.finish();
        self.take(made)?;
        Ok((engine, after))
    }

    fn take(&mut self, made: Vec<Made>) -> Result<(), Error> {
        for made in made {
            match made {
                Made::Job(job) => {
                    self.seen.insert(job.record.id);
                    self.take_job(*job)?;
                }
                Made::Sweep(sweep) => self.take_sweep(&sweep)?,
            }
        }
        Ok(())
    }

    fn take_job(&mut self, made: Remade) -> Result<(), Error> {
        let id = made.record.id;
        if self.is_of_ended && !made.record.state.is_final() {
            return Ok(());
        }
        let stored = intact(self.reader.read(|transaction| read_stored(transaction, id)))?;
        if matches!(stored, Some(None)) && made.record.state.is_final() && self.is_removed(id)? {
            self.outcome.jobs.removed += 1;
            return self.take_ledger(&made, false).map(drop);
        }
        let why = match &stored {
            Some(Some(stored)) if stored.has_lost() => None,
            Some(Some(stored)) => made.difference(stored).map(|what| format!("isn't what the journal says: {what}")),
            Some(None) => Some("is missing".to_owned()),
            None => Some("is damaged".to_owned()),
        };
        let stored = stored.flatten();
        let was_told = stored.as_ref().is_some_and(JobRecord::has_lost_bookings);
        let lost = self.take_ledger(&made, was_told)?;
        let mut record = match (stored, why) {
            (Some(stored), None) => {
                let counts = &mut self.outcome.jobs;
                *(if stored.has_lost() { &mut counts.kept } else { &mut counts.same }) += 1;
                stored
            }
            (_, why) => {
                self.outcome.jobs.remade += 1;
                self.outcome.tell(format!("the row of {id} {}", why.unwrap_or_default()));
                if !made.unknown.is_empty() {
                    self.outcome
                        .tell(format!("how far {id} came isn't in the journal: an earlier release ended its attempts"));
                }
                let mut record = made.record;
                record.note_remade();
                record
            }
        };
        if lost > 0 {
            record.note_lost_bookings();
        }
        self.put(|transaction| write_job(transaction, &record))
    }

    fn is_removed(&self, id: JobId) -> Result<bool, Error> {
        // A database of an earlier release has no such table, and nothing was removed from it.
        let is_removed = |transaction: &Transaction<'_>| Ok(is_removed(transaction, id).unwrap_or(false));
        Ok(unless_malformed(self.reader.read(is_removed))?.unwrap_or(false))
    }

    /// Compares a job's ledger rows and returns how many are lost.
    fn take_ledger(&mut self, made: &Remade, was_told: bool) -> Result<u64, Error> {
        let id = made.record.id;
        let booked: Vec<LedgerRow> = made.booked.iter().map(|(queue, entry)| LedgerRow::of(queue, entry)).collect();
        let stored = unless_malformed(self.reader.read(|transaction| stored_ledger(transaction, id)))?;
        if stored.is_none() {
            self.outcome.tell(format!("what the ledger has of {id} can't be read"));
        }
        let (stored, _) = stored.unwrap_or_default();
        for row in &booked {
            let (attempt, node) = row.share();
            let what = match stored.iter().find(|stored| stored.share() == row.share()) {
                Some(stored) if stored == row => {
                    self.outcome.bookings.same += 1;
                    continue;
                }
                Some(_) => "isn't what the journal says",
                None => "is damaged or missing",
            };
            self.outcome.tell(format!("what attempt {attempt} of {id} cost on {node} {what}"));
            self.outcome.bookings.remade += 1;
        }
        let is_unknown =
            |row: &LedgerRow| u32::try_from(row.share().0).is_ok_and(|number| made.unknown.contains(&number));
        let (kept, others): (Vec<LedgerRow>, Vec<LedgerRow>) = stored.into_iter().partition(is_unknown);
        for row in others.iter().filter(|row| booked.iter().all(|booked| booked.share() != row.share())) {
            let (attempt, node) = row.share();
            self.outcome.tell(format!("the ledger has attempt {attempt} of {id} on {node}, and the journal hasn't"));
        }
        let mut lost = 0;
        for attempt in made.record.attempts.iter().filter(|attempt| made.unknown.contains(&attempt.number)) {
            let is_kept = |node: &str| kept.iter().any(|row| row.share() == (i64::from(attempt.number), node));
            for node in attempt.shares.iter().map(|share| &share.node).filter(|node| !is_kept(node)) {
                lost += 1;
                if !was_told {
                    let number = attempt.number;
                    let what =
                        format!("what attempt {number} of {id} cost on {node} is lost: an earlier release ended it");
                    self.outcome.tell(what);
                }
            }
        }
        self.outcome.bookings.kept += u64::try_from(kept.len()).unwrap_or(u64::MAX);
        self.outcome.bookings.lost += lost;
        self.put(|transaction| kept.iter().chain(&booked).try_for_each(|row| row.write(transaction)))?;
        Ok(lost)
    }

    fn take_sweep(&mut self, made: &SweepRecord) -> Result<(), Error> {
        let id: SweepId = made.id;
        let stored = intact(self.reader.read(|transaction| read_sweep(transaction, id)))?;
        if matches!(stored, Some(None)) && self.is_removed(id.0)? {
            self.outcome.sweeps.removed += 1;
            return Ok(());
        }
        if stored.flatten().is_some_and(|stored| stored == *made) {
            self.outcome.sweeps.same += 1;
        } else {
            self.outcome.sweeps.remade += 1;
            self.outcome.tell(format!("what the jobs of {id} share is damaged or missing"));
        }
        self.put(|transaction| write_sweep(transaction, made))
    }

    /// Writes into the new database, if there is one.
    fn put(&self, write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>) -> Result<(), Error> {
        let Some(transaction) = self.into else { return Ok(()) };
        write(transaction).map_err(|error| Error::from(self.reader.failed(error)))
    }

    /// Reports stored jobs that the journal doesn't know, and damaged ones from before its first state.
    fn look_for_others(&mut self) -> Result<(), Error> {
        for job in unless_malformed(self.reader.read(known_jobs))?.unwrap_or_default() {
            if job < self.known_from {
                if intact(self.reader.read(|transaction| read_job(transaction, job)))?.is_none() {
                    self.outcome.jobs.lost += 1;
                    self.outcome.tell(format!("a row of {job} is damaged, and the journal doesn't go back so far"));
                }
            } else if !self.seen.contains(&job) {
                self.outcome.tell(format!("{job} is stored, and the journal doesn't know it"));
            }
        }
        Ok(())
    }
}

/// Returns a query's result, or `None` if the query met a damaged row or page.
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

/// Fills the new tables. Samples and answers are copied from the old ones as far as they can be read.
fn write(
    transaction: &Transaction<'_>,
    reader: Reader,
    broken: Option<Sequence>,
    outcome: &mut Outcome,
) -> Result<(), Write> {
    let state = begin_after(&reader, broken)?;
    let before = i64::try_from(state.0.known_from.0).unwrap_or(i64::MAX) - 1;
    for (table, key) in [("jobs", "job"), ("ledger", "job"), ("sweeps", "sweep")] {
        let sql = format!("INSERT INTO main.{table} SELECT * FROM old.{table} WHERE {key} BETWEEN ?1 AND ?2");
        for (from, to) in salvage(transaction, &sql, Keys { from: 0, to: before, grain: 1 })? {
            outcome.jobs.lost += 1;
            outcome
                .tell(format!("rows of {table} from {from} to {to} are lost, and the journal doesn't go back so far"));
        }
    }
    // The comparison has already reported these differences.
    Making { into: Some(transaction), ..Making::new(reader) }.follow(state)?;
    copy_samples(transaction, before, outcome)?;
    let answers = "INSERT INTO main.answers SELECT * FROM old.answers WHERE number BETWEEN ?1 AND ?2";
    let lost = salvage(transaction, answers, Keys { from: 0, to: NUMBER_MAX, grain: 1 })?;
    outcome.lost_answers = u64::try_from(lost.len()).unwrap_or(u64::MAX);
    Ok(())
}

/// Copies curves whole or, where a page is malformed, the readable samples around it.
fn copy_samples(transaction: &Transaction<'_>, before: i64, outcome: &mut Outcome) -> rusqlite::Result<()> {
    let last = last_job(transaction)?.map_or(before, |job| i64::try_from(job.0).unwrap_or(i64::MAX));
    let jobs = "INSERT INTO main.samples SELECT * FROM old.samples WHERE job BETWEEN ?1 AND ?2";
    let lost = salvage(transaction, jobs, Keys { from: 0, to: last, grain: 1 })?;
    // Avoids the index, which may be the damaged part.
    let packed = format!(
        "INSERT OR IGNORE INTO main.curves SELECT * FROM old.curves NOT INDEXED WHERE id BETWEEN ?1 AND ?2 AND job <= {last}"
    );
    let lost_blocks = salvage(transaction, &packed, Keys { from: 0, to: NUMBER_MAX, grain: 1 })?;
    outcome.lost_samples = u64::try_from(lost.len() + lost_blocks.len()).unwrap_or(u64::MAX);
    for (from, to) in lost {
        let mut after = JobId(u64::try_from(from).unwrap_or(0).saturating_sub(1));
        while let Some(job) =
            next_job(transaction, after)?.filter(|job| i64::try_from(job.0).is_ok_and(|job| job <= to))
        {
            after = job;
            let Some(record) = read_stored(transaction, job)? else { continue };
            for attempt in &record.attempts {
                salvage_samples(transaction, job, (attempt.number, attempt.samples_stored()))?;
            }
        }
    }
    Ok(())
}

/// Copies the readable samples of an attempt below number `stored`.
fn salvage_samples(transaction: &Transaction<'_>, job: JobId, (attempt, stored): (u32, u64)) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO main.samples SELECT * FROM old.samples
         WHERE job = {} AND attempt = {attempt} AND node_rank = 0 AND number BETWEEN ?1 AND ?2",
        job.0
    );
    let to = i64::try_from(stored).unwrap_or(i64::MAX);
    salvage(transaction, &sql, Keys { from: 0, to, grain: SAMPLES_GRAIN }).map(drop)
}
