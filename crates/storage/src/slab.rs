//! Host memory that saves are copied into. It is reused, because each page of new memory takes a fault
//! (`cargo xtask bench checkpoint` shows the first save beside the others).
//!
//! Invariant: no more slabs are kept than saves may be in flight, and all slabs together stay within
//! the allowance: a save that would exceed it waits until an earlier one has ended.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gangline_base::Bytes;

use crate::Error;
use crate::memory::{Memory, PAGE};
use crate::pending::{SAVES_IN_FLIGHT_MAX, SLOT_WAIT_MAX};
use crate::staging::Staging;

/// Limits of the memory that saves take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    /// The most bytes of all copies together, in use and kept; none for no limit.
    pub(crate) max: Option<Bytes>,
    /// Whether memory returns to the system as soon as no save uses it.
    pub(crate) is_returned: bool,
}

/// The slabs that no save uses.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    state: Mutex<State>,
    /// Notified when a save returns its slab.
    given_back: Condvar,
    allowance: Allowance,
    /// Where new slabs are created as files, so that they outlive this process.
    staging: Option<Staging>,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<Memory>,
    /// Bytes of the slabs in use.
    used: usize,
}

/// The memory of a save; returned for reuse when it is dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    /// None only once it is dropped.
    memory: Option<Memory>,
    length: usize,
    /// Bytes that count as in use until it is dropped.
    taken: usize,
    home: Arc<Slabs>,
}

impl Slabs {
    pub(crate) fn new(staging: Option<Staging>, allowance: Allowance) -> Arc<Slabs> {
        Arc::new(Slabs { staging, allowance, ..Slabs::default() })
    }

    /// Returns a slab of at least `length` bytes with unspecified contents: the smallest kept one that is
    /// large enough, or a new one. If the limit doesn't permit that, waits until other saves return theirs.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Result<Slab, Error> {
        let bytes = length.max(PAGE).next_multiple_of(PAGE);
        let max = self.allowance.max.map_or(usize::MAX, |max| usize::try_from(max.0).unwrap_or(usize::MAX));
        if bytes > max {
            return Err(Error::Limit {
                what: "bytes of a save's copy (memory_max)",
                value: bytes as u64,
                max: max as u64,
            });
        }
        let state = self.lock();
        let has_no_room = |state: &mut State| state.used > max - bytes;
        let waited = self.given_back.wait_timeout_while(state, SLOT_WAIT_MAX, has_no_room);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(Error::Memory { bytes: bytes as u64, source });
        }
        let allowed = max - state.used;
        let fitting =
            state.kept.iter().enumerate().filter(|(_, memory)| (bytes..=allowed).contains(&memory.bytes().len()));
        let best = fitting.min_by_key(|(_, memory)| memory.bytes().len()).map(|(at, _)| at);
        let found = best.map(|at| state.kept.swap_remove(at));
        if found.is_none() {
            // Memory that is too small for this save is too small for the next one.
            state.kept.retain(|memory| memory.bytes().len() >= length);
        }
        let taken = found.as_ref().map_or(bytes, |memory| memory.bytes().len());
        state.used += taken;
        state.keep_within(max);
        drop(state);
        match found.map_or_else(|| self.make(bytes), Ok) {
            Ok(memory) => Ok(Slab { memory: Some(memory), length, taken, home: Arc::clone(self) }),
            Err(error) => {
                self.give_back(None, taken);
                Err(error)
            }
        }
    }

    /// Returns a slab of the first bytes of memory that comes from elsewhere.
    pub(crate) fn slab(self: &Arc<Self>, memory: Memory, length: usize) -> Slab {
        Slab { memory: Some(memory), length, taken: 0, home: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, memory: Option<Memory>, taken: usize) {
        let mut state = self.lock();
        state.used -= taken;
        if !self.allowance.is_returned {
            state.kept.extend(memory);
            state.kept.sort_by_key(|memory| std::cmp::Reverse(memory.bytes().len()));
            state.kept.truncate(SAVES_IN_FLIGHT_MAX);
        }
        self.given_back.notify_all();
    }

    fn make(&self, bytes: usize) -> Result<Memory, Error> {
        // A full or missing file system in memory must not fail the save.
        let shared = self.staging.as_ref().and_then(|staging| staging.memory(bytes));
        shared.map_or_else(|| Memory::own(bytes), Ok).map_err(|source| Error::Memory { bytes: bytes as u64, source })
    }
}

