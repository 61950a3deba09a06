//! Where a scenario plays: an engine, a virtual clock, and the names that the script uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, CheckpointPolicy, DeviceLayout, Elastic, GangShape, Grid, HangTimeout, JobId,
    JobSpec, Launch, Level, NodeId, NodeName, Program, RecoveryPolicy, SpeedUp, Step, Submitter, SweepId, SweepRules,
    SweepSpec, Timestamp,
};
use gangline_orchestration::{
    CachedDataset, Configuration, Decision, Engine, Entry, Event, Fate, FaultCause, JobState, Limits, Location,
    NodeCache, NodeCapacity, NodeSpec, Refusal, ShareEnd, ShareState,
};

use super::command::{Command, Racks, Report, Wanted};

/// Timers that may go off in one `advance`.
const TICKS_MAX: u32 = 10_000;

/// An engine, its clock and its journal.
pub(super) struct Stage {
    pub(super) engine: Engine,
    pub(super) clock: Timestamp,
    pub(super) jobs: BTreeMap<String, JobId>,
    pub(super) names: BTreeMap<JobId, String>,
    pub(super) fates: BTreeMap<JobId, Fate>,
    journal: Vec<(Timestamp, Entry)>,
    default_kind: Option<AcceleratorKind>,
    output: Vec<String>,
}

impl Stage {
    pub(super) fn new() -> Self {
        Stage {
            engine: Engine::new(Limits::default()),
            clock: Timestamp::EPOCH,
            jobs: BTreeMap::new(),
            names: BTreeMap::new(),
            fates: BTreeMap::new(),
            journal: Vec::new(),
            default_kind: None,
            output: Vec::new(),
        }
    }

    /// Plays one command and returns what it prints.
    pub(super) fn play(&mut self, command: Command) -> Result<Vec<String>, String> {
        match command {
            Command::Cluster { racks: None, nodes, capacity } => (1..=nodes).try_for_each(|number| {
                self.join(&format!("n{number}"), capacity.clone(), Location::default(), DeviceLayout::default())
            })?,
            Command::Cluster { racks: Some(racks), nodes, capacity } => self.join_racks(racks, nodes, &capacity)?,
            Command::Node { name, capacity, location, layout } => self.join(&name, capacity, location, layout)?,
            Command::Fabric(fabric) => self.configure(|configuration| configuration.fabric = Some(fabric))?,
            Command::Suspicion(policy) => self.configure(|configuration| configuration.health = Some(policy))?,
            Command::Submit { name, wanted } => self.submit(name, wanted)?,
            Command::DryRun { wanted } => {
                let spec = self.spec("dry-run", wanted)?;
                let lines = self.dry_run_lines(&spec);
                self.output.extend(lines);
            }
            Command::Sweep { name, points, rules, wanted } => self.sweep(&name, points, rules, wanted)?,
            Command::Metric { job, step, value } => {
                let job = self.job(&job)?;
                let attempt = self.engine.job(job).and_then(|job| job.attempt()).ok_or("it isn't running")?.number;
                self.apply(&Event::MetricReported { job, attempt, step: Step(step), value })?;
            }
            Command::CancelSweep { name } => {
                let sweep = SweepId(self.job(&format!("{name}/1"))?);
                self.apply(&Event::SweepCancelRequested { sweep, by: Submitter("ada".to_owned()) })?;
            }
            Command::Price { kind, price } => {
                let mut configuration = self.engine.configuration().clone();
                configuration.prices.insert(kind, price);
                self.apply(&Event::Configured(Arc::new(configuration)))?;
            }
            Command::Advance(duration) => self.advance(duration)?,
            Command::Report { job, on, attempt, what } => self.report(&job, on.as_deref(), attempt, what)?,
            Command::Cancel { job } => {
                let event = Event::CancelRequested { job: self.job(&job)?, by: Submitter("ada".to_owned()) };
                self.apply(&event)?;
            }
            Command::Fail { node } => self.apply(&Event::NodeLost { node: self.node(&node)? })?,
            Command::Drain { node, within } => {
                self.apply(&Event::DrainRequested { node: self.node(&node)?, within })?;
            }
            Command::Queue(queue) => self.configure(|sharing| sharing.queues.push(queue))?,
            Command::Preemption(rules) => self.configure(|sharing| sharing.preemption = rules)?,
            Command::Spares(rules) => self.configure(|sharing| sharing.spares = rules)?,
            Command::HalfLife(half_life) => self.configure(|sharing| sharing.half_life = half_life)?,
            Command::Reserve(reservation) => self.configure(|sharing| sharing.reservations.push(reservation))?,
            Command::Undrain { node } => self.apply(&Event::DrainCancelled { node: self.node(&node)? })?,
            Command::Cached { node, held } => {
                let held = held.into_iter().map(|(dataset, here)| CachedDataset { dataset, here, total: here });
                let cache = NodeCache { folder: "/cache".to_owned(), datasets: held.collect() };
                self.apply(&Event::DatasetsCached { node: self.node(&node)?, cache })?
            }
            Command::Rejoin { node, capacity } => {
                let id = self.node(&node)?;
                let known = self.engine.cluster().node(id).ok_or("it is unknown")?.spec.clone();
                self.join(&node, capacity.unwrap_or(known.capacity), known.location, known.layout)?;
            }
            Command::Restart { losing, after } => self.restart(losing, after)?,
            Command::Show(subject) => {
                let lines = self.show_lines(&subject)?;
                self.output.extend(lines);
            }
            Command::Explain { job } => {
                let line = self.explain_line(&job)?;
                self.output.push(line);
            }
        }
        Ok(std::mem::take(&mut self.output))
    }

