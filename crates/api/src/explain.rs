//! Explanations why a job is pending, or why it runs where it does.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{JobState, Time};

/// Why a job is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Its state; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// In one sentence.
    pub summary: String,
    /// The first thing in the way of a waiting job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocker: Option<Blocker>,
    /// Waiting jobs that are considered before it.
    pub ahead: usize,
    /// Waiting jobs in all, itself included if it waits.
    pub waiting: usize,
    /// When it starts at the latest, by the time limits of what runs and if nothing with a better place comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_by: Option<Time>,
    /// When it is first in line at the latest, whatever else arrives; absent if it doesn't wait in line, or if waiting
    /// wins no place (`scheduling.ageing`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_by: Option<FirstBy>,
    /// What to know about it besides: what it asks for that is counted only, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was decided about it so far, oldest first.
    pub history: Vec<HistoryLine>,
}

/// When a waiting job goes before all others that want the same kind of accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FirstBy {
    /// From then on it has waited long enough.
    pub at: Time,
    /// How many jobs that wait now have waited longer: they go first, one after the other.
    pub behind: usize,
}

/// One decision about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryLine {
    /// When.
    pub at: Time,
    /// What and why.
    pub text: String,
}

/// What keeps a waiting job from starting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Blocker {
    /// A user holds it.
    Held,
    /// A budget that counts it is spent (`when_spent = "hold"`), and it hasn't begun.
    OverBudget {
        /// The budget.
        budget: String,
        /// Its money for a period, in nano-dollars.
        limit_nano_dollars: i64,
        /// When the period ends.
        until: Time,
    },
    /// It comes after jobs that haven't ended.
    After {
        /// These jobs, at most 16.
        jobs: Vec<Dependency>,
        /// How many more there are.
        more: usize,
    },
    /// It failed without progress and pauses.
    BackingOff {
        /// Until then.
        until: Time,
    },
    /// Its queue, or one above, may have no more accelerators of the kind.
    Quota {
        /// That queue.
        queue: String,
        /// The kind of accelerator.
        accelerator: String,
        /// How many the job wants.
        accelerators_wanted: u32,
        /// How many the queue's jobs hold.
        accelerators_held: u32,
        /// How many they may: quota and borrowing together.
        limit: u32,
    },
    /// Its queue, or one above, has used its GPU-hours of a period; nothing of it starts before the next.
    GpuHours {
        /// That queue.
        queue: String,
        /// What its jobs have used in the period, in GPU-seconds.
        gpu_seconds_used: u64,
        /// What they may use, in GPU-seconds.
        gpu_seconds_limit: u64,
        /// `day`, `week` or `month`, in UTC.
        per: String,
        /// When the next period begins.
        until: Time,
    },
    /// As many jobs of its sweep hold devices as may at once.
    Parallel {
        /// The sweep.
        sweep: String,
        /// How many of its jobs hold devices.
        holding: u32,
        /// How many may.
        max_parallel: u32,
    },
    /// There is room, but it is held for a job with a better place in line, which this one would delay.
    Behind {
        /// That job.
        job: String,
        /// When that one starts at the latest, by time limits; absent if what is in its way has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        starts_by: Option<Time>,
        /// What keeps that one.
        #[schema(no_recursion)]
        because: Box<Blocker>,
    },
    /// There is room, but on nodes that an administrator has reserved for others, now or before this job would be over.
    Reserved {
        /// The reservation.
        reservation: String,
        /// When it begins.
        from: Time,
        /// When it ends.
        until: Time,
    },
    /// There is room, but on nodes that are kept for jobs that lose one; only work of low priority may start there.
    Spares {
        /// The kind of accelerator.
        accelerator: String,
        /// How many nodes are kept from this job.
        nodes_kept: u32,
        /// Nodes to keep by the configuration.
        nodes_by_rules: u32,
        /// Nodes to keep for running jobs that ask for standby nodes.
        nodes_by_jobs: u32,
        /// Why so many.
        because: String,
    },
    /// Other jobs are saving to make room for it.
    Claimed {
        /// Those.
        victims: Vec<String>,
        /// When they are gone at the latest.
        until: Time,
    },
    /// Other jobs hold the devices.
    NotEnoughFree {
        /// Nodes it wants.
        nodes_wanted: u32,
        /// The kind of accelerator.
        accelerator: String,
        /// How many on each node.
        accelerators_per_node: u32,
        /// Nodes that could take a share now.
        nodes_with_room: usize,
        /// Free accelerators of that kind on ready nodes.
        free_accelerators: u32,
        /// Jobs that hold accelerators of that kind.
        holders: Vec<String>,
    },
    /// Enough nodes have room, but not close enough to each other.
    Topology {
        /// Nodes it wants.
        nodes_wanted: u32,
        /// The level at which they have to be close.
        level: String,
        /// The domain that has room for most of it; none if no node names one, or if segments may be anywhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        best_domain: Option<String>,
        /// Nodes there that could take a share now.
        nodes_close: u32,
        /// Nodes anywhere that could take a share now.
        nodes_with_room: usize,
    },
    /// Too few nodes that could hold it are ready.
    NodesUnavailable {
        /// Nodes it wants.
        nodes_wanted: u32,
        /// Ready nodes that could take a share if empty.
        nodes_ready: u32,
        /// Nodes that could but are draining.
        draining: Vec<String>,
        /// Nodes that could but are lost.
        lost: Vec<String>,
        /// Nodes that could but have had too many faults of their own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        suspect: Vec<String>,
    },
    /// Nothing: it starts with the next decision.
    Nothing,
}

/// A job that has to end before another one may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dependency {
    /// The job.
    pub job: String,
    /// How it has to end: `success`, `failure` or `any`.
    pub condition: String,
}

/// Devices on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Placement {
    /// The node.
    pub node: String,
    /// The accelerators.
    pub devices: Vec<u32>,
}
