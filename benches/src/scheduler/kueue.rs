//! FAST: Kueue's three load generators through the engine, its journal durable.
//!
//! Parameters are those of Kueue's own performance tests (baseline, tas, large-scale):
//! <https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler/configs>. Time is virtual: jobs come and end when the generator
//! says, and the wall clock counts only what deciding and journalling take. Every event and decision is encoded and
//! committed with fsync, as many requests to a commit as the service takes (512).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gangline_base::{AcceleratorKind, AttemptNumber, JobId, JobSpec, Level, QueueName, Timestamp, TopologyRequest};
use gangline_orchestration::{
    Configuration, Decision, Engine, Entry, Event, Limits, PreemptionRules, QueueSpec, ShareEnd,
};
use gangline_store::codec::encode_entry;
use gangline_store::db::{self, Journal};
use gangline_store::ports::Batch;

use super::Effort;
use super::fixture::{Gang, Running, node, placed};
use super::report::{Bar, Report};

/// Requests in one group commit at most: the service's own limit.
const REQUESTS_PER_COMMIT: usize = 512;

/// A class of workloads of a generator.
struct Class {
    name: &'static str,
    count: u32,
    interval_ms: u64,
    runtime_ms: u64,
    priority: u16,
    nodes: u32,
    gpus: u32,
    topology: TopologyRequest,
}

/// A generator: cohorts of queues that all get the same classes, on nodes of one kind.
struct Generator {
    cohorts: u32,
    queues: u32,
    quota: u32,
    borrowing: u32,
    nodes: u32,
    gpus: u32,
    classes: Vec<Class>,
}

fn class(name: &'static str, count: u32, times: (u64, u64), priority: u16, gang: (u32, u32)) -> Class {
    let (interval_ms, runtime_ms) = times;
    let topology = TopologyRequest::default();
    Class { name, count, interval_ms, runtime_ms, priority, nodes: gang.0, gpus: gang.1, topology }
}

fn in_rack(class: Class, is_required: bool) -> Class {
    let rack = Some(Level::Rack);
    let none = TopologyRequest::default();
    let topology =
        if is_required { TopologyRequest { require: rack, ..none } } else { TopologyRequest { prefer: rack, ..none } };
    Class { topology, ..class }
}

/// 5 cohorts of 6 queues with a quota of 20 each; a CPU there is an accelerator here, 20 to a node.
fn baseline() -> Generator {
    let classes = vec![
        class("small", 350, (100, 200), 50, (1, 1)),
        class("medium", 100, (500, 500), 100, (1, 5)),
        class("large", 50, (1_200, 1_000), 200, (1, 20)),
    ];
    Generator { cohorts: 5, queues: 6, quota: 20, borrowing: 100, nodes: 30, gpus: 20, classes }
}

/// 2 cohorts of 3 queues, 2,500 gangs each, on 10 racks of 64 nodes; gangs of 2, 4 and 8 nodes.
fn topology() -> Generator {
    let classes = vec![
        in_rack(class("small", 700, (200, 10_000), 50, (2, 2)), true),
        in_rack(class("medium", 450, (500, 15_000), 100, (4, 4)), true),
        in_rack(class("large", 350, (1_000, 20_000), 200, (8, 8)), true),
        in_rack(class("small, preferred", 500, (300, 12_000), 100, (2, 2)), false),
        in_rack(class("medium, preferred", 500, (400, 16_000), 150, (4, 4)), false),
    ];
    Generator { cohorts: 2, queues: 3, quota: 850, borrowing: 1_700, nodes: 640, gpus: 8, classes }
}

/// 20 cohorts of 50 queues, 50 workloads each.
fn large_scale() -> Generator {
    let classes = vec![
        class("small", 35, (20, 50), 50, (1, 1)),
        class("medium", 10, (50, 100), 100, (1, 5)),
        class("large", 5, (200, 200), 200, (1, 20)),
    ];
    Generator { cohorts: 20, queues: 50, quota: 20, borrowing: 100, nodes: 1_000, gpus: 20, classes }
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    report.section(
        "FAST: Kueue's generators, engine and durable journal (one core; measured; jobs come and end in virtual time)",
    );
    let cases = [
        ("15,000 workloads in 30 queues", baseline(), "351.1 s = 42.7/s (mean of its CI, configs/baseline)"),
        ("15,000 gangs on 640 nodes, racks", topology(), "401.5 s = 37.4/s (mean of 10 CI runs, configs/tas)"),
        (
            "50,000 workloads in 1,000 queues",
            large_scale(),
            "1,179.4 s = 42.4/s (mean of 19 runs, configs/large-scale)",
        ),
    ];
    for (what, generator, peer) in cases {
        let outcome = play(&generator, effort)?;
        let what = format!("{what}: admissions");
        report.figure(&what, outcome.rate, "/s", Bar::AtLeast(5_000.0));
        report.note(&outcome.text);
        report.peer(&format!("Kueue {peer}."));
    }
    report.note(
        "Kueue's clock includes the jobs' running times and an API server and etcd write for each admission; ours",
    );
    report.note("counts deciding and one fsync for up to 512 requests. Neither runs pods.");
    Ok(())
}