    /// The job of this name.
    pub(super) fn job(&self, name: &str) -> Result<JobId, String> {
        self.jobs.get(name).copied().ok_or_else(|| format!("there is no job \"{name}\""))
    }

    fn node(&self, name: &str) -> Result<NodeId, String> {
        let checked = NodeName::new(name).map_err(|e| e.to_string())?;
        self.engine.node_id(&checked).ok_or_else(|| format!("there is no node \"{name}\""))
    }

    fn apply(&mut self, event: &Event) -> Result<(), String> {
        match self.engine.apply(self.clock, event) {
            Err(refusal) => {
                self.output.push(format!("{} refused: {refusal}", self.time(self.clock)));
                if let Refusal::NeverFits(fit) = refusal {
                    self.output.push(format!("  what would fit: {}", fit.what_would_fit()));
                }
            }
            Ok(decisions) => {
                if *event != Event::TimePassed {
                    self.journal.push((self.clock, Entry::Event(event.clone())));
                }
                for decision in decisions {
                    self.output.push(self.decision_line(&decision));
                    if let Decision::End { job, fate } = &decision {
                        self.fates.insert(*job, *fate);
                    }
                    self.journal.push((self.clock, Entry::Decision(decision)));
                }
            }
        }
        self.engine.check_invariants().map_err(|violation| violation.to_string())
    }

    fn configure(&mut self, change: impl FnOnce(&mut Configuration)) -> Result<(), String> {
        let mut sharing = self.engine.configuration().clone();
        change(&mut sharing);
        self.apply(&Event::Configured(Arc::new(sharing)))
    }

    /// So many nodes in each rack, numbered throughout.
    fn join_racks(&mut self, racks: Racks, nodes: u32, capacity: &NodeCapacity) -> Result<(), String> {
        (0..racks.racks.saturating_mul(nodes)).try_for_each(|number| {
            let rack = number / nodes;
            let block = racks.in_a_block.map(|racks| (Level::Block, format!("b{}", rack / racks + 1)));
            let location = block.into_iter().chain([(Level::Rack, format!("r{}", rack + 1))]).collect();
            self.join(&format!("n{}", number + 1), capacity.clone(), location, DeviceLayout::default())
        })
    }

    fn join(
        &mut self,
        name: &str,
        capacity: NodeCapacity,
        location: Location,
        layout: DeviceLayout,
    ) -> Result<(), String> {
        let name = NodeName::new(name).map_err(|e| e.to_string())?;
        self.default_kind.get_or_insert_with(|| capacity.accelerator.clone());
        self.apply(&Event::NodeJoined(NodeSpec { name, capacity, location, layout }))
    }

