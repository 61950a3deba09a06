//! A second set of books: who waits, who holds what, and how everybody ended, kept from events and decisions alone,
//! with none of the engine's code and none of its indices. Slow and plain on purpose.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangline_base::{AttemptNumber, Bytes, FaultCategory, GangShape, JobId, JobSpec, NodeId, Step, Timestamp};
use gangline_orchestration::{
    Decision, Engine, Event, ExternalUsage, Fate, FaultCause, Job, JobState, NodeSpec, NodeStatus, RequeueReason,
    Share, ShareEnd, ShareState, StopReason,
};

use super::world::{Verdict, ensure};

/// The books.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    /// The time of the last event or decision.
    pub(super) now: Timestamp,
    pub(super) nodes: Vec<(NodeSpec, NodeStatus)>,
    /// Nodes whose drain nobody has taken back, lost ones too, and whether it is by a deadline.
    drained: BTreeMap<NodeId, bool>,
    /// What others do with nodes.
    outside: BTreeMap<NodeId, ExternalUsage>,
    pub(super) jobs: BTreeMap<JobId, Ours>,
    pub(super) ended: BTreeMap<JobId, Fate>,
}

/// A live job.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub(super) spec: Arc<JobSpec>,
    pub(super) place: Place,
    pub(super) attempts: u32,
    pub(super) faults: u32,
    pub(super) faults_in_a_row: u32,
    pub(super) requeues: u32,
    pub(super) checkpoint: Option<Step>,
    pub(super) is_cancelled: bool,
    /// What it held when it last failed, and since when.
    pub(super) kept: Option<(Vec<Share>, Timestamp)>,
}

/// Where a live job stands.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Waiting { since: Timestamp, not_before: Timestamp },
    Holding(Holding),
}

/// What a job holds.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    pub(super) attempt: AttemptNumber,
    pub(super) placed_at: Timestamp,
    pub(super) allocated_at: Timestamp,
    pub(super) shares: Vec<(Share, ShareState)>,
    pub(super) stop: Option<StopReason>,
    pub(super) stop_at: Option<Timestamp>,
    pub(super) checkpoint_at_start: Option<Step>,
}

impl Holding {
    pub(super) fn ends(&self) -> impl Iterator<Item = &ShareEnd> {
        self.shares.iter().filter_map(|(_, state)| if let ShareState::Ended(end) = state { Some(end) } else { None })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends().count() == self.shares.len()
    }

    /// The earliest fault.
    pub(super) fn root_cause(&self) -> Option<(FaultCause, FaultCategory)> {
        let faults = self.ends().filter_map(|end| match end {
            ShareEnd::Fault { cause, category, is_consequence, at } => {
                Some(((*is_consequence, *at), (*cause, *category)))
            }
            _ => None,
        });
        faults.min_by_key(|(order, _)| *order).map(|(_, fault)| fault)
    }
}

impl Ours {
    pub(super) fn holding(&self) -> Option<&Holding> {
        if let Place::Holding(holding) = &self.place { Some(holding) } else { None }
    }

    pub(super) fn faults_in_a_row_with_this(&self) -> u32 {
        let has_advanced = self.holding().is_some_and(|holding| self.checkpoint > holding.checkpoint_at_start);
        if has_advanced { 0 } else { self.faults_in_a_row + 1 }
    }
}

