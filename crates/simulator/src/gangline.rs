//! The product's own engine as a policy: happenings become its events, and its decisions become actions.
//!
//! It learns what a control plane would tell it, and no true duration. Faults never exhaust a job's budget
//! here: a simulation runs every job to its end.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobId, JobSpec, Launch, Level, PoolName, Program,
    QueueName, RecoveryPolicy, Step, Submitter, Timestamp, TopologyRequest,
};
use gangline_orchestration::{Configuration, Decision, Engine, Event, FaultCause, Limits, NodeSpec, ShareEnd};

use super::policy::{Action, Happening, Manner, Place, Policy, View};
use super::workload::JobIndex;

/// How far the engine's limits are extended, so that restoring and a fault's time-out don't end a job that
/// would have kept within its limit.
const LIMIT_SLACK: Duration = Duration::from_hours(1);

/// The engine, and the mapping between its jobs and those of the trace.
pub(crate) struct Gangline {
    engine: Engine,
    nodes: Vec<NodeSpec>,
    ids: BTreeMap<JobIndex, JobId>,
    indices: BTreeMap<JobId, JobIndex>,
    steps: u64,
    /// The narrowest level whose domains nodes name; gangs prefer to be within one such domain.
    level_preferred: Option<Level>,
}

impl Gangline {
    pub(crate) fn new(nodes: &[NodeSpec], sharing: &Configuration) -> Self {
        let limits = Limits { requeues_max: u32::MAX, ..Limits::UNLIMITED };
        let mut engine = Engine::new(limits);
        for node in nodes {
            // A refusal leaves the node out; jobs that need it are reported as stuck.
            let _ = engine.apply(Timestamp::EPOCH, &Event::NodeJoined(node.clone()));
        }
        // As for a refused node: with an invalid configuration, jobs without a queue are stuck.
        let _ = engine.apply(Timestamp::EPOCH, &Event::Configured(Arc::new(sharing.clone())));
        let level_preferred = nodes.iter().filter_map(|node| node.location.iter().next()).map(|(level, _)| level).min();
        let (ids, indices) = (BTreeMap::new(), BTreeMap::new());
        Gangline { engine, nodes: nodes.to_vec(), ids, indices, steps: 0, level_preferred }
    }

    /// Returns the specification of a job: a gang on one node, or on whole nodes.
    fn spec(&self, view: &View<'_>, job: JobIndex) -> JobSpec {
        let trace = &view.workload.jobs[job.index()];
        let whole = self.nodes.iter().map(|node| node.capacity.accelerators).max().unwrap_or(1).max(1);
        let accelerator = self.nodes.first().map_or_else(|| AcceleratorKind(String::new()), kind_of);
        let pool = self.nodes.first().map_or_else(PoolName::default, |node| node.capacity.pool.clone());
        let count = |number: u32| NonZeroU32::new(number).expect("a trace job has an accelerator, and so has a node");
        let gang = GangShape {
            nodes: count(trace.gpus.div_ceil(whole)),
            pool,
            accelerator,
            accelerators_per_node: count(trace.gpus.min(whole)),
            cpus_per_node: 0,
            memory_per_node: Bytes(0),
            launch: Launch::PerAccelerator,
            topology: TopologyRequest { prefer: self.level_preferred, ..TopologyRequest::default() },
        };
        let queue = QueueName::new(view.workload.label(trace.queue)).or_else(|_| QueueName::new("default"));
        JobSpec {
            name: format!("line-{}", trace.line),
            queue: queue.expect("\"default\" is a name"),
            priority: view.priority(job),
            gang,
            elastic: None,
            program: Program {
                workdir: "/".to_owned(),
                code: None,
                container: None,
                envs: BTreeMap::new(),
                setup: None,
                run: String::new(),
            },
            checkpoint: CheckpointPolicy { path: Some("/".to_owned()), is_shared: true, grace: Duration::from_mins(5) },
            recovery: RecoveryPolicy {
                max_faults: u32::MAX,
                no_progress_limit: u32::MAX,
                hang_timeout: HangTimeout::Learned,
                evicts_stragglers: false,
            },
            time_limit: view.limit(job).map(|limit| limit + LIMIT_SLACK),
            budget: None,
            spares: 0,
            datasets: Default::default(),
            planned: None,
            pins: Default::default(),
            after: Default::default(),
            notify: Default::default(),
            origin: None,
            submitter: Submitter(view.workload.label(trace.user).to_owned()),
        }
    }

