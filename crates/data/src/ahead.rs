//! Fetches what the next batches need, in the order in which they need it: the order of samples is known.
//!
//! As many ranges are under way at a time as the way to the source has room for: that is not known in advance, so the number
//! grows while batches have to wait and more at a time brings more bytes a second. Memory and requests are limited by
//! [`AT_A_TIME_MAX`] ranges. A range that can't be fetched here is fetched, or refused, when its batch needs it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cache::{Copy, Near, RANGE_BYTES, Uses};
use crate::cursor::Block;
use crate::error::Error;
use crate::forecast::Forecast;
use crate::source::Mapped;

/// Ranges that are under way at a time at most: 256 MiB of memory.
pub(crate) const AT_A_TIME_MAX: usize = 32;
/// Ranges that wait for a thread, for each that is under way.
const WAITING_FOR_EACH: usize = 2;
/// By how much more at a time has to be faster, to go on with it.
const GAIN_MIN: f64 = 1.1;
/// Ranges by which a speed is measured.
const MEASURED: u64 = 8;
/// Batches that are looked at in one go, and as far ahead as is looked at all.
const BATCHES_AT_ONCE: u64 = 64;
pub(crate) const BATCHES_MAX: u64 = 4_096;

/// Ranges by their copy: its key, and itself.
type Wanted = (Arc<Copy>, usize, Near);

/// Looks ahead of a loader, and fetches.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The position of the batch that is looked at next.
    next: u64,
    /// What this program says that it uses next; none if nobody needs to know.
    forecast: Option<Forecast>,
    waited: Duration,
    /// The process whose threads these are: one that is forked off has none, and fetches only what its batch lacks.
    process: u32,
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ahead").field("next", &self.next).finish_non_exhaustive()
    }
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// What is under way, and what waits.
struct Queue {
    waiting: VecDeque<Wanted>,
    /// Ranges under way, and how many may be.
    under_way: BTreeSet<(String, usize)>,
    at_a_time: usize,
    speed: Speed,
    is_over: bool,
}

/// How fast ranges come with so many at a time.
struct Speed {
    began: Instant,
    ranges: u64,
    /// The speed that was measured with fewer at a time, in ranges a second; and whether batches had to wait since.
    before: f64,
    is_too_slow: bool,
    is_settled: bool,
}

/// A batch: its position in the order, and how many samples it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) position: u64,
    pub(crate) batch: u64,
}

impl At {
    /// Behind the last batch that is looked at.
    fn behind(self) -> u64 {
        self.position.saturating_add(self.batch.saturating_mul(BATCHES_MAX))
    }
}

/// Takes bytes of a file.
pub(crate) type AddBytes<'a> = &'a mut dyn FnMut(&Mapped, Range<usize>);

/// What a loader is about to read.
pub(crate) trait Plan {
    /// The ranges of this rank's rows in the batch at a position.
    fn ranges_at(&self, position: u64, add: &mut dyn FnMut(&Arc<Copy>, usize));

    /// The blocks of the first of this rank's rows in the batch at a position.
    fn blocks_at(&self, position: u64, rows: usize) -> Vec<Block>;

    /// Where the tokens of a block lie.
    fn bytes_of(&self, block: &Block, add: AddBytes<'_>);
}

impl Ahead {
    /// Begins with so many ranges at a time; nothing is looked at yet.
    pub(crate) fn new(at_a_time: usize, uses: Option<Uses>) -> Ahead {
        let speed = Speed { began: Instant::now(), ranges: 0, before: 0.0, is_too_slow: false, is_settled: false };
        let at_a_time = at_a_time.clamp(1, AT_A_TIME_MAX);
        let queue = Queue { waiting: VecDeque::new(), under_way: BTreeSet::new(), at_a_time, speed, is_over: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new() });
        let forecast = uses.map(Forecast::new);
        Ahead { shared, threads: Vec::new(), next: 0, forecast, waited: Duration::ZERO, process: std::process::id() }
    }

    /// How long batches waited for what wasn't there.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Fetches what a batch lacks, `threads` ranges at a time.
    pub(crate) fn fetch(&mut self, plan: &dyn Plan, at: At, threads: usize) -> Result<(), Error> {
        let mut ranges = BTreeSet::new();
        let mut missing: Vec<(Arc<Copy>, usize)> = Vec::new();
        let (mut bytes, mut limit) = (0, None);
        plan.ranges_at(at.position, &mut |copy, range| {
            if ranges.insert((Arc::as_ptr(copy) as usize, range)) {
                (bytes, limit) = (bytes + copy.bytes_of(range), copy.limit());
                if !copy.has(range) {
                    missing.push((Arc::clone(copy), range));
                }
            }
        });
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(limit) = limit.filter(|limit| bytes > *limit) {
            let problem = format!(
                "a batch needs {bytes} bytes of the cache at once, in {} ranges, and it may have {limit}: allow more, or \
                 take a smaller batch",
                ranges.len()
            );
            return Err(Error::refused("cache_limit", problem));
        }
        if self.has_threads() {
            self.go_to(at);
            self.shared.lock().speed.is_too_slow = true;
            if let Some(forecast) = &mut self.forecast {
                forecast.say(plan, (at.position, at.batch), true);
            }
        }
        let began = Instant::now();
        let brought =
            crate::cache::in_parallel(threads, &missing, &|(copy, range)| copy.bring(*range, Near::NOW).map(drop));
        self.waited += began.elapsed();
        brought
    }

