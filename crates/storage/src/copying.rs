//! A copy that bypasses the processor's caches.
//!
//! A save copies gigabytes that aren't read again before they have left the caches. An ordinary store first
//! reads the line that it overwrites, and evicts the trainer's data; a streaming store does neither (Intel's
//! Optimization Reference Manual, section 9.4.1.2, "streaming non-temporal stores"). `cargo xtask bench
//! checkpoint` shows it beside an ordinary copy.

use crate::digest::SEGMENT_BYTES;
use crate::staged::threads_for;
use crate::threads::on_threads;

/// Where packed bytes begin: at a multiple of a cache line.
pub const PACKED_ALIGNMENT: usize = 64;

/// Copies `sources` into `room`, one after the other, on several threads; each begins at the next multiple of
/// [`PACKED_ALIGNMENT`]. Returns where each begins; none if the room is too small, and nothing is copied then.
#[must_use]
pub fn pack(room: &mut [u8], sources: &[&[u8]]) -> Option<Vec<usize>> {
    let mut begins = Vec::with_capacity(sources.len());
    let mut end = 0_usize;
    for source in sources {
        begins.push(end);
        end = end.checked_add(source.len())?.checked_next_multiple_of(PACKED_ALIGNMENT)?;
    }
    let mut rest = room.get_mut(..end)?;
    let mut pieces = Vec::with_capacity(sources.len());
    for source in sources {
        let (place, behind) = rest.split_at_mut(source.len().next_multiple_of(PACKED_ALIGNMENT));
        rest = behind;
        pieces.extend(place[..source.len()].chunks_mut(SEGMENT_BYTES).zip(source.chunks(SEGMENT_BYTES)));
    }
    on_threads(threads_for(end), pieces, || |(place, data): (&mut [u8], &[u8])| copy_past_caches(place, data));
    Some(begins)
}

/// Bytes of a vector, the smallest that every x86-64 processor can store past its caches; destinations are
/// aligned to it.
#[cfg(target_arch = "x86_64")]
const VECTOR_BYTES: usize = 16;
/// Bytes stored in a row: a cache line, so that whole lines are written to memory.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Copies all of `from` over `to`.
///
/// # Panics
/// When they differ in length.
#[cfg(target_arch = "x86_64")]
pub(crate) fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy is as long as what is copied");
    let head = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let (to_head, to_rest) = to.split_at_mut(head);
    let (from_head, from_rest) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let (to_lines, to_tail) = to_rest.as_chunks_mut::<LINE_BYTES>();
    let (from_lines, from_tail) = from_rest.as_chunks::<LINE_BYTES>();
    stream(to_lines, from_lines);
    to_tail.copy_from_slice(from_tail);
}

/// Copies whole lines; the first destination is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "streaming stores have no safe form")]
fn stream(to: &mut [[u8; LINE_BYTES]], from: &[[u8; LINE_BYTES]]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    for (to, from) in to.iter_mut().zip(from) {
        let (to, from) = (to.as_mut_ptr(), from.as_ptr());
        for at in (0..LINE_BYTES).step_by(VECTOR_BYTES) {
            // SAFETY: `at` and the 15 bytes behind it lie in both lines. The caller aligns the first line, and with it all,
            // to 64 bytes; a load needs no alignment. SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(to.add(at).cast::<__m128i>(), _mm_loadu_si128(from.add(at).cast::<__m128i>())) };
        }
    }
    // SAFETY: SSE is part of x86-64. Streaming stores are weakly ordered: other threads read what this one has copied.
    unsafe { _mm_sfence() };
}

/// Copies all of `from` over `to`.
///
/// # Panics
/// When they differ in length.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_no_other_at_any_place_and_length() {
        let from: Vec<u8> = (0..400_u32).map(|at| u8::try_from(at * 7 % 251).expect("less than 251")).collect();
        for begin in 0..130 {
            for length in [0, 1, 15, 63, 64, 65, 127, 128, 200, 255] {
                let mut to = vec![255; 400];
                copy_past_caches(&mut to[begin..begin + length], &from[3..3 + length]);
                assert_eq!(to[begin..begin + length], from[3..3 + length], "{length} bytes at {begin}");
                assert!(to[..begin].iter().chain(&to[begin + length..]).all(|byte| *byte == 255));
            }
        }
    }

    #[test]
    fn sources_are_packed_one_after_the_other_and_a_room_too_small_is_left_alone() {
        let sources: [&[u8]; 4] = [&[1; 70], &[], &[2; 64], &[3]];
        let mut room = [0; 256];
        assert_eq!(pack(&mut room, &sources), Some(vec![0, 128, 128, 192]));
        assert_eq!((room[69], room[70], room[128], room[191], room[192], room[193]), (1, 0, 2, 2, 3, 0));
        let mut small = [0; 255];
        assert_eq!(pack(&mut small, &sources), None);
        assert_eq!(small, [0; 255]);
    }

    #[test]
    #[should_panic(expected = "a copy is as long as what is copied")]
    fn lengths_that_differ_are_a_bug() {
        copy_past_caches(&mut [0; 3], &[0; 4]);
    }
}
