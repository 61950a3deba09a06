//! Has the kernel read from disk what the next batches need, in the order in which they need it: a cold file that is mapped is
//! read a page at a time, which leaves a disk idle, and the order of samples is known.
//!
//! The kernel reads into its page cache, and takes that memory back when programs need it. A thread asks for the bytes, since the
//! call waits while the disk's queue is full. After a number of batches without missing bytes the loader stops asking, and
//! looks whether the first sample of each batch is in memory.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::ahead::{At, Plan};
use crate::cursor::Block;
use crate::order::{BLOCK_SAMPLES, WINDOW_BLOCKS};
use crate::source::OnDisk;

/// Bytes that are asked for at once, and less than twice as many where a block ends.
const CHUNK: usize = 1 << 20;
/// Samples that are looked at ahead: two windows of the order. The first batches of a window have samples of all its blocks, so
/// the next window is read by then, and the disk goes on with the one behind it.
const SAMPLES_AHEAD: u64 = 2 * (BLOCK_SAMPLES * WINDOW_BLOCKS) as u64;
/// The most bytes that are asked for ahead of the batch that needs them.
const BYTES_AHEAD_MAX: u64 = 1 << 30;
/// Batches that are looked at in one go.
const BATCHES_AT_ONCE: u64 = 64;
/// Batches without anything missing in memory, after which nothing more is asked for.
const BATCHES_QUIET: u64 = 1_024;
/// Blocks that are known to have been asked for, in each of two sets: the order's windows have fewer.
const BLOCKS_KNOWN: usize = 4_096;

/// Looks ahead of a loader, and has bytes read.
pub(crate) struct ReadAhead {
    wishes: Option<Sender<(OnDisk, Range<usize>)>>,
    shared: Arc<Shared>,
    /// The position of the batch that is looked at next.
    next: u64,
    /// What was asked for and isn't used yet: the positions at which it will be, and the bytes.
    asked: VecDeque<(u64, u64)>,
    bytes_ahead: u64,
    known: [HashSet<Block>; 2],
    /// Batches since something was missing, and how often something was until then.
    quiet: u64,
    missing_before: u64,
    /// The process whose thread it is: one that is forked off has none.
    process: u32,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// How often bytes weren't in memory when they were asked for.
    missing: AtomicU64,
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadAhead").field("next", &self.next).finish_non_exhaustive()
    }
}

impl ReadAhead {
    pub(crate) fn new() -> ReadAhead {
        ReadAhead {
            wishes: None,
            shared: Arc::default(),
            next: 0,
            asked: VecDeque::new(),
            bytes_ahead: 0,
            known: [HashSet::new(), HashSet::new()],
            quiet: 0,
            missing_before: 0,
            process: std::process::id(),
        }
    }

    /// Has what the batches from a place on need read, as far ahead as memory allows.
    pub(crate) fn look(&mut self, plan: &dyn Plan, at: At) {
        if self.process != std::process::id() {
            return;
        }
        let At { position, batch } = at;
        let is_quiet = self.is_quiet();
        if is_quiet && !self.is_missing(plan, at) {
            return;
        }
        let looked_at = position..=position.saturating_add(SAMPLES_AHEAD).saturating_add(batch);
        if is_quiet || !looked_at.contains(&self.next) {
            // What was in memory may be there no longer, or the loader was moved.
            self.forget(position);
        }
        while self.asked.front().is_some_and(|(used_at, _)| *used_at < position) {
            self.bytes_ahead -= self.asked.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        let behind = position.saturating_add(SAMPLES_AHEAD.max(batch));
        for _ in 0..BATCHES_AT_ONCE {
            if self.next >= behind || self.bytes_ahead >= BYTES_AHEAD_MAX {
                break;
            }
            self.ask_for_batch(plan);
            self.next = self.next.saturating_add(batch);
        }
    }

    /// Asks for what the batch at `next` needs, unless that was done.
    fn ask_for_batch(&mut self, plan: &dyn Plan) {
        for block in plan.blocks_at(self.next, usize::MAX) {
            if self.known.iter().any(|known| known.contains(&block)) {
                continue;
            }
            plan.bytes_of(&block, &mut |mapped, bytes| {
                for piece in pieces(&bytes) {
                    if let Some(file) = mapped.on_disk(&piece) {
                        self.asked.push_back((self.next, piece.len() as u64));
                        self.bytes_ahead += piece.len() as u64;
                        self.send(file, piece);
                    }
                }
            });
            self.remember(block);
        }
    }

    fn remember(&mut self, block: Block) {
        if self.known[0].len() >= BLOCKS_KNOWN {
            self.known.swap(0, 1);
            self.known[0].clear();
        }
        self.known[0].insert(block);
    }

    fn send(&mut self, file: OnDisk, bytes: Range<usize>) {
        let wishes = self.wishes.get_or_insert_with(|| {
            let (wishes, wanted) = channel();
            let shared = Arc::clone(&self.shared);
            let start = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || work(&wanted, &shared));
            // Without a thread, batches are read as they are needed.
            drop(start);
            wishes
        });
        let _ = wishes.send((file, bytes));
    }

