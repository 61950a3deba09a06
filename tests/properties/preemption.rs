//! Preemption under random histories: jobs of all priorities in queues with quotas come, run, save, fail and end.
//!
//! After every decision: no gang holds what another holds, no queue is above its limit, nobody is stopped for another
//! who was within its guaranteed run time, or whom the rules protect; a claim is inclusion-minimal, its victims make room
//! where it says, and the job gets its devices once they have left. At the end the journal replays to the same state,
//! and every job ends once nothing new comes: nobody starves.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, JobId, NodeId, NodeName, PoolName, Priority, QueueName, Step, Timestamp,
};
use gangline_orchestration::{
    Claim, ClaimRight, Configuration, Decision, Engine, Entry, Event, Job, Limits, Location, NodeCapacity, NodeSpec,
    PreemptionRules, QueueSpec, ShareEnd, StopReason,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::checks::question;
use super::seeds;
use super::world::job_spec;

/// Things that happen in a history.
const STEPS: usize = 150;
/// Rounds in which everything that runs ends, until nothing waits.
const ROUNDS_MAX: usize = 400;
const RUNTIME_MIN: Duration = Duration::from_mins(5);
const QUEUES: [&str; 3] = ["research", "nlp", "production"];

/// Which rules the history is played by.
#[derive(Clone, Copy)]
enum Rules {
    /// Those that are on unless an administrator says otherwise.
    Usual,
    /// Equals make room for each other as well.
    AmongEquals,
}

struct Stage {
    random: ChaCha8Rng,
    engine: Engine,
    now: Timestamp,
    journal: Vec<(Timestamp, Entry)>,
    /// What jobs of a claim are still to be seen leaving.
    claims: BTreeMap<JobId, Claim>,
    preempted: u32,
    /// How often jobs were stopped by which right among equals.
    rights: BTreeMap<&'static str, u32>,
}

fn kind() -> AcceleratorKind {
    AcceleratorKind("h100".to_owned())
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

/// `nlp` belongs to `research`; the fourth queue borrows at most four.
fn sharing(rules: Rules) -> Configuration {
    let queue = |text: &str, parent: Option<&str>, quota: u32, borrow: Option<u32>| QueueSpec {
        name: name(text),
        parent: parent.map(name),
        weight: NonZeroU32::new(1 + quota % 3).expect("not zero"),
        quota: BTreeMap::from([(kind(), quota)]),
        borrowing_limit: borrow.into_iter().map(|borrow| (kind(), borrow)).collect(),
    };
    let queues = vec![
        queue("lab", None, 8, None),
        queue("research", Some("lab"), 4, None),
        queue("nlp", Some("lab"), 2, None),
        queue("production", None, 8, Some(4)),
    ];
    let base = match rules {
        Rules::Usual => Configuration::default(),
        Rules::AmongEquals => Configuration::shortest_waits(),
    };
    let preemption = PreemptionRules { runtime_min: RUNTIME_MIN, ..base.preemption };
    Configuration { queues, preemption, ..base }
}

impl Stage {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut stage = Stage {
            random: ChaCha8Rng::seed_from_u64(seed),
            engine: Engine::new(Limits::default()),
            now: Timestamp::EPOCH + Duration::from_hours(1),
            journal: Vec::new(),
            claims: BTreeMap::new(),
            preempted: 0,
            rights: BTreeMap::new(),
        };
        stage.apply(&Event::Configured(Arc::new(sharing(rules))));
        for number in 0..4 {
            stage.apply(&Event::NodeJoined(NodeSpec {
                name: NodeName::new(&format!("n{number}")).expect("a name"),
                capacity: NodeCapacity {
                    pool: PoolName::default(),
                    accelerator: kind(),
                    accelerators: 4,
                    cpus: 16,
                    memory: Bytes(64 << 30),
                },
                location: Location::default(),
                layout: Default::default(),
            }));
        }
        stage
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    fn apply(&mut self, event: &Event) {
        let mut before = self.engine.clone();
        let Ok(decisions) = self.engine.apply(self.now, event) else { return };
        if *event != Event::TimePassed {
            let entry = Entry::Event(event.clone());
            before.replay(self.now, &entry).expect("an event that was let in replays");
            self.journal.push((self.now, entry));
        }
        for decision in decisions {
            self.judge(&before, &decision);
            let entry = Entry::Decision(decision);
            before.replay(self.now, &entry).expect("a decision replays");
            self.journal.push((self.now, entry));
        }
        self.engine.check_invariants().expect("the invariants hold");
        self.judge_limits();
    }

    /// A decision beside the state that it was made in.
    fn judge(&mut self, before: &Engine, decision: &Decision) {
        match decision {
            Decision::Claim { job, claim, reason } => {
                for victim in &claim.victims {
                    self.judge_victim(before, *job, *victim, &reason.right);
                }
                if !matches!(reason.right, ClaimRight::Move { .. }) {
                    self.judge_minimal(before, *job, claim);
                }
                self.claims.insert(*job, claim.clone());
            }
            Decision::Stop { job, reason: StopReason::Preempted { by }, .. } => {
                let claim = self.claims.get(by).expect("who is stopped for another is in its claim");
                assert!(claim.victims.contains(job), "{job} is stopped for {by} outside of its claim");
                self.preempted += 1;
            }
            Decision::Place { job, .. } => {
                self.claims.remove(job);
            }
            _ => {}
        }
    }

    fn judge_victim(&mut self, before: &Engine, by: JobId, victim: JobId, right: &ClaimRight) {
        let (by, victim) = (before.job(by).expect("it waits"), before.job(victim).expect("it runs"));
        let attempt = victim.attempt().expect("it runs");
        let has_saved = victim.checkpoint > attempt.checkpoint_at_start;
        let had = victim.ran + self.now.since(attempt.placed_at);
        assert!(attempt.stop.is_none(), "{} is being stopped already", victim.id);
        assert!(self.now >= attempt.placed_at + RUNTIME_MIN, "{} is within its guaranteed time", victim.id);
        match right {
            ClaimRight::TimeShare { expected } if victim.spec.priority == by.spec.priority => {
                assert_eq!(victim.spec.queue, by.spec.queue, "{} and {} are no equals", victim.id, by.id);
                assert!(
                    has_saved && had >= *expected * 2,
                    "{} has not had {expected:?} twice, or not saved",
                    victim.id
                );
                assert!(*expected >= least_left(by, by.ran), "{} is expected to end sooner than it may", by.id);
                assert!(
                    turn(by, *expected) < turn(victim, least_left(victim, had)),
                    "{} would go before {} all the same",
                    victim.id,
                    by.id
                );
                let (gang, taken) = (&victim.spec.gang, by.spec.gang.devices());
                assert!(
                    gang.nodes.get() == 1 || gang.devices() <= taken * 4,
                    "{} is a gang that gives up more than four times what {} takes",
                    victim.id,
                    by.id
                );
                *self.rights.entry("time share").or_default() += 1;
                return;
            }
            ClaimRight::Consolidation => {
                let lately = victim.checkpoint_at.is_some_and(|at| self.now.since(at) <= Duration::from_hours(1));
                let may_move = has_saved || lately;
                assert!(may_move && attempt.shares.len() == 1, "{} is not to be moved", victim.id);
                *self.rights.entry("consolidation").or_default() += 1;
                return;
            }
            ClaimRight::Move { by: other } => {
                let other = self.claims.get(other).expect("it moves for one that has a claim");
                assert!(other.victims.contains(&victim.id) && victim.id == by.id, "{} moves for nobody", victim.id);
                return;
            }
            _ => {}
        }
        if victim.spec.queue == by.spec.queue {
            assert!(victim.spec.priority < by.spec.priority, "{} has the same right as {}", victim.id, by.id);
            return;
        }
        assert!(matches!(right, ClaimRight::Entitlement { .. }), "{by:?} stops {victim:?} by {right:?}");
        let standings = before.queues(self.now);
        let accelerators = |queue: &QueueName| {
            let standing = standings.iter().find(|standing| standing.spec.name == *queue).expect("it is configured");
            standing.accelerators.get(&kind()).copied().unwrap_or_default()
        };
        let lab = name("lab");
        let side = |queue: &QueueName| if *queue == name("production") { queue.clone() } else { lab.clone() };
        let is_inside = side(&victim.spec.queue) == side(&by.spec.queue);
        let of = |queue: &QueueName| if is_inside { queue.clone() } else { side(queue) };
        let (held, entitled) = accelerators(&of(&by.spec.queue));
        assert!(held + by.spec.gang.devices() <= entitled, "{} takes more than its queue is entitled to", by.id);
        let (held, entitled) = accelerators(&of(&victim.spec.queue));
        assert!(held > entitled, "{} is in a queue that holds no more than it is entitled to", victim.id);
    }

    /// With all victims gone there is room; with one of them staying there isn't.
    fn judge_minimal(&self, before: &Engine, by: JobId, claim: &Claim) {
        let gang = &before.job(by).expect("it waits").spec.gang;
        let has_room = |staying: Option<JobId>| {
            let freed = |node: NodeId| -> u32 {
                let leaving = claim.victims.iter().filter(|victim| Some(**victim) != staying);
                let attempts = leaving.filter_map(|victim| before.job(*victim)).filter_map(|job| job.attempt());
                let here = attempts.flat_map(|attempt| &attempt.shares).filter(|share| share.node == node);
                here.map(|share| u32::try_from(share.devices.len()).expect("devices are few")).sum()
            };
            let nodes = claim.nodes.iter().filter_map(|node| before.cluster().node(*node));
            let fitting = nodes.filter(|node| node.free_count() + freed(node.id) >= gang.accelerators_per_node.get());
            u32::try_from(fitting.count()).expect("nodes are few") >= gang.nodes.get()
        };
        assert!(has_room(None), "{by} would have no room: {claim:?}");
        for victim in &claim.victims {
            assert!(!has_room(Some(*victim)), "{victim} need not have been stopped for {by}: {claim:?}");
        }
    }

    fn judge_limits(&self) {
        for standing in self.engine.queues(self.now) {
            let (held, _) = standing.accelerators.get(&kind()).copied().unwrap_or_default();
            let limit = standing.spec.limit(&kind()).unwrap_or(u32::MAX);
            assert!(held <= limit, "{} holds {held} of at most {limit}", standing.spec.name);
        }
    }

    fn running(&self) -> Vec<(JobId, AttemptNumber, Vec<NodeId>)> {
        let of = |attempt: &gangline_orchestration::Attempt| attempt.shares.iter().map(|share| share.node).collect();
        let running = self.engine.jobs().filter_map(|job| Some((job.id, job.attempt()?)));
        running.map(|(id, attempt)| (id, attempt.number, of(attempt))).collect()
    }

    fn end(&mut self, (job, attempt, nodes): (JobId, AttemptNumber, Vec<NodeId>), end: &ShareEnd) {
        for node in nodes {
            self.apply(&Event::ShareEnded { job, attempt, node, end: end.clone() });
        }
    }

    fn submit(&mut self) {
        let (nodes, per_node) = (1 + self.below(2), 1 + self.below(4));
        let priority = [250, 500, 500, 750][usize::try_from(self.below(4)).expect("small")];
        let mut spec = job_spec(question(0, nodes, per_node, priority));
        spec.gang.accelerator = kind();
        spec.queue = name(QUEUES[usize::try_from(self.below(3)).expect("small")]);
        spec.priority = Priority::new(priority).expect("in range");
        spec.time_limit = (self.below(3) == 0).then_some(Duration::from_hours(2));
        self.apply(&Event::JobSubmitted(Arc::new(spec)));
    }

    fn step(&mut self) {
        let running = self.running();
        let pick = usize::try_from(self.below(64)).expect("small");
        let picked = (!running.is_empty()).then(|| running[pick % running.len()].clone());
        match (self.below(8), picked) {
            (0..=2, _) => self.submit(),
            (3..=4, _) => {
                self.now = self.now + Duration::from_secs(u64::from(self.random.next_u32() % 400));
                self.apply(&Event::TimePassed);
            }
            (5, Some((job, attempt, _))) => {
                let step = Step(self.now.unix_nanos());
                self.apply(&Event::CheckpointCommitted { job, attempt, step });
            }
            (6, Some(share)) => {
                let is_stopping = self.engine.job(share.0).and_then(|job| job.attempt()?.stop).is_some();
                let end = if is_stopping { ShareEnd::Stopped } else { ShareEnd::Succeeded };
                self.end(share, &end);
            }
            (_, _) => {
                let told: Vec<_> = running
                    .into_iter()
                    .filter(|(job, ..)| self.engine.job(*job).and_then(|job| job.attempt()?.stop).is_some())
                    .collect();
                for share in told {
                    self.end(share, &ShareEnd::Stopped);
                }
            }
        }
    }

    /// Whatever runs ends, again and again: everybody has had its turn after a while.
    fn drain(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if self.engine.jobs().len() == 0 {
                return;
            }
            self.now = self.now + Duration::from_mins(10);
            self.apply(&Event::TimePassed);
            for share in self.running() {
                self.end(share, &ShareEnd::Succeeded);
            }
        }
        panic!("some starve: {:?}", self.engine.waiting());
    }

    fn judge_replay(&self) {
        let mut replayed = Engine::new(Limits::default());
        for (at, entry) in &self.journal {
            replayed.replay(*at, entry).expect("the journal replays");
        }
        assert_eq!(replayed.snapshot(), self.engine.snapshot(), "A-3: replay gives the same state");
        let restored = Engine::restore(Limits::default(), replayed.snapshot()).expect("it restores");
        assert_eq!(restored.snapshot(), replayed.snapshot(), "A-3: a snapshot gives the same state");
    }
}

/// Plays all seeds by some rules; how many were stopped, and how many by which right among equals.
fn play(rules: Rules) -> (u32, BTreeMap<&'static str, u32>) {
    let (mut preempted, mut rights) = (0, BTreeMap::new());
    for seed in seeds() {
        let mut stage = Stage::new(seed, rules);
        let play = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..STEPS).for_each(|_| stage.step());
            stage.judge_replay();
            stage.drain();
            stage.judge_replay();
            (stage.preempted, stage.rights)
        }));
        let (count, by_right) = play.unwrap_or_else(|_| panic!("GANGLINE_SEED={seed} breaks it: its message is above"));
        preempted += count;
        by_right.into_iter().for_each(|(right, count)| *rights.entry(right).or_default() += count);
    }
    (preempted, rights)
}

