//! No job waits for longer than ageing promises, whatever else arrives; and what an overdue job may not do.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, JobSpec, NodeId, Priority, Timestamp};

use crate::engine::{Engine, Limits};
use crate::fixture::{self, Dice};
use crate::{Blocker, Configuration, Decision, Event, PreemptionRules, QueueSpec, ShareEnd, StopReason};

const AGEING: Duration = Duration::from_hours(6);
/// The longest that any job here holds devices: its limit and its grace.
const LONGEST: Duration = Duration::from_mins(121);
/// Jobs that wait at any time, besides those with a low priority.
const STREAM: usize = 5;
/// Events between two checks of the engine's invariants.
const CHECK_EVERY: usize = 16;
const NODES: u32 = 4;
const DEVICES: u32 = 4;

fn priority(value: u16) -> Priority {
    Priority::new(value).expect("it is in range")
}

fn job(queue: &str, urgency: u16, (nodes, devices): (u32, u32), minutes: u32) -> JobSpec {
    let mut spec = fixture::job(fixture::gang(nodes, devices));
    (spec.queue, spec.priority) = (fixture::queue(queue), priority(urgency));
    spec.time_limit = Some(Duration::from_mins(u64::from(minutes)));
    spec
}

/// Returns rules with ageing, and queues in one of several shapes.
fn configuration(dice: &mut Dice) -> Configuration {
    let queue = |name: &str, parent: Option<&str>, quota: u32, borrowed: Option<u32>, weight: u32| QueueSpec {
        name: fixture::queue(name),
        parent: parent.map(fixture::queue),
        weight: NonZeroU32::new(weight).expect("weights are positive"),
        quota: BTreeMap::from([(fixture::kind(), quota)]),
        borrowing_limit: borrowed.map(|limit| (fixture::kind(), limit)).into_iter().collect(),
    };
    let queues = match dice.below(4) {
        0 => Vec::new(),
        1 => vec![queue("a", None, 0, None, 9), queue("b", None, 0, None, 1)],
        2 => vec![queue("a", None, 12, None, 1), queue("b", None, 4, Some(12), 1)],
        _ => vec![
            queue("all", None, 8, Some(8), 1),
            queue("a", Some("all"), 8, None, 1),
            queue("b", Some("all"), 0, Some(16), 3),
        ],
    };
    let preemption = PreemptionRules { runtime_min: Duration::from_mins(2), ..PreemptionRules::default() };
    let base = if dice.below(2) == 0 { Configuration::default() } else { Configuration::shortest_waits() };
    let preemption = PreemptionRules { share_time: base.preemption.share_time, ..preemption };
    Configuration { queues, preemption, ageing: Some(AGEING), ..base }
}