    fn submit(&mut self, name: String, wanted: Wanted) -> Result<(), String> {
        if self.jobs.contains_key(&name) {
            return Err(format!("there is a job \"{name}\" already"));
        }
        let spec = self.spec(&name, wanted)?;
        let id = self.engine.next_job_id();
        self.names.insert(id, name.clone());
        self.apply(&Event::JobSubmitted(Arc::new(spec)))?;
        if self.engine.next_job_id() == id {
            self.names.remove(&id);
            return Ok(());
        }
        self.output.insert(0, format!("{} {name} is {id}", self.time(self.clock)));
        if let Some(explanation) = self.engine.explain(self.clock, id) {
            self.output.push(format!("{} {name} waits: {}", self.time(self.clock), explanation.blocker));
        }
        self.jobs.insert(name, id);
        Ok(())
    }

    fn sweep(&mut self, name: &str, points: u32, rules: SweepRules, wanted: Wanted) -> Result<(), String> {
        let (job, first) = (Arc::new(self.spec(name, wanted)?), self.engine.next_job_id());
        let numbers: Vec<String> = (1..=points).map(|number| number.to_string()).collect();
        let ids = (first.0..).map(JobId);
        let named: Vec<_> = numbers.iter().map(|number| format!("{name}/{number}")).zip(ids).collect();
        self.names.extend(named.iter().map(|(name, id)| (*id, name.clone())));
        let grid = Grid::new(vec![("N".to_owned(), numbers)]);
        self.apply(&Event::SweepSubmitted(Arc::new(SweepSpec { job, grid, rules })))?;
        if self.engine.next_job_id() == first {
            self.names.retain(|id, _| *id < first);
            return Ok(());
        }
        self.output.insert(0, format!("{} {name} is {}, {} jobs", self.time(self.clock), SweepId(first), named.len()));
        self.jobs.extend(named);
        Ok(())
    }

    fn spec(&self, name: &str, wanted: Wanted) -> Result<JobSpec, String> {
        let accelerator = wanted.kind.or(self.default_kind.clone()).ok_or("no node has joined yet: say kind=")?;
        let at_least_one = |count: u32| count.try_into().map_err(|_| "a gang needs a device".to_owned());
        let nodes = at_least_one(wanted.nodes)?;
        Ok(JobSpec {
            name: name.to_owned(),
            queue: wanted.queue,
            priority: wanted.priority,
            gang: GangShape {
                nodes,
                pool: wanted.pool,
                accelerator,
                accelerators_per_node: at_least_one(wanted.per_node)?,
                cpus_per_node: wanted.cpus,
                memory_per_node: wanted.memory,
                launch: Launch::PerAccelerator,
                topology: wanted.topology,
            },
            elastic: wanted.nodes_max.map(|nodes_max| {
                let speed_up = SpeedUp::assumed(nodes, nodes_max);
                Elastic { nodes_max, speed_up }
            }),
            program: Program {
                workdir: "/".to_owned(),
                code: None,
                container: None,
                envs: BTreeMap::new(),
                setup: None,
                run: "true".to_owned(),
            },
            checkpoint: CheckpointPolicy {
                path: wanted.has_checkpoint.then(|| format!("/checkpoints/{name}")),
                is_shared: false,
                grace: Duration::from_secs(60),
            },
            recovery: RecoveryPolicy {
                max_faults: wanted.max_faults,
                no_progress_limit: wanted.no_progress,
                hang_timeout: HangTimeout::Learned,
                evicts_stragglers: false,
            },
            time_limit: wanted.limit,
            budget: wanted.budget,
            spares: wanted.spares,
            datasets: wanted.datasets,
            planned: None,
            pins: Default::default(),
            after: Default::default(),
            notify: Default::default(),
            origin: None,
            submitter: Submitter("ada".to_owned()),
        })
    }

    fn advance(&mut self, duration: Duration) -> Result<(), String> {
        let target = self.clock + duration;
        let mut ticks = 0;
        while let Some(deadline) = self.engine.next_deadline().filter(|deadline| *deadline <= target) {
            ticks += 1;
            if ticks > TICKS_MAX {
                return Err(format!("{TICKS_MAX} timers went off before the time was over"));
            }
            self.clock = self.clock.max(deadline);
            self.apply(&Event::TimePassed)?;
        }
        self.clock = target;
        self.apply(&Event::TimePassed)
    }

