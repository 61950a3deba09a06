//! Samples on their way to the control plane: numbered, kept until acknowledged, bounded.
//!
//! A receiver that is away for hours costs resolution, never memory: when the buffer is full, every second
//! sample that was never sent is dropped. Samples that were sent keep their numbers, so a number means the
//! same sample to sender and receiver.

use std::collections::VecDeque;

/// Maximum number of unsent samples, unless another is given.
const WAITING_MAX: usize = 4_096;

/// A queue of numbered samples. Numbers start at 0 and have no gaps.
#[derive(Clone, Debug)]
pub(super) struct Outbox<T> {
    /// The number of the first kept sample: all earlier ones are acknowledged.
    first: u64,
    /// How many of `kept` have been offered in a window.
    sent: usize,
    kept: VecDeque<T>,
    waiting_max: usize,
    /// Number of samples that were dropped because too many waited.
    pub(super) dropped: u64,
}

impl<T: Clone> Outbox<T> {
    pub(super) fn new() -> Self {
        Outbox::holding(WAITING_MAX)
    }

    /// Returns an outbox in which at most this many samples wait unsent.
    pub(super) fn holding(waiting_max: usize) -> Self {
        Outbox { first: 0, sent: 0, kept: VecDeque::new(), waiting_max, dropped: 0 }
    }

    /// Adds a sample. If too many wait, every second one of them is dropped first.
    pub(super) fn push(&mut self, sample: T) {
        if self.kept.len() - self.sent >= self.waiting_max {
            let waiting = self.kept.split_off(self.sent);
            self.dropped += u64::try_from(waiting.len().div_ceil(2)).expect("a count fits in 64 bits");
            self.kept.extend(waiting.into_iter().skip(1).step_by(2));
        }
        self.kept.push_back(sample);
    }

    /// Returns the number of the first unacknowledged sample, and up to `count_max` samples from it on. These
    /// count as sent and keep their numbers until they are acknowledged, so `count_max` must be the same in
    /// all calls.
    pub(super) fn window(&mut self, count_max: usize) -> (u64, Vec<T>) {
        let count = self.kept.len().min(count_max);
        self.sent = self.sent.max(count);
        (self.first, self.kept.iter().take(count).cloned().collect())
    }

    /// Drops the samples with numbers below `stored`. Samples that were never sent can't have been stored and
    /// stay. Returns whether any sample was dropped.
    pub(super) fn acknowledge(&mut self, stored: u64) -> bool {
        let count = usize::try_from(stored.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.sent);
        self.kept.drain(..count);
        self.sent -= count;
        self.first += u64::try_from(count).expect("a count fits in 64 bits");
        count > 0
    }

    /// Reports whether everything has been acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_offered_again_until_acknowledged() {
        let mut outbox = Outbox::new();
        (0..5).for_each(|sample| outbox.push(sample));
        assert_eq!(outbox.window(3), (0, vec![0, 1, 2]));
        assert_eq!(outbox.window(3), (0, vec![0, 1, 2]));
        assert!(outbox.acknowledge(2));
        assert_eq!(outbox.window(3), (2, vec![2, 3, 4]));
        assert!(!outbox.acknowledge(1));
        assert_eq!(outbox.window(3), (2, vec![2, 3, 4]));
        assert!(outbox.acknowledge(5));
        assert_eq!(outbox.window(3), (5, vec![]));
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_loses_nothing() {
        let mut outbox = Outbox::new();
        (0..5).for_each(|sample| outbox.push(sample));
        assert_eq!(outbox.window(2), (0, vec![0, 1]));
        assert!(outbox.acknowledge(u64::MAX));
        assert_eq!(outbox.window(2), (2, vec![2, 3]));
    }

    /// Proves A-10 for the curves: a receiver that is away costs resolution, not memory, and the sent ones
    /// keep their numbers.
    #[test]
    fn an_absent_receiver_costs_resolution_only() {
        let mut outbox = Outbox::new();
        (0..10_u64).for_each(|sample| outbox.push(sample));
        let sent = outbox.window(10);
        let count = 1_000_000_u64;
        (10..count).for_each(|sample| outbox.push(sample));
        assert!(outbox.kept.len() <= WAITING_MAX + 10);
        assert!(outbox.kept.len() >= WAITING_MAX / 2, "only {} are left", outbox.kept.len());
        assert_eq!(outbox.window(10), sent);
        assert_eq!(outbox.kept.back(), Some(&(count - 1)));
        assert!(outbox.kept.iter().is_sorted());
    }
}
