//! The time for which an attempt held its nodes, where the launcher's own system (Slurm) allocates them.

use std::time::Duration;

use gangline_base::Timestamp;

use super::record::{AttemptRecord, JobRecord, ShareRecord};
use crate::reported::AllocationRecord;

/// Without a control plane, supervisors whose ranks have ended leave their nodes after this time (`END_WAIT_MS` in
/// `execution::launcher::slurm`).
const LEAVE_WAIT: Duration = Duration::from_secs(30);

impl AttemptRecord {
    /// Returns when the attempt got its devices: at its placement, or when the launcher's own system allocated them. If no survey
    /// saw that, the start of the first supervisor counts. Returns none if the attempt never got any.
    pub fn held_from(&self) -> Option<Timestamp> {
        let Some(AllocationRecord { from, .. }) = self.allocation else { return Some(self.placed_at) };
        let started = self.shares.iter().filter_map(|share| share.usage());
        let started = started.map(|(since, _)| Timestamp::from_unix_nanos(since)).min();
        from.into_iter().chain(started).min().map(|at| at.max(self.placed_at))
    }

    /// Returns until when the attempt held its devices, if it ends or is looked at `now`. While the control plane was away, the
    /// launcher's own system may have taken them back long before.
    pub(super) fn held_to(&self, now: Timestamp) -> Timestamp {
        let Some(AllocationRecord { to, .. }) = self.allocation else { return now };
        let ends = self.shares.iter().map(ShareRecord::ended_at);
        let all = ends.collect::<Option<Vec<u64>>>().and_then(|ends| ends.into_iter().max());
        let left = all.map(|at| Timestamp::from_unix_nanos(at) + LEAVE_WAIT);
        to.or(left).map_or(now, |at| at.min(now))
    }

    /// Reports whether the launcher's own system may still have to say something of the attempt's allocation.
    pub fn awaits_allocation(&self) -> bool {
        self.allocation.is_some_and(|allocation| allocation.from.is_none() || allocation.to.is_none())
    }
}

impl JobRecord {
    /// Notes that the attempt that has just been placed waits until the launcher's own system allocates its nodes.
    pub fn await_allocation(&mut self) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.allocation.get_or_insert_default();
        }
    }

    /// Takes what the launcher's own system says of the last attempt's allocation, and reports whether that is new.
    pub fn follow_allocation(&mut self, said: AllocationRecord) -> bool {
        let last = self.attempts.last_mut().and_then(|attempt| attempt.allocation.as_mut());
        last.is_some_and(|known| std::mem::replace(known, said) != said)
    }
}