struct Stage {
    dice: Dice,
    engine: Engine,
    now: Timestamp,
    /// Of each waiting job: how many waited when it was queued.
    before: BTreeMap<JobId, (Timestamp, usize)>,
    ends: BTreeMap<JobId, Timestamp>,
    /// When each leading job was said to start at the latest, while nodes are held for it.
    promised: BTreeMap<JobId, Timestamp>,
    /// How many jobs started because they were overdue, and how many were stopped for others.
    led: usize,
    stopped: usize,
    events: usize,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let configuration = configuration(&mut dice);
        let mut stage = Stage::by(configuration);
        stage.dice = dice;
        stage
    }

    fn by(configuration: Configuration) -> Self {
        let mut stage = Stage {
            dice: Dice(0),
            engine: Engine::new(Limits::default()),
            now: Timestamp::EPOCH + Duration::from_hours(1),
            before: BTreeMap::new(),
            ends: BTreeMap::new(),
            promised: BTreeMap::new(),
            led: 0,
            stopped: 0,
            events: 0,
        };
        stage.apply(&Event::Configured(Arc::new(configuration)));
        for number in 0..NODES {
            stage.apply(&Event::NodeJoined(fixture::node(number, DEVICES)));
        }
        stage
    }

    fn apply(&mut self, event: &Event) {
        let decisions = self.engine.apply(self.now, event).expect("the event is right");
        for decision in &decisions {
            self.judge(decision);
        }
        let waiting = self.engine.jobs().filter(|job| job.attempt().is_none()).count();
        for job in self.engine.jobs().filter(|job| job.attempt().is_none()) {
            self.before.entry(job.id).or_insert((self.now, waiting - 1));
        }
        self.judge_promises();
        self.events += 1;
        if self.events.is_multiple_of(CHECK_EVERY) {
            self.engine.check_invariants().expect("the invariants hold");
        }
    }

    fn judge(&mut self, decision: &Decision) {
        match decision {
            Decision::Place { job, reason, .. } => {
                let (since, before) = self.before.remove(job).unwrap_or((self.now, 0));
                assert_eq!(reason.waited, self.now.since(since), "{job} waited since {since:?}");
                self.judge_wait(*job, since, before);
                self.led += usize::from(reason.is_overdue);
                if reason.is_overdue {
                    self.judge_turn(*job);
                }
                let spec = &self.engine.job(*job).expect("it was placed").spec;
                let limit = spec.time_limit.expect("every job has one");
                let part = Dice(self.dice.0 ^ job.0).below(100) + 1;
                self.ends.insert(*job, self.now + limit * part / 100);
            }
            Decision::Stop { job, reason, .. } => {
                let grace = self.engine.job(*job).expect("it runs").spec.checkpoint.grace;
                let end = self.ends.entry(*job).or_insert(self.now);
                *end = (*end).min(self.now + grace);
                if let StopReason::Preempted { by } = reason {
                    self.stopped += 1;
                    let (job, by) = (self.engine.job(*job), self.engine.job(*by));
                    let (job, by) = job.zip(by).expect("both live");
                    let is_for_priority = job.spec.queue == by.spec.queue && job.spec.priority < by.spec.priority;
                    assert!(!is_for_priority || job.led_at.is_none(), "{} was overdue and is stopped", job.id);
                }
            }
            Decision::Requeue { job, .. } | Decision::End { job, .. } => {
                self.ends.remove(job);
                self.before.remove(job);
            }
            Decision::Claim { .. } => {}
        }
    }

    /// Checks that no other job has led lately which still holds devices.
    fn judge_turn(&self, leader: JobId) {
        let holds_since = |led_at: Timestamp| led_at + AGEING > self.now;
        let mut others = self.engine.jobs().filter(|job| job.id != leader && job.attempt().is_some());
        let other = others.find(|job| job.led_at.is_some_and(holds_since));
        assert!(other.is_none(), "{leader} leads at {:?} beside {}", self.now, other.expect("it is there").id);
    }

    /// Checks a wait that began behind `before` others against the bound.
    fn judge_wait(&self, job: JobId, since: Timestamp, before: usize) {
        let before = u32::try_from(before).expect("few wait");
        let bound = AGEING + LONGEST * (3 * before + 2);
        assert!(self.now <= since + bound, "{job} waited {:?} behind {before}", self.now.since(since));
    }

    /// Checks that a leading job keeps what is held for it: once no claim is in its way, none gets into it, and the job is
    /// never told a later start.
    fn judge_promises(&mut self) {
        let leads =
            self.engine.jobs().filter_map(|job| self.engine.leads.of(&job.spec.gang).filter(|it| it.job == job.id));
        let held =
            leads.filter(|lead| !lead.is_beside_claims).filter_map(|lead| Some((lead.job, lead.nodes.as_ref()?.at?)));
        let held: BTreeMap<JobId, Timestamp> = held.collect();
        for (job, before) in &self.promised {
            let job = self.engine.job(*job).filter(|job| job.attempt().is_none() && self.engine.leads(job));
            let Some(lead) = job.and_then(|job| self.engine.leads.of(&job.spec.gang)) else { continue };
            assert!(!lead.is_beside_claims, "what is held for {} is claimed at {:?}", lead.job, self.now);
            let now = held.get(&lead.job).copied().unwrap_or(*before);
            assert!(now <= *before, "{} was to start by {before:?} and now by {now:?}, at {:?}", lead.job, self.now);
        }
        self.promised = held;
    }

    /// Keeps jobs of high priority waiting, and now and then submits one of low priority.
    fn arrive(&mut self) {
        while self.engine.waiting_count() < STREAM {
            let gang = self.dice.of(&[(1, 1), (1, 2), (1, 4), (2, 1), (2, 4)]);
            let (queue, urgency) = (self.dice.of(&["a", "a", "b"]), self.dice.of(&[600, 800, 1000]));
            let minutes = 10 + self.dice.below(110);
            self.submit(job(queue, urgency, gang, minutes));
        }
        if self.dice.below(20) == 0 {
            let gang = self.dice.of(&[(1, 1), (2, 4), (3, 2), (3, 4)]);
            let queue = self.dice.of(&["a", "b"]);
            self.submit(job(queue, 0, gang, 120));
        }
    }

    /// Submits a job, unless its queue may never hold so much.
    fn submit(&mut self, spec: JobSpec) {
        if self.engine.admit_spec(&spec).is_ok() {
            self.apply(&Event::JobSubmitted(Arc::new(spec)));
        }
    }

    /// Goes on to the next end, or to when the engine wants to be asked.
    fn step(&mut self) {
        let end = self.ends.iter().map(|(job, at)| (*at, *job)).min();
        let wanted = self.engine.next_deadline().filter(|at| *at > self.now);
        let next = end.map(|(at, _)| at).into_iter().chain(wanted).min().expect("something is going on");
        self.now = self.now.max(next);
        match end.filter(|(at, _)| *at <= self.now) {
            Some((_, job)) => self.end(job),
            None => self.apply(&Event::TimePassed),
        }
    }

    fn end(&mut self, id: JobId) {
        let attempt = self.engine.job(id).and_then(|job| job.attempt()).expect("it runs");
        let (number, is_stopped): (AttemptNumber, bool) = (attempt.number, attempt.stop.is_some());
        let nodes: Vec<NodeId> = attempt.shares.iter().map(|share| share.node).collect();
        let end = if is_stopped { ShareEnd::Stopped } else { ShareEnd::Succeeded };
        for node in nodes {
            self.apply(&Event::ShareEnded { job: id, attempt: number, node, end: end.clone() });
        }
    }

    fn waiting(&self, id: JobId) -> bool {
        self.engine.job(id).is_some_and(|job| job.attempt().is_none())
    }
}