    fn forget(&mut self, position: u64) {
        self.next = position;
        self.asked.clear();
        self.bytes_ahead = 0;
        self.known.iter_mut().for_each(HashSet::clear);
    }

    /// Whether nothing was missing in a while.
    fn is_quiet(&mut self) -> bool {
        let missing = self.shared.missing.load(Ordering::Relaxed);
        self.quiet = if missing == self.missing_before { self.quiet.saturating_add(1) } else { 0 };
        self.missing_before = missing;
        self.quiet > BATCHES_QUIET
    }

    /// Whether the block of a batch's first sample isn't in memory, by its first byte.
    fn is_missing(&mut self, plan: &dyn Plan, at: At) -> bool {
        let mut first = None;
        for Block { source, samples } in plan.blocks_at(at.position, 1) {
            // Its first sample is enough: of packed documents, each takes a search.
            let sample = Block { source, samples: samples.start..samples.start + 1 };
            plan.bytes_of(&sample, &mut |mapped, bytes| {
                if first.is_none() {
                    first = Some((mapped.on_disk(&(bytes.start..bytes.start + 1)), bytes.start));
                }
            });
        }
        let Some((Some(file), start)) = first else { return false };
        let is_missing = file.open().is_ok_and(|file| is_missing(&file, start));
        if is_missing {
            self.quiet = 0;
        }
        is_missing
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// Bytes in parts that are asked for at once. Of a block, the token behind it would be a part of its own.
fn pieces(bytes: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (Range { start, end }, count) = (bytes.clone(), (bytes.len() / CHUNK).max(1));
    (0..count).map(move |number| {
        let start = start + number * CHUNK;
        start..if number + 1 == count { end } else { start + CHUNK }
    })
}

/// The thread's work.
fn work(wanted: &Receiver<(OnDisk, Range<usize>)>, shared: &Shared) {
    for (place, bytes) in wanted {
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(file) = place.open() else { continue };
        if is_missing(&file, bytes.start) {
            shared.missing.fetch_add(1, Ordering::Relaxed);
        }
        // It is advice: what it doesn't bring is read when it is needed.
        let _ = fadvise(&file, bytes.start as u64, NonZeroU64::new(bytes.len() as u64), Advice::WillNeed);
    }
}

/// Whether a byte of a file isn't in memory. Of a file system that can't tell, such as NFS, none counts as being there.
fn is_missing(file: &File, at: usize) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], at as u64, ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ahead::AddBytes;
    use crate::cache::Copy;
    use crate::source::Mapped;

    /// Bytes of a sample.
    const SAMPLE: usize = 4_096;
    /// More than the kernel reads by itself around a page that is missing.
    const BYTES: usize = 256 << 20;

    /// A file of samples, of which each batch has one, a chunk further on.
    struct Samples {
        mapped: Mapped,
        path: PathBuf,
        _folder: tempfile::TempDir,
    }