impl Shadow {
    pub(super) fn take_event(&mut self, now: Timestamp, event: &Event) {
        self.now = now;
        match event {
            Event::NodeJoined(spec) => {
                let known = (0..).map(NodeId).zip(&self.nodes).find(|(_, (known, _))| known.name == spec.name);
                match known.map(|(id, _)| id) {
                    Some(id) => *self.node_mut(id) = (spec.clone(), self.present_status(id)),
                    None => self.nodes.push((spec.clone(), NodeStatus::Ready)),
                }
            }
            Event::NodeObserved { node, outside } => {
                self.outside.insert(*node, *outside);
                if self.node_mut(*node).1 != NodeStatus::Lost {
                    self.node_mut(*node).1 = self.present_status(*node);
                }
            }
            Event::NodeLost { node } => self.lose_node(now, *node),
            Event::DrainRequested { node, within } => {
                self.drained.insert(*node, within.is_some());
                self.node_mut(*node).1 = NodeStatus::Draining;
            }
            Event::DrainCancelled { node } => {
                self.drained.remove(node);
                self.node_mut(*node).1 = self.present_status(*node);
            }
            Event::JobSubmitted(spec) => self.take_job(now, spec.clone()),
            Event::CancelRequested { job, .. } => self.job_mut(*job).is_cancelled = true,
            Event::ShareStarted { job, node, .. } => self.set_share(*job, *node, ShareState::Running),
            Event::ShareEnded { job, node, end, .. } => self.set_share(*job, *node, ShareState::Ended(end.clone())),
            Event::CheckpointCommitted { job, step, .. } => {
                let job = self.job_mut(*job);
                job.checkpoint = job.checkpoint.max(Some(*step));
            }
            // These worlds have no rule by which nodes are suspect, and so nobody leaves one.
            Event::Configured(_) | Event::NodeFaulty { .. } | Event::StragglerFound { .. } => {}
            Event::SweepSubmitted(_) | Event::SweepCancelRequested { .. } | Event::MetricReported { .. } => {}
            Event::ChangeRequested { .. } | Event::DatasetsCached { .. } | Event::BudgetsSpent(_) => {}
            Event::IdsSkipped { .. } | Event::EpochBegan { .. } | Event::TimePassed => {}
        }
    }

    fn take_job(&mut self, now: Timestamp, spec: Arc<JobSpec>) {
        let id = self.next_job();
        let job = Ours {
            spec,
            place: Place::Waiting { since: now, not_before: now },
            attempts: 0,
            faults: 0,
            faults_in_a_row: 0,
            requeues: 0,
            checkpoint: None,
            is_cancelled: false,
            kept: None,
        };
        self.jobs.insert(id, job);
    }

    /// Ids are given in order of submission, so no job is ever lost: it is live or has ended.
    pub(super) fn next_job(&self) -> JobId {
        JobId(u64::try_from(self.jobs.len() + self.ended.len()).expect("jobs are few") + 1)
    }

    /// The status of a node that isn't lost.
    fn present_status(&self, node: NodeId) -> NodeStatus {
        let is_closed = self.outside.get(&node).is_some_and(|outside| outside.is_closed);
        if is_closed || self.drained.contains_key(&node) { NodeStatus::Draining } else { NodeStatus::Ready }
    }

    fn node_mut(&mut self, id: NodeId) -> &mut (NodeSpec, NodeStatus) {
        &mut self.nodes[usize::try_from(id.0).expect("a usize holds 32 bits")]
    }

    fn job_mut(&mut self, id: JobId) -> &mut Ours {
        self.jobs.get_mut(&id).expect("only events that apply are taken")
    }

    fn set_share(&mut self, job: JobId, node: NodeId, state: ShareState) {
        let Place::Holding(holding) = &mut self.job_mut(job).place else { return };
        for (share, old) in &mut holding.shares {
            if share.node == node {
                *old = state.clone();
            }
        }
    }

    fn lose_node(&mut self, now: Timestamp, node: NodeId) {
        self.node_mut(node).1 = NodeStatus::Lost;
        if self.drained.get(&node) == Some(&true) {
            self.drained.remove(&node);
        }
        let end = ShareEnd::fault(FaultCause::NodeLost, now);
        for (job, _, _) in self.live_shares().into_iter().filter(|(_, _, on)| *on == node) {
            self.set_share(job, node, ShareState::Ended(end.clone()));
        }
    }

