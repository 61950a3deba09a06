//! Host memory that saves are copied into: kept from save to save, because each page of fresh memory takes a fault
//! (`cargo xtask bench checkpoint` shows the first save beside the others).
//!
//! Invariant: no more slabs are kept than saves may be in flight.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;
use crate::memory::{Memory, PAGE};
use crate::pending::SAVES_IN_FLIGHT_MAX;
use crate::staging::Staging;

/// Slabs that no save uses.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    kept: Mutex<Vec<Memory>>,
    /// Where new ones are to be files, so that they outlive this process.
    staging: Option<Staging>,
}

/// Memory of a save; goes back to the others when it is dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    /// None only once it is dropped.
    memory: Option<Memory>,
    length: usize,
    home: Arc<Slabs>,
}

impl Slabs {
    pub(crate) fn new(staging: Option<Staging>) -> Arc<Slabs> {
        Arc::new(Slabs { kept: Mutex::default(), staging })
    }

    /// Memory for a save of so many bytes, which are whatever they were: the smallest that is kept and large enough, else
    /// new.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Result<Slab, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = kept.iter().enumerate().filter(|(_, memory)| memory.bytes().len() >= length);
        let best = fitting.min_by_key(|(_, memory)| memory.bytes().len()).map(|(at, _)| at);
        let found = best.map(|at| kept.swap_remove(at));
        if found.is_none() {
            // What was too small for this one is so for the next.
            kept.retain(|memory| memory.bytes().len() >= length);
        }
        drop(kept);
        let memory = match found {
            Some(memory) => memory,
            None => self.make(length.next_multiple_of(PAGE))?,
        };
        Ok(self.slab(memory, length))
    }

    /// The first bytes of some memory as a slab of these.
    pub(crate) fn slab(self: &Arc<Self>, memory: Memory, length: usize) -> Slab {
        Slab { memory: Some(memory), length, home: Arc::clone(self) }
    }

    fn make(&self, bytes: usize) -> Result<Memory, Error> {
        // A file system in memory that is full or gone must not cost the save.
        let shared = self.staging.as_ref().and_then(|staging| staging.memory(bytes));
        shared.map_or_else(|| Memory::own(bytes), Ok).map_err(|source| Error::Memory { bytes: bytes as u64, source })
    }
}

impl Slab {
    /// The file that it is, if it outlives this process.
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
        let mut kept = self.home.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(self.memory.take());
        kept.sort_by_key(|memory| std::cmp::Reverse(memory.bytes().len()));
        kept.truncate(SAVES_IN_FLIGHT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slabs: &Arc<Slabs>, length: usize) -> Slab {
        slabs.take(length).expect("memory")
    }

    #[test]
    fn memory_is_used_again() {
        let slabs = Slabs::new(None);
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
        let slabs = Slabs::new(None);
        drop(take(&slabs, PAGE));
        drop(take(&slabs, 9 * PAGE));
        let many: Vec<Slab> = (0..SAVES_IN_FLIGHT_MAX + 3).map(|_| take(&slabs, 9 * PAGE)).collect();
        drop(many);
        let kept = slabs.kept.lock().expect("nobody panicked");
        assert_eq!(kept.len(), SAVES_IN_FLIGHT_MAX);
        assert!(kept.iter().all(|memory| memory.bytes().len() == 9 * PAGE));
    }

    #[test]
    fn memory_that_there_cannot_be_is_an_error() {
        assert!(matches!(Slabs::new(None).take(1 << 60), Err(Error::Memory { .. })));
    }
}
