//! What a claim is: nodes held for a waiting job until its victims have left them, and by what right.
//!
//! `preemption/claims.rs` says how long a claim lives and what it keeps from others.

use std::fmt;
use std::time::Duration;

use gangline_base::{GpuSeconds, JobId, NodeId, QueueName, Timestamp};

/// The nodes that a waiting job is about to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// The jobs that are stopped for it.
    pub victims: Vec<JobId>,
    /// When the last victim is gone at the latest, by the grace periods.
    pub until: Timestamp,
}

/// Why these victims were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReason {
    /// The right that the claim is based on.
    pub right: ClaimRight,
    /// The total cost: devices times the work since each victim's last durable checkpoint and its restart.
    /// Estimated.
    pub cost: GpuSeconds,
    /// Whether the search proved that no cheaper set exists.
    pub is_cheapest: bool,
    /// The next best sets.
    pub alternatives: Vec<VictimAlternative>,
}

/// The right by which a job takes devices from running ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRight {
    /// All victims are of lower priority in its own queue.
    Priority,
    /// All victims are of the same priority in its own queue and have held their devices for at least twice
    /// its expected remaining run time.
    TimeShare {
        /// Its expected remaining run time.
        expected: Duration,
    },
    /// All victims have nodes elsewhere to continue on.
    Consolidation,
    /// The job moves to another node to make room for another job.
    Move {
        /// The other job.
        by: JobId,
    },
    /// The job has lost a node: all victims are low-priority jobs on spares.
    Recovery,
    /// The job continues on more nodes, for which no job waits.
    Growth {
        /// The number of nodes before.
        from: u32,
        /// The number of nodes after.
        to: u32,
        /// Its speed after, in thousandths of its speed before.
        speed_milli: u32,
    },
    /// The job continues on fewer nodes, to make room for another job.
    Shrink {
        /// The number of nodes before.
        from: u32,
        /// The number of nodes after.
        to: u32,
        /// The other job.
        by: JobId,
    },
    /// Its queue or an ancestor holds less than its entitlement, and the victims' queues hold more than
    /// theirs.
    Entitlement {
        /// The queue that takes back.
        queue: QueueName,
        /// The devices that queue holds.
        held: u32,
        /// The devices that queue is entitled to.
        entitled: u32,
    },
}

/// Another set of victims that would have made room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VictimAlternative {
    /// The jobs.
    pub victims: Vec<JobId>,
    /// The estimated cost of stopping them.
    pub cost: GpuSeconds,
}

impl fmt::Display for ClaimRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimRight::Priority => f.write_str("by its higher priority"),
            ClaimRight::TimeShare { expected } => {
                let minutes = expected.as_secs().div_ceil(60);
                write!(f, "is expected to take {minutes} min, and who makes room has had twice that")
            }
            ClaimRight::Consolidation => f.write_str("by moves to other nodes"),
            ClaimRight::Move { by } => write!(f, "goes on with another node, to make room for {by}"),
            ClaimRight::Recovery => f.write_str("goes on after the loss of a node"),
            ClaimRight::Growth { from, to, speed_milli } => {
                let (whole, part) = (speed_milli / 1_000, speed_milli % 1_000 / 10);
                write!(f, "grows from {from} to {to} node(s), {whole}.{part:02} times as fast (estimated)")
            }
            ClaimRight::Shrink { from, to, by } => write!(f, "shrinks from {from} to {to} node(s) for {by}"),
            ClaimRight::Entitlement { queue, held, entitled } => {
                write!(f, "queue \"{queue}\" holds {held} of the {entitled} it is entitled to")
            }
        }
    }
}

impl fmt::Display for ClaimReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proved = if self.is_cheapest { "the least possible" } else { "the least found" };
        write!(f, "{}; costs {} (estimated), {proved}", self.right, hours(self.cost))?;
        for other in &self.alternatives {
            write!(f, "; {} would cost {}", names(&other.victims), hours(other.cost))?;
        }
        Ok(())
    }
}

/// Formats a list of jobs.
pub(crate) fn names(jobs: &[JobId]) -> String {
    let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
    names.join(", ")
}

/// Formats GPU-seconds as GPU-hours with two decimals, rounded down. Integral, so that every machine prints
/// the same.
fn hours(cost: GpuSeconds) -> String {
    const NANOS_PER_HUNDREDTH: u128 = 36 * 1_000_000_000;
    let hundredths = cost.nanos() / NANOS_PER_HUNDREDTH;
    format!("{}.{:02} GPU-h", hundredths / 100, hundredths % 100)
}
