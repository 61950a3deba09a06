//! Runs a history: turns actions into events, applies them to an engine, keeps the journal that a control plane would
//! keep, and has every answer judged by the [`Shadow`], which knows nothing but the events and the decisions.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, CheckpointPolicy, FaultCategory, GangShape, HangTimeout, JobId, JobSpec,
    Launch, NodeId, NodeName, PoolName, Priority, Program, QueueName, RecoveryPolicy, Step, Submitter, Timestamp,
};
use gangline_orchestration::{
    Configuration, Decision, Engine, Entry, Event, ExternalUsage, FaultCause, Limits, NodeCache, NodeCapacity,
    NodeSpec, PreemptionRules, Refusal, ShareEnd, Snapshot,
};

use super::action::{Action, How, Machine, Shape};
use super::shadow::Shadow;

/// Small enough for random histories to run into.
pub(super) const LIMITS: Limits =
    Limits { waiting_max: 7, nodes_max: 5, requeues_max: 2, backoff_max: Duration::from_secs(2), ..Limits::UNLIMITED };

/// A property that doesn't hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// Which; the shrinker keeps to it.
    pub(super) property: &'static str,
    /// What was seen.
    pub(super) detail: String,
}

/// Whether a property holds.
pub(super) type Verdict = Result<(), Broken>;

/// `property` holds, or what was seen instead.
pub(super) fn ensure(property: &'static str, holds: bool, detail: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Broken { property, detail: detail() }) }
}

/// One event and what came of it.
pub(super) struct Taken<'a> {
    /// The engine before it.
    pub(super) before: &'a Engine,
    /// Everything after it.
    pub(super) world: &'a World,
    /// The event.
    pub(super) event: &'a Event,
    /// What the engine said.
    pub(super) outcome: &'a Result<Vec<Decision>, Refusal>,
}

/// What a test asks beyond what the shadow always asks.
#[derive(Clone, Copy)]
pub(super) struct Check {
    /// After every event.
    pub(super) each: fn(&Taken<'_>) -> Verdict,
    /// After the last.
    pub(super) end: fn(&World) -> Verdict,
}

/// An engine, its journal and its judge.
pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) shadow: Shadow,
    pub(super) clock: Timestamp,
    /// What happened and was decided, with the time on the clock.
    pub(super) journal: Vec<(Timestamp, Entry)>,
    /// The state at points of the journal (numbers of entries).
    pub(super) snapshots: Vec<(usize, Snapshot)>,
    /// Every event and answer as text.
    pub(super) trace: String,
    /// The engine from before the last restart, which has to go on deciding like the new one.
    twin: Option<Engine>,
    /// The shadow before each of the decisions at the journal's end.
    before_last_decisions: Vec<Shadow>,
    check: Check,
}

/// Runs a whole history, then ends every job, which has to leave every device free. A panic is a broken property too.
pub(super) fn run(history: &[Action], check: Check) -> Result<World, Broken> {
    let panicked = |_| Broken { property: "the engine doesn't panic", detail: "its message is above".to_owned() };
    std::panic::catch_unwind(|| run_unguarded(history, check)).map_err(panicked)?
}

fn run_unguarded(history: &[Action], check: Check) -> Result<World, Broken> {
    let mut world = World::new(check);
    // Who is stopped for whom is judged by `preemption.rs`.
    let sharing = Configuration { preemption: PreemptionRules::OFF, ..Configuration::default() };
    world.apply(&Event::Configured(Arc::new(sharing)))?;
    for action in history {
        world.step(*action)?;
    }
    (check.end)(&world)?;
    world.end_all_jobs()?;
    Ok(world)
}

/// The engine that a restarted control plane has: a snapshot (or none), and the journal's entries since.
pub(super) fn rebuild(snapshot: Option<&(usize, Snapshot)>, journal: &[(Timestamp, Entry)]) -> Result<Engine, Broken> {
    let refused = |refusal: Refusal| Broken { property: "A-3 a journal replays", detail: format!("{refusal:?}") };
    let (from, mut engine) = match snapshot {
        None => (0, Engine::new(LIMITS)),
        Some((from, snapshot)) => (*from, Engine::restore(LIMITS, snapshot.clone()).map_err(refused)?),
    };
    for (at, entry) in &journal[from..] {
        engine.replay(*at, entry).map_err(refused)?;
    }
    Ok(engine)
}

