//! The words of a scenario: one line is one command. Everything unknown is an error that says what was expected.
//!
//! ```text
//! cluster 4 nodes x 8 h100 [cpus=64 memory=512GiB]      nodes n1 to n4 join
//! cluster 2 racks x 4 nodes x 8 h100 [in-a-block=2]     racks r1, r2 of nodes n1 to n8; blocks b1, ...
//! node NAME 2 cpu [cpus=8 memory=16GiB pool=inference rack=r1 block=b1] a node joins
//!                        islands=0-3,4-7 sockets=0-7    its accelerators' groups, by the links that join them
//! fabric node=3600 rack=400 block=100 [ports=8]         what a port carries within each level, in Gbit/s
//! suspicion faults=3 half-life=24h                      when a node's own faults make it suspect
//! queue NAME [quota=8 borrow=8 weight=2 parent=NAME kind=h100]  the administrator adds a queue
//! preemption [reclaim=on by-priority=on share-time=off consolidate=off min-runtime=5m]  the administrator says who may be stopped for whom
//! spares h100=2 | spares confidence=950 repair=24h      nodes kept for jobs that lose one; in thousandths how surely
//! half-life 24h                                         after so long, use counts half against a queue's share
//! reserve NAME nodes=n1,n2 from=10h until=20h [queues=a,b] nodes are set apart from one time until another
//! submit NAME gang=16 [queue=NAME per-node=8 kind=h100 cpus=8 memory=64GiB priority=high limit=1h require=rack
//!                        pool=inference prefer=nvlink segment=2@rack max-faults=2 no-progress=3 checkpoint]
//!                        spares=1 datasets=c4,pile       standby nodes while it runs; what it reads
//!                        max-nodes=4                     it may be resized up to so many nodes
//! sweep NAME points=6 gang=1 [parallel=2 goal=maximize early-stop=100/3 ...]
//!                                                       jobs NAME/1 to NAME/6; the best third goes on at 100, 300, ...
//! metric JOB 100 2.31                                   the job's metric at step 100; NaN if it has diverged
//! cancel-sweep NAME                                     a user wants all its jobs gone
//! price h100 2.50                                       what an accelerator-hour costs; submit NAME budget=100 ...
//! dry-run gang=16 [...]                                 where it would run, or why not
//! advance 10m                                           time goes by; timers go off on the way
//! start JOB [on NODE]                                   the ranks run (on every node of the gang)
//! finish JOB [on NODE]                                  the ranks exit 0
//! stopped JOB [on NODE]                                 the ranks are gone as they were told to, or as orphans
//! exit JOB 1 [on NODE] [noticed=3s]                     a rank exits with 1 (93: do not restart; 94: queue me again)
//! signal JOB 9 [on NODE] [noticed=3s]                   a rank is killed by a signal; noticed so long ago
//! checkpoint JOB 100                                    a checkpoint of step 100 is durable
//! cancel JOB                                            a user wants it gone
//! cached NODE [c4=3GiB ...]                             what the node's cache holds of datasets, all that it does
//! fail|drain|undrain NODE [within=10m]                  the node is lost, drained (perhaps by a deadline), no longer drained
//! rejoin NODE [4 h100 cpus=8 memory=16GiB]              it comes back, perhaps with another capacity
//! restart [losing 1] [after 2h]                         the control plane dies, perhaps before its last decisions reached the
//!                                                       journal, and is back at once or later
//! show queue|queues|nodes|JOB, explain JOB
//! ```
//!
//! `attempt=1` after a report about a job speaks of that attempt instead of the current one.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, DeviceLayout, EarlyStop, Goal, Level, MetricValue, Money, NodeName, PoolName, Priority,
    QueueName, Reduction, Segment, SweepRules, Timestamp, TopologyRequest,
};
use gangline_orchestration::{
    AdvanceReservation, Fabric, FabricKind, HealthPolicy, Location, NodeCapacity, PreemptionRules, QueueSpec,
    SpareRules, SpareSizing,
};

use super::machine::layout;

