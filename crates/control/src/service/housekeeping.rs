//! The journal's housekeeper: a thread that writes snapshots and moves old records into the history archive, so
//! that neither delays the service. The service hands it one chore at a time, and the housekeeper sends the
//! outcome back as a request.
//!
//! Keeps A-3: the service's thread takes a snapshot at one instant, and records leave the database only after
//! the housekeeper has written them to the archive, synced them and read them back.

use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use gangline_base::{Bytes, with_causes};
use gangline_orchestration::Snapshot;
use tracing::{error, warn};

use super::Error;
use super::actor::{Actor, entries_per_snapshot};
use super::batch::Batch;
use super::handle::Request;
use gangline_store::codec::encode_snapshot;
use gangline_store::db::{self, ArchiveOrder, Archived, Examination, Sequence, ShrinkOrder, Shrunk, SnapshotOrder};

/// Chores that may wait; at most one is under way.
pub(super) const CHORES_MAX: usize = 1;
/// The journal's fill level, in percent, below which the warning about a nearly full journal is armed again.
const CALM_PERCENT: u64 = 75;

/// A long-running task for the journal.
#[derive(Debug)]
pub(super) enum Chore {
    /// Write a snapshot of the engine.
    Snapshot(Box<Snapshot>, SnapshotOrder),
    /// Move old records into the archive.
    Archive(ArchiveOrder),
    /// Check the archive.
    Examine(Examination),
    /// Return unused space of the database to the file system.
    Shrink(ShrinkOrder),
}

/// The outcome of a chore.
#[derive(Debug)]
pub(super) enum Kept {
    /// The snapshot is durable.
    Snapshot(Result<Sequence, db::Error>),
    /// Records are in the archive.
    Archived(Result<Archived, db::Error>),
    /// The archive has been checked.
    Examined(Result<(), db::Error>),
    /// The database file has shrunk.
    Shrunk(Result<Shrunk, db::Error>),
}

/// Runs the housekeeper thread until the service drops its sender.
pub(super) fn run(chores: &Receiver<Chore>, service: &SyncSender<Request>) {
    while let Ok(chore) = chores.recv() {
        if service.send(carry_out(chore)).is_err() {
            return;
        }
    }
}

/// Carries out one chore and returns its outcome as a request.
pub(super) fn carry_out(chore: Chore) -> Request {
    let kept = match chore {
        Chore::Snapshot(state, order) => Kept::Snapshot(order.write(&encode_snapshot(&state))),
        Chore::Archive(order) => Kept::Archived(order.carry_out()),
        Chore::Examine(order) => Kept::Examined(order.carry_out()),
        Chore::Shrink(order) => Kept::Shrunk(order.carry_out()),
    };
    Request::Kept { kept: Box::new(kept) }
}

/// What the service knows about its housekeeper. It outlives the engine's state.
#[derive(Debug)]
pub(super) struct Housekeeping {
    chores: SyncSender<Chore>,
    is_busy: bool,
    is_examined: bool,
    /// The last archiving failed; it is tried again after the next snapshot.
    is_failing: bool,
    is_warned: bool,
    /// Damage found in the archive.
    damage: Option<String>,
}

impl Housekeeping {
    /// Creates the state for a housekeeper that receives from `chores`.
    pub(super) fn new(chores: SyncSender<Chore>) -> Housekeeping {
        Housekeeping { chores, is_busy: false, is_examined: false, is_failing: false, is_warned: false, damage: None }
    }

    fn give(&mut self, chore: Chore) {
        // The channel can't be closed: the housekeeper ends only after the service.
        self.is_busy = self.chores.try_send(chore).is_ok();
    }
}

impl Actor {
    /// Gives the housekeeper its next chore after a turn, if there is one.
    pub(super) fn keep(&mut self) {
        if self.journal.poison().is_some() {
            return;
        }
        self.warn_of_room();
        if self.housekeeping.is_busy {
            return;
        }
        if self.entries_since_snapshot >= entries_per_snapshot(self.engine.jobs().len())
            || self.entries_since_snapshot > 0 && self.journal.wants_snapshot()
        {
            self.order_snapshot();
        } else if let Some(order) = self.journal.order_archive().filter(|_| !self.housekeeping.is_failing) {
            self.housekeeping.give(Chore::Archive(order));
        } else if !self.housekeeping.is_examined {
            self.housekeeping.is_examined = true;
            let order = self.journal.order_examination();
            self.housekeeping.give(Chore::Examine(order));
        } else if let Some(order) = self.journal.order_shrink() {
            self.housekeeping.give(Chore::Shrink(order));
        }
    }

