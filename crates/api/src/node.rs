//! Nodes, queues and the control plane's own state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Metric, Time};

/// All nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// By order of joining.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `ready`, `spare` (kept for jobs that lose a node), `reserved` (for some queues, or nobody), `suspect`, `draining`, `lost`, or `unwell`: jobs
    /// can't be started there now, and wait.
    pub status: String,
    /// Why, unless it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_reason: Option<String>,
    /// The pool of the jobs that it is for.
    pub pool: String,
    /// Faults of its own, the older the less: those with fewer are taken first, and one with too many is suspect.
    pub faults: f64,
    /// When it goes, if it is drained by a deadline: what runs there is asked to save and stop just before.
    pub leaves_at: Option<Time>,
    /// The kind of its accelerators; `cpu` for CPU slots.
    pub accelerator: String,
    /// CPU cores for jobs; 0 if they aren't declared, and then jobs may ask for any number.
    pub cpus: u32,
    /// Memory for jobs, in bytes; 0 if it isn't declared, and then jobs may ask for any amount.
    pub memory_bytes: u64,
    /// For each accelerator-hour, in nano-dollars; absent if no price is configured.
    pub price_nano_dollars_per_hour: Option<i64>,
    /// What an accelerator-hour costs beside its price while a job holds it, in nano-dollars: network, support and energy (estimated);
    /// absent if nothing is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_nano_dollars_per_hour: Option<i64>,
    /// What its caches of remote datasets hold, most bytes first, as its jobs' supervisors reported it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cached_datasets: Vec<CachedDataset>,
    /// Its accelerators and who holds each.
    pub slots: Vec<Slot>,
}

/// What a node's cache holds of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CachedDataset {
    /// The dataset's address.
    pub dataset: String,
    /// Bytes that are in the cache.
    pub here_bytes: u64,
    /// Bytes of the dataset.
    pub bytes: u64,
}

/// A node, its agent's readings of the last hour, what went wrong on it, and who ran there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// The node.
    pub node: Node,
    /// Its agent; absent if none has reported since the control plane started.
    pub agent: Option<NodeAgent>,
    /// What its checks find now.
    pub problems: Vec<NodeProblem>,
    /// What happened on it, newest first.
    pub history: Vec<NodeEvent>,
    /// Readings of the last hour, each with its last, smallest, largest and mean value (measured).
    pub readings: Vec<Metric>,
    /// Attempts that ran there, newest first, of the newest jobs.
    pub attempts: Vec<NodeAttempt>,
}

/// A node's agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeAgent {
    /// When it started.
    pub started_at: Time,
    /// When it reported last.
    pub heard_at: Time,
    /// Seconds between two readings.
    pub every_seconds: f64,
    /// Whether it has reported in the last minute.
    pub is_current: bool,
    /// Sources that don't answer it: a driver or a file server that hangs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<String>,
}

/// Something that a node's checks find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeProblem {
    /// The check and its subject.
    pub place: String,
    /// What was measured.
    pub measured: String,
    /// Whether nothing new should start there until it is fixed; otherwise a run is only slowed down.
    pub is_fault: bool,
    /// Since when.
    pub since: Time,
}

/// Something that happened on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// When.
    pub at: Time,
    /// `fault` and `warning`: a check found something; `over`: it finds it no more; `drained`, `undrained`: an
    /// administrator did so; `agent`: its agent started.
    pub kind: String,
    /// The check and its subject, if it is of a check.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// What was measured or done.
    pub text: String,
}

/// An attempt that ran on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeAttempt {
    /// The job.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// The attempt.
    pub attempt: u32,
    /// The accelerators that it had there.
    pub devices: Vec<u32>,
    /// When it got them.
    pub placed_at: Time,
    /// When they were free again.
    pub ended_at: Option<Time>,
    /// How it ended.
    pub ended_because: Option<String>,
}

/// How a node is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// The node goes after so many seconds: what still runs there is asked to save and stop just before. Absent: it goes on
    /// until it is over.
    pub within_seconds: Option<u32>,
}

/// One accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Slot {
    /// Its number on the node.
    pub device: u32,
    /// The job that holds it.
    pub job: Option<String>,
}

/// All queues that are configured or have jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueList {
    /// By name.
    pub queues: Vec<Queue>,
    /// The queue of jobs that name none; absent if the configuration names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// The options of batch scripts that lead to it, as `partition=gpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The queue it belongs to; absent at the top, and if it isn't configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its part beside its siblings' of what no quota covers; absent if it isn't configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Accelerators it may always have, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quota: BTreeMap<String, u32>,
    /// The most accelerators it may have, by kind: quota and borrowing together. A kind that isn't here has no limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limit: BTreeMap<String, u32>,
    /// The GPU-hours that it may use in each period, and has used in this one; absent if it has no such quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<GpuHours>,
    /// What decides which queue is served next: its largest part of any resource, held now plus held on average over the
    /// recent past, over its weight. The lower is served first. Absent if it isn't configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Accelerators it is entitled to, by kind: its quota, and its part by weight of what no quota of a queue in demand
    /// covers. What it holds beyond that others may take back. Empty if it isn't configured.
    pub entitled: BTreeMap<String, u32>,
    /// Accelerators that jobs in it and in queues below it hold, by kind. Empty if it isn't configured.
    pub held: BTreeMap<String, u32>,
    /// Jobs waiting in it, in the order they are considered.
    pub waiting: Vec<String>,
    /// Its jobs that hold accelerators.
    pub running: Vec<String>,
    /// Accelerators held by them.
    pub accelerators_held: u32,
    /// Accelerators its waiting jobs want.
    pub accelerators_wanted: u32,
}

/// A quota of GPU-hours. Once they are used, nothing in or below the queue starts before the next period; what runs goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuHours {
    /// What jobs in it and in queues below it have held in the period, in GPU-seconds.
    pub gpu_seconds_used: u64,
    /// What they may hold, in GPU-seconds.
    pub gpu_seconds_limit: u64,
    /// `day`, `week` or `month`, in UTC.
    pub per: String,
    /// When the next period begins.
    pub until: Time,
}

/// How the control plane is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`; `degraded`: some of what is stored is damaged, and told where it is met; `unwell`: something that jobs need to start is lacking (processes, memory, disk space), so they wait, which costs them
    /// nothing; or `poisoned`: the journal can't be written; running jobs go on, changes are refused. The API answers 503
    /// then.
    pub status: String,
    /// Why, if not ok.
    pub reason: Option<String>,
    /// The version of the binary.
    pub version: String,
    /// Entries in the journal.
    pub journal_entries: u64,
    /// Bytes that the journal's database has in use.
    #[serde(default)]
    pub journal_bytes: u64,
    /// The most that it may have; from 95 % of that on, new jobs are refused.
    #[serde(default)]
    pub journal_bytes_max: u64,
    /// The last job id that was given out, as a number.
    #[serde(default)]
    pub last_job: u64,
    /// When all that is stored was last checked; none before the first time since the start.
    #[serde(default)]
    pub checked_at: Option<Time>,
    /// Its process id.
    pub pid: u32,
}

impl Health {
    /// The status of a control plane whose journal can't be written.
    pub const POISONED: &str = "poisoned";
    /// The status where some of what is stored is damaged.
    pub const DEGRADED: &str = "degraded";
}
