//! Runs the pieces of a task on several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs the pieces on this many threads, the caller's included, and returns the results in order. `worker`
/// creates the function of one thread, with any state that it keeps between pieces.
pub(crate) fn on_threads<P: Send, T: Send, W: FnMut(P) -> T>(
    threads: usize,
    pieces: Vec<P>,
    worker: impl Fn() -> W + Sync,
) -> Vec<T> {
    let count = pieces.len();
    let left = Mutex::new(pieces.into_iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut worker = worker();
        std::iter::from_fn(|| take().map(|(at, piece)| (at, worker(piece)))).collect::<Vec<_>>()
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().expect("a worker doesn't panic"));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Runs pieces like [`on_threads`], but begins no further piece after a failure. Returns the error of the
/// earliest piece that failed.
pub(crate) fn try_on_threads<P: Send, T: Send, E: Send>(
    threads: usize,
    pieces: Vec<P>,
    worker: impl Fn(P) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let (worker, has_failed) = (&worker, AtomicBool::new(false));
    let outcomes = on_threads(threads, pieces, || {
        |piece| {
            if has_failed.load(Ordering::Relaxed) {
                return None;
            }
            Some(worker(piece).inspect_err(|_| has_failed.store(true, Ordering::Relaxed)))
        }
    });
    // Pieces without an outcome exist only if there is an error.
    outcomes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_in_order_by_any_number_of_threads() {
        for threads in [0, 1, 3, 100] {
            let squares = on_threads(threads, (0_u64..50).collect(), || |piece| piece * piece);
            assert_eq!(squares, (0_u64..50).map(|piece| piece * piece).collect::<Vec<_>>(), "{threads} threads");
        }
        assert_eq!(on_threads(4, Vec::<u8>::new(), || |piece| piece), Vec::<u8>::new());
    }

    #[test]
    fn nothing_is_begun_after_a_failure() {
        let begun = Mutex::new(Vec::new());
        let fail_at_three = |piece: u32| {
            begun.lock().expect("nobody panicked").push(piece);
            if piece == 3 { Err(piece) } else { Ok(piece) }
        };
        assert_eq!(try_on_threads(1, (0..9).collect(), fail_at_three), Err(3));
        assert_eq!(*begun.lock().expect("nobody panicked"), [0, 1, 2, 3]);
        assert_eq!(try_on_threads(2, (4..9).collect(), fail_at_three), Ok((4..9).collect()));
    }
}