    /// Has the housekeeper write a last snapshot at a stop. Waits at most `within`, so that a slow disk doesn't
    /// delay the stop.
    pub(super) fn leave_snapshot(&mut self, requests: &Receiver<Request>, within: Duration) {
        let deadline = Instant::now() + within;
        let is_needed = |actor: &Actor| actor.entries_since_snapshot > 0 && actor.journal.poison().is_none();
        while self.housekeeping.is_busy || is_needed(self) {
            if !self.housekeeping.is_busy {
                self.order_snapshot();
            }
            match requests.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Request::Kept { kept }) => self.kept(*kept),
                // Other requests are no longer served.
                Ok(_) => {}
                Err(_) => {
                    let seconds = within.as_secs();
                    warn!(seconds, "the last snapshot wasn't written in time; the next start replays more");
                    return;
                }
            }
        }
    }

    fn order_snapshot(&mut self) {
        let state = Box::new(self.engine.snapshot());
        self.entries_since_snapshot = 0;
        self.housekeeping.is_failing = false;
        let order = self.journal.order_snapshot();
        self.housekeeping.give(Chore::Snapshot(state, order));
    }

    /// Takes in the outcome of a chore.
    pub(super) fn kept(&mut self, kept: Kept) {
        self.housekeeping.is_busy = false;
        match kept {
            Kept::Snapshot(Ok(sequence)) => self.journal.snapshot_written(sequence),
            Kept::Snapshot(Err(failure)) => {
                let failure = with_causes(&failure);
                warn!(failure, "no snapshot was written; the next start replays more");
            }
            Kept::Archived(Ok(archived)) => self.journal.archived(archived),
            Kept::Archived(Err(failure)) => {
                self.housekeeping.is_failing = true;
                let (code, failure) = (failure.code(), with_causes(&failure));
                warn!(code, failure, "old records can't be archived and stay in the journal; tried again later");
            }
            Kept::Shrunk(Ok(shrunk)) => self.journal.shrunk(shrunk),
            Kept::Shrunk(Err(failure)) => {
                self.journal.stop_shrinking();
                let (code, failure) = (failure.code(), with_causes(&failure));
                warn!(
                    code,
                    failure, "what nothing of the database uses can't be given back; tried again after a restart"
                );
            }
            Kept::Examined(Ok(())) => {}
            Kept::Examined(Err(failure)) => {
                let text = with_causes(&failure);
                error!(code = failure.code(), hint = failure.hint(), "{text}");
                self.housekeeping.damage = Some(text);
            }
        }
    }

    /// Refuses a request for which the journal has no room: the rest is reserved for existing jobs.
    ///
    /// # Errors
    /// [`Error::JournalFull`].
    pub(super) fn refuse_if_full(&self, request: Bytes, batch: &Batch) -> Result<(), Error> {
        let room = self.journal.room();
        if room.takes(Bytes(request.0 + batch.bytes().0)) {
            return Ok(());
        }
        Err(Error::JournalFull { used: room.used, max: room.max })
    }

    /// Describes in a sentence what is wrong with a journal that can still be written.
    pub(super) fn journal_trouble(&self) -> Option<String> {
        let room = self.journal.room();
        if room.is_pressed() {
            return Some(format!(
                "the journal has {} of at most {}: restart the control plane with a higher --journal-max, or new jobs are \
                 refused from {} % on",
                room.used,
                room.max,
                db::Room::RESERVED_PERCENT
            ));
        }
        self.housekeeping.damage.clone()
    }

    fn warn_of_room(&mut self) {
        let room = self.journal.room();
        if room.percent() < CALM_PERCENT {
            self.housekeeping.is_warned = false;
        }
        if room.is_pressed() && !self.housekeeping.is_warned {
            self.housekeeping.is_warned = true;
            let (used, max) = (room.used, room.max);
            warn!(%used, %max, "the journal is nearly full: old records are archived; restart with a higher --journal-max");
        }
    }
}