/// One command.
#[derive(Debug)]
pub(super) enum Command {
    Cluster { racks: Option<Racks>, nodes: u32, capacity: NodeCapacity },
    Node { name: String, capacity: NodeCapacity, location: Location, layout: DeviceLayout },
    Fabric(Fabric),
    Suspicion(HealthPolicy),
    Queue(QueueSpec),
    Preemption(PreemptionRules),
    Spares(SpareRules),
    HalfLife(Duration),
    Reserve(AdvanceReservation),
    Submit { name: String, wanted: Wanted },
    Sweep { name: String, points: u32, rules: SweepRules, wanted: Wanted },
    Metric { job: String, step: u64, value: MetricValue },
    CancelSweep { name: String },
    Price { kind: AcceleratorKind, price: Money },
    DryRun { wanted: Wanted },
    Advance(Duration),
    Report { job: String, on: Option<String>, attempt: Option<u32>, what: Report },
    Cancel { job: String },
    Fail { node: String },
    Drain { node: String, within: Option<Duration> },
    Undrain { node: String },
    Cached { node: String, held: Vec<(String, Bytes)> },
    Rejoin { node: String, capacity: Option<NodeCapacity> },
    Restart { losing: usize, after: Duration },
    Show(Subject),
    Explain { job: String },
}

/// How a cluster's nodes are spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Racks {
    pub(super) racks: u32,
    pub(super) in_a_block: Option<NonZeroU32>,
}

/// What a supervisor reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum Report {
    Started,
    Succeeded,
    Stopped,
    Exited { code: i32, noticed_ago: Duration },
    Killed { signal: i32, noticed_ago: Duration },
    Checkpoint { step: u64 },
}

/// What is shown.
#[derive(Debug)]
pub(super) enum Subject {
    Queue,
    Queues,
    Nodes,
    Job(String),
}

/// What a job asks for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) queue: QueueName,
    pub(super) nodes: u32,
    pub(super) per_node: u32,
    pub(super) kind: Option<AcceleratorKind>,
    pub(super) cpus: u32,
    pub(super) memory: Bytes,
    pub(super) priority: Priority,
    pub(super) limit: Option<Duration>,
    pub(super) nodes_max: Option<NonZeroU32>,
    pub(super) budget: Option<Money>,
    pub(super) spares: u32,
    pub(super) datasets: BTreeSet<String>,
    pub(super) max_faults: u32,
    pub(super) no_progress: u32,
    pub(super) has_checkpoint: bool,
    pub(super) topology: TopologyRequest,
    pub(super) pool: PoolName,
}

/// Reads one line.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let mut words = Words::of(line)?;
    let verb = words.next("a command")?;
    let command = match verb {
        "cluster" => {
            let racks = words.racks()?;
            let nodes = words.number("how many nodes")?;
            words.expect("nodes")?;
            words.expect("x")?;
            Command::Cluster { racks, nodes, capacity: words.capacity()? }
        }
        "node" => {
            let (name, location) = (words.name("a node")?, words.location());
            Command::Node { name, layout: words.layout()?, capacity: words.capacity()?, location }
        }
        "fabric" => Command::Fabric(words.fabric()?),
        "suspicion" => Command::Suspicion(HealthPolicy {
            suspect_at: words.option("faults").ok_or("faults= is missing").map_err(str::to_owned).and_then(number)?,
            half_life: words.option("half-life").map_or(Ok(HealthPolicy::DEFAULT.half_life), duration)?,
        }),
        "submit" => Command::Submit { name: words.name("a name for the job")?, wanted: words.wanted()? },
        "sweep" => {
            let (name, points, rules) = (words.name("a name")?, words.option("points"), words.sweep_rules()?);
            let points = points.ok_or("points=COUNT is missing").map_err(str::to_owned).and_then(number)?;
            Command::Sweep { name, points, rules, wanted: words.wanted()? }
        }
        "metric" => {
            let (job, step) = (words.name("a job")?, words.number("a step")?);
            Command::Metric { job, step, value: MetricValue::from_reported(words.number("a value")?) }
        }
        "cancel-sweep" => Command::CancelSweep { name: words.name("a sweep")? },
        "price" => {
            let kind = AcceleratorKind(words.name("a kind of accelerator")?);
            Command::Price { kind, price: words.number("dollars")? }
        }
        "dry-run" => Command::DryRun { wanted: words.wanted()? },
        "advance" => Command::Advance(duration(words.next("a time such as 10m")?)?),
        "start" | "finish" | "stopped" | "exit" | "signal" | "checkpoint" => report(verb, &mut words)?,
        "cancel" => Command::Cancel { job: words.name("a job")? },
        "fail" => Command::Fail { node: words.name("a node")? },
        "queue" => Command::Queue(words.queue()?),
        "preemption" => Command::Preemption(words.preemption()?),
        "spares" => Command::Spares(words.spares()?),
        "half-life" => Command::HalfLife(duration(words.next("a time such as 24h")?)?),
        "reserve" => Command::Reserve(words.reservation()?),
        "drain" => {
            Command::Drain { within: words.option("within").map(duration).transpose()?, node: words.name("a node")? }
        }
        "undrain" => Command::Undrain { node: words.name("a node")? },
        "cached" => Command::Cached { node: words.name("a node")?, held: words.held()? },
        "rejoin" => Command::Rejoin { node: words.name("a node")?, capacity: words.new_capacity()? },
        "restart" => Command::Restart {
            losing: words.after("losing")?.map_or(Ok(0), number)?,
            after: words.after("after")?.map_or(Ok(Duration::ZERO), duration)?,
        },
        "show" => Command::Show(match words.next("queue, nodes or a job")? {
            "queue" => Subject::Queue,
            "queues" => Subject::Queues,
            "nodes" => Subject::Nodes,
            job => Subject::Job(job.to_owned()),
        }),
        "explain" => Command::Explain { job: words.name("a job")? },
        other => return Err(format!("there is no command \"{other}\"")),
    };
    words.finish()?;
    Ok(command)
}

