//! A copy that bypasses the processor's caches.
//!
//! A save copies gigabytes that aren't read again before they have left the caches. An ordinary store first
//! reads the line that it overwrites, and evicts the trainer's data; a streaming store does neither (Intel's
//! Optimization Reference Manual, section 9.4.1.2, "streaming non-temporal stores"). `cargo xtask bench
//! checkpoint` shows it beside an ordinary copy.

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
    #[should_panic(expected = "a copy is as long as what is copied")]
    fn lengths_that_differ_are_a_bug() {
        copy_past_caches(&mut [0; 3], &[0; 4]);
    }
}
