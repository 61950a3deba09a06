//! Sweeps: all points or none, the limit on parallel jobs, and early stopping against a plain implementation
//! of the paper's rule, in random histories that are replayed. The tests of budgets use this world too.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    Bytes, EarlyStop, Goal, Grid, HangTimeout, JobId, JobSpec, MetricValue, NodeName, PoolName, RecoveryPolicy,
    Reduction, Step, Submitter, SweepId, SweepRules, SweepSpec, Timestamp,
};

use crate::fixture;
use crate::{
    Blocker, Decision, Engine, Entry, Event, Fate, FaultCause, Limits, Load, Location, NodeCapacity, NodeSpec, Refusal,
    ShareEnd, ShareState, StopReason, UserLimits,
};

/// An engine, its clock and its journal.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: Timestamp,
    journal: Vec<(Timestamp, Entry)>,
}

pub(crate) fn spec(nodes: u32, devices: u32) -> JobSpec {
    let recovery = RecoveryPolicy {
        max_faults: 1_000,
        no_progress_limit: 1_000,
        hang_timeout: HangTimeout::Learned,
        evicts_stragglers: false,
    };
    JobSpec { name: "train".to_owned(), recovery, ..fixture::job(fixture::gang(nodes, devices)) }
}

impl World {
    /// Creates a world with nodes of this many accelerators.
    pub(crate) fn new(nodes: u32, accelerators: u32) -> Self {
        let limits = Limits { waiting_max: 50, ..Limits::default() };
        let mut world = World { engine: Engine::new(limits), now: Timestamp::EPOCH, journal: Vec::new() };
        for number in 0..nodes {
            let name = NodeName::new(&format!("n{number}")).expect("a name");
            let capacity = NodeCapacity {
                pool: PoolName::default(),
                accelerator: fixture::kind(),
                accelerators,
                cpus: 64,
                memory: Bytes(0),
            };
            world
                .apply(Event::NodeJoined(NodeSpec {
                    name,
                    capacity,
                    location: Location::default(),
                    layout: Default::default(),
                }))
                .expect("room");
        }
        world
    }

    /// Applies an event and checks the invariants.
    pub(crate) fn apply(&mut self, event: Event) -> Result<Vec<Decision>, Refusal> {
        let decisions = self.engine.apply(self.now, &event)?;
        self.engine.check_invariants().expect("the invariants hold");
        self.journal.push((self.now, Entry::Event(event)));
        self.journal.extend(decisions.iter().map(|decision| (self.now, Entry::Decision(decision.clone()))));
        Ok(decisions)
    }

    pub(crate) fn pass(&mut self, time: Duration) -> Vec<Decision> {
        self.now = self.now + time;
        self.apply(Event::TimePassed).expect("time passes")
    }

    /// Ends every share of a live job like this.
    pub(crate) fn end(&mut self, job: JobId, end: &ShareEnd) -> Vec<Decision> {
        let attempt = self.engine.job(job).and_then(|job| job.attempt()).expect("it holds devices").clone();
        let mut decisions = Vec::new();
        for (share, state) in attempt.shares.iter().zip(&attempt.states) {
            if !matches!(state, ShareState::Ended(_)) {
                let ended = Event::ShareEnded { job, attempt: attempt.number, node: share.node, end: end.clone() };
                decisions.extend(self.apply(ended).expect("a live share ends"));
            }
        }
        decisions
    }

    fn report(&mut self, job: u64, step: u64, value: f64) -> Result<Vec<Decision>, Refusal> {
        let attempt = self.engine.job(JobId(job)).and_then(|job| job.attempt()).expect("it holds devices").number;
        let value = MetricValue::from_reported(value);
        self.apply(Event::MetricReported { job: JobId(job), attempt, step: Step(step), value })
    }