/// What a generator came to.
struct Outcome {
    rate: f64,
    text: String,
}

/// A job that waits or runs.
struct Live {
    came: Timestamp,
    class: usize,
    is_admitted: bool,
}

/// Engine and journal, and what to do when.
struct Player {
    engine: Engine,
    journal: Journal,
    records: Vec<db::Entry>,
    requests: usize,
    commits: u32,
    now: Timestamp,
    ends: BinaryHeap<Reverse<(Timestamp, JobId, AttemptNumber)>>,
    running: BTreeMap<JobId, Running>,
    live: BTreeMap<JobId, Live>,
    /// For each class, first admissions and the sum of seconds waited for them.
    waited: Vec<(u32, f64)>,
    preemptions: u32,
}

impl Player {
    fn new(generator: &Generator, folder: &Path) -> Result<Self> {
        let _ = std::fs::remove_dir_all(folder);
        let (journal, _) = Journal::open(folder, db::Options::default()).context("open a journal in target/")?;
        let mut engine = Engine::new(Limits::default());
        for index in 0..generator.nodes {
            engine.apply(Timestamp::EPOCH, &Event::NodeJoined(node(index, generator.gpus, 64, 640)?))?;
        }
        engine.apply(Timestamp::EPOCH, &Event::Configured(Arc::new(sharing(generator)?)))?;
        Ok(Player {
            engine,
            journal,
            records: Vec::new(),
            requests: 0,
            commits: 0,
            now: Timestamp::EPOCH,
            ends: BinaryHeap::new(),
            running: BTreeMap::new(),
            live: BTreeMap::new(),
            waited: vec![(0, 0.0); generator.classes.len()],
            preemptions: 0,
        })
    }

    /// Applies an event, notes it and its decisions, and lets the jobs it starts run.
    fn apply(&mut self, event: Event, classes: &[Class]) -> Result<()> {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let decisions = self.engine.apply(self.now, &event)?;
            for started in placed(&decisions) {
                events.extend(started.started());
                self.start(started, classes)?;
            }
            events.extend(decisions.iter().flat_map(|decision| self.stop(decision)));
            self.note(&Entry::Event(event));
            for decision in decisions {
                self.note(&Entry::Decision(decision));
            }
            self.requests += 1;
            if self.requests >= REQUESTS_PER_COMMIT {
                self.commit()?;
            }
        }
        Ok(())
    }

    fn start(&mut self, started: Running, classes: &[Class]) -> Result<()> {
        let live = self.live.get_mut(&started.job).context("only a job that was submitted is placed")?;
        if !std::mem::replace(&mut live.is_admitted, true) {
            self.waited[live.class].0 += 1;
            self.waited[live.class].1 += self.now.since(live.came).as_secs_f64();
        }
        let end = self.now + Duration::from_millis(classes[live.class].runtime_ms);
        self.ends.push(Reverse((end, started.job, started.attempt)));
        self.running.insert(started.job, started);
        Ok(())
    }

    /// What is asked to stop does so at once, and waits again.
    fn stop(&mut self, decision: &Decision) -> Vec<Event> {
        let Decision::Stop { job, .. } = decision else { return Vec::new() };
        let Some(running) = self.running.remove(job) else { return Vec::new() };
        self.preemptions += 1;
        running.ended(&ShareEnd::Stopped).collect()
    }

    fn note(&mut self, entry: &Entry) {
        self.records.push(db::Entry { at: self.now, body: encode_entry(entry) });
    }

    fn commit(&mut self) -> Result<()> {
        self.journal
            .commit(Batch {
                records: &self.records,
                given_out: JobId(0),
                changes: gangline_store::ports::Changes::none(),
            })
            .context("commit")?;
        self.records.clear();
        self.requests = 0;
        self.commits += 1;
        Ok(())
    }

    fn end(&mut self, job: JobId, attempt: AttemptNumber, classes: &[Class]) -> Result<()> {
        if self.running.get(&job).is_none_or(|running| running.attempt != attempt) {
            // It was stopped before its end.
            return Ok(());
        }
        let Some(ending) = self.running.remove(&job) else { return Ok(()) };
        for event in ending.ended(&ShareEnd::Succeeded) {
            self.apply(event, classes)?;
        }
        self.live.remove(&job);
        Ok(())
    }
}

