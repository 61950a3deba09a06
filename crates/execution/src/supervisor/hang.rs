//! Detects that a running rank hangs.
//!
//! A rank that reports steps hangs if neither a step nor a new phase came for five times its longest recent
//! step, and for at least half a minute. Phases that take long by nature (start, restore, a save) get a
//! quarter of an hour. A rank that reports nothing is judged by its output together with its processor time:
//! a script that evaluates in silence computes, one that waits for a peer for ever doesn't. Until enough was
//! observed nothing is judged: a guess never hurts a healthy job.

use std::collections::VecDeque;
use std::time::Duration;

use gangline_base::{Phase, Timestamp};

use crate::timeouts::Timeouts;

/// Unless the job sets a time-out of its own, a shorter silence is never a hang.
pub(super) const SILENCE_MIN: Duration = Timeouts::DEFAULT.step;
/// The minimum in the phases start, restore and save.
const LONG_PHASE_MIN: Duration = Duration::from_secs(15 * 60);
/// A hang is a silence of this many times the longest recent interval.
const FACTOR: u32 = 5;
/// The factor for output, whose rhythm is less regular.
const OUTPUT_FACTOR: u32 = 10;
/// Number of intervals that are remembered.
const INTERVALS_MAX: usize = 64;
/// Minimum number of observed intervals of steps, and of output.
const STEPS_MIN: usize = 3;
const OUTPUT_MIN: usize = 10;
/// Share of processor time in the silence from which a silent rank counts as working.
const BUSY: f64 = 0.02;

/// Recent intervals of a recurring event.
#[derive(Debug, Default)]
struct Rhythm {
    last: Option<Timestamp>,
    intervals: VecDeque<Duration>,
}

impl Rhythm {
    fn beat(&mut self, now: Timestamp) {
        if let Some(last) = self.last.filter(|last| *last < now) {
            self.intervals.push_back(now.since(last));
            if self.intervals.len() > INTERVALS_MAX {
                self.intervals.pop_front();
            }
        }
        self.last = Some(now);
    }

    /// Returns the longest interval, if there are enough.
    fn longest(&self, needed: usize) -> Option<Duration> {
        if self.intervals.len() < needed { None } else { self.intervals.iter().max().copied() }
    }
}

/// The observed progress of a rank.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Fixed time-out; none: learned from the intervals.
    timeout: Option<Duration>,
    steps: Rhythm,
    output: Rhythm,
    /// Time of the last step or new phase.
    moved_at: Option<Timestamp>,
    phase: Option<Phase>,
    /// Processor time of all its processes at the first and at the last measurement in this silence.
    work: (Option<Duration>, Option<Duration>),
}

/// A hang of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hang {
    /// Start of the silence.
    pub(super) since: Timestamp,
    /// Silence that was allowed.
    pub(super) limit: Duration,
}

impl Progress {
    /// Creates the progress of a rank with this time-out: never (0), or learned (none).
    pub(super) fn judged_after(timeout_ms: Option<u64>) -> Self {
        Progress { timeout: timeout_ms.map(Duration::from_millis), ..Progress::default() }
    }

    /// Notes a finished step.
    pub(super) fn step(&mut self, now: Timestamp) {
        self.steps.beat(now);
        self.moved_at = Some(now);
    }

    /// Notes a phase.
    pub(super) fn phase(&mut self, now: Timestamp, phase: Phase) {
        if self.phase.replace(phase) != Some(phase) {
            self.moved_at = Some(now);
        }
    }

    /// Notes output.
    pub(super) fn output(&mut self, now: Timestamp) {
        self.output.beat(now);
        self.work = (None, None);
    }

    /// Restarts its silence, since nobody could observe it for a while.
    pub(super) fn excuse(&mut self, now: Timestamp) {
        self.moved_at = self.moved_at.map(|_| now);
        self.output.last = self.output.last.map(|_| now);
        self.steps.last = self.steps.last.map(|_| now);
        self.work = (None, None);
    }

    /// Notes the processor time that its processes have used so far.
    pub(super) fn worked(&mut self, time: Duration) {
        self.work = match self.work {
            (None, _) => (Some(time), None),
            // Less than before: a process has ended, and its time is no longer counted.
            (Some(then), _) => (Some(then.min(time)), Some(time)),
        };
    }

    /// Returns the hang if the rank hangs by now.
    pub(super) fn hang(&self, now: Timestamp) -> Option<Hang> {
        let (since, limit) = self.limit()?;
        let is_over = now.since(since) >= limit;
        (is_over && (self.speaks() || self.is_idle(now.since(since)))).then_some(Hang { since, limit })
    }

    /// Returns when it will count as hanging if nothing more is observed.
    pub(super) fn hangs_at(&self) -> Option<Timestamp> {
        self.limit().map(|(since, limit)| since + limit)
    }

    /// Returns how long it has shown no progress, and how long it may; none if only its processor time tells.
    pub(super) fn silence(&self, now: Timestamp) -> Option<(Duration, Duration)> {
        let (since, limit) = self.limit().filter(|_| self.speaks())?;
        Some((now.since(since), limit))
    }

    /// Reports whether its processor time should be measured: half of the allowed silence is over, and only
    /// its output tells whether it hangs.
    pub(super) fn is_questionable(&self, now: Timestamp) -> bool {
        !self.speaks() && self.limit().is_some_and(|(since, limit)| now.since(since) >= limit / 2)
    }