/// Proves the bound in `overdue.rs`: with arrivals that never end, under every shape of queues, preemption and
/// time sharing.
#[test]
fn every_wait_has_the_promised_bound_while_arrivals_go_on() {
    let (mut led, mut stopped) = (0, 0);
    for seed in 0..8 {
        let mut stage = Stage::new(seed);
        let end = stage.now + Duration::from_hours(100);
        while stage.now < end {
            stage.arrive();
            stage.step();
            for (job, (since, before)) in &stage.before {
                stage.judge_wait(*job, *since, *before);
            }
        }
        let restored = Engine::restore(Limits::default(), stage.engine.snapshot()).expect("it restores");
        assert_eq!(restored.snapshot(), stage.engine.snapshot());
        (led, stopped) = (led + stage.led, stopped + stage.stopped);
    }
    assert!(led > 20 && stopped > 20, "{led} overdue starts, {stopped} preemptions");
}

/// Lets urgent jobs of one device arrive for ever; returns how long a gang on all nodes waits, at most `max`.
fn wait_of_a_large_gang(ageing: Option<Duration>, max: Duration) -> Option<Duration> {
    let mut stage = Stage::by(Configuration { ageing, preemption: PreemptionRules::OFF, ..Configuration::default() });
    for _ in 0..NODES * DEVICES {
        stage.submit(job("a", 1000, (1, 1), 60));
    }
    let (large, from) = (stage.engine.next_job_id(), stage.now);
    stage.submit(job("a", 0, (NODES, DEVICES), 120));
    while stage.waiting(large) && stage.now.since(from) < max {
        while stage.engine.waiting_count() < 2 {
            stage.submit(job("a", 1000, (1, 1), 60));
        }
        stage.step();
    }
    (!stage.waiting(large)).then(|| stage.now.since(from))
}

#[test]
fn a_stream_of_higher_priority_starves_a_gang_only_without_ageing() {
    let week = Duration::from_hours(168);
    assert_eq!(wait_of_a_large_gang(None, week), None, "it waits for ever");
    let waited = wait_of_a_large_gang(Some(AGEING), week).expect("it starts");
    assert!(waited >= AGEING && waited <= AGEING + Duration::from_mins(61), "{waited:?}");
}

