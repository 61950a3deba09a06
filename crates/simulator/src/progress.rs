//! A job's progress: work done, durable work and lost work.

use std::time::Duration;

use gangline_base::{NodeId, Timestamp};

use super::policy::Place;

/// A job's state and history.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) phase: Phase,
    /// Work left when the present run began, or now if it doesn't run.
    left: Duration,
    /// Time with accelerators in earlier runs.
    held_before: Duration,
    /// Time without accelerators, up to the last start.
    pub(crate) waited: Duration,
    pub(crate) first_start: Option<Timestamp>,
    /// When it was last preempted; if it starts again at the same instant, it only moved.
    pub(crate) preempted_at: Option<Timestamp>,
    /// The number of the present run; distinguishes due events of earlier runs.
    pub(crate) run: u32,
    /// The integral of contention at its submission, in seconds.
    pub(crate) contention_at_submission: f64,
}

/// The state of a job.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Not yet submitted, left out, or completed.
    Absent,
    /// It waits.
    Waiting {
        /// Since this time.
        since: Timestamp,
    },
    /// It holds accelerators.
    Running(Run),
    /// It holds accelerators while saving, because it was asked to stop.
    Saving(Run),
}

/// One run of a job, from its start until it ends for any reason.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) since: Timestamp,
    /// Since when it has been on its present nodes.
    pub(crate) placed: Timestamp,
    /// When its state is restored and work begins.
    pub(crate) work_from: Timestamp,
    /// When work stopped because of an undetected fault or a save.
    pub(crate) stalled_at: Option<Timestamp>,
    /// Work of this run made durable by a save outside the usual interval.
    pub(crate) saved: Duration,
    pub(crate) place: Place,
}

/// The time account of a run that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunEnd {
    /// Time for which accelerators were held.
    pub(crate) held: Duration,
    /// Time spent restoring.
    pub(crate) restoring: Duration,
    /// Work that counts.
    pub(crate) kept: Duration,
    /// Work that must be repeated.
    pub(crate) lost: Duration,
    /// Time for which accelerators were held without working.
    pub(crate) stalled: Duration,
}

impl Run {
    /// Returns the work done in this run until `now`.
    pub(crate) fn worked(&self, now: Timestamp) -> Duration {
        self.stalled_at.map_or(now, |stalled| stalled.min(now)).since(self.work_from)
    }

    /// Ends the run and keeps durable work: that of every full `interval` (all of it, if the interval is
    /// zero) or of a special save.
    pub(crate) fn end(&self, now: Timestamp, interval: Duration) -> RunEnd {
        let worked = self.worked(now);
        let periodic = match interval.as_nanos() {
            0 => worked,
            interval => worked - nanos(worked.as_nanos() % interval),
        };
        let kept = periodic.max(self.saved);
        RunEnd {
            held: now.since(self.since),
            restoring: self.work_from.min(now).since(self.since),
            kept,
            lost: worked - kept,
            stalled: self.stalled_at.map_or(Duration::ZERO, |stalled| now.since(stalled)),
        }
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).expect("a part of a representable time is representable"))
}

impl Progress {
    pub(crate) fn new(duration: Duration) -> Self {
        Progress {
            phase: Phase::Absent,
            left: duration,
            held_before: Duration::ZERO,
            waited: Duration::ZERO,
            first_start: None,
            preempted_at: None,
            run: 0,
            contention_at_submission: 0.0,
        }
    }

