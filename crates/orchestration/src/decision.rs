//! What the engine decides, and why. The shell carries out decisions but never makes them (style 16).

use std::fmt;
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, Dependency, EndCondition, FaultCategory, JobId, Money, NodeId, Timestamp};

use crate::claim::{Claim, ClaimReason};
use crate::{Closeness, FaultCause, MissedRung, Remedy, Share};

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allocates all of a gang's devices at once and starts the gang.
    Place {
        /// The job.
        job: JobId,
        /// Its new attempt.
        attempt: AttemptNumber,
        /// The nodes and devices, in rank order.
        shares: Vec<Share>,
        /// Why it starts now and on these nodes.
        reason: PlaceReason,
    },
    /// Holds nodes for a waiting job until its victims have left them.
    Claim {
        /// The waiting job.
        job: JobId,
        /// The claimed nodes and the victims; the victims' stops follow.
        claim: Claim,
        /// Why these nodes and victims.
        reason: ClaimReason,
    },
    /// Stops the part of an attempt that still runs.
    Stop {
        /// The job.
        job: JobId,
        /// Its attempt.
        attempt: AttemptNumber,
        /// Why it is stopped.
        reason: StopReason,
    },
    /// Requeues a job whose attempt has ended and whose devices are free.
    Requeue {
        /// The job.
        job: JobId,
        /// The attempt that ended.
        attempt: AttemptNumber,
        /// The earliest time at which the job may be placed again.
        not_before: Timestamp,
        /// Why it is requeued.
        reason: RequeueReason,
    },
    /// Ends a job whose devices are free.
    End {
        /// The job.
        job: JobId,
        /// How it ended.
        fate: Fate,
    },
}

impl Decision {
    /// Returns the job that the decision concerns.
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

/// Why a gang was placed at this time and on these nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceReason {
    /// The time since the job was last queued.
    pub waited: Duration,
    /// The job that is served earlier and waits for the same kind of accelerator, if any. The placed job
    /// starts first because it uses other devices or ends before that job could start.
    pub backfills: Option<JobId>,
    /// Nodes that could have taken a share; the fullest were chosen, which keeps large free areas whole.
    pub candidates: u32,
    /// How close its nodes are; none for one node or an unknown network.
    pub closeness: Option<Closeness>,
    /// Set if the job restarts on devices it still holds: when it got them. Its time limit counts from then.
    pub kept_since: Option<Timestamp>,
    /// Whether it went before all others because it had waited longest, and long enough
    /// ([`Configuration::ageing`](crate::Configuration::ageing)).
    pub is_overdue: bool,
    /// Bytes of its datasets that the caches of its nodes are known to hold.
    pub held_data: Bytes,
}

impl fmt::Display for PlaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kept_since.is_some() {
            return write!(f, "restarts in place, on the {} node(s) it has", self.candidates);
        }
        let waited = self.waited.as_secs_f64();
        match self.backfills {
            None if self.is_overdue => write!(f, "overdue: waited longest of all, {waited:.1} s")?,
            None => write!(f, "first in line after {waited:.1} s")?,
            Some(first) => write!(f, "backfilled after {waited:.1} s without delaying {first}")?,
        }
        write!(f, "; fullest of {} node(s) with room", self.candidates)?;
        self.closeness.as_ref().map_or(Ok(()), |closeness| write!(f, "; {closeness}"))?;
        if self.held_data == Bytes(0) { Ok(()) } else { write!(f, "; {} of its datasets are there", self.held_data) }
    }
}

