//! Reads tensors back in segments, several at once, and hashes every byte read.
//!
//! Disks reach full throughput only with several requests in flight, and one thread hashes and copies less
//! than a fast disk delivers. So a few threads take the segments of all tensors in file order, and the
//! segments' hashes are joined into each tensor's hash at the end. Delivered bytes are valid only if their
//! tensor's hash matches.
//!
//! Bytes in the page cache are copied straight to their destination, in blocks that are hashed while they are
//! in the core's own cache. Other bytes are read with direct I/O: caching data that is read once gains
//! nothing.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::digest::{SEGMENT_BYTES, SegmentHash, SegmentHasher, join_segments};
use crate::memory::{Memory, PAGE};
use crate::shard::Shard;
use crate::threads::on_threads;
use crate::{Error, Flaw};

/// Threads that read and hash at the same time: enough requests to keep a disk busy. Cached bytes take one for each
/// core at most: more only push each other's blocks out of the cores' own caches.
const READERS_MAX: usize = 8;
/// Segments that are looked at to find out whether all bytes are cached.
const PROBES: usize = 8;
/// Less than this is read by one thread: it takes milliseconds.
const READ_ALONE_BYTES: usize = 8 << 20;
/// Bytes of one disk request. Disks reach full throughput at 1 to 4 MiB.
const DISK_BLOCK_BYTES: usize = 4 << 20;
/// Bytes of a block that is copied and then hashed: small enough to stay in a core's own cache in between.
const HOT_BLOCK_BYTES: usize = 256 << 10;

/// A tensor of a shard to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The index of the shard.
    pub(crate) shard: usize,
    /// The index of the tensor in the shard.
    pub(crate) tensor: usize,
    /// Whether its bytes are compared with its hash.
    pub(crate) is_checked: bool,
}

/// Where the bytes of files are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The page cache, if the bytes are there: the caller gets the very bytes that were checked.
    CacheFirst,
    /// The disk, if the file system supports direct I/O: a check of the disk must not see cached bytes.
    Disk,
}

/// A contiguous part of a piece.
struct Segment<'a> {
    piece: usize,
    /// Its offset in the tensor.
    at: usize,
    bytes: usize,
    /// The memory for its bytes, if their destination is contiguous.
    room: Option<&'a mut [u8]>,
}

/// Reads pieces and returns for each whether its bytes are as they were saved. If `rooms` has memory for a
/// piece (as long as the piece; an index beyond the end of `rooms` has none), its bytes go there. Other bytes
/// are passed to `deliver`: the piece's index, the offset in it, and the bytes. Bytes of one piece may come
/// from several threads at once and in any order.
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
    let threads = if bytes < READ_ALONE_BYTES {
        1
    } else if origin == Origin::CacheFirst && seems_cached(shards, pieces, &segments) {
        std::thread::available_parallelism().map_or(1, usize::from).min(READERS_MAX)
    } else {
        READERS_MAX
    };
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

/// Returns all segments, in file order.
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

/// Reports whether the first bytes of some segments, evenly spaced, are in the page cache.
fn seems_cached(shards: &[Shard<'_>], pieces: &[Piece], segments: &[Segment<'_>]) -> bool {
    let every = segments.len().div_ceil(PROBES).max(1);
    segments.iter().step_by(every).all(|segment| {
        let piece = pieces[segment.piece];
        let start = shards[piece.shard].place(piece.tensor).start + segment.at as u64;
        read_if_cached(shards[piece.shard].files().1, &mut [0], start) == 1
    })
}

/// Reads bytes from the page cache and returns their number, 0 if the first isn't cached: `RWF_NOWAIT`
/// (readv(2)) never waits for the disk. If the file system doesn't support this, or the read fails, the disk
/// read that follows reports the error.
fn read_if_cached(file: &File, block: &mut [u8], at: u64) -> usize {
    preadv2(file, &mut [IoSliceMut::new(block)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

/// A segment that is being read.
struct Reading<'a> {
    files: (Option<&'a File>, &'a File),
    /// The segment's offset in the file.
    start: u64,
    scratch: &'a mut [u8],
    hasher: Option<SegmentHasher>,
}

impl Reading<'_> {
    /// Reads the whole segment. Without a check the returned hash is meaningless.
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

    /// Reads the next bytes from the page cache; returns none if the next byte isn't cached.
    fn read_cached(&mut self, done: usize, left: usize, room: Option<&mut [u8]>) -> Found {
        let block = match room {
            Some(room) => room,
            None => &mut *self.scratch,
        };
        let block = &mut block[..left.min(HOT_BLOCK_BYTES)];
        let at = self.start + done as u64;
        let bytes = read_if_cached(self.files.1, block, at);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&block[..bytes]);
        }
        Found { at: 0, bytes }
    }

    /// Reads the next bytes with direct I/O.
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

/// Bytes that were read: their offset in the scratch memory (if the segment has no memory of its own) and
/// their number.
struct Found {
    at: usize,
    bytes: usize,
}

/// Fills at least the first `needed` bytes of `buffer` from `offset` on, with direct I/O if the file system
/// supports it.
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
            // The sectors are larger than a page, or a read ended within a sector.
            Err(error) if is_misaligned(&error) && !std::ptr::eq(source, file) => source = file,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_misaligned(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Returns the result of each piece, from the results of its segments in order.
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
