//! What the engine decides, and why. The shell performs decisions; it never makes them (style 16).

use std::fmt;
use std::time::Duration;

use gangline_base::{AttemptNumber, FaultCategory, JobId, Money, NodeId, Timestamp};

use crate::claim::{Claim, ClaimReason};
use crate::{Closeness, FaultCause, MissedRung, Remedy, Share};

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Give a gang its devices, all at once, and start it.
    Place {
        /// The job.
        job: JobId,
        /// Its new attempt.
        attempt: AttemptNumber,
        /// The nodes and devices, in rank order.
        shares: Vec<Share>,
        /// Why now and here.
        reason: PlaceReason,
    },
    /// Hold nodes for a waiting job until the jobs that are stopped for it have left them.
    Claim {
        /// The waiting job.
        job: JobId,
        /// What it gets and whom it takes it from; their stops follow.
        claim: Claim,
        /// Why these.
        reason: ClaimReason,
    },
    /// Stop what still runs of an attempt.
    Stop {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// Why.
        reason: StopReason,
    },
    /// The attempt is over, its devices are free, and the job waits again.
    Requeue {
        /// The job.
        job: JobId,
        /// The attempt that is over.
        attempt: AttemptNumber,
        /// It isn't placed before this time.
        not_before: Timestamp,
        /// Why.
        reason: RequeueReason,
    },
    /// The job is over, and its devices are free.
    End {
        /// The job.
        job: JobId,
        /// How it ended.
        fate: Fate,
    },
}

impl Decision {
    /// The job it is about.
    #[must_use]
    pub fn job(&self) -> JobId {
        match self {
            Decision::Place { job, .. }
            | Decision::Claim { job, .. }
            | Decision::Stop { job, .. }
            | Decision::Requeue { job, .. }
            | Decision::End { job, .. } => *job,
        }
    }
}

/// Why a gang was placed now and where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceReason {
    /// How long it had waited since it was last queued.
    pub waited: Duration,
    /// The job with a better place in line that waits for the same kind of accelerator, if there is one: this one starts
    /// before it because it is on other devices, or is over before that one could start.
    pub backfills: Option<JobId>,
    /// Nodes that could have taken a share; the fullest of them were chosen, so that large holes stay whole.
    pub candidates: u32,
    /// How close its nodes are; none for one node, and where the network isn't known.
    pub closeness: Option<Closeness>,
    /// It restarts on the devices it has held since then, and its time limit counts from then.
    pub kept_since: Option<Timestamp>,
}

impl fmt::Display for PlaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kept_since.is_some() {
            return write!(f, "restarts in place, on the {} node(s) it has", self.candidates);
        }
        let waited = self.waited.as_secs_f64();
        match self.backfills {
            None => write!(f, "first in line after {waited:.1} s")?,
            Some(first) => write!(f, "backfilled after {waited:.1} s without delaying {first}")?,
        }
        write!(f, "; fullest of {} node(s) with room", self.candidates)?;
        self.closeness.as_ref().map_or(Ok(()), |closeness| write!(f, "; {closeness}"))
    }
}

/// Why an attempt is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A user cancelled the job.
    Cancelled,
    /// It reached its time limit.
    TimeLimit(Duration),
    /// Another node's share of the gang has ended without success.
    PeerEnded,
    /// What is left of its budget pays for just its grace.
    BudgetSpent,
    /// Other jobs of its sweep do better.
    EarlyStop(MissedRung),
    /// Another job has the better right to its devices.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// It goes on with more or fewer nodes.
    Resized {
        /// So many.
        to: u32,
    },
    /// A rank is slow on one of its nodes, and it goes on with another.
    Straggler {
        /// Which.
        node: NodeId,
    },
    /// One of its nodes is about to go.
    NodeLeaves {
        /// Which.
        node: NodeId,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Cancelled => f.write_str("cancelled by a user"),
            StopReason::TimeLimit(limit) => write!(f, "reached its time limit of {} s", limit.as_secs()),
            StopReason::PeerEnded => f.write_str("another node of the gang has ended"),
            StopReason::BudgetSpent => f.write_str("its budget is spent but for the time to save"),
            StopReason::EarlyStop(missed) => write!(f, "stopped early: {missed}"),
            StopReason::Preempted { by } => write!(f, "makes room for {by}; save first"),
            StopReason::Resized { to } => write!(f, "goes on with {to} node(s); save first"),
            StopReason::Straggler { node } => {
                write!(f, "a rank on {node} is slow, and there is room elsewhere; save first")
            }
            StopReason::NodeLeaves { node } => write!(f, "{node} is about to go; save first"),
        }
    }
}