impl World {
    fn new(check: Check) -> Self {
        World {
            engine: Engine::new(LIMITS),
            shadow: Shadow::default(),
            clock: Timestamp::EPOCH + Duration::from_hours(1),
            journal: Vec::new(),
            snapshots: Vec::new(),
            trace: String::new(),
            twin: None,
            before_last_decisions: Vec::new(),
            check,
        }
    }

    fn step(&mut self, action: Action) -> Verdict {
        match action {
            Action::Join(machine) => self.apply(&Event::NodeJoined(node_spec(machine))),
            Action::Lose { node } => self.apply(&Event::NodeLost { node: self.node(node) }),
            Action::Drain { node } => self.apply(&Event::DrainRequested { node: self.node(node), within: None }),
            Action::Undrain { node } => self.apply(&Event::DrainCancelled { node: self.node(node) }),
            Action::Submit(shape) => self.apply(&Event::JobSubmitted(Arc::new(job_spec(shape)))),
            Action::Start { share } => match pick(&self.shadow.live_shares(), share) {
                Some((job, attempt, node)) => self.apply(&Event::ShareStarted { job, attempt, node }),
                None => Ok(()),
            },
            Action::End { share, how } => match pick(&self.shadow.live_shares(), share) {
                Some(share) => self.end_share(share, how),
                None => Ok(()),
            },
            Action::EndAll { job, how } => self.end_shares_of(job, how),
            Action::Checkpoint { job, steps } => self.commit_checkpoint(job, steps),
            Action::Cancel { job } => match pick(&self.shadow.live_jobs(), job) {
                Some(job) => self.apply(&Event::CancelRequested { job, by: Submitter("someone".to_owned()) }),
                None => Ok(()),
            },
            Action::Wait { millis } => {
                self.clock = self.clock + Duration::from_millis(u64::from(millis));
                Ok(())
            }
            Action::Tick => {
                self.clock = self.clock.max(self.engine.next_deadline().unwrap_or(self.clock));
                self.apply(&Event::TimePassed)
            }
            Action::Restart { snapshot, decisions_lost, clock_back_millis } => {
                self.restart(snapshot, decisions_lost, Duration::from_millis(u64::from(clock_back_millis)))
            }
            Action::Late { job } => match pick(&self.shadow.live_jobs(), job) {
                Some(job) => {
                    let attempt = AttemptNumber(self.shadow.jobs[&job].attempts.saturating_sub(1));
                    self.apply(&Event::ShareStarted { job, attempt, node: NodeId(0) })
                }
                None => Ok(()),
            },
            Action::Nonsense { which } => self.apply(&nonsense(which)),
        }
    }

