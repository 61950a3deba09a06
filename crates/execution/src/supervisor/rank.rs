//! The supervisor's state of one rank.

use std::time::Duration;

use gangline_accounting::PhaseClock;
use gangline_base::{Phase, Step, Timestamp};
use rustix::process::Signal;

use super::divergence::Divergence;
use super::hang::{Hang, Progress};
use crate::protocol::{Fault, FaultCause, RankReport, SupervisorSpec, Work};
use crate::rank_protocol::RankMessage;
use crate::shim::RankEnd;
use crate::trouble::Problem;

/// A rank of this node.
pub(super) struct Rank {
    /// Its global number.
    pub(super) number: u32,
    pub(super) clock: PhaseClock,
    pub(super) pid: Option<u32>,
    phase: Option<Phase>,
    phase_since: Timestamp,
    work: Work,
    pub(super) total_steps: Option<Step>,
    pub(super) tokens: u64,
    pub(super) last_sign_of_life: Timestamp,
    pub(super) dropped: u64,
    /// Number of open connections to its socket.
    pub(super) connections: u32,
    pub(super) life: Life,
    pub(super) progress: Progress,
    pub(super) divergence: Divergence,
}

/// Stage of a rank's processes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Life {
    /// Not started.
    Waiting,
    /// Its shim runs.
    Kept,
    /// It ended, and its shim with it.
    Ended(Ending),
}

/// The end of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) at: Timestamp,
    pub(super) noticed_at: Timestamp,
    pub(super) cause: EndCause,
    pub(super) last_lines: Vec<String>,
}

/// The cause of a rank's end.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EndCause {
    /// Its process ended.
    Process(RankEnd),
    /// It never started.
    NotStarted(Problem),
}

/// The exit code that asks not to be restarted.
pub(super) const DO_NOT_RESTART: i32 = 93;
/// The exit code that says "saved, requeue me".
pub(super) const REQUEUE: i32 = 94;

impl Ending {
    /// Reports whether the rank succeeded.
    pub(super) fn is_success(&self) -> bool {
        self.exit_code() == Some(0)
    }

    /// Reports whether SIGTERM ended it.
    pub(super) fn is_terminated(&self) -> bool {
        self.cause == EndCause::Process(RankEnd::Signal(Signal::TERM.as_raw()))
    }

    /// Reports whether SIGKILL ended it.
    pub(super) fn is_killed(&self) -> bool {
        self.cause == EndCause::Process(RankEnd::Signal(Signal::KILL.as_raw()))
    }

    /// Returns the exit code, if it exited.
    pub(super) fn exit_code(&self) -> Option<i32> {
        match self.cause {
            EndCause::Process(RankEnd::Exit(code)) => Some(code),
            _ => None,
        }
    }
}

impl Rank {
    /// Creates a rank that holds `devices` from `now` on.
    pub(super) fn new(number: u32, devices: u32, spec: &SupervisorSpec, now: Timestamp) -> Self {
        let (high_water_step, hang_timeout_ms) = (Step(spec.high_water_step), spec.hang_timeout_ms);
        Rank {
            number,
            clock: PhaseClock::new(now, high_water_step, devices),
            pid: None,
            phase: None,
            phase_since: now,
            work: Work::default(),
            total_steps: None,
            tokens: 0,
            last_sign_of_life: now,
            dropped: 0,
            connections: 0,
            life: Life::Waiting,
            progress: Progress::judged_after(hang_timeout_ms),
            divergence: Divergence::default(),
        }
    }

    /// Handles a message of the rank. A step and a phase in the same message mean that the step is done and
    /// the phase follows.
    pub(super) fn hear(&mut self, message: &RankMessage, now: Timestamp) {
        self.sign_of_life(now);
        self.divergence.hear(message);
        self.worked(message, now);
        for (phase, time) in &message.phase_times {
            self.clock.spent(now, *phase, *time);
        }
        if let Some(step) = message.step {
            self.clock.step(now, step);
            self.progress.step(now);
        }
        match (message.phase, self.phase) {
            (Some(phase), _) => {
                self.clock.enter(phase, now);
                self.phase = Some(phase);
                self.progress.phase(now, phase);
            }
            (None, Some(Phase::Init | Phase::Restore)) if message.step.is_some() => self.phase = Some(Phase::Compute),
            (None, _) => {}
        }
        self.tokens = self.tokens.saturating_add(message.tokens.map_or(0, |tokens| tokens.0));
        self.total_steps = message.total_steps.or(self.total_steps);
        self.dropped += message.refused_values;
    }

