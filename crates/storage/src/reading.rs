//! Reading tensors back: in segments, several at once, each byte hashed on its way.
//!
//! Disks reach their rate only with several requests under way, and one thread hashes and copies less than a fast one gives;
//! so a few threads take the segments of all tensors in the order of the files, and the segments' hashes are joined into each
//! tensor's at the end. What is delivered counts only if its tensor's hash is right.
//!
//! What the page cache holds is copied from there, straight to where it belongs, in blocks that are hashed while they are in the
//! core's own cache. What it doesn't hold is read past it: nothing is gained by keeping there what is read once.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::digest::{SEGMENT_BYTES, SegmentHash, SegmentHasher, join_segments};
use crate::memory::{Memory, PAGE};
use crate::shard::Shard;
use crate::threads::on_threads;
use crate::{Error, Flaw};

/// Threads that read and hash at once: as many requests as keep a disk busy.
const READERS_MAX: usize = 8;
/// Less than this is read by one thread: that takes milliseconds.
const READ_ALONE_BYTES: usize = 8 << 20;
/// Bytes that are asked of a disk at once. Disks reach their rate from 1 to 4 MiB on.
const DISK_BLOCK_BYTES: usize = 4 << 20;
/// Bytes that are copied and then hashed: few enough to stay in a core's own cache in between.
const HOT_BLOCK_BYTES: usize = 256 << 10;

/// A tensor of a shard that is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Which of the shards.
    pub(crate) shard: usize,
    /// Which of its tensors.
    pub(crate) tensor: usize,
    /// Whether its bytes are compared with its hash.
    pub(crate) is_checked: bool,
}

/// Where the bytes of files come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the page cache, if they are there: whoever uses them gets the very bytes that were checked.
    CacheFirst,
    /// From the disk, if the file system can: whoever judges the disk mustn't see what lies before it.
    Disk,
}

/// Part of a piece.
struct Segment<'a> {
    piece: usize,
    /// Where in the tensor.
    at: usize,
    bytes: usize,
    /// Where its bytes belong, if they belong there in one run.
    room: Option<&'a mut [u8]>,
}

/// Reads pieces and says of each whether its bytes were as they were saved. The bytes of a piece that has a room in `rooms`
/// (as long as the piece; fewer rooms than pieces are none) go there; those of the others are handed to `deliver`: which
/// piece, where in it, some bytes. Bytes of one piece may come from several threads at once and in any order.
pub(crate) fn read_pieces(
    shards: &[Shard<'_>],
    pieces: &[Piece],
    origin: Origin,
    rooms: Vec<Option<&mut [u8]>>,
    deliver: impl Fn(usize, usize, &[u8]) + Sync,
) -> Vec<Result<(), Error>> {
    let segments = segments_of(shards, pieces, rooms);
    let of_pieces: Vec<usize> = segments.iter().map(|segment| segment.piece).collect();
    let bytes: usize = segments.iter().map(|segment| segment.bytes).sum();
    let threads = if bytes < READ_ALONE_BYTES { 1 } else { READERS_MAX.min(segments.len()) };
    let deliver = &deliver;
    let read = on_threads(threads, segments, || {
        let mut scratch = Memory::own(DISK_BLOCK_BYTES + PAGE);
        move |segment: Segment<'_>| {
            let scratch = scratch.as_mut().map_err(|error| io::Error::from(error.kind()))?;
            let piece = pieces[segment.piece];
            let place = shards[piece.shard].place(piece.tensor);
            let hasher = piece.is_checked.then(|| SegmentHasher::new(segment.at, place.bytes));
            let start = place.start + segment.at as u64;
            let reading = Reading { files: shards[piece.shard].files(), start, scratch: scratch.bytes_mut(), hasher };
            reading.run(segment, origin, deliver)
        }
    });
    judge(shards, pieces, &of_pieces, read)
}

/// All segments, in the order of the files.
fn segments_of<'a>(shards: &[Shard<'_>], pieces: &[Piece], rooms: Vec<Option<&'a mut [u8]>>) -> Vec<Segment<'a>> {
    let places = pieces.iter().map(|piece| shards[piece.shard].place(piece.tensor));
    let rooms = rooms.into_iter().chain(std::iter::repeat_with(|| None));
    let mut order: Vec<_> = places.zip(rooms).enumerate().collect();
    order.sort_by_key(|(piece, (place, _))| (pieces[*piece].shard, place.start, *piece));
    let mut segments = Vec::new();
    for (piece, (place, room)) in order {
        let mut rooms = room.into_iter().flat_map(|room| room.chunks_mut(SEGMENT_BYTES));
        let starts = (0..place.bytes.max(1)).step_by(SEGMENT_BYTES);
        segments.extend(starts.map(|at| {
            let bytes = SEGMENT_BYTES.min(place.bytes - at);
            Segment { piece, at, bytes, room: rooms.next() }
        }));
    }
    segments
}

