//! Reading tensors back: in segments, several at once, past the page cache, each byte hashed on its way.
//!
//! Disks reach their rate only with several requests under way, and one thread hashes and copies less than a fast one gives;
//! so a few threads take the segments of all tensors in the order of the files, and the segments' hashes are joined into each
//! tensor's at the end. What is delivered counts only if its tensor's hash is right.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::digest::{SEGMENT_BYTES, SegmentHash, hash_segment, join_segments};
use crate::memory::{Memory, PAGE};
use crate::shard::Shard;
use crate::threads::on_threads;
use crate::{Error, Flaw};

/// Threads that read and hash at once: as many requests as keep a disk busy.
const READERS_MAX: usize = 8;
/// Less than this is read by one thread: that takes milliseconds.
const READ_ALONE_BYTES: usize = 8 << 20;

/// A tensor of a shard that is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Which of the shards.
    pub(crate) shard: usize,
    /// Which of its tensors.
    pub(crate) tensor: usize,
}

/// Part of a piece.
#[derive(Clone, Copy, Debug)]
struct Segment {
    piece: usize,
    /// Where in the tensor.
    at: usize,
    bytes: usize,
}

/// Reads pieces, hands each segment to `deliver` (which piece, where in it, the bytes), and says of each piece whether its
/// bytes were as they were saved. Segments of one piece may come at once and in any order.
pub(crate) fn read_pieces(
    shards: &[Shard<'_>],
    pieces: &[Piece],
    deliver: impl Fn(usize, usize, &[u8]) + Sync,
) -> Vec<Result<(), Error>> {
    let segments = segments_of(shards, pieces);
    let bytes: usize = segments.iter().map(|segment| segment.bytes).sum();
    let threads = if bytes < READ_ALONE_BYTES { 1 } else { READERS_MAX.min(segments.len()) };
    let scratch_bytes = segments.iter().map(|segment| segment.bytes).max().unwrap_or(0) + 2 * PAGE;
    let deliver = &deliver;
    let read = on_threads(threads, segments.clone(), || {
        let mut scratch = Memory::own(scratch_bytes);
        move |segment: Segment| {
            let scratch = scratch.as_mut().map_err(|error| io::Error::from(error.kind()))?;
            let (bytes, hash) = read_segment(shards, pieces, segment, scratch)?;
            deliver(segment.piece, segment.at, bytes);
            Ok(hash)
        }
    });
    judge(shards, pieces, &segments, read)
}

/// All segments, in the order of the files.
fn segments_of(shards: &[Shard<'_>], pieces: &[Piece]) -> Vec<Segment> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|piece| {
        let Piece { shard, tensor } = pieces[*piece];
        (shard, shards[shard].place(tensor).start, *piece)
    });
    let mut segments = Vec::new();
    for piece in order {
        let total = shards[pieces[piece].shard].place(pieces[piece].tensor).bytes;
        let starts = (0..total.max(1)).step_by(SEGMENT_BYTES);
        segments.extend(starts.map(|at| Segment { piece, at, bytes: SEGMENT_BYTES.min(total - at) }));
    }
    segments
}

/// The bytes of a segment and their hash.
fn read_segment<'a>(
    shards: &[Shard<'_>],
    pieces: &[Piece],
    segment: Segment,
    scratch: &'a mut Memory,
) -> io::Result<(&'a [u8], SegmentHash)> {
    let Piece { shard, tensor } = pieces[segment.piece];
    let place = shards[shard].place(tensor);
    let start = place.start + segment.at as u64;
    let within = usize::try_from(start % PAGE as u64).expect("less than a page");
    let needed = within + segment.bytes;
    let buffer = &mut scratch.bytes_mut()[..needed.next_multiple_of(PAGE)];
    read_at_least(shards[shard].files(), buffer, start - within as u64, needed)?;
    let bytes = &buffer[within..needed];
    Ok((bytes, hash_segment(bytes, segment.at, place.bytes)))
}

/// Fills the first `needed` bytes of `buffer` from `offset` on; past the page cache, unless the file system can't.
fn read_at_least(
    (direct, file): (Option<&File>, &File),
    buffer: &mut [u8],
    offset: u64,
    needed: usize,
) -> io::Result<()> {
    let mut filled = 0;
    let mut source = direct.unwrap_or(file);
    while filled < needed {
        match source.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A larger sector than a page, or a read that was cut short within one.
            Err(error) if is_misaligned(&error) && !std::ptr::eq(source, file) => source = file,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_misaligned(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// What became of each piece.
fn judge(
    shards: &[Shard<'_>],
    pieces: &[Piece],
    segments: &[Segment],
    read: Vec<io::Result<SegmentHash>>,
) -> Vec<Result<(), Error>> {
    let mut hashes: Vec<io::Result<Vec<SegmentHash>>> = pieces.iter().map(|_| Ok(Vec::new())).collect();
    for (segment, hash) in segments.iter().zip(read) {
        match (&mut hashes[segment.piece], hash) {
            (Ok(hashes), Ok(hash)) => hashes.push(hash),
            (Ok(_), Err(error)) => hashes[segment.piece] = Err(error),
            (Err(_), _) => {}
        }
    }
    let outcome = |(piece, hashes): (&Piece, io::Result<Vec<SegmentHash>>)| {
        let shard = &shards[piece.shard];
        let place = shard.place(piece.tensor);
        let error = match hashes {
            Ok(hashes) if join_segments(&hashes, place.bytes) == place.record.blake3 => return Ok(()),
            Ok(_) => Error::corrupt(shard.path(), Flaw::Hash),
            Err(source) => Error::reading(shard.path(), source),
        };
        Err(error.in_tensor(&place.record.name))
    };
    pieces.iter().zip(hashes).map(outcome).collect()
}