    fn report(&mut self, name: &str, on: Option<&str>, attempt: Option<u32>, what: Report) -> Result<(), String> {
        let job = self.job(name)?;
        let on = on.map(|on| self.node(on)).transpose()?;
        let current = self.engine.job(job).and_then(|job| job.attempt());
        let number = match attempt {
            Some(number) => AttemptNumber(number),
            None => current.ok_or_else(|| format!("{name} isn't running"))?.number,
        };
        if let Report::Checkpoint { step } = what {
            return self.apply(&Event::CheckpointCommitted { job, attempt: number, step: Step(step) });
        }
        let nodes: Vec<NodeId> = match on {
            Some(node) => vec![node],
            None => self.live_nodes(job),
        };
        let is_exit = matches!(what, Report::Exited { .. } | Report::Killed { .. });
        if nodes.is_empty() || (is_exit && nodes.len() > 1) {
            return Err(format!("{name} runs on {} nodes: say which with \"on NODE\"", nodes.len()));
        }
        for node in nodes {
            let event = match self.share_end(what) {
                None => Event::ShareStarted { job, attempt: number, node },
                Some(end) => Event::ShareEnded { job, attempt: number, node, end },
            };
            self.apply(&event)?;
        }
        Ok(())
    }

    fn live_nodes(&self, job: JobId) -> Vec<NodeId> {
        let Some(JobState::Allocated(attempt)) = self.engine.job(job).map(|job| &job.state) else { return Vec::new() };
        let shares = attempt.shares.iter().zip(&attempt.states);
        shares.filter(|(_, state)| !matches!(state, ShareState::Ended(_))).map(|(share, _)| share.node).collect()
    }

    fn share_end(&self, what: Report) -> Option<ShareEnd> {
        let ago = |ago: Duration| {
            let nanos = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            Timestamp::from_unix_nanos(self.clock.unix_nanos().saturating_sub(nanos))
        };
        match what {
            Report::Started | Report::Checkpoint { .. } => None,
            Report::Succeeded | Report::Exited { code: 0, .. } => Some(ShareEnd::Succeeded),
            Report::Stopped => Some(ShareEnd::Stopped),
            Report::Exited { code: 93, .. } => Some(ShareEnd::DoNotRestart),
            Report::Exited { code: 94, .. } => Some(ShareEnd::Requeue),
            Report::Exited { code, noticed_ago } => Some(ShareEnd::fault(FaultCause::Exit(code), ago(noticed_ago))),
            Report::Killed { signal, noticed_ago } => {
                Some(ShareEnd::fault(FaultCause::Signal(signal), ago(noticed_ago)))
            }
        }
    }

    /// The control plane starts again from its journal, and from a snapshot; both have to give the state before.
    fn restart(&mut self, losing: usize, after: Duration) -> Result<(), String> {
        let is_decision = |(_, entry): &&(Timestamp, Entry)| matches!(entry, Entry::Decision(_));
        if self.journal.iter().rev().take_while(is_decision).count() < losing {
            return Err(format!("the journal doesn't end with {losing} decision(s)"));
        }
        self.journal.truncate(self.journal.len() - losing);
        let mut replayed = Engine::new(Limits::default());
        for (at, entry) in &self.journal {
            replayed.replay(*at, entry).map_err(|e| format!("the journal doesn't replay: {e}"))?;
        }
        if losing == 0 && replayed.snapshot() != self.engine.snapshot() {
            return Err("the replayed state differs from the one before".to_owned());
        }
        let restored = Engine::restore(Limits::default(), replayed.snapshot()).map_err(|e| e.to_string())?;
        if restored.snapshot() != replayed.snapshot() {
            return Err("the restored state differs from the replayed one".to_owned());
        }
        self.engine = restored;
        self.clock = self.clock + after;
        self.output.push(format!("{} restarted from {} journal entries", self.time(self.clock), self.journal.len()));
        self.apply(&Event::TimePassed)
    }
}