    pub(super) fn take_decision(&mut self, now: Timestamp, decision: &Decision) {
        self.now = now;
        let job = self.job_mut(decision.job());
        match decision {
            Decision::Place { attempt, shares, reason, .. } => {
                let shares = shares.iter().map(|share| (share.clone(), ShareState::Launching)).collect();
                let (attempt, checkpoint_at_start) = (*attempt, job.checkpoint);
                job.attempts = attempt.0;
                job.place = Place::Holding(Holding {
                    attempt,
                    placed_at: now,
                    allocated_at: reason.kept_since.unwrap_or(now),
                    shares,
                    stop: None,
                    stop_at: None,
                    checkpoint_at_start,
                });
            }
            Decision::Claim { .. } => {}
            Decision::Stop { reason, .. } => {
                if let Place::Holding(holding) = &mut job.place {
                    (holding.stop, holding.stop_at) = (Some(*reason), Some(now));
                }
            }
            Decision::Requeue { not_before, reason, .. } => {
                job.kept = job.holding().map(|holding| {
                    (holding.shares.iter().map(|(share, _)| share.clone()).collect(), holding.allocated_at)
                });
                match reason {
                    RequeueReason::Fault { .. } => {
                        job.faults_in_a_row = job.faults_in_a_row_with_this();
                        job.faults += 1;
                    }
                    RequeueReason::Asked | RequeueReason::Orphaned | RequeueReason::Terminated => job.requeues += 1,
                    RequeueReason::Unable
                    | RequeueReason::Withdrawn
                    | RequeueReason::SharedBudgetSpent
                    | RequeueReason::Preempted { .. }
                    | RequeueReason::Resized { .. }
                    | RequeueReason::Straggler { .. }
                    | RequeueReason::NodeLeft { .. } => {}
                }
                job.place = Place::Waiting { since: now, not_before: *not_before };
            }
            Decision::End { job, fate } => {
                self.jobs.remove(job);
                self.ended.insert(*job, *fate);
            }
        }
    }

