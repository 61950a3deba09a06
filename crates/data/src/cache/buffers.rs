//! Memory for the bodies of answers, which is used again while several are under way: memory that is new to a process costs more
//! than the copy into it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Buffers that wait for the next body.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    free: Vec<Vec<u8>>,
    borrowed: usize,
}

/// A buffer in use.
pub(super) struct Buffer<'a> {
    bytes: Vec<u8>,
    from: &'a Buffers,
}

impl Buffers {
    /// Returns an empty buffer.
    pub(super) fn borrow(&self) -> Buffer<'_> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.borrowed += 1;
        Buffer { bytes: kept.free.pop().unwrap_or_default(), from: self }
    }
}

impl Deref for Buffer<'_> {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for Buffer<'_> {
    /// Keeps the memory as long as another body is under way.
    fn drop(&mut self) {
        let mut kept = self.from.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.borrowed -= 1;
        if kept.borrowed == 0 {
            kept.free = Vec::new();
            return;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        kept.free.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_while_bodies_are_under_way_and_freed_afterwards() {
        let buffers = Buffers::default();
        let first = buffers.borrow();
        let mut second = buffers.borrow();
        second.extend([1; 100]);
        drop(second);
        let third = buffers.borrow();
        assert!(third.is_empty() && third.capacity() >= 100);
        drop((first, third));
        assert_eq!(buffers.borrow().capacity(), 0);
    }
}
