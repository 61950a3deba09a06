//! Live jobs and their attempts.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AttemptNumber, Bytes, Dependency, Epoch, GangShape, GpuSeconds, JobId, JobSpec, NodeId, Step, SweepId, Timestamp,
};

use crate::claim::Claim;
use crate::cost::{RestartCosts, since_durable, victim_cost};
use crate::queueing::{QueueKey, Run};
use crate::{Account, FaultCause, OverBudget, Pace, ShareEnd, StopReason};

/// A live job: waiting or allocated. Jobs leave the engine when they end; their history is in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What it requests.
    pub spec: Arc<JobSpec>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// Its turn among jobs of its priority in its queue; earlier turns go first.
    pub turn: Timestamp,
    /// Its state.
    pub state: JobState,
    /// How long it held devices in attempts that have ended.
    pub ran: Duration,
    /// When it last started because it had waited longest of all; since then it isn't stopped for a higher
    /// priority. None again once another queue has taken its devices back.
    pub led_at: Option<Timestamp>,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The number of faults so far.
    pub faults: u32,
    /// The number of faults in a row without a newer checkpoint.
    pub faults_without_progress: u32,
    /// How often it was requeued at its own request, as an orphan, or after SIGTERM to its supervisor.
    pub requeues: u32,
    /// How often it was stopped to make room, for a node that left, or for a slow node.
    pub preemptions: u32,
    /// Whether its last attempt ended because it lost, or left, a node; spares are kept for such jobs.
    pub is_recovering: bool,
    /// The newest durable checkpoint.
    pub checkpoint: Option<Step>,
    /// When that checkpoint became durable.
    pub checkpoint_at: Option<Timestamp>,
    /// How often it was restarted on more or fewer nodes.
    pub resizes: u32,
    /// The number of nodes of its last attempt.
    pub width: Option<u32>,
    /// Its measured speed.
    pub pace: Pace,
    /// Its claim: nodes that other jobs are leaving for it, or nodes it continues on after a resize.
    pub claim: Option<Claim>,
    /// The devices on which it restarts in place after a fault.
    pub kept: Option<Kept>,
    /// Set after a numerical fault: it restarts from an earlier checkpoint than its newest.
    pub rollback: Option<Rollback>,
    /// Whether a user has cancelled it.
    pub is_cancelled: bool,
    /// Whether a user holds it, so that it may not start until it is released.
    pub is_held: bool,
    /// The budget that keeps it from starting, if one does.
    pub over_budget: Option<OverBudget>,
    /// Whether a user let it start though a budget was spent.
    pub is_exempt: bool,
    /// The jobs that still have to end before it may start.
    pub after: BTreeSet<Dependency>,
    /// A job that ended otherwise than this one needs, which therefore never starts.
    pub broken: Option<Dependency>,
    /// The sweep it belongs to.
    pub sweep: Option<SweepId>,
    /// Its spending, if it has a budget.
    pub account: Account,
}

/// The state of a live job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Waiting in its queue.
    Queued {
        /// When it was queued.
        since: Timestamp,
        /// The earliest time at which it may be placed.
        not_before: Timestamp,
    },
    /// Holding devices.
    Allocated(Attempt),
}

impl Job {
    /// Creates a newly submitted job that belongs to no sweep and whose turn is its submission time.
    pub(crate) fn submitted(id: JobId, spec: Arc<JobSpec>, now: Timestamp) -> Self {
        Job {
            id,
            spec,
            submitted_at: now,
            turn: now,
            state: JobState::Queued { since: now, not_before: now },
            ran: Duration::ZERO,
            led_at: None,
            attempts: 0,
            faults: 0,
            faults_without_progress: 0,
            requeues: 0,
            preemptions: 0,
            is_recovering: false,
            resizes: 0,
            width: None,
            pace: Pace::default(),
            checkpoint: None,
            checkpoint_at: None,
            claim: None,
            kept: None,
            rollback: None,
            is_cancelled: false,
            is_held: false,
            over_budget: None,
            is_exempt: false,
            after: BTreeSet::new(),
            broken: None,
            sweep: None,
            account: Account::default(),
        }
    }

    /// Returns its attempt, if it holds devices.
    #[must_use]
    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            JobState::Queued { .. } => None,
            JobState::Allocated(attempt) => Some(attempt),
        }
    }

    /// Returns its position in its queue.
    pub(crate) fn key(&self) -> QueueKey {
        QueueKey { priority: Reverse(self.spec.priority), turn: self.turn, job: self.id }
    }

    /// Returns its run since it was placed, as its queue books it.
    pub(crate) fn run(&self, placed_at: Timestamp) -> Run {
        Run { job: self.id, placed_at, ran: self.ran }
    }

    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.state {
            JobState::Queued { .. } => None,
            JobState::Allocated(attempt) => Some(attempt),
        }
    }
}

/// The devices that a gang keeps while its ranks are restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its shares.
    pub shares: Vec<Share>,
    /// When it got them.
    pub since: Timestamp,
}