    /// Proves A-3 for sweeps and budgets: the journal alone, and a snapshot alone, give this state.
    pub(crate) fn check_replay(&self) {
        let mut replayed = Engine::new(self.engine.limits);
        for (at, entry) in &self.journal {
            replayed.replay(*at, entry).expect("what was taken is taken again");
        }
        assert_eq!(replayed.snapshot(), self.engine.snapshot());
        let restored = Engine::restore(self.engine.limits, self.engine.snapshot()).expect("a sound snapshot");
        assert_eq!(restored.snapshot(), self.engine.snapshot());
        restored.check_invariants().expect("the invariants hold");
    }
}

fn sweep(points: u32, job: JobSpec, rules: SweepRules) -> Event {
    let values = (0..points).map(|number| number.to_string()).collect();
    let grid = Grid::new(vec![("SEED".to_owned(), values)]);
    Event::SweepSubmitted(Arc::new(SweepSpec { job: Arc::new(job), grid, rules }))
}

fn early_stop(goal: Goal, min_steps: u64, reduction: u32) -> SweepRules {
    let early_stop = EarlyStop {
        metric: "loss".to_owned(),
        goal,
        min_steps: NonZeroU64::new(min_steps).expect("at least one"),
        reduction: Reduction::new(reduction).expect("at least two"),
    };
    SweepRules { max_parallel: None, early_stop: Some(early_stop) }
}

fn at_most(max_parallel: u32) -> SweepRules {
    SweepRules { max_parallel: NonZeroU32::new(max_parallel), early_stop: None }
}

pub(crate) fn placed(decisions: &[Decision]) -> Vec<u64> {
    let placed = |decision: &Decision| matches!(decision, Decision::Place { .. }).then(|| decision.job().0);
    decisions.iter().filter_map(placed).collect()
}

#[test]
fn a_sweep_becomes_a_job_for_each_point_with_its_values() {
    let mut world = World::new(1, 4);
    let mut job = spec(1, 1);
    job.program.envs.insert("SEED".to_owned(), "the file's own".to_owned());
    assert_eq!(placed(&world.apply(sweep(3, job, SweepRules::default())).expect("room")), [1, 2, 3]);
    let second = world.engine.job(JobId(2)).expect("it is live");
    let own = world.engine.own_spec(second);
    assert_eq!((own.name.as_str(), own.program.envs["SEED"].as_str()), ("train/SEED=1", "1"));
    assert_eq!(second.sweep, Some(SweepId(JobId(1))));
    assert_eq!(world.engine.next_job_id(), JobId(4));
    world.check_replay();
}

#[test]
fn a_sweep_is_taken_whole_or_not_at_all() {
    let mut world = World::new(1, 1);
    let before = world.engine.snapshot();
    let refusal = world.apply(sweep(51, spec(1, 1), SweepRules::default())).expect_err("fifty may wait");
    let because = Box::new(Refusal::QueueFull { waiting: 50 });
    assert_eq!(refusal, Refusal::SweepPoint { point: "train/SEED=50".to_owned(), points: 51, because });
    let refusal = world.apply(sweep(2, spec(1, 2), SweepRules::default())).expect_err("no node has two");
    assert!(matches!(refusal, Refusal::SweepPoint { point, .. } if point == "train/SEED=0"));
    assert_eq!(world.apply(sweep(0, spec(1, 1), SweepRules::default())), Err(Refusal::SweepSize { points: 0 }));
    let too_many = world.apply(sweep(1_001, spec(1, 1), SweepRules::default()));
    assert_eq!(too_many, Err(Refusal::SweepSize { points: 1_001 }));
    assert_eq!(world.engine.snapshot(), before);
}

