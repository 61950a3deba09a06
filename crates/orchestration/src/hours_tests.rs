//! GPU-hours by period: what counts, what then waits, and that nothing starts beyond them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{GpuSeconds, JobId, JobSpec, NodeId, Timestamp};

use crate::engine::{Engine, Limits};
use crate::fixture::{self, Dice};
use crate::{Blocker, Configuration, Decision, Event, HourQuota, Period, PreemptionRules, QueueSpec, ShareEnd};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

fn configuration(of: &[(&str, u64)]) -> Configuration {
    let queue = |name: &str, parent: Option<&str>| QueueSpec {
        name: fixture::queue(name),
        parent: parent.map(fixture::queue),
        weight: NonZeroU32::MIN,
        quota: BTreeMap::new(),
        borrowing_limit: BTreeMap::new(),
    };
    let hours = |hours: u64| HourQuota {
        limit: GpuSeconds::of(1, HOUR * u32::try_from(hours).expect("few")),
        per: Period::Day,
    };
    Configuration {
        queues: vec![queue("all", None), queue("a", Some("all")), queue("b", Some("all")), queue("c", None)],
        gpu_hours: of.iter().map(|(name, of)| (fixture::queue(name), hours(*of))).collect(),
        preemption: PreemptionRules { runtime_min: Duration::from_mins(2), ..PreemptionRules::default() },
        ..Configuration::default()
    }
}

/// An engine, and books of its own about who held what when.
struct Stage {
    engine: Engine,
    now: Timestamp,
    dice: Dice,
    /// Queue, devices and start of each job that holds some.
    running: BTreeMap<JobId, (&'static str, u32, Timestamp)>,
    ends: BTreeMap<JobId, Timestamp>,
    /// What each queue's past placements held: from, until, devices.
    past: BTreeMap<&'static str, Vec<(Timestamp, Timestamp, u32)>>,
    starts: usize,
}

/// The queues that a placement in a leaf counts for.
fn counted(leaf: &str) -> &'static [&'static str] {
    match leaf {
        "a" => &["a", "all"],
        "b" => &["b", "all"],
        _ => &["c"],
    }
}

impl Stage {
    fn new(seed: u64, configuration: Configuration) -> Self {
        let mut stage = Stage {
            engine: Engine::new(Limits::default()),
            now: Timestamp::EPOCH + HOUR,
            dice: Dice(seed),
            running: BTreeMap::new(),
            ends: BTreeMap::new(),
            past: BTreeMap::new(),
            starts: 0,
        };
        stage.apply(&Event::Configured(Arc::new(configuration)));
        (0..3).for_each(|number| stage.apply(&Event::NodeJoined(fixture::node(number, 4))));
        stage
    }

    fn quota(&self, queue: &str) -> Option<GpuSeconds> {
        self.engine.configuration().gpu_hours.get(&fixture::queue(queue)).map(|quota| quota.limit)
    }

    /// What a queue has used of the present day, added up anew from all placements.
    fn used(&self, queue: &str) -> GpuSeconds {
        let (from, _) = Period::Day.around(self.now);
        let running = self.running.values().filter(|(leaf, ..)| counted(leaf).contains(&queue));
        let running = running.map(|(_, devices, since)| (*since, self.now, *devices));
        let past = self
            .past
            .iter()
            .filter(|(leaf, _)| counted(leaf).contains(&queue))
            .flat_map(|(_, held)| held.iter().copied());
        running.chain(past).map(|(since, until, devices)| GpuSeconds::of(devices, until.since(since.max(from)))).sum()
    }

    /// The queue that has used its hours, among those that a leaf's jobs count for.
    fn spent(&self, leaf: &str) -> bool {
        counted(leaf).iter().any(|queue| self.quota(queue).is_some_and(|limit| self.used(queue) >= limit))
    }

    fn leaf(&self, job: JobId) -> &'static str {
        let name = self.engine.job(job).expect("it lives").spec.queue.clone();
        ["a", "b", "c"].into_iter().find(|leaf| fixture::queue(leaf) == name).expect("a leaf")
    }

    fn apply(&mut self, event: &Event) {
        if let Event::ShareEnded { job, .. } = event
            && let Some((leaf, devices, since)) = self.running.remove(job)
        {
            self.past.entry(leaf).or_default().push((since, self.now, devices));
            self.ends.remove(job);
        }
        for decision in self.engine.apply(self.now, event).expect("the event is right") {
            match decision {
                Decision::Place { job, shares, .. } => {
                    let leaf = self.leaf(job);
                    assert!(!self.spent(leaf), "{job} of {leaf} starts at {:?} with no hours left", self.now);
                    let devices = shares.iter().map(|share| share.devices.len()).sum::<usize>();
                    self.running.insert(job, (leaf, u32::try_from(devices).expect("few"), self.now));
                    let minutes = 10 + self.dice.below(400);
                    self.ends.insert(job, self.now + Duration::from_mins(u64::from(minutes)));
                    self.starts += 1;
                }
                Decision::Stop { job, .. } => {
                    let end = self.ends.entry(job).or_insert(self.now);
                    *end = (*end).min(self.now + Duration::from_secs(30));
                }
                _ => {}
            }
        }
        self.engine.check_invariants().expect("the invariants hold");
        for standing in self.engine.queues(self.now) {
            let Some((_, used, until)) = standing.hours else { continue };
            assert_eq!(used, self.used(standing.spec.name.as_str()), "{} at {:?}", standing.spec.name, self.now);
            assert_eq!(until, Period::Day.around(self.now).1);
        }
        let waiting: Vec<JobId> = self.engine.jobs().filter(|job| job.attempt().is_none()).map(|job| job.id).collect();
        for job in waiting {
            let explanation = self.engine.explain(self.now, job).expect("it waits");
            let is_for_hours = matches!(explanation.blocker, Blocker::GpuHours { .. });
            assert_eq!(is_for_hours, self.spent(self.leaf(job)), "{job}: {}", explanation.blocker);
        }
    }

    fn submit(&mut self, spec: JobSpec) -> JobId {
        let id = self.engine.next_job_id();
        self.apply(&Event::JobSubmitted(Arc::new(spec)));
        id
    }

    fn end(&mut self, id: JobId) {
        let attempt = self.engine.job(id).and_then(|job| job.attempt()).expect("it runs");
        let (attempt, is_stopped) = (attempt.clone(), attempt.stop.is_some());
        let end = if is_stopped { ShareEnd::Stopped } else { ShareEnd::Succeeded };
        let nodes: Vec<NodeId> = attempt.shares.iter().map(|share| share.node).collect();
        let (last, first) = nodes.split_last().expect("it has nodes");
        for node in first {
            let event = Event::ShareEnded { job: id, attempt: attempt.number, node: *node, end: end.clone() };
            // Devices are held until the last share has ended.
            self.engine.apply(self.now, &event).expect("the event is right");
        }
        self.apply(&Event::ShareEnded { job: id, attempt: attempt.number, node: *last, end });
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
}

