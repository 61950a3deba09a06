//! The journal's keeper: a thread that writes snapshots and moves old records into the history archive, so that neither holds up the
//! service. The service hands it one chore at a time and is told by a request what came of it.
//!
//! Keeps A-3: a snapshot is taken at one instant, by the service's thread; records leave the database only once the keeper has them
//! on the disk and has read them back.

use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use gangline_base::{Bytes, with_causes};
use gangline_orchestration::Snapshot;
use tracing::{error, warn};

use super::Error;
use super::actor::{Actor, entries_per_snapshot};
use super::batch::Batch;
use super::handle::Request;
use crate::codec::encode_snapshot;
use crate::db::{self, ArchiveOrder, Archived, Examination, Sequence, ShrinkOrder, Shrunk, SnapshotOrder};

/// Chores that may wait: one is under way at most.
pub(super) const CHORES_MAX: usize = 1;
/// The journal is told to be nearly full again once it had fallen below this share of its limit.
const CALM_PERCENT: u64 = 75;

/// Something to do for the journal that takes long.
#[derive(Debug)]
pub(super) enum Chore {
    /// Write the state.
    Snapshot(Box<Snapshot>, SnapshotOrder),
    /// Archive records.
    Archive(ArchiveOrder),
    /// Look at the archive.
    Examine(Examination),
    /// Give back what nothing uses.
    Shrink(ShrinkOrder),
}

/// What came of a chore.
#[derive(Debug)]
pub(super) enum Kept {
    /// The state is on the disk.
    Snapshot(Result<Sequence, db::Error>),
    /// Records are in the archive.
    Archived(Result<Archived, db::Error>),
    /// The archive is whole, or isn't.
    Examined(Result<(), db::Error>),
    /// The database is smaller.
    Shrunk(Result<Shrunk, db::Error>),
}

/// Does chores until nobody has any more.
pub(super) fn run(chores: &Receiver<Chore>, service: &SyncSender<Request>) {
    while let Ok(chore) = chores.recv() {
        if service.send(carry_out(chore)).is_err() {
            return;
        }
    }
}

/// Does one chore.
pub(super) fn carry_out(chore: Chore) -> Request {
    let kept = match chore {
        Chore::Snapshot(state, order) => Kept::Snapshot(order.write(&encode_snapshot(&state))),
        Chore::Archive(order) => Kept::Archived(order.carry_out()),
        Chore::Examine(order) => Kept::Examined(order.carry_out()),
        Chore::Shrink(order) => Kept::Shrunk(order.carry_out()),
    };
    Request::Kept { kept: Box::new(kept) }
}

/// What the service knows of its keeper. It outlives the engine's state.
#[derive(Debug)]
pub(super) struct Keeping {
    chores: SyncSender<Chore>,
    is_busy: bool,
    is_examined: bool,
    /// Records can't be archived since then; tried again with the next snapshot.
    is_failing: bool,
    is_warned: bool,
    /// What is wrong with the archive.
    damage: Option<String>,
}

impl Keeping {
    /// With a keeper that takes chores.
    pub(super) fn new(chores: SyncSender<Chore>) -> Keeping {
        Keeping { chores, is_busy: false, is_examined: false, is_failing: false, is_warned: false, damage: None }
    }

    fn give(&mut self, chore: Chore) {
        // The keeper ends only after the service.
        self.is_busy = self.chores.try_send(chore).is_ok();
    }
}

impl Actor {
    /// After a turn: gives the keeper its next chore, if there is one.
    pub(super) fn keep(&mut self) {
        if self.journal.poison().is_some() {
            return;
        }
        self.warn_of_room();
        if self.keeping.is_busy {
            return;
        }
        if self.entries_since_snapshot >= entries_per_snapshot(self.engine.jobs().len())
            || self.entries_since_snapshot > 0 && self.journal.wants_snapshot()
        {
            self.order_snapshot();
        } else if let Some(order) = self.journal.order_archive().filter(|_| !self.keeping.is_failing) {
            self.keeping.give(Chore::Archive(order));
        } else if !self.keeping.is_examined {
            self.keeping.is_examined = true;
            let order = self.journal.order_examination();
            self.keeping.give(Chore::Examine(order));
        } else if let Some(order) = self.journal.order_shrink() {
            self.keeping.give(Chore::Shrink(order));
        }
    }

    /// At a stop: has the keeper write the state, and waits for it no longer than `within`, so that a slow disk holds up no stop.
    pub(super) fn leave_snapshot(&mut self, requests: &Receiver<Request>, within: Duration) {
        let deadline = Instant::now() + within;
        let is_needed = |actor: &Actor| actor.entries_since_snapshot > 0 && actor.journal.poison().is_none();
        while self.keeping.is_busy || is_needed(self) {
            if !self.keeping.is_busy {
                self.order_snapshot();
            }
            match requests.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Request::Kept { kept }) => self.kept(*kept),
                // Nobody is served any more.
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
        self.keeping.is_failing = false;
        let order = self.journal.order_snapshot();
        self.keeping.give(Chore::Snapshot(state, order));
    }

    /// What came of a chore.
    pub(super) fn kept(&mut self, kept: Kept) {
        self.keeping.is_busy = false;
        match kept {
            Kept::Snapshot(Ok(sequence)) => self.journal.snapshot_written(sequence),
            Kept::Snapshot(Err(failure)) => {
                let failure = with_causes(&failure);
                warn!(failure, "no snapshot was written; the next start replays more");
            }
            Kept::Archived(Ok(archived)) => self.journal.archived(archived),
            Kept::Archived(Err(failure)) => {
                self.keeping.is_failing = true;
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
                self.keeping.damage = Some(text);
            }
        }
    }

    /// Whether a request of this size is taken in, or the room that is left is for the jobs that are there.
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

    /// What is wrong with the journal although it can be written, in a sentence.
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
        self.keeping.damage.clone()
    }

    fn warn_of_room(&mut self) {
        let room = self.journal.room();
        if room.percent() < CALM_PERCENT {
            self.keeping.is_warned = false;
        }
        if room.is_pressed() && !self.keeping.is_warned {
            self.keeping.is_warned = true;
            let (used, max) = (room.used, room.max);
            warn!(%used, %max, "the journal is nearly full: old records are archived; restart with a higher --journal-max");
        }
    }
}
