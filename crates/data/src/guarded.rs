//! Memory of a mapped file. A read of bytes that the file has lost meanwhile is an error: elsewhere it would be SIGBUS, which
//! ends the process.
//!
//! The signal's handler looks whether the address is in what its thread reads here. If so, it marks the map as broken, puts
//! zeros where the file has nothing, and the read goes on; when it has ended, the mark makes it an error. So these zeros are
//! never given. Other signals go to the handler that was there before. The rest of the last page of a file that was cut short
//! reads as zeros without a signal: who reads a file that others may cut looks at its length afterwards.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use memmap2::Mmap;

const CACHE_LINE_BYTES: usize = 64;
/// Bytes of a range that are prefetched; the processor prefetches by itself what follows them.
const PREFETCHED_BYTES: usize = 1_024;

/// What a thread reads now: the first address, the address behind the last, and the map's mark.
type Reading = (usize, usize, *const AtomicBool);

thread_local! {
    static READING: Cell<Reading> = const { Cell::new((0, 0, ptr::null())) };
}

/// The handler that was there before, which is kept for the rest of the process; null before ours is.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4_096);
static INSTALLED: Once = Once::new();

/// A mapped file.
pub(crate) struct Guarded {
    map: Mmap,
    /// Whether a read met bytes that aren't there any more.
    is_broken: AtomicBool,
}

impl Guarded {
    /// Maps a file, to be read.
    pub(crate) fn of(file: &File) -> std::io::Result<Guarded> {
        INSTALLED.call_once(install);
        Ok(Guarded { map: map(file)?, is_broken: AtomicBool::new(false) })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// What `act` makes of a range of the bytes; none if the file has lost some of the map, now or before.
    #[inline]
    pub(crate) fn read<R>(&self, range: Range<usize>, act: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let bytes = &self.map[range];
        let first = bytes.as_ptr() as usize;
        let _reading = Guard(READING.replace((first, first + bytes.len(), &raw const self.is_broken)));
        // The handler runs on this thread: only the compiler could move the read out of here.
        compiler_fence(Ordering::SeqCst);
        let made = act(bytes);
        compiler_fence(Ordering::SeqCst);
        (!self.is_broken.load(Ordering::SeqCst)).then_some(made)
    }

    /// Has the processor fetch the beginning of a range, so that reading it soon afterwards doesn't wait for memory. Pages that
    /// aren't mapped yet are left alone.
    #[inline]
    pub(crate) fn prefetch(&self, range: &Range<usize>) {
        let bytes = &self.map[range.clone()];
        prefetch(&bytes[..bytes.len().min(PREFETCHED_BYTES)]);
    }

    /// A number that other programs may be changing.
    #[inline]
    #[expect(unsafe_code, reason = "a number in mapped memory is read at once")]
    pub(crate) fn number(&self, at: usize) -> Option<u64> {
        self.read(at..at + 8, |bytes| {
            let place = bytes.as_ptr().cast::<u64>().cast_mut();
            assert!(place.is_aligned(), "numbers are at multiples of eight, and maps begin at a page");
            // SAFETY: eight bytes of a live map, aligned, which this process only reads, and others change at once (a write of
            // eight aligned bytes). Loads of 64 bits need no write access on 64-bit machines.
            unsafe { AtomicU64::from_ptr(place) }.load(Ordering::Acquire)
        })
    }
}

/// Asks for the cache lines of some memory; elsewhere than on x86-64 there is no stable way to.
#[inline]
#[expect(unsafe_code, reason = "a prefetch takes an address")]
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(CACHE_LINE_BYTES) {
        // SAFETY: SSE is a part of x86-64, and a prefetch reads nothing into the program, whatever the address.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Restores what the thread read before.
struct Guard(Reading);

impl Drop for Guard {
    fn drop(&mut self) {
        READING.set(self.0);
    }
}

#[expect(unsafe_code, reason = "a file that is mapped may be changed by others: see below")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read, as bytes that are copied out and of which every pattern is a token or, in an index, a
    // number that is checked after it was read once. A file that others change gives other tokens, and `Mapped::check` tells
    // before each batch; of one that is cut short, `Guarded::read` gives nothing.
    unsafe { Mmap::map(file) }
}

#[expect(unsafe_code, reason = "a signal's handler is set")]
fn install() {
    // SAFETY: `sysconf` and `sigaction` are given valid pointers to initialised memory. What was there before is kept for ever,
    // since the handler may read it at any time; it is stored before the handler could need it.
    unsafe {
        if let Ok(bytes) = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)) {
            PAGE_BYTES.store(bytes, Ordering::SeqCst);
        }
        let mut before = Box::new(std::mem::zeroed::<libc::sigaction>());
        if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut *before) != 0 {
            return;
        }
        BEFORE.store(Box::leak(before), Ordering::SeqCst);
        let mut ours = std::mem::zeroed::<libc::sigaction>();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        ours.sa_sigaction = handler as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
    }
}