    /// Returns the present run.
    pub(crate) fn current(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Running(run) | Phase::Saving(run) => Some(run),
            Phase::Absent | Phase::Waiting { .. } => None,
        }
    }

    /// Returns the remaining work.
    pub(crate) fn remaining(&self, now: Timestamp) -> Duration {
        self.left.saturating_sub(self.current().map_or(Duration::ZERO, |run| run.worked(now)))
    }

    /// Returns the work done, of `duration` in total.
    pub(crate) fn done(&self, duration: Duration, now: Timestamp) -> Duration {
        duration.saturating_sub(self.remaining(now))
    }

    /// Returns the time with accelerators.
    pub(crate) fn held(&self, now: Timestamp) -> Duration {
        self.held_before + self.current().map_or(Duration::ZERO, |run| now.since(run.since))
    }

    /// Returns when work continues: now, or when the state is restored.
    pub(crate) fn work_from(&self, now: Timestamp) -> Timestamp {
        self.current().map_or(now, |run| run.work_from.max(now))
    }

    /// Starts waiting.
    pub(crate) fn wait(&mut self, now: Timestamp) {
        self.phase = Phase::Waiting { since: now };
    }

    /// Starts a run, which works once its state is restored. Returns when it will be done.
    pub(crate) fn start(&mut self, now: Timestamp, restore: Duration, place: Place) -> Timestamp {
        if let Phase::Waiting { since } = self.phase {
            self.waited += now.since(since);
        }
        self.first_start.get_or_insert(now);
        self.run += 1;
        let work_from = now + restore;
        let run = Run { since: now, placed: now, work_from, stalled_at: None, saved: Duration::ZERO, place };
        self.phase = Phase::Running(run);
        work_from + self.left
    }

    /// Moves the present run to other nodes.
    pub(crate) fn put(&mut self, now: Timestamp, shares: &[(NodeId, u32)]) {
        if let Phase::Running(run) = &mut self.phase
            && let Place::Nodes(place) = &mut run.place
        {
            run.placed = now;
            place.clear();
            place.extend_from_slice(shares);
        }
    }

    /// Ends the present run; the caller decides what comes next.
    pub(crate) fn stop(&mut self, now: Timestamp, interval: Duration) -> Option<(RunEnd, Place)> {
        let (Phase::Running(run) | Phase::Saving(run)) = std::mem::replace(&mut self.phase, Phase::Absent) else {
            return None;
        };
        let end = run.end(now, interval);
        self.left = self.left.saturating_sub(end.kept);
        self.held_before += end.held;
        self.run += 1;
        Some((end, run.place))
    }

    /// Books the time since the last call as work less a start-up overhead (the quirk of
    /// [`super::MuriQuirk`]). Returns when the run will be done now.
    pub(crate) fn roll(&mut self, now: Timestamp, overhead: Duration) -> Option<Timestamp> {
        let Phase::Running(run) = &mut self.phase else { return None };
        let interval = now.since(run.since);
        run.since = now;
        run.work_from = now;
        self.held_before += interval;
        self.left = self.left.saturating_sub(interval.saturating_sub(overhead));
        self.run += 1;
        Some(now + self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_nanos(seconds * 1_000_000_000)
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Starts at 100, restores for 60, works from 160. At 360 it has worked 200; checkpoints after 90 and 180.
    #[test]
    fn a_killed_run_keeps_what_its_checkpoints_hold() {
        let mut progress = Progress::new(s(1_000));
        progress.wait(at(50));
        assert_eq!(progress.start(at(100), s(60), Place::Counted), at(1_160));
        assert_eq!((progress.remaining(at(120)), progress.remaining(at(360))), (s(1_000), s(800)));
        let end = progress.stop(at(360), s(90)).map(|(end, _)| end);
        let expected = RunEnd { held: s(260), restoring: s(60), kept: s(180), lost: s(20), stalled: s(0) };
        assert_eq!(end, Some(expected));
        assert_eq!((progress.remaining(at(400)), progress.held(at(400)), progress.waited), (s(820), s(260), s(50)));
    }

    #[test]
    fn a_stalled_run_works_no_more_and_free_checkpoints_lose_nothing() {
        let mut progress = Progress::new(s(1_000));
        progress.start(at(0), s(0), Place::Counted);
        if let Phase::Running(run) = &mut progress.phase {
            run.stalled_at = Some(at(30));
        }
        let end = progress.stop(at(90), Duration::ZERO).map(|(end, _)| end);
        let expected = RunEnd { held: s(90), restoring: s(0), kept: s(30), lost: s(0), stalled: s(60) };
        assert_eq!(end, Some(expected));
    }
}
