//! Host memory that saves are copied into: kept and touched beforehand, because each page of fresh memory takes a fault
//! (`cargo xtask bench checkpoint` shows the first save beside the others), and aligned, because direct I/O takes whole pages.
//!
//! Invariant: no more slabs are kept than saves may be in flight.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::pending::SAVES_IN_FLIGHT_MAX;

/// What direct I/O is aligned to, in memory and in the file: a page, and at least a sector of every disk.
pub(crate) const PAGE: usize = 4_096;

/// Slabs that no save uses.
#[derive(Debug, Default)]
pub(crate) struct Slabs(Mutex<Vec<Memory>>);

/// Memory of a save; goes back to the others when it is dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    memory: Memory,
    length: usize,
    home: Arc<Slabs>,
}

/// Bytes that start at a page.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    /// So many bytes.
    pub(crate) fn of(capacity: usize) -> Memory {
        let bytes = vec![0; capacity + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Memory { bytes, start }
    }

    fn touched(capacity: usize) -> Memory {
        let mut memory = Memory::of(capacity);
        // The first write to a page is what takes long.
        memory.bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        memory
    }

    /// All of them, from the page on.
    pub(crate) fn aligned(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    fn capacity(&self) -> usize {
        self.bytes.len().saturating_sub(PAGE)
    }
}

impl Slabs {
    /// Memory for a save of so many bytes, which are whatever they were: the smallest that is kept and large enough, else
    /// new.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Slab {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = kept.iter().enumerate().filter(|(_, memory)| memory.capacity() >= length);
        let best = fitting.min_by_key(|(_, memory)| memory.capacity()).map(|(at, _)| at);
        let found = best.map(|at| kept.swap_remove(at));
        if found.is_none() {
            // What was too small for this one is so for the next.
            kept.retain(|memory| memory.capacity() >= length);
        }
        drop(kept);
        let memory = found.unwrap_or_else(|| Memory::touched(length.next_multiple_of(PAGE)));
        Slab { memory, length, home: Arc::clone(self) }
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..self.memory.start + self.length]
    }
}

impl DerefMut for Slab {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..self.memory.start + self.length]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let mut kept = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(std::mem::take(&mut self.memory));
        kept.sort_by_key(|memory| std::cmp::Reverse(memory.capacity()));
        kept.truncate(SAVES_IN_FLIGHT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_used_again() {
        let slabs = Arc::<Slabs>::default();
        let mut one = slabs.take(3 * PAGE + 1);
        one.fill(7);
        assert_eq!((one.len(), one.as_ptr().align_offset(PAGE)), (3 * PAGE + 1, 0));
        let place = one.as_ptr();
        drop(one);
        assert_eq!(slabs.take(2 * PAGE).as_ptr(), place, "it is kept");
        let (again, other) = (slabs.take(4 * PAGE), slabs.take(1));
        assert_eq!(again.as_ptr(), place, "what is large enough is taken");
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn what_is_too_small_makes_way_and_no_more_is_kept_than_saves_are_in_flight() {
        let slabs = Arc::<Slabs>::default();
        drop(slabs.take(PAGE));
        drop(slabs.take(9 * PAGE));
        let many: Vec<Slab> = (0..SAVES_IN_FLIGHT_MAX + 3).map(|_| slabs.take(9 * PAGE)).collect();
        drop(many);
        let kept = slabs.0.lock().expect("nobody panicked");
        assert_eq!(kept.len(), SAVES_IN_FLIGHT_MAX);
        assert!(kept.iter().all(|memory| memory.capacity() == 9 * PAGE));
    }
}