/// Why a job goes back into its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueReason {
    /// A fault that its budget covers.
    Fault {
        /// What failed first.
        cause: FaultCause,
        /// Of what kind that is.
        category: FaultCategory,
        /// Faults so far, this one counted.
        faults: u32,
        /// How many it may have.
        max_faults: u32,
        /// How it goes on.
        remedy: Remedy,
    },
    /// It saved and asked for it (exit code 94).
    Asked,
    /// Its supervisors stopped it because they lost the control plane.
    Orphaned,
    /// Somebody else told its supervisors to end.
    Terminated,
    /// It could not be started, which is the platform's fault and counts for nothing.
    Unable,
    /// It made room for another job. Counted apart from faults, and without a limit: the job did nothing wrong.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// It goes on with more or fewer nodes. Counted apart from faults and preemptions.
    Resized {
        /// So many.
        to: u32,
    },
    /// It left a node on which a rank was slow. Counted as a preemption.
    Straggler {
        /// Which.
        node: NodeId,
    },
    /// It left a node that was about to go. Counted as a preemption.
    NodeLeft {
        /// Which.
        node: NodeId,
    },
}

impl fmt::Display for RequeueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequeueReason::Fault { cause, category, faults, max_faults, remedy } => {
                write!(f, "{}; {remedy} (fault {faults} of at most {max_faults})", told(*cause, *category))
            }
            RequeueReason::Asked => f.write_str("it saved and asked to be queued again (exit code 94)"),
            RequeueReason::Orphaned => f.write_str("its supervisors had lost the control plane"),
            RequeueReason::Terminated => {
                f.write_str("its supervisors were told to end (SIGTERM), not by this control plane")
            }
            RequeueReason::Unable => f.write_str("it could not be started, through no fault of its own"),
            RequeueReason::Preempted { by } => write!(f, "it made room for {by}"),
            RequeueReason::Resized { to } => write!(f, "it goes on with {to} node(s)"),
            RequeueReason::Straggler { node } => write!(f, "it left {node}, where a rank was slow"),
            RequeueReason::NodeLeft { node } => write!(f, "it left {node}, which was about to go"),
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Every rank of an attempt exited 0.
    Succeeded,
    /// A user cancelled it.
    Cancelled,
    /// An attempt reached the time limit.
    TimedOut,
    /// A rank exited 93.
    DoNotRestart,
    /// It failed more often than its budget allows.
    FaultsExhausted {
        /// The last root cause.
        cause: FaultCause,
        /// Faults in all.
        faults: u32,
    },
    /// It failed this many times in a row without a newer checkpoint.
    NoProgress {
        /// The last root cause.
        cause: FaultCause,
        /// Faults in a row.
        faults: u32,
    },
    /// It failed without having got further, in a way in which it would fail again.
    NotRetried {
        /// The root cause.
        cause: FaultCause,
        /// Of what kind that is.
        category: FaultCategory,
    },
    /// It asked to be queued again more often than the engine's limit.
    RequeuesExhausted {
        /// How often.
        requeues: u32,
    },
    /// Its budget doesn't pay for more.
    BudgetSpent {
        /// What it has spent (estimated, by list prices).
        spent: Money,
        /// What it was allowed.
        budget: Money,
    },
    /// Other jobs of its sweep did better.
    EarlyStop(MissedRung),
}

impl Fate {
    /// Whether the job did what it was to do.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Fate::Succeeded)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Succeeded => f.write_str("succeeded"),
            Fate::Cancelled => f.write_str("cancelled by a user"),
            Fate::TimedOut => f.write_str("reached its time limit"),
            Fate::DoNotRestart => f.write_str("a rank exited with code 93: do not restart"),
            Fate::FaultsExhausted { cause, faults } => write!(f, "{cause}; fault {faults} is beyond its budget"),
            Fate::NoProgress { cause, faults } => {
                write!(f, "{cause}; {faults} fault(s) in a row without a newer checkpoint")
            }
            Fate::NotRetried { cause, category } => {
                let told = told(*cause, *category);
                write!(f, "{told}; it had got no further, so that trying again would end in the same way")
            }
            Fate::RequeuesExhausted { requeues } => write!(f, "asked to be queued again {requeues} times"),
            Fate::BudgetSpent { spent, budget } => write!(f, "spent {spent} (estimated) of its budget of {budget}"),
            Fate::EarlyStop(missed) => write!(f, "stopped early: {missed}"),
        }
    }
}

/// A fault and its kind, if that is known.
fn told(cause: FaultCause, category: FaultCategory) -> String {
    match category {
        FaultCategory::Unknown => cause.to_string(),
        known => format!("{cause} ({known})"),
    }
}
