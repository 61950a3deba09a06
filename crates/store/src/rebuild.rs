//! `gangline rebuild`: recomputes the read models from the journal and compares them with the stored ones.
//!
//! Data that the journal doesn't hold is kept where it is intact: answers, transient notes, and
//! results of attempts that an earlier release ended. Works on a folder that no control plane holds. Keeps
//! the journal alone says what happened.

mod making;

use std::path::{Path, PathBuf};

use gangline_base::JobId;
use gangline_orchestration::{Engine, Limits};
use rusqlite::Transaction;
use serde::Serialize;

use crate::codec::{decode_snapshot, encode_snapshot};
use crate::db::{self, Keys, NewSnapshot, Offline, Reader, Sequence, salvage};
use crate::history::Error;
use crate::model::Remake;
use making::Making;

/// The most differences that are listed one by one.
const TOLD_MAX: usize = 100;
/// The largest answer number that is looked for.
const NUMBER_MAX: i64 = 1 << 40;

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
    /// Notes for bills: what nodes offer and what folders hold.
    pub noted: Counts,
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
    let Outcome { jobs, sweeps, bookings, noted, .. } = outcome;
    let mut outcome = Outcome { jobs, sweeps, bookings, noted, before: found.before, ..Outcome::default() };
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

/// Fills the new tables. Answers are copied from the old ones as far as they can be read.
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
    Making::writing(reader, transaction).follow(state)?;
    let answers = "INSERT INTO main.answers SELECT * FROM old.answers WHERE number BETWEEN ?1 AND ?2";
    let lost = salvage(transaction, answers, Keys { from: 0, to: NUMBER_MAX, grain: 1 })?;
    outcome.lost_answers = u64::try_from(lost.len()).unwrap_or(u64::MAX);
    Ok(())
}