/// Why an attempt is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A user cancelled the job.
    Cancelled,
    /// It reached its time limit.
    TimeLimit(Duration),
    /// The gang's share on another node ended without success.
    PeerEnded,
    /// The rest of its budget only covers its grace period.
    BudgetSpent,
    /// A budget of several jobs, for which it counts, is spent, and stops what runs.
    SharedBudgetSpent,
    /// Other jobs of its sweep do better.
    EarlyStop(MissedRung),
    /// Another job has a better right to its devices.
    Preempted {
        /// The other job.
        by: JobId,
    },
    /// It continues on more or fewer nodes.
    Resized {
        /// The new number of nodes.
        to: u32,
    },
    /// A rank is slow on one of its nodes, and the job moves to another node.
    Straggler {
        /// The node.
        node: NodeId,
    },
    /// One of its nodes is about to go away.
    NodeLeaves {
        /// The node.
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
            StopReason::SharedBudgetSpent => f.write_str("a budget for which it counts is spent; save first"),
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

/// Why a job is requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueReason {
    /// It failed, within its fault budget.
    Fault {
        /// The root cause.
        cause: FaultCause,
        /// The category of the cause.
        category: FaultCategory,
        /// Faults so far, including this one.
        faults: u32,
        /// The most faults the job may have.
        max_faults: u32,
        /// How the job continues.
        remedy: Remedy,
    },
    /// It saved and asked to be requeued (exit code 94).
    Asked,
    /// Its supervisors stopped it because they lost the control plane.
    Orphaned,
    /// Something outside Gangline told its supervisors to end.
    Terminated,
    /// It could not be started. This is the platform's fault and is not counted against the job.
    Unable,
    /// The launcher's own system did not start it, and it was taken back. Not counted against the job.
    Withdrawn,
    /// It was preempted for another job. Preemptions are counted apart from faults and have no limit, since
    /// the job did nothing wrong.
    Preempted {
        /// The other job.
        by: JobId,
    },
    /// It continues on more or fewer nodes. Counted apart from faults and preemptions.
    Resized {
        /// The new number of nodes.
        to: u32,
    },
    /// It left a node on which a rank was slow. Counted as a preemption.
    Straggler {
        /// The node.
        node: NodeId,
    },
    /// It left a node that was about to go away. Counted as a preemption.
    NodeLeft {
        /// The node.
        node: NodeId,
    },
    /// A budget of several jobs, for which it counts, is spent. Not counted against the job.
    SharedBudgetSpent,
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
            RequeueReason::Withdrawn => f.write_str("it waited for nodes that were not allocated, and was taken back"),
            RequeueReason::Preempted { by } => write!(f, "it made room for {by}"),
            RequeueReason::Resized { to } => write!(f, "it goes on with {to} node(s)"),
            RequeueReason::Straggler { node } => write!(f, "it left {node}, where a rank was slow"),
            RequeueReason::NodeLeft { node } => write!(f, "it left {node}, which was about to go"),
            RequeueReason::SharedBudgetSpent => f.write_str("a budget for which it counts is spent"),
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
    /// It failed more often than its fault budget allows.
    FaultsExhausted {
        /// The last root cause.
        cause: FaultCause,
        /// The total number of faults.
        faults: u32,
    },
    /// It failed this many times in a row without a newer checkpoint.
    NoProgress {
        /// The last root cause.
        cause: FaultCause,
        /// Faults in a row.
        faults: u32,
    },
    /// It failed without progress, and would fail again in the same way.
    NotRetried {
        /// The root cause.
        cause: FaultCause,
        /// The category of the cause.
        category: FaultCategory,
    },
    /// It asked to be queued again more often than the engine's limit.
    RequeuesExhausted {
        /// The number of requeues.
        requeues: u32,
    },
    /// The rest of its budget doesn't pay for more.
    BudgetSpent {
        /// What it has spent (estimated, by list prices).
        spent: Money,
        /// Its budget.
        budget: Money,
    },
    /// Other jobs of its sweep did better.
    EarlyStop(MissedRung),
    /// A job after which it was to run ended otherwise than it needs.
    DependencyFailed(Dependency),
}

impl Fate {
    /// Reports whether the job succeeded.
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
            Fate::DependencyFailed(Dependency { job, condition: EndCondition::Failure }) => {
                write!(f, "{job} succeeded, and it was to run only if {job} failed")
            }
            Fate::DependencyFailed(Dependency { job, .. }) => {
                write!(f, "{job} did not succeed, and it was to run only if {job} succeeded")
            }
        }
    }
}

/// Formats a fault with its category, if known.
fn told(cause: FaultCause, category: FaultCategory) -> String {
    match category {
        FaultCategory::Unknown => cause.to_string(),
        known => format!("{cause} ({known})"),
    }
}