#[test]
fn the_jobs_of_a_sweep_share_one_specification_which_counts_once() {
    let mut world = World::new(1, 1);
    let mut job = spec(1, 1);
    job.program.run = "x".repeat(10_000);
    let user = job.submitter.clone();
    world.apply(sweep(40, job, SweepRules::default())).expect("room");
    let specs: Vec<_> = world.engine.jobs().map(|job| job.spec.clone()).collect();
    assert!(specs.iter().all(|spec| Arc::ptr_eq(spec, &specs[0])));
    let load = world.engine.load_of(&user);
    assert!(load.jobs == 40 && (10_000..13_000).contains(&load.bytes.0), "{load:?}");
    world.check_replay();
    world.apply(Event::SweepCancelRequested { sweep: SweepId(JobId(1)), by: user.clone() }).expect("it is live");
    assert_eq!(world.engine.load_of(&user).jobs, 1, "one runs and has to be stopped first");
    world.end(JobId(1), &ShareEnd::Stopped);
    assert_eq!((world.engine.load_of(&user), world.engine.load()), (Load::default(), Load::default()));
    world.check_replay();
}

#[test]
fn what_a_user_submits_has_limits_which_replay_forgives() {
    let mut world = World::new(1, 1);
    let user = UserLimits { jobs_max: 3, bytes_max: Bytes(9_500) };
    let submission_bytes_max = Bytes(5_000);
    world.engine.limits = Limits { user, submission_bytes_max, live_bytes_max: Bytes(12_000), ..world.engine.limits };
    let job = |user: &str, bytes: usize| {
        let mut job = JobSpec { submitter: Submitter(user.to_owned()), ..spec(1, 1) };
        job.program.run = "x".repeat(bytes);
        job
    };
    let submit = |job| Event::JobSubmitted(Arc::new(job));
    let too_large = world.apply(submit(job("ada", 5_000))).expect_err("too large");
    assert!(matches!(too_large, Refusal::TooLarge { limit: Bytes(5_000), .. }), "{too_large}");
    let too_many = world.apply(sweep(4, job("ada", 10), SweepRules::default())).expect_err("four are too many");
    assert!(matches!(too_many, Refusal::UserJobs { live: 0, more: 4, limit: 3, .. }), "{too_many}");
    world.apply(submit(job("ada", 3_500))).expect("room");
    world.apply(submit(job("ada", 3_500))).expect("room");
    let own = world.apply(submit(job("ada", 3_500))).expect_err("her jobs take too much");
    assert!(matches!(&own, Refusal::Stored { user: Some(user), .. } if user.0 == "ada"), "{own}");
    let all = world.apply(submit(job("bob", 3_500))).expect_err("all of them take too much");
    assert!(matches!(all, Refusal::Stored { user: None, limit: Bytes(12_000), .. }), "{all}");
    world.apply(submit(job("bob", 10))).expect("room");
    world.engine.limits.user.jobs_max = 1;
    world.check_replay();
}

#[test]
fn no_more_of_a_sweep_run_at_once_than_may() {
    let mut world = World::new(1, 4);
    assert_eq!(placed(&world.apply(sweep(5, spec(1, 1), at_most(2))).expect("room")), [1, 2]);
    let full = Blocker::Parallel { sweep: SweepId(JobId(1)), holding: 2, max_parallel: 2 };
    assert_eq!(world.engine.blocker(world.now, JobId(3)), Some(full));
    // The limited job keeps no other job from devices that it may not use itself.
    assert_eq!(placed(&world.apply(Event::JobSubmitted(Arc::new(spec(1, 2)))).expect("room")), [6]);
    assert_eq!(placed(&world.end(JobId(2), &ShareEnd::Succeeded)), [3]);
    world.check_replay();
}

#[test]
fn a_cancelled_sweep_ends_without_starting_what_waits() {
    let mut world = World::new(1, 2);
    let id = SweepId(JobId(1));
    world.apply(sweep(4, spec(1, 1), at_most(1))).expect("room");
    let by = Submitter("ann".to_owned());
    let decisions = world.apply(Event::SweepCancelRequested { sweep: id, by: by.clone() }).expect("it is live");
    assert_eq!(placed(&decisions), []);
    let ended: Vec<u64> = decisions.iter().filter(|d| matches!(d, Decision::End { .. })).map(|d| d.job().0).collect();
    assert_eq!(ended, [2, 3, 4]);
    world.end(JobId(1), &ShareEnd::Stopped);
    assert_eq!(world.engine.sweep(id), None);
    assert_eq!(world.apply(Event::SweepCancelRequested { sweep: id, by }), Err(Refusal::UnknownSweep(id)));
    world.check_replay();
}

