//! What happened outside the engine, and the entries a journal is made of.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AttemptNumber, Epoch, FaultCategory, JobId, JobSpec, MetricValue, NodeId, Step, Submitter, SweepId, SweepSpec,
    Timestamp,
};

use crate::{Configuration, Decision, NodeSpec, Outside};

/// Something that happened outside the engine. Facts only; what to do about it is the engine's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node came, came back, or has a new capacity. Nodes are known by name; a new name gets the next id. A node
    /// that is draining goes on draining: only its administrator takes a drain back.
    NodeJoined(NodeSpec),
    /// A node is gone, with whatever ran on it.
    NodeLost {
        /// Which.
        node: NodeId,
    },
    /// Nothing new is to start on a node. What runs there goes on; if the node goes at a certain time (an administrator's
    /// deadline, a cloud's spot notice), it is asked to save and stop just in time, and waits again.
    DrainRequested {
        /// Which.
        node: NodeId,
        /// It goes after this time; none: it stays until what runs there is over.
        within: Option<Duration>,
    },
    /// A draining node takes jobs again.
    DrainCancelled {
        /// Which.
        node: NodeId,
    },
    /// Others than this engine's jobs hold this much of a node now, or have closed or opened it.
    NodeObserved {
        /// Which.
        node: NodeId,
        /// What they do.
        outside: Outside,
    },
    /// A check found a fault of the node itself, or got no answer. What runs there goes on, for it may be well.
    NodeFaulty {
        /// Which.
        node: NodeId,
    },
    /// A rank of a job has been slower than its peers for a while, by its own work. A job that wants to be rid of such a node leaves it.
    StragglerFound {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// The node.
        node: NodeId,
    },
    /// The administrator says how the cluster is shared. Jobs that wait and run go on under the new rules.
    Configured(Arc<Configuration>),
    /// A user sent a job; it gets the next id ([`crate::Engine::next_job_id`]).
    JobSubmitted(Arc<JobSpec>),
    /// A user sent a sweep: its points get the next ids, all or none of them, and it gets that of the first.
    SweepSubmitted(Arc<SweepSpec>),
    /// A user wants what is left of a sweep gone.
    SweepCancelRequested {
        /// Which.
        sweep: SweepId,
        /// Who.
        by: Submitter,
    },
    /// A job of a sweep with early stopping reported its metric at a rung it had not reported at before.
    MetricReported {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// The step it was measured at.
        step: Step,
        /// The value.
        value: MetricValue,
    },
    /// A user wants a job gone.
    CancelRequested {
        /// Which.
        job: JobId,
        /// Who.
        by: Submitter,
    },
    /// All ranks of one node's share of an attempt run.
    ShareStarted {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// The node.
        node: NodeId,
    },
    /// All processes of one node's share of an attempt are gone.
    ShareEnded {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// The node.
        node: NodeId,
        /// How.
        end: ShareEnd,
    },
    /// A checkpoint became durable.
    CheckpointCommitted {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// The checkpoint's step.
        step: Step,
    },
    /// Journal entries were lost to damage. Ids below this one may have been given out in them, and may live on in
    /// supervisors and folders, so no new job gets one.
    IdsSkipped {
        /// The lowest id that was surely not given out.
        below: JobId,
    },
    /// A control plane started. What is placed from now on belongs to its epoch.
    EpochBegan {
        /// Its number.
        epoch: Epoch,
    },
    /// A timer went off: see [`crate::Engine::next_deadline`].
    TimePassed,
}

/// How one node's share of an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareEnd {
    /// All ranks exited 0.
    Succeeded,
    /// A rank exited 93: restarting won't help.
    DoNotRestart,
    /// A rank exited 94: it has saved and wants to be queued again.
    Requeue,
    /// Something failed.
    Fault {
        /// What.
        cause: FaultCause,
        /// Of what kind, if what is known of it says so surely.
        category: FaultCategory,
        /// It looks like what follows from another's fault.
        is_consequence: bool,
        /// When it was noticed; of an attempt's faults the earliest that isn't a mere consequence is its root cause.
        at: Timestamp,
    },
    /// Stopped on orders, or as an orphan.
    Stopped,
    /// Somebody else told the supervisor to end: a system that shuts down, `scancel`.
    Terminated,
    /// Its ranks could not be started, which is the platform's fault: no processes, memory or disk space, say.
    Unable,
}

impl ShareEnd {
    /// A fault of which no more is known.
    #[must_use]
    pub fn fault(cause: FaultCause, at: Timestamp) -> Self {
        ShareEnd::Fault { cause, category: FaultCategory::Unknown, is_consequence: false, at }
    }
}

/// What went wrong, as far as scheduling needs to know.
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
    /// The gang's nodes didn't meet in time.
    Rendezvous,
    /// The ranks came to a stand.
    Hang,
    /// The loss was no number for several steps.
    NotFinite,
    /// The supervisor is gone and its ranks with it.
    SupervisorLost,
    /// The node is gone.
    NodeLost,
}

impl fmt::Display for FaultCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultCause::Exit(code) => write!(f, "a rank exited with code {code}"),
            FaultCause::Signal(signal) => write!(f, "a rank was killed by signal {signal}"),
            FaultCause::Setup(code) => write!(f, "the setup command failed with code {code}"),
            FaultCause::Start => f.write_str("the ranks could not be started"),
            FaultCause::Rendezvous => f.write_str("the gang's nodes did not meet in time"),
            FaultCause::Hang => f.write_str("the ranks came to a stand"),
            FaultCause::NotFinite => f.write_str("the loss was no number for several steps"),
            FaultCause::SupervisorLost => f.write_str("the supervisor was lost"),
            FaultCause::NodeLost => f.write_str("the node was lost"),
        }
    }
}

/// One entry of a journal: what happened or what was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It happened.
    Event(Event),
    /// The engine decided it.
    Decision(Decision),
}