fn report(verb: &str, words: &mut Words<'_>) -> Result<Command, String> {
    let job = words.name("a job")?;
    let on = words.after("on")?.map(str::to_owned);
    let attempt = words.option("attempt").map(number).transpose()?;
    let mut noticed_ago = || words.option("noticed").map_or(Ok(Duration::ZERO), duration);
    let what = match verb {
        "start" => Report::Started,
        "finish" => Report::Succeeded,
        "stopped" => Report::Stopped,
        "exit" => Report::Exited { noticed_ago: noticed_ago()?, code: words.number("an exit code")? },
        "signal" => Report::Killed { noticed_ago: noticed_ago()?, signal: words.number("a signal")? },
        _ => Report::Checkpoint { step: words.number("a step")? },
    };
    Ok(Command::Report { job, on, attempt, what })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number that fits here"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(split);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("\"{text}\" is not a time: write it as 500ms, 30s, 10m or 2h")),
    };
    number::<u32>(count).map(|count| Duration::from_millis(u64::from(count) * millis))
}

fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|error| error.to_string())
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("\"{text}\" is neither on nor off")),
    }
}

fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "low" => Ok(Priority::LOW),
        "normal" => Ok(Priority::NORMAL),
        "high" => Ok(Priority::HIGH),
        "urgent" => Ok(Priority::URGENT),
        _ => number(text).and_then(|n| Priority::new(n).ok_or_else(|| format!("{text} is above {}", Priority::MAX))),
    }
}