#[test]
fn explain_says_when_a_job_is_first_and_what_it_then_waits_for() {
    let mut stage =
        Stage::by(Configuration { ageing: Some(AGEING), preemption: PreemptionRules::OFF, ..Configuration::default() });
    let start = stage.now;
    stage.submit(job("a", 500, (NODES, 1), 600));
    let (large, later) = (stage.engine.next_job_id(), JobId(stage.engine.next_job_id().0 + 1));
    stage.submit(job("a", 0, (NODES, DEVICES), 60));
    stage.submit(job("a", 0, (2, DEVICES), 60));
    let overdue =
        |stage: &Stage, job| stage.engine.explain(stage.now, job).and_then(|it| it.overdue).expect("it waits");
    assert_eq!((overdue(&stage, large).at, overdue(&stage, large).behind), (start + AGEING, 0));
    assert_eq!((overdue(&stage, later).at, overdue(&stage, later).behind), (start + AGEING, 1));
    stage.now = start + AGEING;
    stage.apply(&Event::TimePassed);
    // It goes before work of a higher priority, even where there is room for that now.
    stage.submit(job("a", 1000, (1, 3), 600));
    let urgent = JobId(stage.engine.next_job_id().0 - 1);
    let explained = stage.engine.explain(stage.now, large).expect("it waits");
    let until = start + Duration::from_mins(600) + Duration::from_secs(30);
    assert_eq!((explained.ahead, explained.starts_by), (0, Some(until)));
    let blocker = stage.engine.explain(stage.now, urgent).expect("it waits").blocker;
    assert!(matches!(blocker, Blocker::Behind { job, .. } if job == large), "{blocker}");
}

#[test]
fn a_backlog_gets_one_gang_at_a_time_before_urgent_work() {
    let mut stage =
        Stage::by(Configuration { ageing: Some(AGEING), preemption: PreemptionRules::OFF, ..Configuration::default() });
    stage.submit(job("a", 1000, (NODES, DEVICES), 420));
    let backlog: Vec<JobId> = (0..4)
        .map(|_| {
            stage.submit(job("a", 0, (1, DEVICES), 120));
            JobId(stage.engine.next_job_id().0 - 1)
        })
        .collect();
    stage.now = stage.now + AGEING;
    let urgent: Vec<JobId> = (0..4)
        .map(|_| {
            stage.submit(job("a", 1000, (1, DEVICES), 120));
            JobId(stage.engine.next_job_id().0 - 1)
        })
        .collect();
    while stage.waiting(backlog[0]) {
        stage.step();
    }
    let started = |jobs: &[JobId]| jobs.iter().filter(|job| !stage.waiting(**job)).count();
    assert_eq!((started(&backlog), started(&urgent)), (1, 3));
}

#[test]
fn a_queue_at_its_limit_holds_back_for_an_overdue_job() {
    let limited = QueueSpec {
        name: fixture::queue("a"),
        parent: None,
        weight: NonZeroU32::MIN,
        quota: BTreeMap::from([(fixture::kind(), 8)]),
        borrowing_limit: BTreeMap::from([(fixture::kind(), 0)]),
    };
    let with = |ageing| Configuration {
        queues: vec![limited.clone()],
        ageing,
        preemption: PreemptionRules::OFF,
        ..Configuration::default()
    };
    let waits = |ageing| {
        let mut stage = Stage::by(with(ageing));
        for minutes in [30, 60] {
            stage.submit(job("a", 500, (1, DEVICES), minutes));
        }
        let (large, from) = (stage.engine.next_job_id(), stage.now);
        stage.submit(job("a", 500, (2, DEVICES), 60));
        while stage.waiting(large) && stage.now.since(from) < Duration::from_hours(100) {
            while stage.engine.waiting_count() < 3 {
                stage.submit(job("a", 500, (1, DEVICES), 60));
            }
            stage.step();
        }
        stage.now.since(from)
    };
    assert!(waits(None) >= Duration::from_hours(100), "there is never enough left of the limit");
    assert!(waits(Some(AGEING)) <= AGEING + LONGEST);
}
