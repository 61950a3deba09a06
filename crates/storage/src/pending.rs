//! Saves in flight: limited in number, each with a handle to wait for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::{Bytes, Step};

use crate::manifest::Manifest;
use crate::{Began, Branch, Digest, Error, Pruned};

/// The most saves whose copies are in host memory at once; [`Store::save`](crate::Store::save) waits for one to end.
pub const SAVES_IN_FLIGHT_MAX: usize = 2;
/// The longest that a save waits for an earlier one to end.
pub(crate) const SLOT_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// A save in flight. Dropping the handle doesn't stop the save.
#[derive(Debug)]
pub struct Pending {
    step: Step,
    outcome: Receiver<Result<Saved, Error>>,
}

/// A durable checkpoint.
#[derive(Debug)]
pub struct Saved {
    /// Its step.
    pub step: Step,
    /// The total size of its shards, over all ranks.
    pub bytes: Bytes,
    /// Hash over its step and tensors; see
    /// [`CheckpointInfo::content_hash`](crate::CheckpointInfo::content_hash).
    pub content_hash: Digest,
    /// The branch that it belongs to.
    pub branch: Branch,
    /// The fork, if it began this branch by leaving another (only on rank 0).
    pub began: Option<Began>,
    /// The checkpoints that retention removed afterwards (on rank 0); their space is freed a moment later. If
    /// retention fails, the checkpoint is durable all the same.
    pub retention: Result<Pruned, Error>,
}

impl Saved {
    /// Returns the checkpoint of this manifest, with no retention.
    pub(crate) fn of(manifest: &Manifest) -> Saved {
        Saved {
            step: Step(manifest.step),
            bytes: Bytes(manifest.bytes),
            content_hash: manifest.content_blake3,
            branch: manifest.lineage.as_ref().map(|lineage| lineage.line.branch).unwrap_or_default(),
            began: None,
            retention: Ok(Pruned::default()),
        }
    }
}

impl Pending {
    pub(crate) fn new(step: Step) -> (SyncSender<Result<Saved, Error>>, Pending) {
        let (sender, outcome) = sync_channel(1);
        (sender, Pending { step, outcome })
    }

    /// Returns the step being saved.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Waits until the checkpoint is durable and visible, on every rank of the gang.
    ///
    /// # Errors
    /// The [`Error`] of the save. The checkpoint is then not returned by [`latest`](crate::Store::latest),
    /// except when the fsync after its last rename failed ([`Error::Io`], and the store is poisoned).
    pub fn wait(self) -> Result<Saved, Error> {
        self.outcome.recv().unwrap_or(Err(Error::Closed))
    }

    /// Waits like [`Pending::wait`], up to `limit`; returns none if the save is still in flight then. The
    /// outcome is returned once.
    ///
    /// # Errors
    /// Inside, as from [`Pending::wait`].
    #[must_use]
    pub fn wait_at_most(&self, limit: Duration) -> Option<Result<Saved, Error>> {
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::Closed)),
        }
    }

    /// Returns the outcome if the save has ended, once; a trainer can poll it between steps.
    ///
    /// # Errors
    /// Inside, as from [`Pending::wait`].
    #[must_use]
    pub fn try_wait(&self) -> Option<Result<Saved, Error>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(Error::Closed)),
        }
    }
}

/// Limits the number of saves in flight.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// The right to hold one save's copy; released when dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Slots>);

impl Slots {
    /// Waits for a free slot.
    pub(crate) fn take(self: &Arc<Self>, step: Step) -> Result<Slot, Error> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, waited) = self
            .freed
            .wait_timeout_while(taken, SLOT_WAIT_MAX, |taken| *taken >= SAVES_IN_FLIGHT_MAX)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Error::Timeout { step, rank: 0, waited: SLOT_WAIT_MAX });
        }
        *taken += 1;
        Ok(Slot(Arc::clone(self)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}