    /// Reports whether silence alone means a hang: the rank reports steps or phases, or a time-out is set.
    fn speaks(&self) -> bool {
        self.moved_at.is_some() || self.timeout.is_some()
    }

    fn limit(&self) -> Option<(Timestamp, Duration)> {
        if let Some(timeout) = self.timeout {
            let seen = self.moved_at.max(self.output.last);
            return seen.filter(|_| !timeout.is_zero() && self.phase != Some(Phase::Done)).map(|seen| (seen, timeout));
        }
        let Some(moved_at) = self.moved_at else {
            let longest = self.output.longest(OUTPUT_MIN)?;
            return Some((self.output.last?, (longest * OUTPUT_FACTOR).max(SILENCE_MIN)));
        };
        let learned = self.steps.longest(STEPS_MIN)? * FACTOR;
        match self.phase {
            Some(Phase::Done) => None,
            Some(Phase::Init | Phase::Restore | Phase::Checkpoint) => Some((moved_at, learned.max(LONG_PHASE_MIN))),
            _ => Some((moved_at, learned.max(SILENCE_MIN))),
        }
    }

    /// Reports whether it did next to nothing in this silence; false if unknown.
    fn is_idle(&self, silence: Duration) -> bool {
        let (Some(then), Some(lately)) = self.work else { return false };
        lately.saturating_sub(then).as_secs_f64() < silence.as_secs_f64() * BUSY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_unix_nanos(1_000_000_000_000 + millis * 1_000_000)
    }

    /// Returns the progress of a rank with a step every `each` milliseconds from time 0 on.
    fn stepping(count: u64, each: u64) -> Progress {
        let mut progress = Progress::default();
        progress.phase(at(0), Phase::Compute);
        (0..count).for_each(|step| progress.step(at(step * each)));
        progress
    }

    #[test]
    fn nothing_is_judged_before_a_rhythm_is_known() {
        assert_eq!(Progress::default().hangs_at(), None);
        assert_eq!(stepping(3, 100).hang(at(10_000_000)), None, "two intervals are too few");
        let mut writing = Progress::default();
        (0..10).for_each(|line| writing.output(at(line * 100)));
        assert_eq!(writing.hangs_at(), None, "nine intervals are too few");
    }

    #[test]
    fn a_rank_hangs_after_five_of_its_longest_steps_and_half_a_minute_at_least() {
        let quick = stepping(10, 100);
        assert_eq!(quick.hang(at(900 + 28_499)), None);
        assert_eq!(quick.hang(at(900 + 28_500)), Some(Hang { since: at(900), limit: SILENCE_MIN }));
        let slow = stepping(4, 20_000);
        assert_eq!(slow.hangs_at(), Some(at(60_000 + 100_000)));
        let mut uneven = stepping(4, 1_000);
        uneven.step(at(53_000));
        assert_eq!(uneven.hangs_at(), Some(at(53_000 + 250_000)), "the longest counts");
    }

    #[test]
    fn a_save_may_take_long_and_what_is_done_never_hangs() {
        let mut progress = stepping(10, 100);
        progress.phase(at(1_000), Phase::Checkpoint);
        assert_eq!(progress.hangs_at(), Some(at(1_000) + LONG_PHASE_MIN));
        progress.phase(at(5_000), Phase::Compute);
        assert_eq!(progress.hangs_at(), Some(at(5_000) + SILENCE_MIN));
        progress.phase(at(6_000), Phase::Done);
        assert_eq!(progress.hangs_at(), None);
    }

    #[test]
    fn a_time_that_was_set_counts_from_the_last_sign_and_never_is_never() {
        let mut set = Progress::judged_after(Some(2_000));
        assert_eq!(set.hangs_at(), None, "it hasn't started");
        set.output(at(0));
        assert_eq!(set.hang(at(2_000)), Some(Hang { since: at(0), limit: Duration::from_secs(2) }));
        set.step(at(1_500));
        assert_eq!(set.hangs_at(), Some(at(3_500)));
        let mut never = Progress::judged_after(Some(0));
        (0..100).for_each(|step| never.step(at(step)));
        assert_eq!(never.hangs_at(), None);
    }

    #[test]
    fn a_silent_script_has_hung_only_if_it_does_nothing() {
        let mut script = Progress::default();
        (0..=20).for_each(|line| script.output(at(line * 1_000)));
        let late = at(20_000 + 40_000);
        assert_eq!(script.hang(late), None, "its work isn't known");
        script.worked(Duration::from_secs(7));
        assert_eq!(script.hang(late), None, "one look says nothing");
        assert!(script.is_questionable(late) && !script.is_questionable(at(20_000 + 14_000)));
        script.worked(Duration::from_secs(7));
        assert_eq!(script.hang(late), Some(Hang { since: at(20_000), limit: SILENCE_MIN }));
        script.worked(Duration::from_secs(47));
        assert_eq!(script.hang(late), None, "it computes");
        script.output(late);
        assert_eq!(script.hang(late + SILENCE_MIN), None, "its longest silence so far was 40 s");
        script.worked(Duration::from_secs(47));
        script.worked(Duration::from_secs(47));
        assert!(script.hang(late + Duration::from_secs(400)).is_some());
    }
}
