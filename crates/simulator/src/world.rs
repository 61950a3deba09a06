//! The simulated world: a virtual clock, events that are due, and the execution of the policy's orders.
//!
//! Times are integral nanoseconds and ties have a fixed order, so the same input gives the same output byte
//! for byte. The world checks the policy as reality would: starting a job that doesn't wait, or on
//! accelerators that aren't free, is a bug and panics.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use gangline_base::{NodeId, Timestamp};

use super::meter::{Ending, Meter};
use super::policy::{Action, Happening, Manner, Moves, Place, Policy, View};
use super::progress::{Phase, Progress};
use super::timeline::Recorder;
use super::workload::{JobIndex, Workload};
use super::{Charges, SimulationError, quirk};

/// The most steps per job; a simulation that takes more makes no progress (for example because faults come
/// faster than checkpoints).
const STEPS_PER_JOB_MAX: u64 = 100_000;

/// An event that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A run's work is complete.
    Finish(JobIndex, u32),
    /// A run that was asked to stop has saved.
    Saved(JobIndex, u32),
    /// An application fault ends a run.
    Fault(JobIndex, u32),
    /// An undetected fault stalls a run's work.
    Stall(JobIndex, u32),
    /// A node fails.
    NodeFault(NodeId),
    /// A node's silent fault is detected.
    NodeFound(NodeId),
    /// A spot node's reclaim is announced.
    SpotNotice(NodeId),
    /// A spot node is reclaimed.
    SpotReclaim(NodeId),
    /// A node is back.
    NodeBack(NodeId),
    /// A run's periodic checkpoint becomes durable.
    Checkpoint(JobIndex, u32),
    /// The policy asked to be woken.
    Timer,
}

/// The state of a simulation.
pub(crate) struct World<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) charges: Charges,
    pub(crate) limits: Vec<Option<Duration>>,
    pub(crate) is_high: Vec<bool>,
    pub(crate) has_quirk: bool,
    pub(crate) is_clairvoyant: bool,
    pub(crate) capacity: Vec<u32>,
    pub(crate) racks: Vec<u32>,
    pub(crate) free: Vec<u32>,
    pub(crate) now: Timestamp,
    pub(crate) due: BinaryHeap<Reverse<(Timestamp, Due)>>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) running: BTreeSet<JobIndex>,
    pub(crate) waiting: BTreeSet<JobIndex>,
    pub(crate) meter: Meter,
    pub(crate) faults: super::faults::Faults,
    pub(crate) ended_at: Vec<Timestamp>,
    pub(crate) rho: Vec<f64>,
    /// The history for a timeline, if one is to be drawn.
    pub(crate) recorder: Option<Recorder>,
    follows_checkpoints: bool,
    pub(crate) follows_notices: bool,
    wake_at: Option<Timestamp>,
}

/// The parameters of a world.
pub(crate) struct Setting<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) charges: Charges,
    pub(crate) limits: Vec<Option<Duration>>,
    pub(crate) is_high: Vec<bool>,
    pub(crate) has_quirk: bool,
    pub(crate) is_clairvoyant: bool,
    pub(crate) capacity: Vec<u32>,
    /// For each node, the index of its rack (or other narrowest domain); empty if none is named.
    pub(crate) racks: Vec<u32>,
    pub(crate) faults: super::faults::Faults,
}

impl<'a> World<'a> {
    pub(crate) fn new(setting: Setting<'a>) -> Self {
        let Setting { workload, charges, limits, is_high, has_quirk, is_clairvoyant, capacity, racks, faults } =
            setting;
        let duration = |duration| if has_quirk { quirk::stretched(duration) } else { duration };
        let jobs = &workload.jobs;
        World {
            progress: jobs.iter().map(|job| Progress::new(duration(job.duration))).collect(),
            meter: Meter::new(capacity.iter().sum()),
            free: capacity.clone(),
            now: Timestamp::EPOCH,
            due: BinaryHeap::new(),
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            ended_at: vec![Timestamp::EPOCH; jobs.len()],
            rho: vec![0.0; jobs.len()],
            recorder: None,
            follows_checkpoints: false,
            follows_notices: false,
            wake_at: None,
            workload,
            charges,
            limits,
            is_high,
            has_quirk,
            is_clairvoyant,
            capacity,
            racks,
            faults,
        }
    }

