//! Events from outside the engine, and the entries of a journal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AttemptNumber, Epoch, FaultCategory, JobId, JobSpec, MetricValue, NodeId, Step, Submitter, SweepId, SweepSpec,
    Timestamp,
};

use crate::{Configuration, Decision, ExternalUsage, JobChange, NodeCache, NodeSpec, SpentBudget};

/// Something that happened outside the engine. Events are only facts; the engine decides how to react.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node joined, came back, or changed its capacity. Nodes are identified by name; a new name gets the
    /// next id. A draining node keeps draining: only its administrator cancels a drain.
    NodeJoined(NodeSpec),
    /// A node is lost, with everything that ran on it.
    NodeLost {
        /// The lost node.
        node: NodeId,
    },
    /// An administrator or a cloud wants a node empty: nothing new starts there and running jobs continue. If
    /// the node goes away at a known time (an administrator's deadline, a cloud's spot notice), its jobs are
    /// asked to save and stop just in time, and are requeued.
    DrainRequested {
        /// The node to drain.
        node: NodeId,
        /// The time until the node goes away; none if it stays until its jobs have ended.
        within: Option<Duration>,
    },
    /// A draining node accepts jobs again.
    DrainCancelled {
        /// The node.
        node: NodeId,
    },
    /// External usage of a node changed, or another system closed or opened the node.
    NodeObserved {
        /// The node.
        node: NodeId,
        /// The external usage.
        outside: ExternalUsage,
    },
    /// A health check found a fault of the node itself or got no answer. Jobs there continue, since they may
    /// be unaffected.
    NodeFaulty {
        /// The faulty node.
        node: NodeId,
    },
    /// A cache of datasets on a node holds more or less than before.
    DatasetsCached {
        /// The node.
        node: NodeId,
        /// The cache, with all that it holds.
        cache: NodeCache,
    },
    /// These budgets are spent, and no others: jobs of theirs that haven't begun don't start.
    BudgetsSpent(Vec<SpentBudget>),
    /// A rank of a job has been slower than its peers for a while because of its own work. A job that asked
    /// for straggler eviction leaves the node.
    StragglerFound {
        /// The job.
        job: JobId,
        /// The job's attempt.
        attempt: AttemptNumber,
        /// The node of the slow rank.
        node: NodeId,
    },
    /// The administrator changed the configuration. Waiting and running jobs continue under the new rules.
    Configured(Arc<Configuration>),
    /// A user submitted a job; it gets the next id ([`crate::Engine::next_job_id`]).
    JobSubmitted(Arc<JobSpec>),
    /// A user submitted a sweep: either all its points get the next ids or none does. The sweep has the
    /// number of its first job.
    SweepSubmitted(Arc<SweepSpec>),
    /// A user wants to cancel the remaining jobs of a sweep.
    SweepCancelRequested {
        /// The sweep.
        sweep: SweepId,
        /// The user.
        by: Submitter,
    },
    /// A job of a sweep with early stopping reported its metric at a rung for the first time.
    MetricReported {
        /// The job.
        job: JobId,
        /// The job's attempt.
        attempt: AttemptNumber,
        /// The step at which the metric was measured.
        step: Step,
        /// The metric's value.
        value: MetricValue,
    },
    /// A user wants to cancel a job.
    CancelRequested {
        /// The job.
        job: JobId,
        /// The user.
        by: Submitter,
    },
    /// A user changes a waiting job: either all of the changes are made or none is.
    ChangeRequested {
        /// The job.
        job: JobId,
        /// The changes, in the order in which they are made.
        changes: Vec<JobChange>,
        /// The user.
        by: Submitter,
    },
    /// All ranks of an attempt's share on one node are running.
    ShareStarted {
        /// The job.
        job: JobId,
        /// The job's attempt.
        attempt: AttemptNumber,
        /// The node.
        node: NodeId,
    },
    /// All processes of an attempt's share on one node are gone.
    ShareEnded {
        /// The job.
        job: JobId,
        /// The job's attempt.
        attempt: AttemptNumber,
        /// The node.
        node: NodeId,
        /// How the share ended.
        end: ShareEnd,
    },
    /// A checkpoint became durable.
    CheckpointCommitted {
        /// The job.
        job: JobId,
        /// The job's attempt.
        attempt: AttemptNumber,
        /// The checkpoint's step.
        step: Step,
    },
    /// Journal entries were lost to damage. They may have assigned ids below this one, which may still be in
    /// use by supervisors and folders, so no new job gets such an id.
    IdsSkipped {
        /// The lowest id that was certainly not assigned.
        below: JobId,
    },
    /// A control plane started. New placements belong to its epoch.
    EpochBegan {
        /// The epoch.
        epoch: Epoch,
    },
    /// A timer expired: see [`crate::Engine::next_deadline`].
    TimePassed,
}