    pub(super) fn live_jobs(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    /// The shares that have not ended.
    pub(super) fn live_shares(&self) -> Vec<(JobId, AttemptNumber, NodeId)> {
        let held = self.jobs.iter().filter_map(|(id, job)| job.holding().map(|holding| (*id, holding)));
        held.flat_map(|(id, holding)| {
            let is_live = |(_, state): &&(Share, ShareState)| !matches!(state, ShareState::Ended(_));
            holding.shares.iter().filter(is_live).map(move |(share, _)| (id, holding.attempt, share.node))
        })
        .collect()
    }

    /// Waiting jobs: higher priority first, then the older.
    pub(super) fn queue(&self) -> Vec<JobId> {
        let waiting = self.jobs.iter().filter(|(_, job)| job.holding().is_none());
        let mut queue: Vec<_> = waiting.map(|(id, job)| (Reverse(job.spec.priority), *id)).collect();
        queue.sort_unstable();
        queue.into_iter().map(|(_, id)| id).collect()
    }

    fn shares_on(&self, node: NodeId) -> impl Iterator<Item = &Share> {
        let shares = self.jobs.values().filter_map(Ours::holding).flat_map(|holding| &holding.shares);
        shares.map(|(share, _)| share).filter(move |share| share.node == node)
    }

    /// The devices, cores and memory of a node that nobody holds; others hold the highest devices.
    pub(super) fn free_on(&self, node: NodeId) -> (BTreeSet<u32>, u32, Bytes) {
        let capacity = &self.nodes[usize::try_from(node.0).expect("a usize holds 32 bits")].0.capacity;
        let held: BTreeSet<u32> = self.shares_on(node).flat_map(|share| share.devices.iter().copied()).collect();
        let cpus: u32 = self.shares_on(node).map(|share| share.cpus).sum();
        let memory: Bytes = self.shares_on(node).map(|share| share.memory).sum();
        let outside = self.outside.get(&node).copied().unwrap_or_default();
        let mut devices: BTreeSet<u32> = (0..capacity.accelerators).filter(|device| !held.contains(device)).collect();
        let others = usize::try_from(outside.accelerators).expect("a usize holds 32 bits");
        devices = devices.iter().take(devices.len().saturating_sub(others)).copied().collect();
        let cpus = capacity.shared_cpus().saturating_sub(cpus).saturating_sub(outside.cpus);
        let memory = capacity.shared_memory().0.saturating_sub(memory.0).saturating_sub(outside.memory.0);
        (devices, cpus, Bytes(memory))
    }

    /// Nodes, of those with this status, that could take a share of `gang` if they were empty.
    pub(super) fn fitting(&self, gang: &GangShape, status: Option<NodeStatus>) -> Vec<NodeId> {
        let fits = |(spec, has): &(NodeSpec, NodeStatus)| {
            spec.capacity.accelerator == gang.accelerator
                && spec.capacity.accelerators >= gang.accelerators_per_node.get()
                && spec.capacity.shared_cpus() >= gang.cpus_per_node
                && spec.capacity.shared_memory() >= gang.memory_per_node
                && status.is_none_or(|status| status == *has)
        };
        (0..).map(NodeId).zip(&self.nodes).filter(|(_, node)| fits(node)).map(|(id, _)| id).collect()
    }

    /// Ready nodes that have room for a share of `gang` now, with the fewest free devices first.
    pub(super) fn with_room(&self, gang: &GangShape) -> Vec<NodeId> {
        let mut found = Vec::new();
        for node in self.fitting(gang, Some(NodeStatus::Ready)) {
            let (devices, cpus, memory) = self.free_on(node);
            let count = u32::try_from(devices.len()).expect("devices are few");
            let has_room = count >= gang.accelerators_per_node.get()
                && cpus >= gang.cpus_per_node
                && memory >= gang.memory_per_node;
            if has_room {
                found.push((count, node));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, node)| node).collect()
    }

    /// Compares the engine's state with the books.
    pub(super) fn judge_engine(&self, engine: &Engine) -> Verdict {
        let queue: Vec<JobId> = engine.waiting();
        ensure("the queue is in order", queue == self.queue(), || format!("{queue:?} is not {:?}", self.queue()))?;
        let ids: Vec<JobId> = engine.jobs().map(|job| job.id).collect();
        ensure("no job is lost", ids == self.live_jobs(), || format!("{ids:?} is not {:?}", self.live_jobs()))?;
        ensure("ids are given in order", engine.next_job_id() == self.next_job(), || "it gave others".to_owned())?;
        for job in engine.jobs() {
            let ours = &self.jobs[&job.id];
            ensure("the job is as told", is_same(job, ours), || format!("{job:?}\n  is not {ours:?}"))?;
        }
        for (node, (spec, status)) in engine.cluster().nodes().zip(&self.nodes) {
            let ours = (spec, status, self.free_on(node.id));
            let theirs = (&node.spec, &node.status, (node.free.clone(), node.free_cpus, node.free_memory));
            ensure("A-5 the node is as told", theirs == ours, || format!("{theirs:?}\n  is not {ours:?}"))?;
        }
        let nodes = (engine.cluster().nodes().len(), self.nodes.len());
        ensure("no node is lost", nodes.0 == nodes.1, || format!("{nodes:?}"))
    }
}

fn is_same(job: &Job, ours: &Ours) -> bool {
    let counted = (job.attempts, job.faults, job.faults_without_progress, job.requeues, job.checkpoint);
    let place = match (&job.state, &ours.place) {
        (JobState::Queued { since, not_before }, Place::Waiting { since: ours, not_before: not_ours }) => {
            since == ours && not_before == not_ours
        }
        (JobState::Allocated(attempt), Place::Holding(holding)) => {
            let shares = holding.shares.iter().map(|(share, state)| (share, state));
            attempt.number == holding.attempt
                && attempt.stop == holding.stop
                && attempt.placed_at == holding.placed_at
                && attempt.allocated_at == holding.allocated_at
                && attempt.checkpoint_at_start == holding.checkpoint_at_start
                && attempt.shares.iter().zip(&attempt.states).eq(shares)
        }
        _ => false,
    };
    place
        && job.is_cancelled == ours.is_cancelled
        && counted == (ours.attempts, ours.faults, ours.faults_in_a_row, ours.requeues, ours.checkpoint)
}