    /// Runs the given jobs, in order of submission, until the last one ends.
    pub(crate) fn run(&mut self, jobs: &[JobIndex], policy: &mut dyn Policy) -> Result<(), SimulationError> {
        self.follows_checkpoints = policy.follows_checkpoints();
        self.follows_notices = policy.follows_notices();
        self.plan_node_faults();
        let mut submissions = jobs.iter().copied().peekable();
        let mut left = jobs.len();
        let mut steps = STEPS_PER_JOB_MAX.saturating_mul(jobs.len() as u64);
        let mut happenings = Vec::new();
        while left > 0 {
            let submission = submissions.peek().map(|job| self.workload.jobs[job.index()].submitted);
            let due = self.due.peek().map(|Reverse((at, _))| *at);
            let Some(next) = submission.into_iter().chain(due).min() else {
                return Err(self.stuck());
            };
            self.now = self.now.max(next);
            self.meter.advance(self.now);
            happenings.clear();
            while let Some(Reverse((_, what))) = self.due.peek().copied().filter(|Reverse((at, _))| *at <= self.now) {
                self.due.pop();
                self.come_due(what, &mut happenings);
            }
            while let Some(job) = submissions.next_if(|job| self.workload.jobs[job.index()].submitted <= self.now) {
                self.submit(job);
                happenings.push(Happening::Submitted(job));
            }
            if happenings.is_empty() {
                continue;
            }
            happenings.sort_unstable();
            left -= happenings.iter().filter(|happening| matches!(happening, Happening::Finished(_))).count();
            self.roll_quirk();
            let actions = policy.decide(&self.view(), &happenings);
            self.carry_out(actions);
            self.meter.oldest_waiting = self.waiting.first().map(|job| self.gpus(*job));
            steps = steps.checked_sub(1).ok_or(SimulationError::NoHeadway { left })?;
        }
        Ok(())
    }

