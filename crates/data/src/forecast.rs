//! When a loader uses which range of its copies next, as far as it looks ahead; said to those who need room in the cache.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ahead::Plan;
use crate::cache::{Copy, Near, Uses};

/// Samples that are looked at ahead of the next batch, and those that are looked at for one batch at most.
const SAMPLES_AHEAD: u64 = 1 << 20;
const SAMPLES_AT_ONCE: u64 = 1 << 14;
/// How often it is said at most.
const PAUSE: Duration = Duration::from_millis(5);

/// The next uses of ranges, in the order of samples.
pub(crate) struct Forecast {
    uses: Uses,
    /// Of each range of a copy, the positions of the batches that use it.
    copies: BTreeMap<usize, (Arc<Copy>, Vec<VecDeque<u64>>)>,
    /// The position of the batch that is looked at next.
    next: u64,
    said: Option<Instant>,
}

impl Forecast {
    pub(crate) fn new(uses: Uses) -> Forecast {
        Forecast { uses, copies: BTreeMap::new(), next: 0, said: None }
    }

    /// Forgets it, since the loader goes on at another place.
    pub(crate) fn begin_at(&mut self, position: u64) {
        self.copies.clear();
        (self.next, self.said) = (position, None);
    }

    /// Looks further ahead, and says what comes from a position on. What fails here makes eviction worse, and no batch wrong.
    /// `is_needed` says it now, since somebody is about to make room: an old forecast would evict what the next batch uses.
    pub(crate) fn say(&mut self, plan: &dyn Plan, (position, batch): (u64, u64), is_needed: bool) {
        let most = self.next.max(position).saturating_add(SAMPLES_AT_ONCE.max(batch));
        while self.next < most.min(position.saturating_add(SAMPLES_AHEAD)) {
            let at = self.next;
            let copies = &mut self.copies;
            plan.ranges_at(at, &mut |copy, range| {
                let unseen = || (Arc::clone(copy), vec![VecDeque::new(); copy.ranges().len()]);
                let (_, ranges) = copies.entry(Arc::as_ptr(copy) as usize).or_insert_with(unseen);
                if ranges[range].back() != Some(&at) {
                    ranges[range].push_back(at);
                }
            });
            self.next += batch;
        }
        if !is_needed && self.said.is_some_and(|said| said.elapsed() < PAUSE) {
            return;
        }
        self.said = Some(Instant::now());
        let next_use = |uses: &mut VecDeque<u64>| {
            while uses.front().is_some_and(|at| *at < position) {
                uses.pop_front();
            }
            uses.front().map_or(Near::FAR, |at| Near::batches((at - position) / batch))
        };
        let copies = self.copies.values_mut();
        let said = copies.map(|(copy, ranges)| (copy.key().to_owned(), ranges.iter_mut().map(next_use).collect()));
        let _ = self.uses.say(said);
    }
}
