//! Handles hung ranks: detects them, collects their stacks, and stops the attempt.

use std::time::Duration;

use gangline_base::Timestamp;

use super::hang::Hang;
use super::input::Action;
use super::node_attempt::NodeAttempt;
use super::outcome::Stop;
use super::rank::Rank;
use super::stacks::Stacks;
use crate::protocol::{Fault, FaultCause, Silence};

/// Maximum time to collect the ranks' stacks.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Interval between two measurements of silent ranks' processor time.
const MEASURE_EVERY: Duration = Duration::from_secs(3);

/// Silence of a rank from which users are told.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// Maximum time until the next input, at least a tick.
pub(super) const AWAKE_EVERY: Duration = Duration::from_secs(1);
/// A longer time between two inputs means that the supervisor itself was suspended.
const AWAY_AFTER: Duration = Duration::from_secs(5);

/// State of the handling of hangs.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// Waits for the stacks until then.
    until: Option<Timestamp>,
    measured_at: Option<Timestamp>,
    /// Time of the last input.
    awake_at: Option<Timestamp>,
}

impl NodeAttempt {
    /// Returns when time alone makes a rank hang, or the next step in handling a hang is due.
    pub(super) fn standstill_due(&self) -> Option<Timestamp> {
        if self.standstill.until.is_some() {
            return self.standstill.until;
        }
        let measured = self.standstill.measured_at.map(|at| at + MEASURE_EVERY);
        // Ranks that are silent but busy are measured periodically, not at once.
        let due = |at: Timestamp| measured.map_or(at, |measured| at.max(measured));
        self.ranks.iter().filter_map(Rank::hangs_at).map(due).min()
    }

    /// Notes an input. After a time without any this process was suspended (a machine that slept, a disk that
    /// hung), and so were the ranks, or their messages were delayed: they are excused.
    pub(super) fn awake(&mut self, now: Timestamp) {
        if self.standstill.awake_at.replace(now).is_some_and(|awake_at| now.since(awake_at) > AWAY_AFTER) {
            self.standstill.until = None;
            self.ranks.iter_mut().for_each(|rank| rank.progress.excuse(now));
        }
    }

    /// Collects the stacks of hung ranks, and measures the processor time of ranks that are merely silent.
    pub(super) fn look_for_standstill(&mut self, now: Timestamp) -> Vec<Action> {
        match self.standstill.until {
            Some(until) if now >= until => return self.stacks_seen(now, &[]),
            Some(_) => return Vec::new(),
            None => {}
        }
        if self.stuck(now).is_some() {
            self.standstill.until = Some(now + LOOK_MAX);
            let all = self.ranks.iter().filter(|rank| rank.is_kept());
            return vec![Action::LookAtStacks(all.filter_map(|rank| Some((rank.number, rank.pid?))).collect())];
        }
        let is_due = self.standstill.measured_at.is_none_or(|at| now >= at + MEASURE_EVERY);
        let places = (0..self.spec.ranks_per_node).zip(&self.ranks);
        let silent = places.filter(|(_, rank)| is_due && rank.is_kept() && rank.progress.is_questionable(now));
        let silent: Vec<(u32, u32)> = silent.filter_map(|(local, rank)| Some((local, rank.pid?))).collect();
        if silent.is_empty() {
            return Vec::new();
        }
        self.standstill.measured_at = Some(now);
        vec![Action::MeasureWork(silent)]
    }

    /// Stops the attempt, unless the ranks went on meanwhile.
    pub(super) fn stacks_seen(&mut self, now: Timestamp, stacks: &[Stacks]) -> Vec<Action> {
        if self.standstill.until.take().is_none() || self.stop.is_some() {
            return Vec::new();
        }
        let Some((number, hang)) = self.stuck(now) else { return Vec::new() };
        // A rank with a halted process holds up the others, whatever they report.
        let number = stacks.iter().find(|stacks| stacks.is_halted).map_or(number, |stacks| stacks.rank);
        let cause = FaultCause::Hang { silent_ms: millis(now.since(hang.since)), limit_ms: millis(hang.limit) };
        self.node_fault = Some(Fault {
            rank: Some(number),
            cause,
            noticed_at: now.unix_nanos(),
            last_sign_of_life: hang.since.unix_nanos(),
            diagnosis: None,
            last_lines: stacks.iter().flat_map(|stacks| stacks.summary.clone()).take(LINES_MAX).collect(),
        });
        tracing::warn!(rank = number, limit = ?hang.limit, "the ranks hang");
        self.merge_stop(now, Stop::after_hang(now))
    }

    /// Returns the rank without progress that is nearest to being given up, if one has shown none for a while.
    pub(super) fn silence(&self, now: Timestamp) -> Option<Silence> {
        let silent = self.ranks.iter().filter(|_| self.stop.is_none()).filter_map(|rank| {
            let (silent, limit) = rank.silence(now).filter(|(silent, _)| *silent >= TOLD_AFTER)?;
            Some((rank.number, silent, limit))
        });
        let (rank, silent, limit) =
            silent.min_by_key(|(rank, silent, limit)| (limit.saturating_sub(*silent), *rank))?;
        Some(Silence { rank, silent_ms: millis(silent), limit_ms: millis(limit) })
    }

    /// Returns, of the hung ranks, the one that is furthest behind, for the longest time.
    fn stuck(&self, now: Timestamp) -> Option<(u32, Hang)> {
        let stuck = self.ranks.iter().filter_map(|rank| Some((rank, rank.hang(now)?)));
        let order = |(rank, hang): &(&Rank, Hang)| (rank.clock.last_step(), hang.since, rank.number);
        stuck.min_by_key(order).map(|(rank, hang)| (rank.number, hang))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Maximum number of lines of a fault.
const LINES_MAX: usize = 10;