    fn stuck(&self) -> SimulationError {
        let line = self.waiting.first().map_or(0, |job| self.workload.jobs[job.index()].line);
        SimulationError::Stuck { line, waiting: self.waiting.len() }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            now: self.now,
            workload: self.workload,
            progress: &self.progress,
            limits: &self.limits,
            is_high: &self.is_high,
            is_clairvoyant: self.is_clairvoyant,
            has_quirk: self.has_quirk,
        }
    }

    pub(crate) fn gpus(&self, job: JobIndex) -> u32 {
        self.workload.jobs[job.index()].gpus
    }

    pub(crate) fn plan(&mut self, at: Timestamp, what: Due) {
        self.due.push(Reverse((at, what)));
    }

    fn submit(&mut self, job: JobIndex) {
        self.meter.demand += u64::from(self.gpus(job));
        self.meter.busy_at_last_arrival = self.meter.busy_gpu_seconds;
        let progress = &mut self.progress[job.index()];
        progress.contention_at_submission = self.meter.contention;
        progress.wait(self.now);
        self.waiting.insert(job);
    }

    /// Handles a due event, unless it belongs to a run that has ended.
    fn come_due(&mut self, what: Due, happenings: &mut Vec<Happening>) {
        let is_current = |job: JobIndex, run: u32| self.progress[job.index()].run == run;
        match what {
            Due::Finish(job, run) if is_current(job, run) => {
                self.end_run(job, Ending::Finished);
                self.finish(job);
                happenings.push(Happening::Finished(job));
            }
            Due::Saved(job, run) if is_current(job, run) => {
                self.end_run(job, Ending::Saved);
                happenings.push(Happening::Freed(job));
            }
            Due::Fault(job, run) if is_current(job, run) => {
                self.end_run(job, Ending::Faulted);
                happenings.push(Happening::Failed(job));
            }
            Due::Stall(job, run) if is_current(job, run) => self.stall_until_found(job),
            Due::Checkpoint(job, run) if is_current(job, run) => {
                self.plan(self.now + self.charges.checkpoint_every, Due::Checkpoint(job, run));
                happenings.push(Happening::CheckpointDurable(job));
            }
            Due::Timer if self.wake_at == Some(self.now) => {
                self.wake_at = None;
                happenings.push(Happening::Timer);
            }
            Due::NodeFault(node) => self.node_fault(node, happenings),
            Due::NodeFound(node) => self.node_found(node, happenings),
            Due::SpotNotice(node) => self.spot_notice(node, happenings),
            Due::SpotReclaim(node) => self.spot_reclaim(node, happenings),
            Due::NodeBack(node) => self.node_back(node, happenings),
            // The event belongs to a run that has ended, or to a time at which the policy no longer wants to
            // be woken.
            Due::Finish(..) | Due::Saved(..) | Due::Fault(..) | Due::Stall(..) | Due::Checkpoint(..) | Due::Timer => {}
        }
    }

    /// Ends a job's run: books it, frees its accelerators, and lets the job wait again.
    pub(crate) fn end_run(&mut self, job: JobIndex, ending: Ending) {
        let gpus = self.gpus(job);
        let interval = match ending {
            // All work of a completed run counts, as does all work of a run that saved.
            Ending::Finished | Ending::Saved => Duration::ZERO,
            Ending::Killed | Ending::Faulted => self.charges.checkpoint_every,
        };
        let since = self.progress[job.index()].current().map(|run| run.placed);
        let (end, place) = self.progress[job.index()].stop(self.now, interval).expect("only a run that runs is ended");
        let held = place.gpus(gpus);
        self.meter.book(end, ending, gpus, held);
        self.meter.busy -= held;
        if let Place::Nodes(shares) = &place {
            for (node, share) in shares {
                self.free[node.0 as usize] += share;
            }
            if let (Some(recorder), Some(since)) = (&mut self.recorder, since) {
                recorder.ran(job, since, self.now, shares);
            }
        }
        self.running.remove(&job);
        self.waiting.insert(job);
        self.progress[job.index()].wait(self.now);
    }

    fn finish(&mut self, job: JobIndex) {
        self.waiting.remove(&job);
        self.meter.demand -= u64::from(self.gpus(job));
        let trace = &self.workload.jobs[job.index()];
        let progress = &mut self.progress[job.index()];
        progress.phase = Phase::Absent;
        self.ended_at[job.index()] = self.now;
        let completion = self.now.since(trace.submitted).as_secs_f64();
        let contention = self.meter.contention - progress.contention_at_submission;
        // Alone on its share of the cluster, the job would take its duration multiplied by the mean
        // contention of its life.
        let ideal = trace.duration.as_secs_f64() * contention / completion;
        self.rho[job.index()] = if ideal > 0.0 { completion / ideal } else { 1.0 };
    }

    /// Carries out a policy's orders. A wake-up stays set until the policy's next answer, which may set
    /// another.
    fn carry_out(&mut self, actions: Vec<Action>) {
        let planned = self.wake_at.take();
        for action in actions {
            match action {
                Action::Start { job, place } => self.start(job, place),
                Action::Preempt { job, manner } => self.preempt(job, manner),
                Action::Move(moves) => self.relocate(&moves),
                Action::WakeAt(at) => self.wake_at = Some(at.max(self.now + Duration::from_nanos(1))),
            }
        }
        if let Some(at) = self.wake_at.filter(|_| self.wake_at != planned) {
            self.plan(at, Due::Timer);
        }
    }

    fn start(&mut self, job: JobIndex, place: Place) {
        let gpus = self.gpus(job);
        assert!(self.waiting.remove(&job), "a policy starts only a job that waits");
        if let Place::Nodes(shares) = &place {
            self.take(shares);
        }
        self.meter.busy += place.gpus(gpus);
        assert!(self.meter.busy <= self.capacity.iter().sum(), "a policy hands out each accelerator once (A-5)");
        self.running.insert(job);
        let progress = &mut self.progress[job.index()];
        let is_restart = progress.first_start.is_some();
        if progress.preempted_at == Some(self.now) && self.charges.are_free() {
            self.meter.preemptions -= 1;
            self.meter.migrations += 1;
        }
        let restore = if is_restart { self.charges.restart } else { Duration::ZERO };
        let end = progress.start(self.now, restore, place);
        let run = progress.run;
        self.plan(end, Due::Finish(job, run));
        self.plan_application_fault(job, run);
        if self.follows_checkpoints && !self.charges.checkpoint_every.is_zero() {
            self.plan(self.now + restore + self.charges.checkpoint_every, Due::Checkpoint(job, run));
        }
    }

    fn take(&mut self, shares: &[(NodeId, u32)]) {
        for (node, share) in shares {
            let free = &mut self.free[node.0 as usize];
            *free = free.checked_sub(*share).expect("a policy hands out only accelerators that are free (A-5)");
        }
        if shares.len() > 1 && !self.racks.is_empty() {
            let mut racks = shares.iter().map(|(node, _)| self.racks[node.0 as usize]);
            let first = racks.next();
            self.meter.gang_starts += 1;
            self.meter.gang_starts_in_one_rack += u64::from(racks.all(|rack| Some(rack) == first));
        }
    }

    /// Moves running jobs: all leave, then all take their new places. Their runs continue.
    fn relocate(&mut self, moves: &Moves) {
        assert!(self.charges.are_free(), "a policy moves jobs only where that is free");
        for (job, _) in moves.iter() {
            let run = self.progress[job.index()].current().expect("a policy moves only jobs that run");
            let Place::Nodes(shares) = &run.place else { panic!("a policy moves only jobs that are somewhere") };
            for (node, share) in shares {
                self.free[node.0 as usize] += share;
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.ran(job, run.placed, self.now, shares);
            }
            self.meter.migrations += 1;
        }
        for (job, shares) in moves.iter() {
            self.take(shares);
            self.progress[job.index()].put(self.now, shares);
        }
    }

    fn preempt(&mut self, job: JobIndex, manner: Manner) {
        self.meter.preemptions += 1;
        self.progress[job.index()].preempted_at = Some(self.now);
        match manner {
            Manner::AtOnce => self.end_run(job, Ending::Killed),
            Manner::SaveFirst => {
                let progress = &mut self.progress[job.index()];
                let Phase::Running(mut run) = std::mem::replace(&mut progress.phase, Phase::Absent) else {
                    panic!("a policy preempts only a job that runs");
                };
                run.stalled_at.get_or_insert(self.now);
                progress.phase = Phase::Saving(run);
                progress.run += 1;
                let due = Due::Saved(job, progress.run);
                self.plan(self.now + self.charges.save, due);
            }
        }
    }

    /// Books every running job's progress at every event, for Muri's quirk.
    fn roll_quirk(&mut self) {
        if !self.has_quirk {
            return;
        }
        for job in self.running.iter().copied() {
            let trace = &self.workload.jobs[job.index()];
            let overhead = quirk::overhead(self.workload.label(trace.model), trace.gpus);
            let progress = &mut self.progress[job.index()];
            if let Some(end) = progress.roll(self.now, overhead) {
                self.due.push(Reverse((end, Due::Finish(job, progress.run))));
            }
        }
    }
}