    /// The time that an event counts as having: the clock's, but never before the last entry's.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.max(self.shadow.now)
    }

    fn apply(&mut self, event: &Event) -> Verdict {
        let before = self.engine.clone();
        let outcome = self.engine.apply(self.clock, event);
        writeln!(self.trace, "{} {event:?} -> {outcome:?}", self.clock.unix_nanos()).expect("a string takes any text");
        if let Some(twin) = &mut self.twin {
            let same = twin.apply(self.clock, event) == outcome && twin.snapshot() == self.engine.snapshot();
            ensure("A-3 a rebuilt engine decides like the old one", same, || format!("{event:?} -> {outcome:?}"))?;
        }
        self.shadow.judge_answer(event, &outcome)?;
        if let Ok(decisions) = &outcome {
            self.accept(event, decisions)?;
        }
        let sound = self.engine.check_invariants();
        ensure("A-5 the engine's own invariants", sound.is_ok(), || format!("{sound:?}"))?;
        if outcome.is_ok() {
            self.shadow.judge_settled(self.now())?;
        }
        self.shadow.judge_engine(&self.engine)?;
        (self.check.each)(&Taken { before: &before, world: self, event, outcome: &outcome })
    }

    fn accept(&mut self, event: &Event, decisions: &[Decision]) -> Verdict {
        let now = self.now();
        if *event != Event::TimePassed {
            self.journal.push((self.clock, Entry::Event(event.clone())));
            self.before_last_decisions.clear();
            self.shadow.take_event(now, event);
        } else if !decisions.is_empty() {
            self.before_last_decisions.clear();
        }
        for decision in decisions {
            self.before_last_decisions.push(self.shadow.clone());
            self.shadow.judge_decision(now, decision)?;
            self.shadow.take_decision(now, decision);
            self.journal.push((self.clock, Entry::Decision(decision.clone())));
        }
        self.snapshots.push((self.journal.len(), self.engine.snapshot()));
        Ok(())
    }

    fn restart(&mut self, snapshot: u32, decisions_lost: u32, clock_back: Duration) -> Verdict {
        let decisions = self.before_last_decisions.len();
        let lost = index(decisions_lost, decisions + 1);
        if lost > 0 {
            self.journal.truncate(self.journal.len() - lost);
            self.shadow = self.before_last_decisions.swap_remove(decisions - lost);
            self.before_last_decisions.truncate(decisions - lost);
        }
        let entries = self.journal.len();
        self.snapshots.retain(|(at, _)| *at <= entries);
        let from = index(snapshot, self.snapshots.len() + 1).checked_sub(1).map(|i| &self.snapshots[i]);
        let rebuilt = rebuild(from, &self.journal)?;
        let old = std::mem::replace(&mut self.engine, rebuilt);
        if lost == 0 {
            let is_same = old.snapshot() == self.engine.snapshot();
            ensure("A-3 replay gives the state before the crash", is_same, || format!("{old:?}\n{:?}", self.engine))?;
        }
        self.twin = (lost == 0 && clock_back.is_zero()).then_some(old);
        let back = u64::try_from(clock_back.as_nanos()).expect("seconds at most");
        self.clock = Timestamp::from_unix_nanos(self.clock.unix_nanos() - back);
        self.apply(&Event::TimePassed)
    }

    /// A known node, or now and then one that isn't.
    fn node(&self, index: u32) -> NodeId {
        let known = u32::try_from(self.shadow.nodes.len()).expect("nodes are few");
        NodeId(index % (known + 1))
    }

    fn end_share(&mut self, (job, attempt, node): (JobId, AttemptNumber, NodeId), how: How) -> Verdict {
        self.apply(&Event::ShareEnded { job, attempt, node, end: share_end(how, self.clock) })
    }

    fn end_shares_of(&mut self, job: u32, how: How) -> Verdict {
        let live = self.shadow.live_shares();
        let Some((job, _, _)) = pick(&live, job) else { return Ok(()) };
        live.into_iter().filter(|(of, _, _)| *of == job).try_for_each(|share| self.end_share(share, how))
    }

    fn commit_checkpoint(&mut self, job: u32, steps: u32) -> Verdict {
        let Some((job, attempt, _)) = pick(&self.shadow.live_shares(), job) else { return Ok(()) };
        let last = self.shadow.jobs[&job].checkpoint.unwrap_or_default();
        self.apply(&Event::CheckpointCommitted {
            job,
            attempt,
            step: Step((last.0 + u64::from(steps)).saturating_sub(1)),
        })
    }

    fn end_all_jobs(&mut self) -> Verdict {
        let by = Submitter("the end".to_owned());
        for job in self.shadow.live_jobs() {
            self.apply(&Event::CancelRequested { job, by: by.clone() })?;
        }
        for share in self.shadow.live_shares() {
            self.end_share(share, How::Stopped)?;
        }
        let live = self.engine.jobs().count();
        ensure("cancelled jobs end", live == 0, || format!("{live} jobs live on"))?;
        let is_empty = |node: &gangline_orchestration::Node| {
            let capacity = &node.spec.capacity;
            (node.free_count(), node.free_cpus, node.free_memory)
                == (capacity.accelerators, capacity.shared_cpus(), capacity.shared_memory())
        };
        let all_free = self.engine.cluster().nodes().all(is_empty);
        ensure("without jobs everything is free", all_free, || format!("{:?}", self.engine.cluster()))
    }
}

fn index(number: u32, of: usize) -> usize {
    usize::try_from(number).expect("a usize holds 32 bits") % of
}

fn pick<T: Clone>(things: &[T], number: u32) -> Option<T> {
    if things.is_empty() { None } else { things.get(index(number, things.len())).cloned() }
}

fn kind(kind: u32) -> AcceleratorKind {
    AcceleratorKind(["h100", "a100", "cpu"][index(kind, 3)].to_owned())
}

