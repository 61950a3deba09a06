//! Saves that are copied while the caller goes on: the caller's word that nothing changed during the copy,
//! without which the save isn't committed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting commit looks whether the store is being closed.
const CLOSED_INTERVAL: Duration = Duration::from_millis(50);

/// The caller's side of an unconfirmed save. Dropping it gives the save up, with [`Error::Closed`](crate::Error::Closed).
#[derive(Debug)]
#[must_use]
pub struct Confirmation(SyncSender<Result<(), String>>);

/// The commit's side.
#[derive(Debug)]
pub(crate) struct Gate(Receiver<Result<(), String>>);

/// Why a save isn't committed.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// These values changed.
    Changed(String),
    /// Nobody said anything: the confirmation was dropped, the store is being closed, or it took too long.
    GivenUp,
}

impl Confirmation {
    pub(crate) fn new() -> (Confirmation, Gate) {
        let (sender, word) = sync_channel(1);
        (Confirmation(sender), Gate(word))
    }

    /// Lets the save become visible: no value changed before the copy was complete.
    pub fn confirm(self) {
        // The save may have failed already.
        let _ = self.0.send(Ok(()));
    }

    /// Fails the save with [`Error::Changed`](crate::Error::Changed), naming what changed.
    pub fn refuse(self, what: &str) {
        let _ = self.0.send(Err(what.to_owned()));
    }
}

impl Gate {
    /// Waits for the caller's word, at most `limit`, and not once the store is being closed.
    pub(crate) fn pass(self, closing: &Mutex<bool>, limit: Duration) -> Result<(), Unconfirmed> {
        let began = Instant::now();
        loop {
            match self.0.recv_timeout(CLOSED_INTERVAL) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(what)) => return Err(Unconfirmed::Changed(what)),
                Err(RecvTimeoutError::Disconnected) => return Err(Unconfirmed::GivenUp),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if *closing.lock().unwrap_or_else(PoisonError::into_inner) || began.elapsed() > limit {
                return Err(Unconfirmed::GivenUp);
            }
        }
    }
}
