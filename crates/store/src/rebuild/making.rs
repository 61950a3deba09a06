//! Makes the read models again, a job at a time, compares them with the stored ones, and writes them into a new database
//! if there is one.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::{JobId, SweepId, Timestamp};
use gangline_orchestration::Engine;
use rusqlite::Transaction;

use super::{Outcome, begin_after};
use crate::codec::{CapacityChanged, IncidentMet, Noted, StorageMeasured, decode_entry};
use crate::db::{self, Reader, Sequence};
use crate::history::Error;
use crate::model::{
    Account, JobRecord, LedgerRow, Made, Remade, Remake, SweepRecord, is_removed, known_jobs, read_job, read_stored,
    read_sweep, stored_account, stored_capacity, stored_incident, stored_ledger, stored_requests, stored_storage,
    write_account, write_job, write_sweep,
};
use crate::sqlite::write_noted;

/// Records read at once.
const PAGE: u32 = 10_000;

/// Read models under construction. They are written or compared one at a time, because a long history doesn't
/// fit into memory.
pub(super) struct Making<'t> {
    pub(super) reader: Reader,
    into: Option<&'t Transaction<'t>>,
    pub(super) outcome: Outcome,
    seen: BTreeSet<JobId>,
    pub(super) known_from: JobId,
    /// The last notes for bills, by what they are of, and their time.
    noted: (Timestamp, BTreeMap<String, Noted>),
    /// Makes only the rows of ended jobs; a start makes those of live ones.
    is_of_ended: bool,
}

impl<'t> Making<'t> {
    /// Returns a comparison that writes nothing.
    pub(super) fn new(reader: Reader) -> Making<'t> {
        Making {
            reader,
            into: None,
            outcome: Outcome::default(),
            seen: BTreeSet::new(),
            known_from: JobId(1),
            noted: Default::default(),
            is_of_ended: false,
        }
    }

    /// Returns a rebuild that writes what it makes into the new database.
    pub(super) fn writing(reader: Reader, into: &'t Transaction<'t>) -> Making<'t> {
        Making { into: Some(into), ..Making::new(reader) }
    }

    /// Returns a rebuild of the rows of ended jobs only.
    pub(super) fn of_ended(reader: Reader, into: Option<&'t Transaction<'t>>) -> Making<'t> {
        Making { into, is_of_ended: true, ..Making::new(reader) }
    }

    /// Applies the records from the first to `until`.
    pub(super) fn follow_until(mut self, until: Sequence) -> Result<(Engine, Outcome), Error> {
        let (engine, _) = self.follow_to(begin_after(&self.reader, None)?, until)?;
        Ok((engine, self.outcome))
    }

    /// Applies all records after the given state and returns the engine at the last one.
    pub(super) fn follow(&mut self, state: (Remake, Sequence)) -> Result<(Engine, Sequence), Error> {
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
        self.take_noted()?;
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
                Made::Noted(at, noted) => self.take_note(at, *noted)?,
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
            self.take_ledger(&made, false)?;
            return self.take_account(&made.record, made.unknown.is_empty());
        }
        let why = match &stored {
            Some(Some(stored)) if stored.has_lost() => None,
            Some(Some(stored)) => made.difference(stored).map(|what| format!("isn't what the journal says: {what}")),
            Some(None) => Some("is missing".to_owned()),
            None => Some("is damaged".to_owned()),
        };
        let (stored, is_known) = (stored.flatten(), made.unknown.is_empty());
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
        if record.state.is_final() {
            self.take_account(&record, is_known)?;
        }
        self.put(|transaction| write_job(transaction, &record))
    }

    /// Compares the account of a job that has ended. One that is missing is written, without a word: an earlier release
    /// may have ended the job.
    fn take_account(&mut self, record: &JobRecord, is_known: bool) -> Result<(), Error> {
        // A database of an earlier release has no such table.
        let stored = |transaction: &Transaction<'_>| Ok(stored_account(transaction, record.id).map_err(drop));
        let stored = unless_malformed(self.reader.read(stored))?;
        if matches!(&stored, Some(Ok(Some(stored))) if is_known && *stored != Account::of(record)) {
            self.outcome.tell(format!("the account of {} isn't what the journal says", record.id));
        }
        self.put(|transaction| write_account(transaction, record))
    }

    /// Compares notes for bills, once all notes at one time are known: the last one of a node or a folder counts.
    fn take_note(&mut self, at: Timestamp, noted: Noted) -> Result<(), Error> {
        if self.noted.0 != at {
            self.take_noted()?;
        }
        self.noted.0 = at;
        self.noted.1.insert(noted.subject(), noted);
        Ok(())
    }

    fn take_noted(&mut self) -> Result<(), Error> {
        let (at, notes) = std::mem::take(&mut self.noted);
        notes.values().try_for_each(|noted| self.compare_note(at, noted))
    }

    fn compare_note(&mut self, at: Timestamp, noted: &Noted) -> Result<(), Error> {
        let stored = |transaction: &Transaction<'_>| match noted {
            Noted::Capacity(CapacityChanged { node, .. }) => {
                stored_capacity(transaction, at, node).map(|found| found.map(Noted::Capacity))
            }
            Noted::Storage(StorageMeasured { folder, .. }) => {
                stored_storage(transaction, at, folder).map(|found| found.map(Noted::Storage))
            }
            Noted::Incident(IncidentMet { subject, .. }) => {
                stored_incident(transaction, at, subject).map(|found| found.map(Noted::Incident))
            }
            Noted::Requests(made) => stored_requests(transaction, made).map(|found| found.map(Noted::Requests)),
        };
        let stored = intact(self.reader.read(stored))?;
        if stored.flatten().is_some_and(|stored| stored == *noted) {
            self.outcome.noted.same += 1;
        } else {
            self.outcome.noted.remade += 1;
            self.outcome.tell(format!("{} is damaged or missing", noted.subject()));
        }
        self.put(|transaction| write_noted(transaction, at, noted))
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
    pub(super) fn look_for_others(&mut self) -> Result<(), Error> {
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
pub(super) fn intact<T>(found: Result<T, db::Error>) -> Result<Option<T>, db::Error> {
    match found {
        Err(db::Error::Row(_)) => Ok(None),
        found => unless_malformed(found),
    }
}

pub(super) fn unless_malformed<T>(found: Result<T, db::Error>) -> Result<Option<T>, db::Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(db::Error::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