#[test]
fn the_first_at_a_rung_goes_on_and_a_worse_one_is_stopped() {
    let mut world = World::new(1, 4);
    world.apply(sweep(3, spec(1, 1), early_stop(Goal::Minimize, 10, 2))).expect("room");
    assert_eq!(world.report(1, 10, 3.0), Ok(Vec::new()));
    let stopped = world.report(2, 11, 3.5).expect("its first report at the rung");
    let [Decision::Stop { reason: StopReason::EarlyStop(missed), .. }] = stopped[..] else { panic!("{stopped:?}") };
    assert_eq!(missed.to_string(), "at step 10 its metric was 3.5, behind 3; the best 1 of 2 so far go on");
    assert_eq!(
        world.end(JobId(2), &ShareEnd::Stopped),
        [Decision::End { job: JobId(2), fate: Fate::EarlyStop(missed) }]
    );
    assert_eq!(world.report(3, 12, 3.0), Ok(Vec::new()), "a tie goes on");
    // The next rung is judged separately, and a later report doesn't affect jobs that already continued.
    assert_eq!(world.report(1, 20, 9.0), Ok(Vec::new()));
    assert_eq!(world.report(3, 20, f64::NAN).map(|decisions| decisions.len()), Ok(1), "a diverged job is stopped");
    world.check_replay();
}

#[test]
fn a_metric_counts_once_at_each_rung() {
    let mut world = World::new(1, 4);
    world.apply(sweep(2, spec(1, 1), early_stop(Goal::Minimize, 10, 2))).expect("room");
    let not_due = |step| Err(Refusal::MetricNotDue { job: JobId(1), step: Step(step) });
    assert_eq!(world.report(1, 9, 3.0), not_due(9));
    assert_eq!(world.report(1, 45, 3.0), Ok(Vec::new()), "two rungs at once: the last one counts");
    assert_eq!(world.report(1, 79, 3.0), not_due(79));
    assert_eq!(world.report(1, 20, 3.0), not_due(20));
    world.apply(Event::JobSubmitted(Arc::new(spec(1, 1)))).expect("room");
    assert_eq!(world.report(3, 80, 3.0), Err(Refusal::MetricNotDue { job: JobId(3), step: Step(80) }));
}

#[test]
fn a_job_that_fell_short_and_then_failed_is_not_queued_again() {
    let mut world = World::new(1, 4);
    world.apply(sweep(2, spec(1, 1), early_stop(Goal::Maximize, 1, 2))).expect("room");
    world.report(1, 1, 0.9).expect("the first");
    world.report(2, 1, 0.1).expect("worse");
    let fault = ShareEnd::fault(FaultCause::Exit(1), world.now);
    let decisions = world.end(JobId(2), &fault);
    assert!(matches!(decisions[..], [Decision::End { fate: Fate::EarlyStop(_), .. }]), "{decisions:?}");
}

/// Xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.below(u64::from(limit))).expect("below a u32")
    }
}

/// Implements the paper's rule plainly: a job continues if it is in the top `max(1, floor(n / reduction))` of
/// the `n` values at its rung, its own included.
fn goes_on(goal: Goal, reduction: u32, before: &[f64], value: f64) -> bool {
    let is_better = |other: &&f64| match goal {
        Goal::Minimize => **other < value,
        Goal::Maximize => **other > value,
    };
    let better = before.iter().filter(|other| !other.is_nan()).filter(is_better).count();
    let all = before.len() + 1;
    !value.is_nan() && better < (all / usize::try_from(reduction).expect("small")).max(1)
}