    /// Books the time since the last message to the phase that the rank was in.
    fn worked(&mut self, message: &RankMessage, now: Timestamp) {
        let nanos = u64::try_from(now.since(self.phase_since).as_nanos()).unwrap_or(u64::MAX);
        match self.phase {
            Some(Phase::Compute) => self.work.compute_nanos = self.work.compute_nanos.saturating_add(nanos),
            Some(Phase::Data) => self.work.data_nanos = self.work.data_nanos.saturating_add(nanos),
            _ => {}
        }
        for (phase, time) in message.phase_times.iter().filter(|(phase, _)| *phase != Phase::Compute) {
            let moved = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(self.work.compute_nanos);
            self.work.compute_nanos -= moved;
            if *phase == Phase::Data {
                self.work.data_nanos = self.work.data_nanos.saturating_add(moved);
            }
        }
        self.phase_since = now;
        self.work.steps += u64::from(message.step.is_some());
    }

    /// Handles a greeting: the rank speaks the protocol, so its silence so far was its start.
    pub(super) fn connected(&mut self, now: Timestamp) {
        self.connections += 1;
        self.sign_of_life(now);
        if self.phase.is_none() && self.clock.last_step().is_none() {
            self.clock.enter(Phase::Init, now);
        }
    }

    /// Notes activity at `at`.
    pub(super) fn sign_of_life(&mut self, at: Timestamp) {
        self.last_sign_of_life = self.last_sign_of_life.max(at);
    }

    /// Notes output, or activity of its process, at `at`.
    pub(super) fn moved(&mut self, at: Timestamp) {
        self.sign_of_life(at);
        self.progress.output(at);
    }

    /// Returns the hang if the rank hangs.
    pub(super) fn hang(&self, now: Timestamp) -> Option<Hang> {
        if self.is_judged() { self.progress.hang(now) } else { None }
    }

    /// Returns when it will count as hanging if nothing more is observed.
    pub(super) fn hangs_at(&self) -> Option<Timestamp> {
        if self.is_judged() { self.progress.hangs_at() } else { None }
    }

    /// Returns how long it has shown no progress, and how long it may.
    pub(super) fn silence(&self, now: Timestamp) -> Option<(Duration, Duration)> {
        if self.is_judged() { self.progress.silence(now) } else { None }
    }

    /// Reports whether hangs are judged: not after the rank's last step.
    fn is_judged(&self) -> bool {
        let last = self.clock.last_step();
        self.is_kept() && self.total_steps.is_none_or(|total| last.is_none_or(|last| last < total))
    }

    /// Reports whether a process of it may still run.
    pub(super) fn is_kept(&self) -> bool {
        self.life == Life::Kept
    }

    /// Returns its end, if it has ended.
    pub(super) fn ending(&self) -> Option<&Ending> {
        match &self.life {
            Life::Ended(ending) => Some(ending),
            _ => None,
        }
    }

    /// Returns its phase, as it last reported.
    pub(super) fn phase(&self) -> Option<Phase> {
        self.phase
    }

    /// Returns its part of a report.
    pub(super) fn report(&self) -> RankReport {
        RankReport {
            rank: self.number,
            pid: self.pid.filter(|_| self.is_kept()),
            phase: self.phase,
            step: self.clock.last_step().map(|step| step.0),
            total_steps: self.total_steps.map(|step| step.0),
            tokens: self.tokens,
            last_sign_of_life: self.last_sign_of_life.unix_nanos(),
            dropped: self.dropped,
            work: self.work,
        }
    }

    /// Returns its end as a root cause.
    pub(super) fn fault(&self, ending: &Ending) -> Fault {
        // A script that doesn't speak the protocol may work for hours without output: it lived until it
        // ended.
        let lived_until = if self.connections == 0 { ending.at } else { self.last_sign_of_life };
        Fault {
            rank: Some(self.number),
            cause: match &ending.cause {
                EndCause::Process(RankEnd::Exit(code)) => FaultCause::Exit { code: *code },
                EndCause::Process(RankEnd::Signal(signal)) => FaultCause::Signal { signal: *signal },
                EndCause::NotStarted(problem) => FaultCause::Start { message: problem.message.clone() },
            },
            noticed_at: ending.noticed_at.unix_nanos(),
            last_sign_of_life: lived_until.max(self.last_sign_of_life).min(ending.noticed_at).unix_nanos(),
            last_lines: ending.last_lines.clone(),
            diagnosis: None,
        }
    }
}

/// Returns this rank's devices: `devices` are split among `ranks` as evenly as possible, the first ones get
/// the rest.
pub(super) fn devices_of_rank(devices: u32, ranks: u32, local: u32) -> u32 {
    devices / ranks + u32::from(local < devices % ranks)
}