impl State {
    /// Frees kept memory, the largest first, until the total is at most `max`.
    fn keep_within(&mut self, max: usize) {
        self.kept.sort_by_key(|memory| std::cmp::Reverse(memory.bytes().len()));
        while !self.kept.is_empty()
            && self.kept.iter().map(|memory| memory.bytes().len()).sum::<usize>() > max - self.used
        {
            self.kept.remove(0);
        }
    }
}

impl Slab {
    /// Returns the file that holds the slab, if it outlives this process.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.memory.as_ref().and_then(Memory::file)
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.as_ref().expect("it isn't dropped yet").bytes()[..self.length]
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut().expect("it isn't dropped yet").bytes_mut()[..self.length]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.home.give_back(self.memory.take(), self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slabs: &Arc<Slabs>, length: usize) -> Slab {
        slabs.take(length).expect("memory")
    }

    /// Returns the bytes in use and the bytes kept.
    fn use_of(slabs: &Slabs) -> (usize, usize) {
        let state = slabs.lock();
        (state.used, state.kept.iter().map(|memory| memory.bytes().len()).sum())
    }

    #[test]
    fn memory_is_used_again() {
        let slabs = Slabs::new(None, Allowance::default());
        let one = take(&slabs, 3 * PAGE + 1);
        assert_eq!(one.len(), 3 * PAGE + 1);
        let place = one.as_ptr();
        drop(one);
        assert_eq!(take(&slabs, 2 * PAGE).as_ptr(), place, "it is kept");
        let (again, other) = (take(&slabs, 4 * PAGE), take(&slabs, 1));
        assert_eq!(again.as_ptr(), place, "what is large enough is taken");
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn what_is_too_small_makes_way_and_no_more_is_kept_than_saves_are_in_flight() {
        let slabs = Slabs::new(None, Allowance::default());
        drop(take(&slabs, PAGE));
        drop(take(&slabs, 9 * PAGE));
        let many: Vec<Slab> = (0..SAVES_IN_FLIGHT_MAX + 3).map(|_| take(&slabs, 9 * PAGE)).collect();
        drop(many);
        let state = slabs.lock();
        assert_eq!((state.kept.len(), state.used), (SAVES_IN_FLIGHT_MAX, 0));
        assert!(state.kept.iter().all(|memory| memory.bytes().len() == 9 * PAGE));
    }

    #[test]
    fn memory_that_there_cannot_be_is_an_error() {
        assert!(matches!(Slabs::new(None, Allowance::default()).take(1 << 60), Err(Error::Memory { .. })));
    }

    /// Proves A-10 for the memory of saves.
    #[test]
    fn all_slabs_take_no_more_than_is_allowed_and_who_needs_more_waits() {
        let allowance = Allowance { max: Some(Bytes(10 * PAGE as u64)), is_returned: false };
        let slabs = Slabs::new(None, allowance);
        assert!(matches!(slabs.take(10 * PAGE + 1), Err(Error::Limit { .. })));
        drop(take(&slabs, 6 * PAGE));
        let (first, second) = (take(&slabs, 7 * PAGE), take(&slabs, 3 * PAGE));
        assert_eq!(use_of(&slabs), (10 * PAGE, 0), "what was kept made way");
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| take(&slabs, 5 * PAGE).len());
            drop(second);
            assert_eq!(use_of(&slabs).0, 7 * PAGE, "three pages are too few for five");
            drop(first);
            waiting.join().expect("it gets its turn")
        });
        assert_eq!(waiting, 5 * PAGE);
        let (used, kept) = use_of(&slabs);
        assert!(used == 0 && (1..=10 * PAGE).contains(&kept), "{kept} bytes are kept");
    }

    #[test]
    fn memory_goes_back_to_the_system_if_that_is_wanted() {
        let slabs = Slabs::new(None, Allowance { max: None, is_returned: true });
        drop(take(&slabs, 5 * PAGE));
        assert_eq!(use_of(&slabs), (0, 0));
    }
}