/// The checkpoint limit for a job after a numerical fault: its newest checkpoints may contain the cause. Void once the
/// job has saved beyond the steps that were bad: until then, what it saves may be bad as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Only checkpoints before this step count; none if there were none.
    pub below: Option<Step>,
    /// Whether to skip the data between that checkpoint and the fault, because the fault occurred a second
    /// time. (PaLM skipped 200 to 500 batches after a spike, arXiv 2204.02311, section 5.1.)
    pub skips_data: bool,
    /// The last step that was bad, or that of the newest checkpoint if the job didn't tell which steps were; none if it
    /// told nothing and had no checkpoint.
    pub until: Option<Step>,
}

impl Rollback {
    /// Returns the limit after a numerical fault of a job with this newest checkpoint and this limit before.
    pub(crate) fn after(newest: Option<Step>, cause: FaultCause, before: Option<Rollback>) -> Rollback {
        let bad = match cause {
            FaultCause::NotFinite { steps } => steps,
            _ => None,
        };
        // A loss is computed before the step's update. So a checkpoint is good only if the loss of the next step was.
        let is_known_good_below = bad.map(|bad| Step(bad.first.0.saturating_sub(1)));
        Rollback {
            below: newest.map(|newest| is_known_good_below.map_or(newest, |good| newest.min(good))),
            skips_data: before.is_some(),
            until: bad.map(|bad| bad.last).or(newest),
        }
    }
}

/// One allocation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its number among the job's attempts, counted from 1.
    pub number: AttemptNumber,
    /// The epoch in which it was placed: a supervisor with the same attempt number but another epoch belongs
    /// to a different attempt.
    pub epoch: Epoch,
    /// When it was placed.
    pub placed_at: Timestamp,
    /// When the job got its devices: before `placed_at` if it restarted in place. Time limits count from
    /// here.
    pub allocated_at: Timestamp,
    /// Its shares in rank order.
    pub shares: Vec<Share>,
    /// The state of each share, parallel to `shares`.
    pub states: Vec<ShareState>,
    /// Why it was told to stop, if it was.
    pub stop: Option<StopReason>,
    /// When it was told to stop.
    pub stop_at: Option<Timestamp>,
    /// The node that it leaves because a rank is slow there.
    pub straggler: Option<NodeId>,
    /// The newest checkpoint when it was placed; an attempt without a newer one has made no progress.
    pub checkpoint_at_start: Option<Step>,
}

impl Attempt {
    /// Reports whether all ranks of the gang run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.states.iter().all(|state| matches!(state, ShareState::Running))
    }

    /// Reports whether all its shares have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.states.iter().all(|state| matches!(state, ShareState::Ended(_)))
    }

    /// Reports whether it has been told to stop and has since saved a durable checkpoint, so that nothing is
    /// left to wait for.
    #[must_use]
    pub fn has_saved(&self, checkpoint_at: Option<Timestamp>) -> bool {
        self.stop_at.is_some_and(|stop_at| checkpoint_at.is_some_and(|saved| saved >= stop_at))
    }

    /// Returns the index of the share on `node` in `shares`.
    #[must_use]
    pub fn share_index(&self, node: NodeId) -> Option<usize> {
        self.shares.iter().position(|share| share.node == node)
    }

    /// Returns what a restart in place keeps of the attempt.
    pub(crate) fn kept(&self) -> Kept {
        Kept { shares: self.shares.clone(), since: self.allocated_at }
    }

    /// Returns the number of devices it holds.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.shares.iter().map(|share| share.devices.len()).sum()
    }
}

/// A gang's devices, cores and memory on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// The accelerators in rank order: ascending, unless the node's device layout requires another order.
    pub devices: Vec<u32>,
    /// CPU cores.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
}

/// The state of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareState {
    /// Placed; the supervisor has not yet reported that its ranks run.
    Launching,
    /// Its ranks run.
    Running,
    /// Its processes are gone.
    Ended(ShareEnd),
}

/// Returns the most nodes a job may have.
pub(crate) fn nodes_max(spec: &JobSpec) -> NonZeroU32 {
    spec.elastic.as_ref().map_or(spec.gang.nodes, |elastic| elastic.nodes_max)
}

/// Returns the gang of an attempt, with as many nodes as the attempt has shares.
pub(crate) fn gang_of(spec: &JobSpec, attempt: &Attempt) -> GangShape {
    spec.gang.of_nodes(width_of(attempt))
}

/// Returns the number of nodes of an attempt.
pub(crate) fn width_of(attempt: &Attempt) -> NonZeroU32 {
    let nodes = u32::try_from(attempt.shares.len()).ok().and_then(NonZeroU32::new);
    nodes.expect("an attempt has from 1 to 2^32 shares")
}

/// Returns the cost of stopping a job.
pub(crate) fn stop_cost(now: Timestamp, job: &Job, attempt: &Attempt, costs: &RestartCosts) -> GpuSeconds {
    victim_cost(devices_of(attempt), since_durable(now, attempt.placed_at, job.checkpoint_at), costs)
}

/// Returns the number of devices that an attempt holds, as far as it is counted.
pub(crate) fn devices_of(attempt: &Attempt) -> u32 {
    u32::try_from(attempt.devices()).unwrap_or(u32::MAX)
}
