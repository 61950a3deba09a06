//! Samples on their way to the control plane: numbered, kept until acknowledged, bounded.
//!
//! A receiver that is away for hours costs resolution, never memory: when the buffer is full, every second one of the
//! samples that were never sent is dropped. Samples that were sent keep their numbers, so the receiver and the sender can
//! never mean different samples by one number.

use std::collections::VecDeque;

/// Most samples that wait without ever having been sent.
pub const OUTBOX_WAITING_MAX: usize = 4_096;

/// A queue of numbered samples. Numbers start at 0 and have no gaps.
#[derive(Clone, Debug)]
pub struct Outbox<T> {
    /// The number of the first kept sample: all before are acknowledged.
    first: u64,
    /// How many of `kept` have been offered in a window.
    sent: usize,
    kept: VecDeque<T>,
    /// Samples dropped to keep the bound.
    dropped: u64,
}

impl<T: Clone> Outbox<T> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Outbox { first: 0, sent: 0, kept: VecDeque::new(), dropped: 0 }
    }

    /// Adds a sample. When [`OUTBOX_WAITING_MAX`] wait, every second one of them is dropped first.
    pub fn push(&mut self, sample: T) {
        if self.kept.len() - self.sent >= OUTBOX_WAITING_MAX {
            let waiting = self.kept.split_off(self.sent);
            let before = waiting.len();
            self.kept.extend(waiting.into_iter().skip(1).step_by(2));
            let after = self.kept.len() - self.sent;
            self.dropped += u64::try_from(before - after).expect("a count fits in 64 bits");
        }
        self.kept.push_back(sample);
    }

    /// The number of the first unacknowledged sample, and up to `count_max` samples from it on. These count as sent: they
    /// keep their numbers until they are acknowledged, so always ask with the same `count_max`.
    pub fn window(&mut self, count_max: usize) -> (u64, Vec<T>) {
        let count = self.kept.len().min(count_max);
        self.sent = self.sent.max(count);
        (self.first, self.kept.iter().take(count).cloned().collect())
    }

    /// Forgets the samples with numbers below `stored`. What was never sent can't have been stored and stays. Says whether
    /// there was anything to forget.
    pub fn acknowledge(&mut self, stored: u64) -> bool {
        let count = usize::try_from(stored.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.sent);
        self.kept.drain(..count);
        self.sent -= count;
        self.first += u64::try_from(count).expect("a count fits in 64 bits");
        count > 0
    }

    /// Whether everything has been acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many samples were dropped to keep the bound.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<T: Clone> Default for Outbox<T> {
    fn default() -> Self {
        Outbox::new()
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

    /// Proves A-10 for the curves: a receiver that is away costs resolution, not memory, and the sent ones keep their
    /// numbers.
    #[test]
    fn an_absent_receiver_costs_resolution_only() {
        let mut outbox = Outbox::new();
        (0..10_u64).for_each(|sample| outbox.push(sample));
        let sent = outbox.window(10);
        let count = 1_000_000_u64;
        (10..count).for_each(|sample| outbox.push(sample));
        assert!(outbox.kept.len() <= OUTBOX_WAITING_MAX + 10);
        assert_eq!(outbox.window(10), sent);
        assert_eq!(outbox.kept.back(), Some(&(count - 1)));
        assert_eq!(outbox.dropped() + u64::try_from(outbox.kept.len()).expect("fits"), count);
        assert!(outbox.kept.iter().is_sorted());
    }
}