    impl Samples {
        /// Beside this program, which is on a disk where the folder for temporary files may be in memory.
        fn new() -> Samples {
            let program = std::env::current_exe().unwrap();
            let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
            let path = folder.path().join("tokens.bin");
            std::fs::write(&path, vec![1; BYTES]).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            Samples { mapped: Mapped::open(&path).unwrap(), path, _folder: folder }
        }

        /// Has the kernel forget the file, as if it hadn't been read.
        fn forget(&self) {
            let file = File::open(&self.path).unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            assert!(self.missing() > BYTES / CHUNK - 4, "the kernel forgot it");
        }

        /// Chunks of which some isn't in memory. Asking for a byte without waiting for it would begin to read.
        #[expect(unsafe_code, reason = "mincore takes addresses")]
        fn missing(&self) -> usize {
            let file = File::open(&self.path).unwrap();
            // SAFETY: the map isn't read.
            let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            let mut pages = vec![0; BYTES / SAMPLE];
            // SAFETY: the kernel writes a byte for each page of the map, which are as many as there is room for.
            let outcome = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), BYTES, pages.as_mut_ptr()) };
            assert_eq!(outcome, 0);
            pages.chunks(CHUNK / SAMPLE).filter(|pages| pages.iter().any(|page| page & 1 == 0)).count()
        }

        /// Waits until seven eighths of the file are in memory, then reads the rest. The kernel skips read-ahead for which it finds no memory.
        fn wait_for_nearly_all(&self) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while self.missing() > BYTES / CHUNK / 8 {
                assert!(Instant::now() < deadline, "{} chunks are missing", self.missing());
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::read(&self.path).unwrap();
        }
    }

    impl Plan for Samples {
        fn ranges_at(&self, _: u64, _: &mut dyn FnMut(&Arc<Copy>, usize)) {}

        fn blocks_at(&self, position: u64, _: usize) -> Vec<Block> {
            let number = position % (BYTES / CHUNK) as u64;
            vec![Block { source: 0, samples: number..number + 1 }]
        }

        fn bytes_of(&self, block: &Block, add: AddBytes<'_>) {
            let start = usize::try_from(block.samples.start).unwrap() * CHUNK;
            add(&self.mapped, start..start + CHUNK);
        }
    }

    #[test]
    fn what_the_next_batches_need_is_read_before_they_do() {
        let samples = Samples::new();
        samples.forget();
        let mut read_ahead = ReadAhead::new();
        let turns = (BYTES / CHUNK) as u64 / BATCHES_AT_ONCE;
        (0..turns).for_each(|position| read_ahead.look(&samples, At { position, batch: 1 }));
        samples.wait_for_nearly_all();
        // Once nothing was missing in a while, nothing is asked for, until something is missing again.
        let mut position = turns;
        let mut look = |read_ahead: &mut ReadAhead| {
            position += 1;
            let before = read_ahead.next;
            read_ahead.look(&samples, At { position, batch: 1 });
            read_ahead.next != before
        };
        assert!((0..BATCHES_QUIET).any(|_| look(&mut read_ahead)));
        (0..BATCHES_QUIET).for_each(|_| {
            look(&mut read_ahead);
        });
        // The kernel may take pages back meanwhile, which are missing again then.
        let deadline = Instant::now() + Duration::from_secs(60);
        while (0..SAMPLES_AHEAD / BATCHES_AT_ONCE).any(|_| look(&mut read_ahead)) {
            assert!(Instant::now() < deadline, "it is never quiet");
            std::fs::read(&samples.path).unwrap();
        }
        samples.forget();
        assert!((0..=turns).all(|_| look(&mut read_ahead)));
        samples.wait_for_nearly_all();
    }

    #[test]
    fn a_block_is_asked_for_in_parts_of_a_mebibyte_and_no_more_than_it_is_read() {
        let pieces = |bytes: Range<usize>| pieces(&bytes).collect::<Vec<_>>();
        assert_eq!(pieces(10..CHUNK + 12), std::slice::from_ref(&(10..CHUNK + 12)));
        assert_eq!(pieces(10..2 * CHUNK + 11), [10..CHUNK + 10, CHUNK + 10..2 * CHUNK + 11]);
    }
}