/// A submission of a generator: when, which class, in which queue (both by number).
type Arrival = (Timestamp, usize, u32);

fn arrivals(generator: &Generator, share: u32) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for queue in 0..generator.cohorts * generator.queues {
        for (number, class) in generator.classes.iter().enumerate() {
            let times =
                (1..=u64::from(class.count / share)).map(|turn| Duration::from_millis(turn * class.interval_ms));
            arrivals.extend(times.map(|time| (Timestamp::EPOCH + time, number, queue)));
        }
    }
    arrivals.sort_unstable();
    arrivals
}

fn play(generator: &Generator, effort: Effort) -> Result<Outcome> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench-scheduler");
    let mut player = Player::new(generator, &folder)?;
    let arrivals = arrivals(generator, effort.of(1, 5));
    let specs = specs(generator)?;
    let began = Instant::now();
    let mut left = arrivals.iter().peekable();
    loop {
        let ending = player.ends.peek().map(|Reverse((at, ..))| *at);
        let coming = left.peek().map(|(at, ..)| *at);
        let Some(now) = ending.into_iter().chain(coming).min() else { break };
        player.now = now;
        if ending == Some(now) {
            let Some(Reverse((_, job, attempt))) = player.ends.pop() else { continue };
            player.end(job, attempt, &generator.classes)?;
        } else if let Some((came, class, queue)) = left.next() {
            let live = Live { came: *came, class: *class, is_admitted: false };
            player.live.insert(player.engine.next_job_id(), live);
            player.apply(Event::JobSubmitted(specs[&(*queue, *class)].clone()), &generator.classes)?;
        }
    }
    player.commit()?;
    let seconds = began.elapsed().as_secs_f64();
    let admitted: u32 = player.waited.iter().map(|(count, _)| count).sum();
    ensure!(admitted as usize == arrivals.len(), "{admitted} of {} workloads were admitted", arrivals.len());
    let means: Vec<String> = generator.classes.iter().zip(&player.waited).map(mean).collect();
    let (commits, preemptions) = (player.commits, player.preemptions);
    drop(player);
    std::fs::remove_dir_all(&folder).context("remove target/bench-scheduler")?;
    let text = format!(
        "{admitted} in {seconds:.2} s, {commits} fsyncs, {preemptions} preemptions; simulated mean time to admission: {}",
        means.join(", ")
    );
    Ok(Outcome { rate: f64::from(admitted) / seconds, text })
}

fn mean((class, (count, seconds)): (&Class, &(u32, f64))) -> String {
    format!("{} {:.1} s", class.name, seconds / f64::from((*count).max(1)))
}

fn queue_name(queue: u32) -> String {
    format!("queue-{queue:04}")
}

fn specs(generator: &Generator) -> Result<BTreeMap<(u32, usize), Arc<JobSpec>>> {
    let mut specs = BTreeMap::new();
    for queue in 0..generator.cohorts * generator.queues {
        for (number, class) in generator.classes.iter().enumerate() {
            let Class { priority, topology, nodes, gpus, .. } = class;
            let gang =
                Gang { queue: queue_name(queue), priority: *priority, topology: *topology, ..Gang::of(*nodes, *gpus) };
            specs.insert((queue, number), gang.spec()?);
        }
    }
    Ok(specs)
}

fn sharing(generator: &Generator) -> Result<Configuration> {
    let weight = NonZeroU32::MIN;
    let amount = |amount| BTreeMap::from([(AcceleratorKind("H100".to_owned()), amount)]);
    let mut queues = Vec::new();
    for cohort in 0..generator.cohorts {
        let parent = QueueName::new(&format!("cohort-{cohort}"))?;
        let quota = amount(generator.queues * generator.quota);
        // What the cohort's queues leave idle is lent within the cohort only.
        queues.push(QueueSpec { name: parent.clone(), parent: None, weight, quota, borrowing_limit: amount(0) });
        for queue in cohort * generator.queues..(cohort + 1) * generator.queues {
            let name = QueueName::new(&queue_name(queue))?;
            let (quota, borrowing_limit) = (amount(generator.quota), amount(generator.borrowing));
            queues.push(QueueSpec { name, parent: Some(parent.clone()), weight, quota, borrowing_limit });
        }
    }
    // As there: a queue takes its quota back, higher priorities go first within a queue, at once.
    let preemption = PreemptionRules { runtime_min: Duration::ZERO, ..PreemptionRules::default() };
    Ok(Configuration { queues, preemption, ..Configuration::default() })
}