/// The words of a line that have not been read yet: plain ones in order, and `key=value`.
struct Words<'a> {
    words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Result<Self, String> {
        let (mut words, mut options) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                None => words.push(word),
                Some((key, value)) => {
                    if options.insert(key, value).is_some() {
                        return Err(format!("{key} is given twice"));
                    }
                }
            }
        }
        Ok(Words { words, options })
    }

    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        if self.words.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.words.remove(0)) }
    }

    fn name(&mut self, what: &str) -> Result<String, String> {
        self.next(what).map(str::to_owned)
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        self.next(what).and_then(number)
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(word)?;
        if found == word { Ok(()) } else { Err(format!("expected \"{word}\", found \"{found}\"")) }
    }

    fn option(&mut self, key: &str) -> Option<&'a str> {
        self.options.remove(key)
    }

    /// The word after `keyword`, wherever the two stand.
    fn after(&mut self, keyword: &str) -> Result<Option<&'a str>, String> {
        let Some(at) = self.words.iter().position(|word| *word == keyword) else { return Ok(None) };
        if at + 1 == self.words.len() {
            return Err(format!("what comes after \"{keyword}\" is missing"));
        }
        self.words.remove(at);
        Ok(Some(self.words.remove(at)))
    }

    fn flag(&mut self, flag: &str) -> bool {
        let at = self.words.iter().position(|word| *word == flag);
        at.map(|at| self.words.remove(at)).is_some()
    }

    fn memory(&mut self, default: Bytes) -> Result<Bytes, String> {
        self.option("memory").map_or(Ok(default), |text| text.parse().map_err(|e| format!("{e}")))
    }

    /// A capacity, if there is one.
    fn new_capacity(&mut self) -> Result<Option<NodeCapacity>, String> {
        if self.words.is_empty() { Ok(None) } else { self.capacity().map(Some) }
    }

    /// Names with bytes: all that is left of the line.
    fn held(&mut self) -> Result<Vec<(String, Bytes)>, String> {
        let all = std::mem::take(&mut self.options).into_iter();
        all.map(|(name, text)| Ok((name.to_owned(), text.parse().map_err(|e| format!("{e}"))?))).collect()
    }

    /// `2 racks x`, if that is what comes.
    fn racks(&mut self) -> Result<Option<Racks>, String> {
        if self.words.get(1) != Some(&"racks") {
            return Ok(None);
        }
        let racks = self.number("how many racks")?;
        self.expect("racks")?;
        self.expect("x")?;
        Ok(Some(Racks { racks, in_a_block: self.option("in-a-block").map(number).transpose()? }))
    }

    fn queue(&mut self) -> Result<QueueSpec, String> {
        let kind = AcceleratorKind(self.option("kind").unwrap_or("h100").to_owned());
        let mut amount = |key: &str| {
            let count = self.option(key).map(number).transpose()?;
            Ok::<_, String>(count.into_iter().map(|count| (kind.clone(), count)).collect())
        };
        Ok(QueueSpec {
            quota: amount("quota")?,
            borrowing_limit: amount("borrow")?,
            weight: self.option("weight").map_or(Ok(NonZeroU32::MIN), number)?,
            parent: self.option("parent").map(queue_name).transpose()?,
            name: queue_name(self.next("a name for the queue")?)?,
        })
    }

    fn preemption(&mut self) -> Result<PreemptionRules, String> {
        let default = PreemptionRules::default();
        Ok(PreemptionRules {
            reclaim: self.option("reclaim").map_or(Ok(default.reclaim), switch)?,
            by_priority: self.option("by-priority").map_or(Ok(default.by_priority), switch)?,
            share_time: self.option("share-time").map_or(Ok(default.share_time), switch)?,
            consolidate: self.option("consolidate").map_or(Ok(default.consolidate), switch)?,
            runtime_min: self.option("min-runtime").map_or(Ok(default.runtime_min), duration)?,
            ..default
        })
    }

    fn spares(&mut self) -> Result<SpareRules, String> {
        let repair = self.option("repair").map_or(Ok(Duration::from_hours(24)), duration)?;
        let confidence = self.option("confidence").map(number).transpose()?;
        let sizing = confidence.map(|confidence_milli| SpareSizing { confidence_milli, repair });
        let named = std::mem::take(&mut self.options).into_iter();
        let nodes = named.map(|(kind, nodes)| Ok((AcceleratorKind(kind.to_owned()), number(nodes)?)));
        Ok(SpareRules { nodes: nodes.collect::<Result<_, String>>()?, sizing })
    }

    fn reservation(&mut self) -> Result<AdvanceReservation, String> {
        let mut time = |key: &str| {
            let text = self.option(key).ok_or_else(|| format!("{key}=TIME is missing"))?;
            duration(text).map(|since_start| Timestamp::EPOCH + since_start)
        };
        let (from, until) = (time("from")?, time("until")?);
        let listed = |text: Option<&'a str>| text.into_iter().flat_map(|text| text.split(','));
        let node = |name: &str| NodeName::new(name).map_err(|error| error.to_string());
        let nodes = listed(self.option("nodes")).map(node).collect::<Result<_, _>>()?;
        let queues = listed(self.option("queues")).map(queue_name).collect::<Result<_, _>>()?;
        Ok(AdvanceReservation { name: self.name("a name for the reservation")?, nodes, from, until, queues })
    }

    fn layout(&mut self) -> Result<DeviceLayout, String> {
        layout(self.option("islands"), self.option("sockets"))
    }

    fn location(&mut self) -> Location {
        let named = |level: Level| self.option(level.name()).map(|name| (level, name.to_owned()));
        Level::ALL.into_iter().filter_map(named).collect()
    }

    fn fabric(&mut self) -> Result<Fabric, String> {
        let mut gbps = BTreeMap::new();
        for level in Level::ALL {
            if let Some(text) = self.option(level.name()) {
                gbps.insert(level, number(text)?);
            }
        }
        let (core, ports) = (self.option("core"), self.option("ports"));
        let kind = if gbps.contains_key(&Level::RailGroup) { FabricKind::RailOptimised } else { FabricKind::FatTree };
        Ok(Fabric { kind, gbps, core_gbps: core.map(number).transpose()?, rails: ports.map(number).transpose()? })
    }

    fn pool(&mut self) -> Result<PoolName, String> {
        let name = self.option("pool").unwrap_or(PoolName::DEFAULT);
        PoolName::new(name).map_err(|error| error.to_string())
    }

    fn topology(&mut self) -> Result<TopologyRequest, String> {
        let level = |text: &str| text.parse::<Level>().map_err(|error| error.to_string());
        let segment = |text: &str| {
            let (nodes, at) = text.split_once('@').ok_or_else(|| format!("\"{text}\" is not like 2@rack"))?;
            Ok::<_, String>(Segment { nodes: number(nodes)?, level: level(at)? })
        };
        Ok(TopologyRequest {
            require: self.option("require").map(level).transpose()?,
            prefer: self.option("prefer").map(level).transpose()?,
            segment: self.option("segment").map(segment).transpose()?,
        })
    }

    fn capacity(&mut self) -> Result<NodeCapacity, String> {
        Ok(NodeCapacity {
            pool: self.pool()?,
            accelerators: self.number("how many accelerators")?,
            accelerator: AcceleratorKind(self.name("a kind of accelerator")?),
            cpus: self.option("cpus").map_or(Ok(64), number)?,
            memory: self.memory(Bytes(512 << 30))?,
        })
    }

    fn wanted(&mut self) -> Result<Wanted, String> {
        let gang: u32 = self.option("gang").ok_or("gang=DEVICES is missing").map_err(str::to_owned).and_then(number)?;
        let per_node = self.option("per-node").map_or(Ok(gang), number)?;
        if per_node == 0 || gang == 0 || !gang.is_multiple_of(per_node) {
            return Err(format!("gang={gang} is not a multiple of per-node={per_node}"));
        }
        let max_faults: u32 = self.option("max-faults").map_or(Ok(10), number)?;
        let has_checkpoint = self.flag("checkpoint");
        // As in a job file: without a folder for checkpoints, only the budget ends a job unless more is asked for.
        let no_progress_default = if has_checkpoint { 3 } else { max_faults.saturating_add(1) };
        Ok(Wanted {
            queue: queue_name(self.option("queue").unwrap_or("default"))?,
            nodes: gang / per_node,
            per_node,
            kind: self.option("kind").map(|kind| AcceleratorKind(kind.to_owned())),
            cpus: self.option("cpus").map_or(Ok(0), number)?,
            memory: self.memory(Bytes(0))?,
            priority: self.option("priority").map_or(Ok(Priority::NORMAL), priority)?,
            limit: self.option("limit").map(duration).transpose()?,
            nodes_max: self.option("max-nodes").map(number).transpose()?,
            spares: self.option("spares").map_or(Ok(0), number)?,
            datasets: self.option("datasets").into_iter().flat_map(|it| it.split(',')).map(str::to_owned).collect(),
            budget: self.option("budget").map(number).transpose()?,
            max_faults,
            no_progress: self.option("no-progress").map_or(Ok(no_progress_default), number)?,
            has_checkpoint,
            topology: self.topology()?,
            pool: self.pool()?,
        })
    }

    fn sweep_rules(&mut self) -> Result<SweepRules, String> {
        let goal = match self.option("goal") {
            None | Some("minimize") => Goal::Minimize,
            Some("maximize") => Goal::Maximize,
            Some(other) => return Err(format!("\"{other}\" is not minimize or maximize")),
        };
        let early_stop = |text: &str| {
            let (min_steps, reduction) = text.split_once('/').ok_or_else(|| format!("\"{text}\" is not like 100/3"))?;
            let reduction = Reduction::new(number(reduction)?).ok_or("a reduction is at least 2")?;
            Ok::<_, String>(EarlyStop { metric: "loss".to_owned(), goal, min_steps: number(min_steps)?, reduction })
        };
        Ok(SweepRules {
            max_parallel: self.option("parallel").map(number).transpose()?,
            early_stop: self.option("early-stop").map(early_stop).transpose()?,
        })
    }

    fn finish(self) -> Result<(), String> {
        let options = self.options.iter().map(|(key, value)| format!("{key}={value}"));
        match self.words.iter().map(|word| (*word).to_owned()).chain(options).next() {
            None => Ok(()),
            Some(word) => Err(format!("\"{word}\" is not understood here")),
        }
    }
}