fn job(queue: &str, nodes: u32, devices: u32) -> JobSpec {
    let mut spec = fixture::job(fixture::gang(nodes, devices));
    spec.queue = fixture::queue(queue);
    spec
}

/// Proves A-8 for hours (they are the sum over all placements, to the nanosecond), and A-3: an engine restored from a
/// snapshot goes on alike.
#[test]
fn nothing_starts_beyond_the_hours_and_every_second_is_counted_once() {
    for seed in 0..12 {
        let hours: &[(&str, u64)] = [&[("all", 60), ("a", 20)][..], &[("b", 15)][..], &[("all", 30)][..]][seed % 3];
        let mut stage = Stage::new(seed as u64, configuration(hours));
        let until = stage.now + 3 * DAY;
        while stage.now < until {
            while stage.engine.waiting_count() < 4 {
                let gang = stage.dice.of(&[(1, 1), (1, 4), (2, 2), (3, 4)]);
                let queue = stage.dice.of(&["a", "b", "b", "c"]);
                stage.submit(job(queue, gang.0, gang.1));
            }
            stage.step();
            if stage.dice.below(10) == 0 {
                let snapshot = stage.engine.snapshot();
                let mut restored = Engine::restore(Limits::default(), snapshot.clone()).expect("it restores");
                assert_eq!(restored.snapshot(), snapshot);
                let mut kept = stage.engine.clone();
                let later = stage.now + HOUR;
                let both = [&mut restored, &mut kept].map(|engine| {
                    engine.apply(later, &Event::TimePassed).expect("time passes");
                    engine.snapshot()
                });
                assert_eq!(both[0].hours, both[1].hours);
            }
        }
        assert!(stage.starts > 8, "seed {seed}: only {} starts", stage.starts);
    }
}

#[test]
fn a_job_waits_for_the_next_period_and_starts_as_it_begins() {
    let mut stage = Stage::new(0, configuration(&[("all", 8)]));
    let first = stage.submit(job("a", 1, 4));
    stage.ends.insert(first, stage.now + 10 * HOUR);
    stage.now = stage.now + 2 * HOUR;
    let (waits, other) = (stage.submit(job("b", 1, 1)), stage.submit(job("c", 1, 1)));
    let attempt = |stage: &Stage, job| stage.engine.job(job).and_then(|job| job.attempt()).is_some();
    assert!(attempt(&stage, first), "what runs goes on");
    assert!(!attempt(&stage, waits) && attempt(&stage, other), "other queues have their own hours");
    let midnight = Timestamp::EPOCH + DAY;
    let explanation = stage.engine.explain(stage.now, waits).expect("it waits");
    let Blocker::GpuHours { until, .. } = &explanation.blocker else { panic!("{}", explanation.blocker) };
    assert_eq!(*until, midnight);
    assert_eq!(
        explanation.blocker.to_string(),
        "queue \"all\" has used 8.0 of its 8.0 GPU-hours of this day, and starts nothing before 1970-01-02 (UTC)"
    );
    stage.ends.insert(other, midnight + 9 * HOUR);
    while !attempt(&stage, waits) {
        stage.step();
    }
    assert_eq!(stage.now, midnight, "the engine asks to be woken then");
}

#[test]
fn other_hours_count_at_once_and_what_was_used_stays() {
    let mut stage = Stage::new(0, configuration(&[("a", 4)]));
    let first = stage.submit(job("a", 1, 4));
    stage.ends.insert(first, stage.now + 10 * HOUR);
    stage.now = stage.now + HOUR;
    let waits = stage.submit(job("a", 1, 1));
    assert!(stage.engine.job(waits).is_some_and(|job| job.attempt().is_none()));
    stage.apply(&Event::Configured(Arc::new(configuration(&[("a", 9)]))));
    assert!(stage.engine.job(waits).is_some_and(|job| job.attempt().is_some()), "there are hours again");
    assert_eq!(stage.used("a"), GpuSeconds::of(4, HOUR));
    let wrong = configuration(&[("nobody", 9)]).check().expect_err("there is no such queue");
    assert!(wrong.to_string().contains("\"nobody\""), "{wrong}");
    configuration(&[("a", 0)]).check().expect_err("nothing would ever start");
}