/// How an attempt's share on one node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareEnd {
    /// All ranks exited 0.
    Succeeded,
    /// A rank exited 93: a restart won't help.
    DoNotRestart,
    /// A rank exited 94: it has saved and wants to be queued again.
    Requeue,
    /// A fault occurred.
    Fault {
        /// The cause.
        cause: FaultCause,
        /// The category of the cause, if known with certainty.
        category: FaultCategory,
        /// Whether this fault looks like a consequence of another share's fault.
        is_consequence: bool,
        /// When the fault was noticed. The root cause of an attempt is its earliest fault that isn't a mere
        /// consequence.
        at: Timestamp,
    },
    /// Stopped on orders, or as an orphan.
    Stopped,
    /// Something outside Gangline told the supervisor to end, such as a system shutdown or `scancel`.
    Terminated,
    /// Its ranks could not be started because of the platform, for example for lack of processes, memory or
    /// disk space.
    Unable,
    /// It was never started: it was taken back from the queue of the launcher's own system.
    Withdrawn,
}

impl ShareEnd {
    /// Returns a fault of unknown category.
    #[must_use]
    pub fn fault(cause: FaultCause, at: Timestamp) -> Self {
        ShareEnd::Fault { cause, category: FaultCategory::Unknown, is_consequence: false, at }
    }
}

/// The cause of a fault, as far as scheduling needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// A rank exited with this code.
    Exit(i32),
    /// A signal killed a rank.
    Signal(i32),
    /// The setup command failed with this code.
    Setup(i32),
    /// The ranks or the supervisor could not be started.
    Start,
    /// The gang's nodes did not meet in time.
    Rendezvous,
    /// The ranks hung.
    Hang,
    /// The loss was NaN or infinite for several steps.
    NotFinite {
        /// These steps; none in a journal of a version that didn't record them.
        steps: Option<BadSteps>,
    },
    /// The supervisor was lost, and its ranks with it.
    SupervisorLost,
    /// The node was lost.
    NodeLost,
}

/// Steps in a row whose loss was NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSteps {
    /// The first of them.
    pub first: Step,
    /// The last before the attempt was ended.
    pub last: Step,
}

impl fmt::Display for FaultCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultCause::Exit(code) => write!(f, "a rank exited with code {code}"),
            FaultCause::Signal(signal) => write!(f, "a rank was killed by signal {signal}"),
            FaultCause::Setup(code) => write!(f, "the setup command failed with code {code}"),
            FaultCause::Start => f.write_str("the ranks could not be started"),
            FaultCause::Rendezvous => f.write_str("the gang's nodes did not meet in time"),
            FaultCause::Hang => f.write_str("the ranks hung"),
            FaultCause::NotFinite { .. } => f.write_str("the loss was NaN or infinite for several steps"),
            FaultCause::SupervisorLost => f.write_str("the supervisor was lost"),
            FaultCause::NodeLost => f.write_str("the node was lost"),
        }
    }
}

/// A journal entry: an event or a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Something that happened.
    Event(Event),
    /// Something that the engine decided.
    Decision(Decision),
}
