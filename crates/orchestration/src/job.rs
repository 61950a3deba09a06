//! A job that waits or runs, and its attempts.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, Epoch, JobId, JobSpec, NodeId, Step, SweepId, Timestamp};

use crate::claim::Claim;
use crate::line::QueueKey;
use crate::{Account, Pace, ShareEnd, StopReason};

/// A live job: waiting or allocated. Ended jobs leave the engine; their story is in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What it asks for.
    pub spec: Arc<JobSpec>,
    /// When it came.
    pub submitted_at: Timestamp,
    /// Its turn among jobs of its priority in its queue: the earlier, the sooner.
    pub turn: Timestamp,
    /// Where it stands.
    pub state: JobState,
    /// How long it held devices in attempts that are over.
    pub ran: Duration,
    /// Attempts so far.
    pub attempts: u32,
    /// Faults so far.
    pub faults: u32,
    /// Faults in a row without a newer checkpoint.
    pub faults_without_progress: u32,
    /// Times it was queued again without a fault.
    pub requeues: u32,
    /// Times it was stopped for another job.
    pub preemptions: u32,
    /// Its last attempt ended with the loss of a node: spares are kept for such.
    pub is_recovering: bool,
    /// The newest durable checkpoint.
    pub checkpoint: Option<Step>,
    /// When that became durable.
    pub checkpoint_at: Option<Timestamp>,
    /// Times it was restarted on more or fewer nodes.
    pub resizes: u32,
    /// On how many nodes its last attempt ran.
    pub width: Option<u32>,
    /// How fast it has turned out to be.
    pub pace: Pace,
    /// Nodes that other jobs are leaving for it, or that it goes on with after a resize.
    pub claim: Option<Claim>,
    /// What it goes on with at once after a fault.
    pub kept: Option<Kept>,
    /// Its numbers went bad: it goes on from an earlier checkpoint than its newest.
    pub rollback: Option<Rollback>,
    /// A user wants it gone.
    pub is_cancelled: bool,
    /// The sweep it belongs to.
    pub sweep: Option<SweepId>,
    /// What it has spent, if it has a budget.
    pub account: Account,
}

/// Where a live job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// In its queue.
    Queued {
        /// Since when.
        since: Timestamp,
        /// Not to be placed before.
        not_before: Timestamp,
    },
    /// Holding devices.
    Allocated(Attempt),
}

impl Job {
    /// A job that has just come, of no sweep, whose turn is when it came.
    pub(crate) fn submitted(id: JobId, spec: Arc<JobSpec>, now: Timestamp) -> Self {
        Job {
            id,
            spec,
            submitted_at: now,
            turn: now,
            state: JobState::Queued { since: now, not_before: now },
            ran: Duration::ZERO,
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
            sweep: None,
            account: Account::default(),
        }
    }

    /// Its attempt, if it holds devices.
    #[must_use]
    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            JobState::Queued { .. } => None,
            JobState::Allocated(attempt) => Some(attempt),
        }
    }

    /// Its place in its queue.
    pub(crate) fn key(&self) -> QueueKey {
        QueueKey { priority: Reverse(self.spec.priority), turn: self.turn, job: self.id }
    }

    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.state {
            JobState::Queued { .. } => None,
            JobState::Allocated(attempt) => Some(attempt),
        }
    }
}

/// What a gang keeps while its ranks are restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its shares.
    pub shares: Vec<Share>,
    /// Since when it has held them.
    pub since: Timestamp,
}

/// From where a job goes on whose numbers went bad: its newest checkpoint may hold what made them so. Void once it has saved
/// beyond that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// Only checkpoints before this step count; none: it had saved nothing.
    pub below: Option<Step>,
    /// They went bad a second time: what it was fed between that checkpoint and the fault is to be left out. (PaLM skipped 200 to
    /// 500 batches after a spike, arXiv 2204.02311, section 5.1.)
    pub skips_data: bool,
}

/// One allocation of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which of the job's, from 1.
    pub number: AttemptNumber,
    /// The epoch in which it was placed: a supervisor of the same number but of another epoch isn't this attempt's.
    pub epoch: Epoch,
    /// When it got its devices.
    pub placed_at: Timestamp,
    /// Since when the job holds them: earlier if it restarted in place. Time limits count from then.
    pub allocated_at: Timestamp,
    /// The nodes in rank order.
    pub shares: Vec<Share>,
    /// How far each share is; as long as `shares`.
    pub states: Vec<ShareState>,
    /// It was told to stop.
    pub stop: Option<StopReason>,
    /// When it was told to.
    pub stop_at: Option<Timestamp>,
    /// The node that it leaves because of a rank that is slow there.
    pub straggler: Option<NodeId>,
    /// The newest checkpoint when it was placed: an attempt that commits none beyond it has made no progress.
    pub checkpoint_at_start: Option<Step>,
}

impl Attempt {
    /// Whether all ranks of the gang run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.states.iter().all(|state| matches!(state, ShareState::Running))
    }

    /// Whether nothing of it runs any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.states.iter().all(|state| matches!(state, ShareState::Ended(_)))
    }

    /// Whether it has been told to stop, and all it was asked to save is durable: nothing is left to wait for.
    #[must_use]
    pub fn has_saved(&self, checkpoint_at: Option<Timestamp>) -> bool {
        self.stop_at.is_some_and(|stop_at| checkpoint_at.is_some_and(|saved| saved >= stop_at))
    }

    /// Where the share on `node` stands in `shares`.
    #[must_use]
    pub fn share_index(&self, node: NodeId) -> Option<usize> {
        self.shares.iter().position(|share| share.node == node)
    }

    /// What a restart in place keeps of it.
    pub(crate) fn kept(&self) -> Kept {
        Kept { shares: self.shares.clone(), since: self.allocated_at }
    }

    /// Devices it holds.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.shares.iter().map(|share| share.devices.len()).sum()
    }
}

/// What a gang holds on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// The accelerators, in rank order: ascending, unless the node's layout says otherwise.
    pub devices: Vec<u32>,
    /// CPU cores.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
}

/// How far a share is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareState {
    /// Placed; its supervisor hasn't said that the ranks run.
    Launching,
    /// Its ranks run.
    Running,
    /// Its processes are gone.
    Ended(ShareEnd),
}