/// Proves where jobs are stopped for others.
#[test]
fn victims_are_allowed_minimal_and_nobody_starves() {
    let (preempted, among_equals) = play(Rules::Usual);
    assert!(preempted > 0, "the histories have no preemption in them");
    assert!(among_equals.is_empty(), "nobody makes room for an equal unless the administrator wants that");
}

/// Proves where equals make room for each other, or go on elsewhere.
#[test]
fn equals_that_make_room_have_had_their_time_and_saved_and_nobody_starves() {
    let (_, among_equals) = play(Rules::AmongEquals);
    let is_played = |right| among_equals.get(right).is_some_and(|count| *count > 0);
    assert!(is_played("time share") && is_played("consolidation"), "the histories have too little: {among_equals:?}");
}

/// What a job has left at least that has run for `ran`: as long again, within its limit.
fn least_left(job: &Job, ran: Duration) -> Duration {
    let limit = job.spec.time_limit.filter(|limit| *limit > ran);
    limit.map_or(ran, |limit| ran.min(limit - ran))
}

/// When its turn is with so much left: twenty times that after it came, over the root of its nodes, within half a year.
fn turn(job: &Job, left: Duration) -> Timestamp {
    job.submitted_at + (left * 20 / job.spec.gang.nodes.get().isqrt()).min(Duration::from_hours(24 * 180))
}