/// A random history of a sweep, with the values its jobs reported.
struct History {
    random: Random,
    world: World,
    rules: EarlyStop,
    max_parallel: u32,
    steps: BTreeMap<JobId, u64>,
    rungs: BTreeMap<u64, Vec<(JobId, f64)>>,
    stopped: u32,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let goal = if random.below(2) == 0 { Goal::Minimize } else { Goal::Maximize };
        let mut rules = early_stop(goal, 1 + random.below(5), 2 + random.small(3));
        let max_parallel = 1 + random.small(6);
        rules.max_parallel = NonZeroU32::new(max_parallel);
        let mut world = World::new(1 + random.small(3), 4);
        let job = spec(1, 1 + random.small(2));
        world.apply(sweep(2 + random.small(20), job, rules.clone())).expect("room");
        let rules = rules.early_stop.expect("it was given");
        History { random, world, rules, max_parallel, steps: BTreeMap::new(), rungs: BTreeMap::new(), stopped: 0 }
    }

    fn holders(&self) -> Vec<JobId> {
        self.world.engine.jobs().filter(|job| job.attempt().is_some()).map(|job| job.id).collect()
    }

    fn act(&mut self) {
        let holders = self.holders();
        assert!(holders.len() <= usize::try_from(self.max_parallel).expect("small"));
        let Some(job) = holders.get(usize::try_from(self.random.below(24)).expect("small")).copied() else {
            self.world.pass(Duration::from_secs(1));
            return;
        };
        match self.random.below(12) {
            0 => {
                self.world.end(job, &ShareEnd::Succeeded);
            }
            1 => {
                let at = self.world.now;
                self.world.end(job, &ShareEnd::fault(FaultCause::Exit(1), at));
            }
            2 => {
                self.world.end(job, &ShareEnd::Stopped);
            }
            _ => self.report(job),
        }
    }

    /// Lets the job do some steps and report; the engine's verdict must equal the rule's.
    fn report(&mut self, job: JobId) {
        let step = self.steps.entry(job).or_default();
        *step += 1 + self.random.below(4);
        let step = *step;
        let value = if self.random.below(12) == 0 { f64::NAN } else { f64::from(self.random.small(20)) };
        let rungs = std::iter::successors(Some(self.rules.min_steps.get()), |rung| {
            rung.checked_mul(u64::from(self.rules.reduction.get()))
        });
        let rung = rungs.take_while(|rung| *rung <= step).last();
        let is_new = |rung: &u64| !self.rungs.range(rung..).flat_map(|(_, seen)| seen).any(|(who, _)| *who == job);
        let attempt = self.world.engine.job(job).and_then(|job| job.attempt()).expect("it holds devices");
        let was_told = attempt.stop.is_some();
        let answer = self.world.report(job.0, step, value);
        let Some(rung) = rung.filter(is_new) else {
            assert_eq!(answer, Err(Refusal::MetricNotDue { job, step: Step(step) }));
            return;
        };
        let seen = self.rungs.entry(rung).or_default();
        let before: Vec<f64> = seen.iter().map(|(_, value)| *value).collect();
        seen.push((job, value));
        let is_due = !goes_on(self.rules.goal, self.rules.reduction.get(), &before, value) && !was_told;
        let decisions = answer.expect("it is due");
        let is_stopped = matches!(decisions[..], [Decision::Stop { reason: StopReason::EarlyStop(_), .. }]);
        assert_eq!((is_stopped, decisions.len()), (is_due, usize::from(is_due)), "{value} after {before:?}");
        self.stopped += u32::from(is_stopped);
    }
}

/// Proves for sweeps: in random histories no more jobs run than the limit, successive halving
/// stops exactly the jobs that the paper's rule stops, and replaying the journal gives the same state.
#[test]
fn successive_halving_stops_whom_the_rule_does() {
    let mut stopped = 0;
    for seed in 1..=300 {
        let mut history = History::new(seed);
        for _ in 0..120 {
            history.act();
        }
        history.world.check_replay();
        stopped += history.stopped;
    }
    assert!(stopped > 300, "the histories stop too few to mean anything: {stopped}");
}
