//! Pushes committed checkpoints to the archive in the background, so that saving never waits for a network.
//!
//! One checkpoint is pushed at a time, and the newest waits behind it; those between are skipped, so that an
//! archive that is too slow stays a bounded distance behind. Retention doesn't remove the checkpoint being
//! pushed; a later save does. Pushes that a process left unfinished are continued when the next store opens.
//!
//! Keeps A-10: one thread, one waiting step, one stored outcome.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gangline_base::Step;

use crate::archive::{self, Archive, Pushed};
use crate::{Error, Options, Store};

/// An archive that a store pushes its checkpoints to.
#[derive(Clone, Debug)]
pub struct Tier {
    /// `s3://bucket/prefix`, or a folder.
    pub address: String,
    /// Options of the archive.
    pub options: archive::Options,
}

/// The step to push, and the outcome of the last push.
#[derive(Debug, Default)]
pub(crate) struct Tiering {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<u64>,
    under_way: Option<u64>,
    /// The outcome of the last push, until it is returned.
    outcome: Option<Result<Pushed, archive::Error>>,
    is_closing: bool,
}

impl Tiering {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Schedules a checkpoint to be pushed next.
    pub(crate) fn want(&self, step: u64) {
        self.change(|state| state.waiting = Some(step));
    }

    /// Returns the checkpoints that must not be removed now.
    pub(crate) fn needed(&self) -> BTreeSet<Step> {
        let state = self.state();
        state.waiting.into_iter().chain(state.under_way).map(Step).collect()
    }

    /// Waits until nothing is left to push; returns the last push's outcome, once.
    pub(crate) fn wait(&self) -> Option<Result<Pushed, archive::Error>> {
        let is_busy = |state: &mut State| state.waiting.is_some() || state.under_way.is_some();
        self.changed.wait_while(self.state(), is_busy).unwrap_or_else(PoisonError::into_inner).outcome.take()
    }

    /// Returns the last push's outcome, once.
    pub(crate) fn outcome(&self) -> Option<Result<Pushed, archive::Error>> {
        self.state().outcome.take()
    }

    /// Ends the thread when nothing is left to push.
    pub(crate) fn close(&self) {
        self.change(|state| state.is_closing = true);
    }

    /// Starts the thread, with a checkpoint that may be in the archive already.
    pub(crate) fn start(
        self: &Arc<Self>,
        root: &Path,
        tier: &Tier,
        newest: Option<u64>,
    ) -> Result<JoinHandle<()>, Error> {
        let refused = |source| Error::Archive { address: tier.address.clone(), source: Box::new(source) };
        let archive = Archive::open(&tier.address, &tier.options).map_err(refused)?;
        let store = Store::open(root, Options::reader())?;
        newest.into_iter().for_each(|step| self.want(step));
        let tiering = Arc::clone(self);
        std::thread::Builder::new()
            .name("gangline-archive".to_owned())
            .spawn(move || tiering.work(&archive, &store))
            .map_err(|source| Error::io("start the archiving thread of", root, source))
    }

    fn work(&self, archive: &Archive, store: &Store) {
        while let Some(step) = self.next() {
            let outcome = archive.push(store, Step(step));
            self.change(|state| {
                state.under_way = None;
                state.outcome = Some(outcome);
            });
        }
    }

    /// Waits for a step to push; none if the store is closed.
    fn next(&self) -> Option<u64> {
        let is_idle = |state: &mut State| state.waiting.is_none() && !state.is_closing;
        let mut state = self.changed.wait_while(self.state(), is_idle).unwrap_or_else(PoisonError::into_inner);
        state.under_way = state.waiting.take();
        state.under_way
    }
}