    fn events(&mut self, view: &View<'_>, happening: Happening) -> Vec<Event> {
        let fault = ShareEnd::fault(FaultCause::Exit(1), view.now);
        match happening {
            Happening::Submitted(job) => {
                let id = self.engine.next_job_id();
                self.ids.insert(job, id);
                self.indices.insert(id, job);
                vec![Event::JobSubmitted(Arc::new(self.spec(view, job)))]
            }
            Happening::Finished(job) => self.shares_end(job, &ShareEnd::Succeeded),
            Happening::Failed(job) => self.shares_end(job, &fault),
            Happening::Freed(job) => self.shares_end(job, &ShareEnd::Stopped),
            Happening::NodeLost(node) => vec![Event::NodeLost { node }],
            Happening::NodeLeaves(node, at) => {
                vec![Event::DrainRequested { node, within: Some(at.since(view.now)) }]
            }
            Happening::NodeBack(node) => {
                let joined = self.nodes.get(node.0 as usize).map(|spec| Event::NodeJoined(spec.clone()));
                joined.into_iter().chain([Event::DrainCancelled { node }]).collect()
            }
            Happening::CheckpointDurable(job) => {
                self.steps += 1;
                let found = self.ids.get(&job).and_then(|id| self.engine.job(*id)).and_then(|job| job.attempt());
                let attempt = found.map(|attempt| attempt.number);
                let committed =
                    |attempt| Event::CheckpointCommitted { job: self.ids[&job], attempt, step: Step(self.steps) };
                attempt.map(committed).into_iter().collect()
            }
            Happening::Timer => vec![Event::TimePassed],
        }
    }

    /// Returns events by which every share of a job's attempt ends like this.
    fn shares_end(&self, job: JobIndex, end: &ShareEnd) -> Vec<Event> {
        let Some(id) = self.ids.get(&job).copied() else { return Vec::new() };
        let Some(attempt) = self.engine.job(id).and_then(|job| job.attempt()) else { return Vec::new() };
        let ended = |node| Event::ShareEnded { job: id, attempt: attempt.number, node, end: end.clone() };
        attempt.shares.iter().map(|share| ended(share.node)).collect()
    }

    /// Returns the action that carries out a decision, and the events to report to the engine.
    fn perform(&self, view: &View<'_>, decision: Decision) -> (Option<Action>, Vec<Event>) {
        match decision {
            Decision::Place { job, attempt, shares, .. } => {
                let count = |devices: usize| u32::try_from(devices).expect("a node has fewer than 2^32 accelerators");
                let place = shares.iter().map(|share| (share.node, count(share.devices.len()))).collect();
                let started = shares.iter().map(|share| Event::ShareStarted { job, attempt, node: share.node });
                let action = Action::Start { job: self.indices[&job], place: Place::Nodes(place) };
                (Some(action), started.collect())
            }
            Decision::Stop { job, .. } => {
                // When a gang has failed, the engine stops the shares that it believes still run; in the
                // world all have ended.
                let index = self.indices[&job];
                let preempt = Action::Preempt { job: index, manner: Manner::SaveFirst };
                (view.is_running(index).then_some(preempt), Vec::new())
            }
            Decision::Claim { .. } | Decision::Requeue { .. } | Decision::End { .. } => (None, Vec::new()),
        }
    }
}

fn kind_of(node: &NodeSpec) -> AcceleratorKind {
    node.capacity.accelerator.clone()
}

impl Policy for Gangline {
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action> {
        let mut actions = Vec::new();
        // Lost nodes come first: a job that failed with its node must not be placed there again.
        let (lost, others): (Vec<Happening>, Vec<Happening>) =
            happenings.iter().copied().partition(|happening| matches!(happening, Happening::NodeLost(_)));
        let (submitted, others): (Vec<Happening>, Vec<Happening>) =
            others.into_iter().partition(|happening| matches!(happening, Happening::Submitted(_)));
        // These events concern attempts that exist now, so they are computed before the engine places new ones.
        // A submission's events are computed when its turn comes.
        let ends: Vec<Vec<Event>> = lost.iter().chain(&others).map(|it| self.events(view, *it)).collect();
        let turns = ends.into_iter().map(Ok).chain(submitted.into_iter().map(Err));
        for turn in turns {
            let mut events = VecDeque::from(turn.unwrap_or_else(|submitted| self.events(view, submitted)));
            while let Some(event) = events.pop_front() {
                // Events about an attempt that has already ended are refused; they contain no news.
                for decision in self.engine.apply(view.now, &event).unwrap_or_default() {
                    let (action, follow) = self.perform(view, decision);
                    actions.extend(action);
                    events.extend(follow);
                }
            }
        }
        for happening in happenings {
            if let Happening::Finished(job) = happening
                && let Some(id) = self.ids.remove(job)
            {
                self.indices.remove(&id);
            }
        }
        actions.extend(self.engine.next_deadline().map(Action::WakeAt));
        actions
    }

    fn follows_checkpoints(&self) -> bool {
        true
    }

    fn follows_notices(&self) -> bool {
        true
    }
}