/// One segment on its way.
struct Reading<'a> {
    files: (Option<&'a File>, &'a File),
    /// Where in the file the segment begins.
    start: u64,
    scratch: &'a mut [u8],
    hasher: Option<SegmentHasher>,
}

impl Reading<'_> {
    /// Reads all of it. The hash means nothing if none is asked for.
    fn run(
        mut self,
        mut segment: Segment<'_>,
        origin: Origin,
        deliver: &impl Fn(usize, usize, &[u8]),
    ) -> io::Result<Option<SegmentHash>> {
        let mut done = 0;
        let mut is_cached = origin == Origin::CacheFirst;
        while done < segment.bytes {
            let room = segment.room.as_mut().map(|room| &mut room[done..]);
            let left = segment.bytes - done;
            let found = if is_cached { self.read_cached(done, left, room) } else { self.read_disk(done, left, room)? };
            if found.bytes == 0 {
                is_cached = false;
                continue;
            }
            if segment.room.is_none() {
                deliver(segment.piece, segment.at + done, &self.scratch[found.at..found.at + found.bytes]);
            }
            done += found.bytes;
        }
        Ok(self.hasher.map(|hasher| hasher.finish()))
    }

    /// The next bytes that the page cache has, none if it hasn't got the next one: `RWF_NOWAIT` (readv(2)) never waits for the disk.
    fn read_cached(&mut self, done: usize, left: usize, room: Option<&mut [u8]>) -> Found {
        let block = match room {
            Some(room) => room,
            None => &mut *self.scratch,
        };
        let block = &mut block[..left.min(HOT_BLOCK_BYTES)];
        let at = self.start + done as u64;
        // A file system that can't say is asked in the other way, and so is one that fails: that way says why.
        let bytes = preadv2(self.files.1, &mut [IoSliceMut::new(block)], at, ReadWriteFlags::NOWAIT).unwrap_or(0);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&block[..bytes]);
        }
        Found { at: 0, bytes }
    }

    /// The next bytes past the page cache.
    fn read_disk(&mut self, done: usize, left: usize, room: Option<&mut [u8]>) -> io::Result<Found> {
        let start = self.start + done as u64;
        let within = usize::try_from(start % PAGE as u64).expect("less than a page");
        let bytes = left.min(DISK_BLOCK_BYTES - within);
        let needed = within + bytes;
        let buffer = &mut self.scratch[..needed.next_multiple_of(PAGE)];
        read_at_least(self.files, buffer, start - within as u64, needed)?;
        let found = &buffer[within..needed];
        let mut rooms = room.map(|room| room[..bytes].chunks_mut(HOT_BLOCK_BYTES));
        for block in found.chunks(HOT_BLOCK_BYTES) {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(block);
            }
            if let Some(room) = rooms.as_mut().and_then(Iterator::next) {
                room.copy_from_slice(block);
            }
        }
        Ok(Found { at: within, bytes })
    }
}

/// Bytes that were read: where in the scratch memory, if they have no room, and how many.
struct Found {
    at: usize,
    bytes: usize,
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

/// What became of each piece, from what became of its segments in order.
fn judge(
    shards: &[Shard<'_>],
    pieces: &[Piece],
    of_pieces: &[usize],
    read: Vec<io::Result<Option<SegmentHash>>>,
) -> Vec<Result<(), Error>> {
    let mut hashes: Vec<io::Result<Vec<SegmentHash>>> = pieces.iter().map(|_| Ok(Vec::new())).collect();
    for (piece, hash) in of_pieces.iter().zip(read) {
        match (&mut hashes[*piece], hash) {
            (Ok(hashes), Ok(hash)) => hashes.extend(hash),
            (Ok(_), Err(error)) => hashes[*piece] = Err(error),
            (Err(_), _) => {}
        }
    }
    let outcome = |(piece, hashes): (&Piece, io::Result<Vec<SegmentHash>>)| {
        let shard = &shards[piece.shard];
        let place = shard.place(piece.tensor);
        let error = match hashes {
            Ok(_) if !piece.is_checked => return Ok(()),
            Ok(hashes) if join_segments(&hashes, place.bytes) == place.record.blake3 => return Ok(()),
            Ok(_) => Error::corrupt(shard.path(), Flaw::Hash),
            Err(source) => Error::reading(shard.path(), source),
        };
        Err(error.in_tensor(&place.record.name))
    };
    pieces.iter().zip(hashes).map(outcome).collect()
}
