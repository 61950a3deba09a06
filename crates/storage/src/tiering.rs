//! The way down to the archive: what is committed is pushed there in the background, so that saving never waits for a network.
//!
//! One checkpoint is under way at a time and the newest waits behind it; those between are passed over, because an archive
//! that can't keep up is better half a step behind than further with each. Retention leaves what is under way alone; that goes
//! with a later save. What a process left unfinished the next one's store takes up when it opens: pushes go on where they were.
//!
//! Keeps A-10: one thread, one step that waits, one outcome that is kept.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gangline_base::Step;

use crate::archive::{self, Archive, Pushed};
use crate::{Error, Options, Store};

/// An archive that a store's checkpoints go to.
#[derive(Clone, Debug)]
pub struct Tier {
    /// `s3://bucket/prefix`, or a folder.
    pub address: String,
    /// How it is used.
    pub options: archive::Options,
}

/// What is to be pushed, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Tiering {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<u64>,
    under_way: Option<u64>,
    /// Of the last push, until somebody asks.
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

    /// Has this checkpoint pushed next.
    pub(crate) fn want(&self, step: u64) {
        self.change(|state| state.waiting = Some(step));
    }

    /// What mustn't be removed now.
    pub(crate) fn needed(&self) -> BTreeSet<Step> {
        let state = self.state();
        state.waiting.into_iter().chain(state.under_way).map(Step).collect()
    }

    /// Waits until nothing is left to push; the last push's outcome, if nobody has been told.
    pub(crate) fn wait(&self) -> Option<Result<Pushed, archive::Error>> {
        let is_busy = |state: &mut State| state.waiting.is_some() || state.under_way.is_some();
        self.changed.wait_while(self.state(), is_busy).unwrap_or_else(PoisonError::into_inner).outcome.take()
    }

    /// The last push's outcome, if one has ended since somebody asked.
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

    /// Waits for something to push; none if there will be nothing.
    fn next(&self) -> Option<u64> {
        let is_idle = |state: &mut State| state.waiting.is_none() && !state.is_closing;
        let mut state = self.changed.wait_while(self.state(), is_idle).unwrap_or_else(PoisonError::into_inner);
        state.under_way = state.waiting.take();
        state.under_way
    }
}
