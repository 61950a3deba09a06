//! Pieces of one task, shared out among a few threads.

use std::sync::{Mutex, PoisonError};

/// Has so many threads, the caller's among them, take the pieces one after the other, and says what came of each, in order.
/// `worker` makes what does it on one thread, with whatever that keeps from piece to piece.
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
}