/// Runs in the middle of anything: it allocates nothing, takes no lock, and calls only `mmap` and `sigaction`.
#[expect(unsafe_code, reason = "a signal's handler has to replace memory and to call who was there before")]
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (first, behind, is_broken) = READING.get();
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let page = PAGE_BYTES.load(Ordering::SeqCst);
    if (first..behind).contains(&address) && !is_broken.is_null() {
        // SAFETY: the mark is a field of the map that this thread is reading, so it lives. It is set first: who sees the zeros
        // sees it too.
        unsafe { (*is_broken).store(true, Ordering::SeqCst) };
        let from = address / page * page;
        let length = behind.next_multiple_of(page) - from;
        // SAFETY: whole pages of that map, which ends at a page; they stay readable, and are unmapped with the rest of it.
        let placed = unsafe {
            libc::mmap(
                from as *mut libc::c_void,
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if placed != libc::MAP_FAILED {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Does what would have happened without our handler.
#[expect(unsafe_code, reason = "the handler that was there before is a C function")]
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.load(Ordering::SeqCst);
    // SAFETY: `before` was filled in by `sigaction` and is never freed; what it points to is a handler of the kind that its
    // flags say. Restoring the default returns to the faulting instruction, which ends the process by the signal.
    unsafe {
        if before.is_null() || matches!((*before).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            let default = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        } else if (*before).sa_flags & libc::SA_SIGINFO != 0 {
            type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<libc::sighandler_t, Informed>((*before).sa_sigaction)(signal, info, context);
        } else {
            std::mem::transmute::<libc::sighandler_t, extern "C" fn(libc::c_int)>((*before).sa_sigaction)(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A truncated file by its real means, many times, with several threads reading at once.
    #[test]
    fn bytes_that_a_file_has_lost_are_no_signal_and_are_never_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.bin");
        for round in 0..20 {
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let map = Guarded::of(&file).unwrap();
            assert_eq!(map.read(0..1 << 20, |bytes| bytes.iter().all(|byte| *byte == 7)), Some(true));
            let is_seven = || map.read(0..1 << 20, |bytes| bytes.iter().all(|byte| *byte == 7));
            std::thread::scope(|scope| {
                let reading: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            while let Some(is_seven) = is_seven() {
                                assert!(is_seven, "round {round}: what is given is what was there");
                            }
                        })
                    })
                    .collect();
                file.set_len(4_096 * (round + 1)).unwrap();
                reading.into_iter().for_each(|thread| thread.join().unwrap());
            });
            assert_eq!(map.read(0..10, <[u8]>::len), None, "a map that lost bytes gives none any more");
            // Which others still are.
            let other = Guarded::of(&file).unwrap();
            assert_eq!(other.read(0..4_096, |bytes| bytes.iter().all(|byte| *byte == 7)), Some(true));
        }
    }

    #[test]
    fn numbers_that_others_write_are_read_at_once() {
        use std::os::unix::fs::FileExt as _;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0; 32], 0).unwrap();
        let map = Guarded::of(&file).unwrap();
        file.write_all_at(&5_u64.to_ne_bytes(), 16).unwrap();
        assert_eq!((map.number(8), map.number(16)), (Some(0), Some(5)));
    }
}
