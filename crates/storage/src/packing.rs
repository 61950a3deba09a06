//! Copies many tensors into one room, for what has to be copied before a save returns.

use crate::copying::copy_past_caches;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