fn node_spec(machine: Machine) -> NodeSpec {
    let Machine { name, kind: number, accelerators, cpus, gib } = machine;
    let name = NodeName::new(&format!("n{name}")).expect("a letter and a number make a name");
    let memory = Bytes(u64::from(gib) << 30);
    let capacity = NodeCapacity { pool: PoolName::default(), accelerator: kind(number), accelerators, cpus, memory };
    NodeSpec { name, capacity, location: Default::default(), layout: Default::default() }
}

/// The job of this shape.
pub(super) fn job_spec(shape: Shape) -> JobSpec {
    let at_least_one = |number: u32| number.max(1).try_into().expect("one is not zero");
    JobSpec {
        name: "job".to_owned(),
        queue: QueueName::new("default").expect("a plain word is a name"),
        priority: Priority::new(shape.priority).unwrap_or(Priority::NORMAL),
        gang: GangShape {
            pool: PoolName::default(),
            nodes: at_least_one(shape.nodes),
            accelerator: kind(shape.kind),
            accelerators_per_node: at_least_one(shape.per_node),
            cpus_per_node: shape.cpus,
            memory_per_node: Bytes(u64::from(shape.gib) << 30),
            launch: Launch::PerAccelerator,
            topology: Default::default(),
        },
        elastic: None,
        program: Program {
            workdir: "/".to_owned(),
            code: None,
            container: None,
            envs: [].into(),
            setup: None,
            run: "true".to_owned(),
        },
        checkpoint: CheckpointPolicy {
            path: shape.has_checkpoint.then(|| "/checkpoints".to_owned()),
            is_shared: true,
            grace: Duration::from_secs(1),
        },
        recovery: RecoveryPolicy {
            max_faults: shape.max_faults,
            no_progress_limit: shape.no_progress_limit,
            hang_timeout: HangTimeout::Learned,
            evicts_stragglers: true,
        },
        time_limit: shape.limit_seconds.map(|seconds| Duration::from_secs(u64::from(seconds))),
        budget: None,
        spares: 0,
        datasets: Default::default(),
        planned: None,
        pins: Default::default(),
        after: Default::default(),
        notify: Default::default(),
        origin: None,
        submitter: Submitter("someone".to_owned()),
    }
}

fn share_end(how: How, now: Timestamp) -> ShareEnd {
    match how {
        How::Succeeded => ShareEnd::Succeeded,
        How::DoNotRestart => ShareEnd::DoNotRestart,
        How::Requeue => ShareEnd::Requeue,
        How::Stopped => ShareEnd::Stopped,
        How::Fault { cause, millis_ago } => {
            let at = Timestamp::from_unix_nanos(now.unix_nanos() - u64::from(millis_ago) * 1_000_000);
            let causes = [
                FaultCause::Exit(1),
                FaultCause::Signal(9),
                FaultCause::Setup(2),
                FaultCause::Start,
                FaultCause::Rendezvous,
                FaultCause::SupervisorLost,
                FaultCause::NodeLost,
                FaultCause::Hang,
            ];
            let category = FaultCategory::ALL[index(cause / 8, FaultCategory::ALL.len())];
            let is_consequence = millis_ago % 3 == 0;
            ShareEnd::Fault { cause: causes[index(cause, causes.len())], category, is_consequence, at }
        }
    }
}

/// Events about jobs and nodes that never were.
fn nonsense(which: u32) -> Event {
    let (job, node, attempt) = (JobId(1_000_000), NodeId(1_000_000), AttemptNumber::FIRST);
    match which % 10 {
        0 => Event::CancelRequested { job, by: Submitter("someone".to_owned()) },
        1 => Event::ShareStarted { job, attempt, node },
        2 => Event::ShareEnded { job, attempt, node, end: ShareEnd::Succeeded },
        3 => Event::CheckpointCommitted { job, attempt, step: Step(1) },
        4 => Event::NodeLost { node },
        5 => Event::NodeObserved { node, outside: ExternalUsage::default() },
        6 => Event::NodeFaulty { node },
        7 => Event::StragglerFound { job, attempt, node },
        8 => Event::DatasetsCached { node, cache: NodeCache { folder: "/c".to_owned(), datasets: Vec::new() } },
        _ => Event::DrainCancelled { node },
    }
}