    /// Forgets what was seen if the loader was moved to another place in the order.
    fn go_to(&mut self, at: At) {
        if (at.position..=at.behind()).contains(&self.next) {
            return;
        }
        self.next = at.position;
        self.shared.lock().waiting.clear();
        if let Some(forecast) = &mut self.forecast {
            forecast.begin_at(at.position);
        }
    }

    /// Has what the batches from a place on need fetched, as far ahead as is worth it.
    pub(crate) fn look(&mut self, plan: &dyn Plan, at: At) {
        if !self.has_threads() {
            return;
        }
        self.go_to(at);
        let (At { position, batch }, behind) = (at, at.behind());
        let mut found: Vec<Wanted> = Vec::new();
        let room = self.shared.lock().room();
        let until = behind.min(self.next.saturating_add(batch.saturating_mul(BATCHES_AT_ONCE)));
        while found.len() < room && self.next < until {
            let near = Near::batches((self.next - position) / batch.max(1));
            plan.ranges_at(self.next, &mut |copy, range| {
                let is_new = |(other, at, _): &Wanted| !(Arc::ptr_eq(other, copy) && *at == range);
                if !copy.has(range) && found.iter().all(is_new) {
                    found.push((Arc::clone(copy), range, near));
                }
            });
            self.next += batch;
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.say(plan, (position, batch), !found.is_empty());
        }
        if !found.is_empty() {
            let at_a_time = self.shared.lock().add(found);
            while self.threads.len() < at_a_time {
                let shared = Arc::clone(&self.shared);
                self.threads.push(std::thread::spawn(move || shared.work()));
            }
            self.shared.changed.notify_all();
        }
    }

    fn has_threads(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if !self.has_threads() {
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Each ends when its request does, which has a deadline.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's work.
    fn work(&self) {
        let mut queue = self.lock();
        while !queue.is_over {
            let Some((copy, range, near)) = queue.take() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let is_brought = copy.bring(range, near).is_ok();
            queue = self.lock();
            queue.under_way.remove(&(copy.key().to_owned(), range));
            queue.measure(is_brought);
            self.changed.notify_all();
        }
    }
}

impl Queue {
    /// How many more may wait.
    fn room(&self) -> usize {
        (self.at_a_time * WAITING_FOR_EACH).saturating_sub(self.waiting.len())
    }

    /// Adds what isn't under way; returns how many threads may work.
    fn add(&mut self, found: Vec<Wanted>) -> usize {
        for (copy, range, near) in found {
            let waits = |(other, at, _): &Wanted| Arc::ptr_eq(other, &copy) && *at == range;
            if !self.under_way.contains(&(copy.key().to_owned(), range)) && !self.waiting.iter().any(waits) {
                self.waiting.push_back((copy, range, near));
            }
        }
        self.at_a_time
    }

    /// The next range to be fetched, if another one may be.
    fn take(&mut self) -> Option<Wanted> {
        if self.under_way.len() >= self.at_a_time {
            return None;
        }
        let wanted = self.waiting.pop_front()?;
        self.under_way.insert((wanted.0.key().to_owned(), wanted.1));
        Some(wanted)
    }

    /// Takes a fetched range into account: more at a time if batches waited, as long as that helps.
    fn measure(&mut self, is_brought: bool) {
        self.speed.ranges += u64::from(is_brought);
        if let Some(at_a_time) = self.speed.judge(self.at_a_time) {
            self.at_a_time = at_a_time;
        }
    }
}

impl Speed {
    fn judge(&mut self, at_a_time: usize) -> Option<usize> {
        if self.is_settled || self.ranges < MEASURED {
            return None;
        }
        let speed = self.ranges as f64 / self.began.elapsed().as_secs_f64().max(1e-6);
        (self.began, self.ranges) = (Instant::now(), 0);
        if !std::mem::take(&mut self.is_too_slow) {
            return None;
        }
        let helped = speed >= self.before * GAIN_MIN;
        self.is_settled = !helped || at_a_time == AT_A_TIME_MAX;
        self.before = speed;
        // What didn't help is taken back.
        Some(if helped { (at_a_time * 2).min(AT_A_TIME_MAX) } else { (at_a_time / 2).max(1) })
    }
}

/// Ranges that a batch's rows have in sources.
pub(crate) fn ranges_in(
    source: &crate::source::Source,
    parts: impl Iterator<Item = Range<u64>>,
    add: &mut dyn FnMut(&Arc<Copy>, usize),
) {
    // The token behind a part is its last label.
    parts.for_each(|part| source.ranges_of(&(part.start..part.end + 1), add));
}

const _: () = assert!(RANGE_BYTES * (AT_A_TIME_MAX as u64) <= 256 << 20);

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(ranges: u64, seconds: u64, before: f64) -> Speed {
        let began = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        Speed { began, ranges, before, is_too_slow: true, is_settled: false }
    }

    #[test]
    fn more_at_a_time_are_fetched_as_long_as_batches_wait_and_it_helps() {
        assert_eq!(speed(7, 10, 0.0).judge(8), None, "too few to tell");
        assert_eq!(speed(100, 10, 0.0).judge(8), Some(16));
        let mut slower = speed(100, 10, 9.8);
        assert_eq!((slower.judge(16), slower.is_settled), (Some(8), true), "that didn't help");
        let mut calm = Speed { is_too_slow: false, ..speed(100, 10, 0.0) };
        assert_eq!(calm.judge(8), None, "no batch waits");
        assert_eq!(speed(100, 10, 1.0).judge(AT_A_TIME_MAX), Some(AT_A_TIME_MAX));
    }
}
